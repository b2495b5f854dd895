"""The live pictures of all workers as one.

Workers send theirs only while somebody watches (:mod:`proxy.live` says how: a snapshot, then what has changed); what they
have counted altogether comes with their reports, so that the sums keep what a worker that died had counted.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from proxy.live import MAX_TURNS, MAX_TURNS_OF_CONNECTION
from proxy.watchers import INTERVAL, Watcher, Watchers

_HEALTH: Final = ("unknown", "good", "recovering", "bad")
"""The health of a backend, from what says least to what is worst: the worst that any worker sees counts."""

Inspect = Callable[[str, int, bool], Awaitable[bytes | None]]


@dataclass(slots=True, eq=False)
class _Part:
    """What one worker shows.

    Attributes:
        general: Totals and backends.
        connections: Rows by id.
        is_known: Its snapshot has come since somebody watches.
    """

    general: dict[str, Any] = field(default_factory=dict)
    connections: dict[str, dict[str, Any]] = field(default_factory=dict)
    is_known: bool = False


class Pictures:
    """What the live page shows, for all workers.

    Args:
        inspects: Whether what turns said may be looked at.
        watch: Has the workers send their pictures, or stop.
        inspect: Asks the workers what one turn said: connection, number, whether its text is shown.
        interval: Seconds between two updates at least.
    """

    def __init__(
        self, *, inspects: bool, watch: Callable[[bool], object], inspect: Inspect, interval: float = INTERVAL
    ) -> None:
        self.inspects = inspects
        self._inspect = inspect
        self._watch = watch
        self._watchers = Watchers(self._snapshot, self._changes, self._set_watched, interval)
        self._parts: dict[int, _Part] = {}
        self._ended: list[dict[str, Any]] = []
        self._turns: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._numbers: dict[str, deque[int]] = {}
        self._number = 0
        self._told = 0
        self._changed_rows: dict[str, dict[str, Any]] = {}
        self._gone: list[str] = []

    @property
    def is_watched(self) -> bool:
        """Whether workers are to send their pictures."""
        return bool(self._watchers)

    # What workers say

    def report(self, worker: int, general: bytes) -> None:
        """Take the totals and backends of a worker, as JSON."""
        if general:
            self._parts.setdefault(worker, _Part()).general = orjson.loads(general)

    def update(self, worker: int, data: bytes) -> None:
        """Take a snapshot of a worker's picture, or what has changed in it, as JSON."""
        if not self._watchers:
            return
        update = orjson.loads(data)
        part = self._parts.setdefault(worker, _Part())
        part.general = {name: update[name] for name in ("open", "totals", "backends")}
        if update["kind"] == "snapshot":
            self._forget(part.connections)
            part.connections = {row["id"]: row for row in update["connections"]}
            part.is_known = True
            self._merge(update["turns"])
            self._watchers.restart()
            return
        if not part.is_known:
            return
        for row in update["connections"]:
            part.connections[row["id"]] = self._changed_rows[row["id"]] = row
        for row in update["turns"]:
            self._add(row)
        gone = [name for name in update["gone"] if part.connections.pop(name, None) is not None]
        self._forget(gone)
        self._gone += gone
        self._watchers.changed()

    def end(self, worker: int) -> None:
        """A worker lives no more: its connections are gone, what it has counted stays."""
        part = self._parts.pop(worker, None)
        if part is None:
            return
        if part.general:
            self._ended = [_combine([*self._ended, {**part.general, "open": 0}])]
        self._forget(part.connections)
        self._gone += part.connections
        self._watchers.changed()

    # What the page asks for

    async def prepare(self) -> None:
        """There is nothing to prepare: rows come from the workers."""

    def watch(self) -> AbstractContextManager[Watcher]:
        """Be told, for as long as the context lasts.

        Raises:
            TooManyWatchers: there are enough already.
        """
        return self._watchers.watch()

    async def inspection(self, connection_id: str, turn: int, *, shows_text: bool) -> bytes | None:
        """What one of the last turns said, as JSON; None if no worker keeps it."""
        return await self._inspect(connection_id, turn, shows_text)

    def close(self) -> None:
        """Let all watchers go."""
        self._watchers.close()

    # Inside

    def _set_watched(self, is_watched: bool) -> None:  # noqa: FBT001 - it is a fact, not a switch
        if not is_watched:
            for part in self._parts.values():
                part.connections, part.is_known = {}, False
            self._turns.clear()
            self._numbers.clear()
        self._changed_rows, self._gone = {}, []
        self._told = self._number
        self._watch(is_watched)

    def _merge(self, rows: list[dict[str, Any]]) -> None:
        """A worker's snapshot: all turns are put in order again, under new numbers, since numbers have to go up."""
        merged = sorted([*self._turns.values(), *rows], key=lambda row: float(row["began"] + row["total"]))
        self._turns.clear()
        self._numbers.clear()
        for row in merged:
            self._add(row)

    def _add(self, row: dict[str, Any]) -> None:
        self._number += 1
        numbers = self._numbers.setdefault(row["connection"], deque())
        numbers.append(self._number)
        self._turns[self._number] = {**row, "number": self._number}
        if len(numbers) > MAX_TURNS_OF_CONNECTION:
            del self._turns[numbers.popleft()]
        elif len(self._turns) > MAX_TURNS:
            _, oldest = self._turns.popitem(last=False)
            self._numbers[oldest["connection"]].popleft()  # numbers go up, so it is its first one

    def _forget(self, connection_ids: Iterable[str]) -> None:
        for connection_id in connection_ids:
            self._changed_rows.pop(connection_id, None)
            for number in self._numbers.pop(connection_id, ()):
                del self._turns[number]

    def _general(self) -> dict[str, Any]:
        return {"now": time.time(), **_combine([*self._ended, *(part.general for part in self._parts.values())])}

    def _snapshot(self) -> bytes:
        rows = [row for part in self._parts.values() for row in part.connections.values()]
        return orjson.dumps(
            {
                "kind": "snapshot",
                **self._general(),
                "inspects": self.inspects,
                "connections": sorted(rows, key=lambda row: float(row["opened"])),
                "turns": list(self._turns.values()),
            }
        )

    def _changes(self) -> bytes:
        new = [row for number, row in self._turns.items() if number > self._told]
        update = {
            "kind": "delta",
            **self._general(),
            "connections": list(self._changed_rows.values()),
            "turns": new,
            "gone": self._gone,
        }
        self._told = self._number
        self._changed_rows, self._gone = {}, []
        return orjson.dumps(update)


def _combine(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Several `general` parts of updates as one."""
    totals: dict[str, float] = {}
    backends: dict[str, dict[str, Any]] = {}
    for part in parts:
        for name, value in part.get("totals", {}).items():
            totals[name] = totals.get(name, 0) + value
        for row in part.get("backends", ()):
            known = backends.get(row["name"])
            backends[row["name"]] = row if known is None else _combine_backends(known, row)
    return {
        "open": sum(part.get("open", 0) for part in parts),
        "totals": totals,
        "backends": list(backends.values()),
    }


def _combine_backends(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """One backend, as two workers see it: counts are added, of moments the later one counts."""
    earlier, later = sorted((one, other), key=lambda row: float(row["last_at"] or 0))
    return {
        **later,
        "health": max(one["health"], other["health"], key=_HEALTH.index),
        "statuses": {name: count + other["statuses"][name] for name, count in one["statuses"].items()},
        "connect": earlier["connect"] if later["connect"] is None else later["connect"],
        **{name: one[name] + other[name] for name in ("good", "recent", "reused", "retries")},
    }
