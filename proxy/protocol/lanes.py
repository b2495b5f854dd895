"""Lanes, and the order of turns in them.

In a lane turns run one after the other, first come, first served; lanes run side by side. A connection has the default
lane and any number of named ones up to a limit, and a limit for the turns that run at once (WebSocket guide,
"Multiplexing"). What must wait, waits here, bounded in number and bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import msgspec

from proxy.protocol.chain import Entry
from proxy.protocol.controls import Steer
from proxy.protocol.errors import ProxyError, QueueFull, TooManyLanes
from proxy.protocol.messages import Create
from proxy.protocol.rawjson import Head, Pairs
from proxy.protocol.records import TurnEnded
from proxy.protocol.reply import Reply, Unheard
from proxy.protocol.routes import Placement, Route
from proxy.protocol.transcript import Transcript


class LaneState(Enum):
    """What a lane waits for."""

    IDLE = auto()  #: a create, or a place among those in flight
    RECALLING = auto()  #: what the store knows
    COMPACTING = auto()  #: the backend's summary of what came before
    REQUESTED = auto()  #: the backend's answer
    STREAMING = auto()  #: the rest of the stream


class Turn(msgspec.Struct):
    """A create, or the refusal of one, in its lane's order.

    Attributes:
        asked: What the client asked for, or why it cannot be done.
        record: What will be said about it.
        created_at: Unix seconds at which it was asked for.
        parent: The response that it continues.
        base: What goes before its own items.
        fields: Body fields that it runs with.
        brought: Those of them that a warm-up brought and that no create has named since.
        items: New input items in the form in which the backend gets them.
        heads: The head of each.
        may_be_stored: Whether what comes of it may outlive the connection.
        continues: The backend's own id of the parent, if that is all that it is sent of what came before.
        stream: Its answer, once the backend was asked.
        is_cancelled: The client wants it no more, although it has not started.
        steers: Input for the response after this one.
        succeeds: Nobody asked for it: it follows from a response that was steered.
        committing: Input that steered the parent, and that this turn begins with.
        injected: Outputs of tools that came while it ran, raw.
        injected_heads: The head of each.
        said: How many items of its output went before what it goes on from now.
        absorbed: How many of its items go into a summary first, with all before them; None for no summary.
        only_compacts: It wants the summary and nothing else.
        summary: The backend's answer to that, once it was asked for it.
        placement: Where it goes, once that is known.
    """

    asked: Create | ProxyError
    record: TurnEnded
    created_at: int
    parent: Entry | None = None
    base: Transcript = None
    fields: Pairs = []
    brought: frozenset[str] = frozenset()
    items: list[bytes] = []
    heads: list[Head] = []
    may_be_stored: bool = False
    continues: str | None = None
    stream: Reply | None = None
    is_cancelled: bool = False
    steers: list[Steer] = []
    succeeds: bool = False
    committing: list[Steer] = []
    injected: list[bytes] = []
    injected_heads: list[Head] = []
    said: int = 0
    absorbed: int | None = None
    only_compacts: bool = False
    summary: Unheard | None = None
    placement: Placement | None = None

    @property
    def reply(self) -> Reply:
        """Its answer, of a turn for which the backend was asked."""
        assert self.stream is not None
        return self.stream

    @property
    def route(self) -> Route:
        """The way to its backend, of a turn that was prepared."""
        assert self.placement is not None
        return self.placement.route

    @property
    def needs_backend(self) -> bool:
        """Whether it takes a place among those in flight."""
        return isinstance(self.asked, Create) and not self.asked.is_warmup and not self.is_cancelled


@dataclass(slots=True, eq=False)
class Lane:
    """One sequence of turns.

    Attributes:
        name: Its `stream_id`; None for the default lane.
        state: What it waits for.
        turn: The one that runs.
        queue: Those that wait, in order; a list, since they are few and a deque takes 700 bytes to begin with.
        tip: Id of its newest response.
        holds_place: Its turn is one of those in flight.
    """

    name: str | None
    state: LaneState = LaneState.IDLE
    turn: Turn | None = None
    queue: list[Turn] = field(default_factory=list)
    tip: str | None = None
    holds_place: bool = False


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """Bounds of one connection.

    Attributes:
        named: Distinct named lanes.
        in_flight: Turns that the backend works on at once, over all lanes.
        queued: Creates that wait, over all lanes.
        queued_bytes: Bytes of their frames.
        side_by_side: Whether lanes run side by side; else all turns make one sequence (Open Responses: a connection
            must not multiplex).
    """

    named: int = 32
    in_flight: int = 16
    queued: int = 64
    queued_bytes: int = 64 * 2**20
    side_by_side: bool = True


DEFAULT_LANE: Final = None


class Lanes:
    """All lanes of a connection.

    Args:
        limits: Their bounds.

    Attributes:
        in_flight: Turns that the backend works on now.
    """

    def __init__(self, limits: LaneLimits) -> None:
        self.in_flight = 0
        self._limits = limits
        self._lanes: dict[str | None, Lane] = {DEFAULT_LANE: Lane(DEFAULT_LANE)}
        self._ready: list[Lane] = []
        self._queued = 0
        self._queued_bytes = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not any(lane.turn or lane.queue for lane in self._lanes.values())

    def open(self, name: str | None) -> Lane:
        """The lane of this name, a new one if need be.

        Raises:
            TooManyLanes: it would be one named lane too many.
        """
        if not self._limits.side_by_side:
            name = DEFAULT_LANE
        lane = self._lanes.get(name)
        if lane is None:
            if len(self._lanes) > self._limits.named:  # the default lane does not count
                raise TooManyLanes(self._limits.named)
            lane = self._lanes[name] = Lane(name)
        return lane

    def enqueue(self, lane: Lane, turn: Turn) -> None:
        """Put a turn at the end of its lane's queue.

        Raises:
            QueueFull: it would have to wait, and too many wait already.
        """
        must_wait = lane.turn is not None or bool(lane.queue) or self._is_full(turn)
        if must_wait and self._queued >= self._limits.queued:
            raise QueueFull(f"{self._limits.queued} requests")
        if must_wait and self._queued_bytes + turn.record.frame_bytes > self._limits.queued_bytes:
            raise QueueFull(f"{self._limits.queued_bytes} bytes")
        self._queued += 1
        self._queued_bytes += turn.record.frame_bytes
        lane.queue.append(turn)
        if lane.turn is None and len(lane.queue) == 1:
            self._ready.append(lane)

    def enqueue_first(self, lane: Lane, turn: Turn) -> None:
        """Put a turn that follows from the one that runs in front of its lane's queue, whatever waits already."""
        self._queued += 1
        self._queued_bytes += turn.record.frame_bytes
        lane.queue.insert(0, turn)

    def next(self) -> tuple[Lane, Turn] | None:
        """Take the next turn that can start out of its queue; the lane that waited longest comes first."""
        for _ in range(len(self._ready)):
            lane = self._ready.pop(0)
            turn = lane.queue[0]
            if self._is_full(turn):
                self._ready.append(lane)
                continue
            lane.queue.pop(0)
            self._queued -= 1
            self._queued_bytes -= turn.record.frame_bytes
            lane.turn = turn
            return lane, turn
        return None

    def occupy(self, lane: Lane, state: LaneState) -> None:
        """The lane's turn waits for something: it takes a place among those in flight, if it needs one and has none."""
        if lane.state is LaneState.IDLE and lane.turn is not None and lane.turn.needs_backend:
            lane.holds_place = True
            self.in_flight += 1
        lane.state = state

    def running(self, response_id: str) -> tuple[Lane, Turn] | None:
        """The turn that runs under this response id, and its lane."""
        for lane in self._lanes.values():
            if lane.turn is not None and lane.turn.stream is not None and lane.turn.stream.response_id == response_id:
                return lane, lane.turn
        return None

    def current(self, name: str | None) -> tuple[Lane, Turn] | None:
        """What a client takes for running in a lane: its turn, or the one that waits for a place in flight."""
        lane = self._lanes.get(name if self._limits.side_by_side else DEFAULT_LANE)
        for turn in (lane.turn, *lane.queue) if lane is not None else ():
            if lane is not None and turn is not None and turn.record.lane == name:
                return lane, turn
        return None

    def steers(self) -> Iterator[Steer]:
        """All input for the responses after those that run."""
        return (steer for lane in self._lanes.values() if lane.turn is not None for steer in lane.turn.steers)

    def lane_of(self, number: int) -> Lane | None:
        """The lane in which the turn of this number runs."""
        for lane in self._lanes.values():
            if lane.turn is not None and lane.turn.record.turn == number:
                return lane
        return None

    def release(self, lane: Lane) -> None:
        """The lane's turn is over."""
        self.in_flight -= lane.holds_place
        lane.state, lane.turn, lane.holds_place = LaneState.IDLE, None, False
        if lane.queue:
            self._ready.append(lane)

    def abandon(self) -> list[Turn]:
        """Forget all lanes; the turns that ran or waited."""
        turns = [turn for lane in self._lanes.values() for turn in (lane.turn, *lane.queue) if turn is not None]
        self._lanes.clear()
        self._ready.clear()
        return turns

    def _is_full(self, turn: Turn) -> bool:
        return turn.needs_backend and self.in_flight >= self._limits.in_flight
