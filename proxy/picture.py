"""What the live page shows, in plain numbers: connections, the backend, totals. Who keeps them is :mod:`proxy.live`."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from proxy.explain import cut, turn_row
from proxy.observe import ConnectionRecord, TurnRecord, TurnStarted

_WINDOW: Final = 50
"""Answers of the backend by which its health is judged."""


@dataclass(slots=True, eq=False)
class ShownConnection:
    """One connection, open or just ended.

    Attributes:
        record: What is known of it.
        opened_at: When, in Unix seconds.
        running: Its turns that the backend works on, by their numbers.
        finished: What those that have ended are kept under, oldest first.
        lanes: Those that it has used.
        closed_at: When it ended, in Unix seconds.
        is_changed: Watchers have not been told.
    """

    record: ConnectionRecord
    opened_at: float
    running: dict[int, TurnStarted] = field(default_factory=dict)
    finished: deque[int] = field(default_factory=deque)
    lanes: set[str | None] = field(default_factory=set)
    turns: int = 0
    hits: int = 0
    misses: int = 0
    errors: int = 0
    client_bytes: int = 0
    plain_bytes: int = 0
    closed_at: float | None = None
    is_changed: bool = True

    def count(self, record: TurnRecord) -> None:
        """Add a turn that has ended."""
        facts = record.facts
        self.running.pop(facts.turn, None)
        self.turns += 1
        self.hits += facts.lookup == "hit"
        self.misses += facts.lookup == "miss"
        self.errors += facts.error_source is not None
        self.client_bytes += facts.frame_bytes
        self.plain_bytes += facts.plain_bytes
        if record.exchange is not None:
            self.lanes.add(facts.lane)

    def row(self, offset: float) -> dict[str, Any]:
        """What a page shows of it; `offset` turns the monotonic clock into Unix seconds."""
        running = [
            {
                "turn": turn.turn,
                "lane": turn.lane,
                "began": round(turn.received + offset, 3),
                "started": round(turn.started + offset, 3),
            }
            for turn in self.running.values()
        ]
        return {
            "id": self.record.connection_id,
            "client": cut(self.record.client),
            "opened": round(self.opened_at, 3),
            "closed": None if self.closed_at is None else round(self.closed_at, 3),
            "cause": None if self.closed_at is None else self.record.cause,
            "lanes": len(self.lanes),
            "running": running,
            "turns": self.turns,
            "hits": self.hits,
            "misses": self.misses,
            "errors": self.errors,
            "client_bytes": self.client_bytes,
            "plain_bytes": self.plain_bytes,
        }


@dataclass(slots=True, eq=False)
class FinishedTurn:
    """A turn that has ended: it becomes a row when somebody watches, and only once.

    Attributes:
        number: Its own, over all connections; later turns have higher ones.
        connection: Where it ran.
        ended_at: When it ended, in Unix seconds.
        record: What is known of it.
    """

    number: int
    connection: ShownConnection
    ended_at: float
    record: TurnRecord
    _row: bytes | None = None

    def row(self) -> orjson.Fragment:
        """What a page shows of it, as JSON."""
        if self._row is None:
            self._row = orjson.dumps({"number": self.number, **turn_row(self.record, self.ended_at)})
        return orjson.Fragment(self._row)


@dataclass(slots=True)
class Backend:
    """The backend and how it does; its health is that of its last answers."""

    name: str
    statuses: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("2xx", "3xx", "4xx", "5xx", "none"), 0))
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    last_status: int | None = None
    last_at: float | None = None
    connect: float | None = None
    reused: int = 0
    retries: int = 0

    def count(self, record: TurnRecord) -> None:
        """Add a turn that has ended."""
        facts, exchange = record.facts, record.exchange
        if exchange is None or (exchange.status is None and facts.outcome in ("cancelled", "client_gone")):
            return  # it was not asked, or had no time to answer
        status = exchange.status
        code_class = f"{status // 100}xx" if status is not None and 200 <= status <= 599 else "none"
        self.statuses[code_class] += 1
        self.recent.append(status is not None and status < 500 and facts.error_source != "upstream")
        self.last_status, self.last_at = status, round(time.time(), 3)
        self.reused += exchange.reused
        self.retries += exchange.retries
        if exchange.connect is not None:
            self.connect = round(exchange.connect, 5)

    def pass_over(self) -> None:
        """It did not answer, so that another one was asked."""
        self.recent.append(False)
        self.last_at = round(time.time(), 3)

    def row(self) -> dict[str, Any]:
        """What a page shows of it."""
        good = sum(self.recent)
        health = "unknown" if not self.recent else "good" if good == len(self.recent) else "bad"
        if health == "bad" and self.recent[-1]:
            health = "recovering"
        return {
            "name": self.name,
            "health": health,
            "good": good,
            "recent": len(self.recent),
            "statuses": self.statuses,
            "last_status": self.last_status,
            "last_at": self.last_at,
            "connect": self.connect,
            "reused": self.reused,
            "retries": self.retries,
        }


@dataclass(slots=True)
class Totals:
    """Sums since the start."""

    connections: int = 0
    turns: int = 0
    hits: int = 0
    misses: int = 0
    new: int = 0
    errors: int = 0
    asked: int = 0
    client_bytes: int = 0
    upstream_bytes: int = 0
    plain_bytes: int = 0
    replayed_bytes: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    own: float = 0.0
    refused: int = 0
    http_requests: int = 0

    def count(self, record: TurnRecord) -> None:
        """Add a turn that has ended."""
        facts, exchange = record.facts, record.exchange
        self.turns += 1
        self.hits += facts.lookup == "hit"
        self.misses += facts.lookup == "miss"
        self.new += facts.lookup == "new"
        self.errors += facts.error_source is not None
        self.client_bytes += facts.frame_bytes
        if exchange is None:
            return
        self.asked += 1
        self.upstream_bytes += facts.upstream_bytes
        self.plain_bytes += facts.plain_bytes
        self.replayed_bytes += facts.replayed_bytes
        self.input_tokens += facts.usage.input_tokens
        self.cached_tokens += facts.usage.cached_tokens
        self.output_tokens += facts.usage.output_tokens
        self.own += exchange.own
