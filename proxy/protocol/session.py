"""One connection's state machine: facts in, orders out.

Whatever a client sends gets its place in its lane's order, a malformed frame too: inside a lane the order of frames is
all that tells a client which answer belongs to which question. :mod:`~proxy.protocol.lanes` keeps that order; here is
decided what becomes of each turn. What may happen in which state of a lane stands in :data:`TRANSITIONS`; anything else
is a bug and raises :class:`UnexpectedEvent`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never

from proxy.protocol import rawjson, relay, rescue, turns
from proxy.protocol.chain import CacheBudget, ChainCache, Eviction
from proxy.protocol.effects import (
    CancelUpstream,
    CloseConnection,
    Effect,
    FinishUpstream,
    Observe,
    OpenUpstream,
    SendFrames,
)
from proxy.protocol.errors import (
    ClientError,
    ConnectionLimitReached,
    InvalidMessage,
    PreviousResponseNotFound,
    ProxyError,
    ServiceRestarting,
    UnknownEventType,
)
from proxy.protocol.events import (
    ClientGone,
    DrainStarted,
    Event,
    FrameReceived,
    LifetimeReached,
    SilenceReached,
    UpstreamBytes,
    UpstreamEnded,
    UpstreamFailed,
    UpstreamOpened,
)
from proxy.protocol.lanes import Lane, Lanes, LaneState, Turn
from proxy.protocol.messages import CREATE, PROCESSED, Create, open_frame, read_create
from proxy.protocol.records import Outcome, ResponseEvicted, TurnEnded
from proxy.protocol.relay import Relay, Terminal
from proxy.protocol.settings import SessionSettings

#: Close codes (RFC 6455 section 7.4 and IANA's registry); SDKs that may reconnect do so on both.
GOING_AWAY: Final = 1001
SERVICE_RESTART: Final = 1012


@dataclass(frozen=True, slots=True)
class Leaving:
    """The connection is to end once nothing runs.

    Attributes:
        close: How.
        error: What creates are answered from now on.
        is_announced: Whether the error is also said right before the close. Nothing else may stand there: a client that
            reads it later would take it for the answer to its next create.
    """

    close: CloseConnection
    error: ProxyError
    is_announced: bool


class UnexpectedEvent(Exception):
    """A fact that the lane's state has no transition for: a bug of ours.

    Args:
        lane: The lane.
        event: The fact.
    """

    def __init__(self, lane: Lane, event: Event) -> None:
        super().__init__(f"lane {lane.name or 'default'} in state {lane.state.name} cannot take {type(event).__name__}")


class Session:
    """The state of one connection.

    Args:
        settings: The operator's choices.
        budget: What all connections may remember together.
        new_id: Makes a fresh response id.
    """

    def __init__(self, settings: SessionSettings, budget: CacheBudget, new_id: Callable[[], str]) -> None:
        self.cache = ChainCache(budget, max_entries=settings.max_entries, max_bytes=settings.max_bytes)
        self.lanes = Lanes(settings.lanes)
        self._settings = settings
        self._new_id = new_id
        self._turns = 0
        # The exchanges that are open, by turn number; None for the tail behind a response that is complete.
        self._exchanges: dict[int, Lane | None] = {}
        # Those of them that have begun to stream and have no outcome yet.
        self._streams: dict[int, Relay] = {}
        self._leaving: Leaving | None = None
        self._is_closed = False
        self._effects: list[Effect] = []

    def receive(self, event: Event) -> list[Effect]:
        """Take a fact.

        Returns:
            Orders, to be carried out at once and in this order; nothing may be received in between.

        Raises:
            UnexpectedEvent: the fact cannot be true now. The session must not be used any more.
        """
        # Nearly every fact is bytes in the middle of a stream, where there is nothing to decide.
        if type(event) is UpstreamBytes and (stream := self._streams.get(event.turn)) is not None:
            frames = stream.feed(event.data)
            if stream.outcome is None:
                return [SendFrames(frames)] if frames else []
            lane = self._exchanges[event.turn]
            assert lane is not None and lane.turn is not None
            self._conclude(lane, lane.turn, frames)
            return self._ordered()
        if self._is_closed:
            return []
        match event:
            case UpstreamBytes() | UpstreamOpened() | UpstreamEnded() | UpstreamFailed() | SilenceReached():
                self._receive_answer(event)
            case FrameReceived():
                self._receive_frame(event)
            case LifetimeReached():
                error = ConnectionLimitReached(self._settings.lifetime_minutes)
                self._leave(Leaving(CloseConnection(GOING_AWAY, "connection limit reached"), error, is_announced=True))
            case DrainStarted():
                close = CloseConnection(SERVICE_RESTART, "the server restarts")
                self._leave(Leaving(close, ServiceRestarting(), is_announced=False))
            case ClientGone():
                self._abandon()
            case _:
                assert_never(event)
        return self._ordered()

    def _ordered(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    # The client asks

    def _receive_frame(self, event: FrameReceived) -> None:
        stream_id: str | None = None
        asked: Create | ProxyError
        try:
            frame = open_frame(event.data)
            stream_id = frame.stream_id
            if frame.type == PROCESSED:
                return
            if frame.type != CREATE:
                raise UnknownEventType(frame.type)
            asked = read_create(frame, max_items=self._settings.max_items)
        except ClientError as error:
            asked = error
        if self._leaving is not None:
            asked = self._leaving.error
        self._turns += 1
        turn = Turn(asked, TurnEnded(self._turns, stream_id, len(event.data), event.clock), int(event.at))
        try:
            self.lanes.enqueue(self.lanes.open(stream_id), turn)
        except ClientError as error:  # out of its lane's order: to keep that would take what is used up
            self._send([rescue.error_frame(error, stream_id=stream_id)])
            self._observe_end(turn.record, "refused", error)
        self._start_turns()

    # Turns start

    def _start_turns(self) -> None:
        while (ready := self.lanes.next()) is not None:
            self._start(*ready)
        self._leave_if_idle()

    def _start(self, lane: Lane, turn: Turn) -> None:
        if not isinstance(turn.asked, Create):
            self._fail(lane, turn, turn.asked)
            return
        try:
            turns.prepare(turn, turn.asked, lane, self.cache, self._settings.rules)
        except ClientError as error:
            self._fail(lane, turn, error)
            return
        if turn.asked.is_warmup:
            self._answer_warmup(lane, turn)
        else:
            self._open_upstream(lane, turn)

    def _answer_warmup(self, lane: Lane, turn: Turn) -> None:
        response_id = self._new_id()
        frames = turns.warmup_frames(turn, response_id, lane.name)
        record = turn.record
        record.response_id, record.events, record.relayed_bytes = response_id, len(frames), sum(map(len, frames))
        response = rawjson.dumps({"id": response_id, "status": "completed"})
        lane.tip = response_id
        self._observe_evictions(self.cache.commit(turns.entry(turn, lane, response_id, [], [], response)))
        self._send(frames)
        self._end(lane, turn, "warmup")

    def _open_upstream(self, lane: Lane, turn: Turn) -> None:
        turn.stream = Relay(
            turns.echo(turn),
            stream_id=lane.name,
            claim_id=self._claim_id,
            max_event_bytes=self._settings.max_event_bytes,
        )
        lane.state = LaneState.REQUESTED
        self.lanes.in_flight += 1
        self._exchanges[turn.record.turn] = lane
        self._effects.append(OpenUpstream(turn.record.turn, turns.build_request(turn), turn.record.received))

    def _claim_id(self, response_id: str | None) -> str:
        """The id a response is known by: the backend's own, unless it has none or gave it to another one too."""
        if response_id is None or response_id in self.cache:
            return self._new_id()
        is_taken = any(stream.response_id == response_id for stream in self._streams.values())
        return self._new_id() if is_taken else response_id

    # The backend answers

    def _receive_answer(self, event: Answer) -> None:
        lane = self._exchanges.get(event.turn)
        if type(event) is UpstreamEnded or type(event) is UpstreamFailed:
            self._exchanges.pop(event.turn, None)
        if lane is None or lane.turn is None:
            return  # cancelled while this was on its way, or the last bytes behind a response that is complete
        handler = TRANSITIONS[lane.state].get(type(event))
        if handler is None:
            raise UnexpectedEvent(lane, event)
        handler(self, lane, lane.turn, event)

    def _on_opened(self, lane: Lane, turn: Turn, event: Answer) -> None:
        lane.state = LaneState.STREAMING
        self._streams[event.turn] = turn.relay

    def _on_ended(self, lane: Lane, turn: Turn, event: Answer) -> None:
        self._conclude(lane, turn, turn.relay.end())

    def _on_failed(self, lane: Lane, turn: Turn, event: Answer) -> None:
        assert isinstance(event, UpstreamFailed)
        self._fail(lane, turn, event.error)
        self._start_turns()

    def _on_silence(self, lane: Lane, turn: Turn, event: Answer) -> None:
        """Codex's idle watchdog counts text frames only; OpenAI's own streams hold events of this type."""
        self._send([b"{" + relay.lane_member(lane.name) + b'"type":"keepalive"}'])

    # Turns end

    def _conclude(self, lane: Lane, turn: Turn, frames: list[bytes]) -> None:
        """A stream has an outcome; `frames` come before what it makes of the turn."""
        match turn.relay.outcome:
            case Terminal() as terminal:
                self._complete(lane, turn, terminal, frames)
            case ProxyError() as error:
                self._send(frames)
                self._fail(lane, turn, error)
            case None:
                raise AssertionError("a stream that goes on cannot be concluded")
        self._start_turns()

    def _complete(self, lane: Lane, turn: Turn, terminal: Terminal, frames: list[bytes]) -> None:
        record = turn.record
        record.usage, record.snapshot_differs = terminal.usage, terminal.snapshot_differs
        if terminal.kind == "failed":
            record.error_code, record.error_source = terminal.error_code, "upstream"
            self._evict_parent(lane, turn)
        else:
            # Before the frame goes out: the client may continue the moment it reads it.
            lane.tip = terminal.response_id
            entry = turns.entry(turn, lane, lane.tip, terminal.items, terminal.heads, terminal.response)
            self._observe_evictions(self.cache.commit(entry))
        self._send(frames)
        if record.turn in self._exchanges:
            self._exchanges[record.turn] = None
            self._effects.append(FinishUpstream(record.turn))
        self._end(lane, turn, terminal.kind)

    def _fail(self, lane: Lane, turn: Turn, error: ProxyError) -> None:
        """End a turn with an `error` frame; the connection and its other lanes go on."""
        number = turn.stream.next_sequence_number if turn.stream else 0
        if self._exchanges.pop(turn.record.turn, None) is not None:
            self._effects.append(CancelUpstream(turn.record.turn))
        if not isinstance(error, (InvalidMessage, PreviousResponseNotFound)):
            self._evict_parent(lane, turn)
        self._send([rescue.error_frame(error, stream_id=lane.name, sequence_number=number)])
        self._end(lane, turn, "error" if turn.stream else "refused", error)

    def _evict_parent(self, lane: Lane, turn: Turn) -> None:
        """A continuation that fails takes its parent with it, unless the parent belongs to another lane.

        (WebSocket guide, "Errors and recovery"; Open Responses: a failed continuation must evict the referenced id.)
        """
        if turn.parent is not None and turn.parent.lane == lane.name:
            eviction = self.cache.evict(turn.parent.response_id, "failed_continuation")
            self._observe_evictions([eviction] if eviction else [])

    def _end(self, lane: Lane, turn: Turn, outcome: Outcome, error: ProxyError | None = None) -> None:
        _note_stream(turn)
        self._streams.pop(turn.record.turn, None)
        self._observe_end(turn.record, outcome, error)
        self.lanes.release(lane)

    # The connection ends

    def _leave(self, leaving: Leaving) -> None:
        self._leaving = leaving
        self._leave_if_idle()

    def _leave_if_idle(self) -> None:
        if self._leaving is None or self._is_closed or not self.lanes.is_idle:
            return
        self._close()
        if self._leaving.is_announced:
            self._send([rescue.error_frame(self._leaving.error)])
        self._effects.append(self._leaving.close)

    def _abandon(self) -> None:
        for turn in self.lanes.abandon():
            _note_stream(turn)
            self._observe_end(turn.record, "client_gone", None)
        self._close()

    def _close(self) -> None:
        self._is_closed = True
        self._effects += [CancelUpstream(number) for number in self._exchanges]
        self._exchanges.clear()
        self._streams.clear()
        self.cache.close()

    # Small orders

    def _send(self, frames: list[bytes]) -> None:
        if frames:
            self._effects.append(SendFrames(frames))

    def _observe_end(self, record: TurnEnded, outcome: Outcome, error: ProxyError | None) -> None:
        record.outcome = outcome
        if error is not None:
            record.error_code, record.error_status, record.error_source = error.code, error.status, error.source
        self._effects.append(Observe(record))

    def _observe_evictions(self, evictions: list[Eviction]) -> None:
        self._effects += [Observe(ResponseEvicted(eviction.reason)) for eviction in evictions]


def _note_stream(turn: Turn) -> None:
    if turn.stream is not None:
        turn.record.response_id = turn.stream.response_id
        turn.record.events, turn.record.relayed_bytes = turn.stream.events, turn.stream.size


Answer = UpstreamOpened | UpstreamBytes | UpstreamEnded | UpstreamFailed | SilenceReached
Handler = Callable[[Session, Lane, Turn, Answer], None]

#: What may happen to the turn that runs in a lane, by the lane's state. An idle lane has no turn, so nothing can; the bytes
#: of a stream are taken before this is looked at.
TRANSITIONS: Final[dict[LaneState, dict[type[Answer], Handler]]] = {
    LaneState.IDLE: {},
    LaneState.REQUESTED: {
        UpstreamOpened: Session._on_opened,
        UpstreamFailed: Session._on_failed,
        SilenceReached: Session._on_silence,
    },
    LaneState.STREAMING: {
        UpstreamEnded: Session._on_ended,
        UpstreamFailed: Session._on_failed,
        SilenceReached: Session._on_silence,
    },
}
