"""What goes on now: an observer that keeps a bounded picture, and tells it to whoever watches.

Nothing is done per streamed event, and next to nothing per turn while nobody watches: the records are kept as they come,
and become rows of a page when somebody asks for them.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

import orjson

from proxy.explain import inspection_rows
from proxy.observe import ConnectionRecord, PassThroughRecord, RefusalReason, TurnRecord, TurnStarted
from proxy.picture import Backend, FinishedTurn, ShownConnection, Totals
from proxy.protocol.inspection import Inspection
from proxy.protocol.records import ResponseEvicted
from proxy.watchers import INTERVAL, Watcher, Watchers

MAX_TURNS_OF_CONNECTION: Final = 50
MAX_TURNS: Final = 2000
MAX_CLOSED: Final = 50
"""Connections that are still shown after they have ended."""
MAX_INSPECTED: Final = 50
_AT_ONCE: Final = 50


class Live:
    """The picture, and an :class:`~proxy.observe.Observer`.

    Args:
        replicas: All servers, each as the name of its backend and its URL.
        inspects: Whether what turns said may be looked at.
        interval: Seconds between two updates at least.
    """

    def __init__(
        self, replicas: Sequence[tuple[str, str]], *, inspects: bool = False, interval: float = INTERVAL
    ) -> None:
        self.inspects = inspects
        self._connections: dict[str, ShownConnection] = {}
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._finished: OrderedDict[int, FinishedTurn] = OrderedDict()
        self._inspected: OrderedDict[tuple[str, int], Inspection] = OrderedDict()
        several = len({name for name, _ in replicas}) > 1
        rows = [(name, Backend(f"{name} {url}" if several else url)) for name, url in replicas]
        self._replicas = {name: [row for own, row in rows if own == name] for name, _ in rows}
        self._totals = Totals()
        self._watchers = Watchers(self.snapshot, self._changes, self._begin, interval)
        self._number = 0
        self._told = 0
        self._gone: list[str] = []

    # Observer

    def connection_opened(self, record: ConnectionRecord) -> None:
        self._connections[record.connection_id] = ShownConnection(record, time.time())
        self._totals.connections += 1
        self._changed()

    def connection_refused(self, reason: RefusalReason) -> None:
        self._totals.refused += 1
        self._changed()

    def connection_closed(self, record: ConnectionRecord) -> None:
        connection = self._connections.get(record.connection_id)
        if connection is None:
            return
        connection.closed_at = time.time()
        connection.running.clear()
        self._closed[record.connection_id] = None
        if len(self._closed) > MAX_CLOSED:
            self._forget(self._closed.popitem(last=False)[0])
        self._changed(connection)

    def turn_started(self, record: TurnStarted) -> None:
        connection = self._connections.get(record.connection_id)
        if connection is not None:
            connection.running[record.turn] = record
            connection.lanes.add(record.lane)
            self._changed(connection)

    def turn_ended(self, record: TurnRecord) -> None:
        self._totals.count(record)
        exchange = record.exchange
        if exchange is not None and exchange.backend is not None and exchange.replica is not None:
            rows = self._replicas[exchange.backend]
            for index, _ in exchange.reroutes:
                rows[index].pass_over()
            rows[exchange.replica].count(record)
        connection = self._connections.get(record.connection_id)
        if connection is None:
            return
        connection.count(record)
        facts = record.facts
        if facts.inspection is not None:
            self._inspected[record.connection_id, facts.turn] = facts.inspection
            if len(self._inspected) > MAX_INSPECTED:
                self._inspected.popitem(last=False)
            record = replace(record, facts=replace(facts, inspection=None))  # the turn is kept for longer than that
        self._keep(connection, record)
        self._changed(connection)

    def response_evicted(self, record: ResponseEvicted) -> None:
        pass

    def passed_through(self, record: PassThroughRecord) -> None:
        self._totals.http_requests += 1
        self._changed()

    # Watchers

    def watch(self) -> AbstractContextManager[Watcher]:
        """Be told, for as long as the context lasts.

        Raises:
            TooManyWatchers: there are enough already.
        """
        return self._watchers.watch()

    async def prepare(self) -> None:
        """Make the rows of a snapshot, a few at a time, so that nothing that streams has to wait for all of them."""
        for at, turn in enumerate(list(self._finished.values()), 1):
            turn.row()
            if at % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def close(self) -> None:
        """Let all watchers go."""
        self._watchers.close()

    def snapshot(self) -> bytes:
        """All there is, as JSON."""
        offset = _offset()
        return orjson.dumps(
            {
                "kind": "snapshot",
                **self.general(),
                "inspects": self.inspects,
                "connections": [connection.row(offset) for connection in self._connections.values()],
                "turns": self._rows_after(0),
            }
        )

    async def inspection(self, connection_id: str, turn: int, *, shows_text: bool) -> bytes | None:
        """What one of the last turns said, as JSON; None if that is not kept."""
        found = self._inspected.get((connection_id, turn))
        return None if found is None else orjson.dumps(inspection_rows(found, shows_text=shows_text))

    def general(self) -> dict[str, Any]:
        """What an update holds of all connections together."""
        is_open = len(self._connections) - len(self._closed)
        backends = [row.row() for rows in self._replicas.values() for row in rows]
        return {"now": time.time(), "open": is_open, "totals": self._totals, "backends": backends}

    # Inside

    def _keep(self, connection: ShownConnection, record: TurnRecord) -> None:
        self._number += 1
        connection.finished.append(self._number)
        self._finished[self._number] = FinishedTurn(self._number, connection, time.time(), record)
        if len(connection.finished) > MAX_TURNS_OF_CONNECTION:
            del self._finished[connection.finished.popleft()]
        elif len(self._finished) > MAX_TURNS:
            _, oldest = self._finished.popitem(last=False)
            oldest.connection.finished.popleft()  # numbers go up, so it is its first one

    def _forget(self, connection_id: str) -> None:
        connection = self._connections.pop(connection_id)
        for number in connection.finished:
            del self._finished[number]
        if self._watchers:
            self._gone.append(connection_id)

    def _changed(self, connection: ShownConnection | None = None) -> None:
        if connection is not None:
            connection.is_changed = True
        self._watchers.changed()

    def _begin(self, is_watched: bool) -> None:  # noqa: FBT001 - it is a fact, not a switch
        """Somebody begins to watch: what has changed before is in the snapshot."""
        if is_watched:
            self._told = self._number
            self._gone.clear()
            for connection in self._connections.values():
                connection.is_changed = False

    def _changes(self) -> bytes:
        offset = _offset()
        changed = [connection for connection in self._connections.values() if connection.is_changed]
        update = {
            "kind": "delta",
            **self.general(),
            "connections": [connection.row(offset) for connection in changed],
            "turns": self._rows_after(self._told),
            "gone": self._gone,
        }
        self._told, self._gone = self._number, []
        for connection in changed:
            connection.is_changed = False
        return orjson.dumps(update)

    def _rows_after(self, number: int) -> list[orjson.Fragment]:
        """The turns that ended after one, oldest first."""
        rows = []
        for own in reversed(self._finished):
            if own <= number:
                break
            rows.append(self._finished[own].row())
        rows.reverse()
        return rows


def _offset() -> float:
    """What turns :func:`time.perf_counter` into Unix seconds."""
    return time.time() - time.perf_counter()
