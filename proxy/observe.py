"""Who wants to know: the observer protocol, and the records that the adapters add to the core's own.

The core says each fact once (:mod:`proxy.protocol.records`); the adapters add what only they know, which is time and
transport. Metrics and logs are observers, and so will be whatever comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from proxy.propagation import Trace
from proxy.protocol.records import ResponseEvicted, TurnEnded
from proxy.protocol.upstream_errors import UpstreamError

CloseCause = Literal["client", "lifetime", "drain", "too_big", "protocol_error", "slow_client", "internal_error"]
HttpSource = Literal["upstream", "proxy"]
RerouteReason = Literal["unreachable", "refused", "disconnected"]
"""Why a request was sent to another replica: nobody was there; it was not taken; its connection died without a word."""
Moved = Literal["replica_failed", "replica_full"]
"""Why a chain is not asked for where it was."""
RefusalReason = Literal["disabled", "draining", "not_found", "bad_handshake"]


@dataclass(slots=True)
class Exchange:
    """One turn's way to the backend and back: transport and time.

    Times are seconds of a monotonic clock, None for what never happened.

    Attributes:
        started: The turn left its queue.
        dispatched: The request was written to a connection; None if there was none to write it to.
        first_bytes: The first event of the stream was relayed.
        own_dispatch: Seconds that the proxy itself spent until the request was ready: reading, looking up, splicing.
            Waiting is not in it.
        own_relay: Seconds that it spent on the answer.
        relaying: Since when bytes are being relayed; None while none are, or no time is taken.
        connect: Seconds that opening a connection took; None if one was kept.
        blocked: Seconds for which the backend was not read since the client took no more.
        status: The backend's HTTP status; None if it did not answer.
        reused: The request went over a connection that had served before.
        ahead: It went over one that was opened before it came.
        retries: Times it was sent again because a kept connection was dead.
        trace: What of it is traced; None for nothing.
        backend: The backend that was asked; None as long as none was.
        replica: Which of its replicas, from 0.
        server: Its base URL, where there are several servers.
        reroutes: Which replicas were asked before, and why somebody else was then.
        moved: Why it is not where its chain was; None if it is, or there was none.
    """

    started: float = 0.0
    dispatched: float | None = None
    first_bytes: float | None = None
    own_dispatch: float = 0.0
    own_relay: float = 0.0
    relaying: float | None = None
    connect: float | None = None
    blocked: float = 0.0
    status: int | None = None
    reused: bool = False
    ahead: bool = False
    retries: int = 0
    trace: Trace | None = None
    backend: str | None = None
    replica: int | None = None
    server: str | None = None
    reroutes: list[tuple[int, RerouteReason]] = field(default_factory=list)
    moved: Moved | None = None

    def move_on(self, reason: RerouteReason, error: UpstreamError, *, is_chained: bool) -> None:
        """The request goes to another replica: what was noted of the one that failed is over."""
        if self.trace is not None:
            self.trace.failed(error)
        assert self.replica is not None
        self.reroutes.append((self.replica, reason))
        if is_chained:
            self.moved = "replica_failed"
        self.status = self.dispatched = self.connect = None
        self.reused = self.ahead = False

    @property
    def own(self) -> float:
        """Seconds that the proxy itself spent on the turn."""
        return self.own_dispatch + self.own_relay


class TurnStarted(msgspec.Struct, frozen=True):
    """A turn for which the backend is asked.

    Attributes:
        connection_id: The connection it runs in.
        turn: Its number there, from 1.
        lane: Its `stream_id`; None for the default lane.
        received: When the frame that asked for it came, on the monotonic clock.
        started: When it left its queue.
    """

    connection_id: str
    turn: int
    lane: str | None
    received: float
    started: float


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn, as a whole.

    Attributes:
        connection_id: The connection it ran in.
        facts: What the core knows; its `received` is on the clock of the exchange's times.
        ended: When its last frame was written.
        exchange: How it went upstream; None if it did not.
        arrived: Bytes that came over the client's connection since the turn before ended, frames and all.
    """

    connection_id: str
    facts: TurnEnded
    ended: float
    exchange: Exchange | None
    arrived: int = 0


@dataclass(slots=True)
class ConnectionRecord:
    """One connection, from upgrade to close.

    Attributes:
        connection_id: Our own random name for it.
        client: What the client says it is (`User-Agent`), cut to 200 characters; for logs.
        opened: When, on the monotonic clock.
        seconds: How long it lasted.
        turns: Creates received.
        received_bytes: Bytes of all client messages.
        sent_bytes: Bytes of all frames.
        close_code: The close code, of whichever side said it first; None if there was none.
        cause: Why it ended.
        trace: The headers of its handshake that name a trace.
        arrived: Bytes that came over the network until the last turn ended; fewer than those of the messages where the
            client compresses.
        labels: Headers of its handshake that the operator wants in the records of its turns, by their names.
    """

    connection_id: str
    client: str
    opened: float
    seconds: float = 0.0
    turns: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    close_code: int | None = None
    cause: CloseCause = "client"
    trace: Mapping[str, str] = field(default_factory=dict)
    arrived: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)

    def note_arrived(self, arrived: int) -> int:
        """Set `arrived`, unless the system no longer tells (0).

        Returns:
            By how much it has grown.
        """
        before, self.arrived = self.arrived, max(arrived, self.arrived)
        return self.arrived - before


@dataclass(frozen=True, slots=True)
class PassThroughRecord:
    """One plain HTTP request that went through.

    Attributes:
        method: Its method.
        path: Its path, without the query.
        status: What was answered.
        source: Who chose that status.
        seconds: How long it took.
        trace: What of it is traced; None for nothing.
    """

    method: str
    path: str
    status: int
    source: HttpSource
    seconds: float
    trace: Trace | None = None


class Observer(Protocol):
    """Somebody who counts. Calls come from the event loop and must not block."""

    def connection_opened(self, record: ConnectionRecord) -> None:
        """A WebSocket was accepted."""

    def connection_refused(self, reason: RefusalReason) -> None:
        """An upgrade was not accepted."""

    def connection_closed(self, record: ConnectionRecord) -> None:
        """A WebSocket has ended; the record is complete."""

    def turn_started(self, record: TurnStarted) -> None:
        """A request goes to the backend."""

    def turn_ended(self, record: TurnRecord) -> None:
        """A turn is over, one way or another."""

    def response_evicted(self, record: ResponseEvicted) -> None:
        """A response is no longer remembered."""

    def passed_through(self, record: PassThroughRecord) -> None:
        """A plain HTTP request is over."""


class Observers:
    """Several observers as one.

    Args:
        observers: Whom to tell, in order.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def connection_opened(self, record: ConnectionRecord) -> None:
        for observer in self._observers:
            observer.connection_opened(record)

    def connection_refused(self, reason: RefusalReason) -> None:
        for observer in self._observers:
            observer.connection_refused(reason)

    def connection_closed(self, record: ConnectionRecord) -> None:
        for observer in self._observers:
            observer.connection_closed(record)

    def turn_started(self, record: TurnStarted) -> None:
        for observer in self._observers:
            observer.turn_started(record)

    def turn_ended(self, record: TurnRecord) -> None:
        for observer in self._observers:
            observer.turn_ended(record)

    def response_evicted(self, record: ResponseEvicted) -> None:
        for observer in self._observers:
            observer.response_evicted(record)

    def passed_through(self, record: PassThroughRecord) -> None:
        for observer in self._observers:
            observer.passed_through(record)
