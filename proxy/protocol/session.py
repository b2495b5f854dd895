"""One connection's state machine: facts in, orders out.

A client's frames are taken by :mod:`~proxy.protocol.intake`, and :mod:`~proxy.protocol.lanes` keeps them in order. Here
turns start, and here is decided what a fact about the backend makes of one; :mod:`~proxy.protocol.endings` ends it, or
:mod:`~proxy.protocol.outliving` where its client is gone before. What
may happen in which state of a lane stands in :data:`TRANSITIONS`; anything else is a bug and raises
:class:`UnexpectedEvent`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never

from proxy.protocol import compacting, compaction, endings, inspection, intake, outliving, rescue, steering, turns
from proxy.protocol.chain import CacheBudget, ChainCache
from proxy.protocol.effects import CancelUpstream, CloseConnection, Effect, OpenUpstream, Recall, SendFrames
from proxy.protocol.errors import ClientError, ConnectionLimitReached, ProxyError, ServiceRestarting
from proxy.protocol.events import (
    ClientGone,
    DrainStarted,
    Event,
    FrameReceived,
    LifetimeReached,
    Recalled,
    SilenceReached,
    UpstreamBytes,
    UpstreamEnded,
    UpstreamFailed,
    UpstreamOpened,
)
from proxy.protocol.lanes import Lane, Lanes, LaneState, Turn
from proxy.protocol.messages import Create
from proxy.protocol.relay import lane_member
from proxy.protocol.request import UpstreamRequest
from proxy.protocol.settings import SessionSettings
from proxy.protocol.state import Leaving, NewId, State
from proxy.protocol.terminals import Terminal
from proxy.protocol.upstream_errors import UpstreamProtocolError

#: Close codes (RFC 6455 section 7.4 and IANA's registry); SDKs that may reconnect do so on both.
GOING_AWAY: Final = 1001
SERVICE_RESTART: Final = 1012


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
        new_id: Makes a fresh id of a kind.
    """

    def __init__(self, settings: SessionSettings, budget: CacheBudget, new_id: NewId) -> None:
        cache = ChainCache(budget, max_entries=settings.max_entries, max_bytes=settings.max_bytes)
        self.state = State(settings, new_id, cache, Lanes(settings.lanes), is_first_generation=settings.rollout)

    @property
    def cache(self) -> ChainCache:
        """What the connection remembers."""
        return self.state.cache

    @property
    def lanes(self) -> Lanes:
        """What runs and what waits."""
        return self.state.lanes

    def receive(self, event: Event) -> list[Effect]:
        """Take a fact.

        Returns:
            Orders, to be carried out at once and in this order; nothing may be received in between.

        Raises:
            UnexpectedEvent: the fact cannot be true now. The session must not be used any more.
        """
        state = self.state
        # Nearly every fact is bytes in the middle of a stream, where there is nothing to decide.
        if type(event) is UpstreamBytes and (stream := state.streams.get(event.turn)) is not None:
            frames = stream.feed(event.data)
            if stream.outcome is None:
                return [SendFrames(frames)] if frames else []
            lane = state.exchanges[event.turn]
            assert lane is not None and lane.turn is not None
            self._conclude(lane, lane.turn, frames)
        elif state.outliving:
            outliving.take(state, event)
            if not state.outliving:
                self._close()
            return state.ordered()
        elif not state.is_closed:
            self._receive(event)
        self._start_turns()
        return state.ordered()

    def _receive(self, event: Event) -> None:
        match event:
            case (
                UpstreamBytes() | UpstreamOpened() | UpstreamEnded() | UpstreamFailed() | Recalled() | SilenceReached()
            ):
                self._receive_answer(event)
            case FrameReceived():
                intake.take(self.state, event)
            case LifetimeReached():
                error = ConnectionLimitReached(self.state.settings.lifetime_minutes)
                close = CloseConnection(GOING_AWAY, "connection limit reached")
                self.state.leaving = Leaving(close, error, is_announced=True)
            case DrainStarted():
                close = CloseConnection(SERVICE_RESTART, "the server restarts")
                self.state.leaving = Leaving(close, ServiceRestarting(), is_announced=False)
            case ClientGone(may_outlive):
                self._abandon(may_outlive=may_outlive)
            case _:
                assert_never(event)

    # Turns start

    def _start_turns(self) -> None:
        while (ready := self.lanes.next()) is not None:
            self._start(*ready)
        self._leave_if_idle()

    def _start(self, lane: Lane, turn: Turn) -> None:
        if not isinstance(turn.asked, Create):
            endings.fail(self.state, lane, turn, turn.asked)
            return
        create = turn.asked
        steering.begin(self.state, lane, turn, create)
        if self.state.settings.stores:
            response_id, item_ids = turns.missing(create, lane, self.cache)
            if response_id is not None or item_ids:
                self.lanes.occupy(lane, LaneState.RECALLING)
                self.state.effects.append(Recall(turn.record.turn, response_id, item_ids))
                return
        self._prepare(lane, turn, create, None)

    def _prepare(self, lane: Lane, turn: Turn, create: Create, recalled: Recalled | None) -> None:
        if self.state.settings.inspects:
            turn.record.inspection = inspection.of_create(create)
        try:
            turns.prepare(turn, create, lane, self.cache, self.state.settings.routes, recalled)
            compacting.plan(turn, create, turn.route.rules)
        except ClientError as error:
            endings.fail(self.state, lane, turn, error)
            return
        if create.is_warmup:
            endings.answer_warmup(self.state, lane, turn)
        elif turn.is_cancelled:
            endings.stop(self.state, lane, turn, "cancelled")
        elif turn.absorbed is not None:
            self._ask_for_summary(lane, turn)
        else:
            self.state.reply_to(turn)
            self._ask_backend(lane, turn)

    def _ask_backend(self, lane: Lane, turn: Turn) -> None:
        request = turns.build_request(turn)
        if turn.record.inspection is not None:
            turn.record.inspection.upstream = inspection.of_request(request)
        self._open(lane, turn, LaneState.REQUESTED, request)

    def _ask_for_summary(self, lane: Lane, turn: Turn) -> None:
        turn.summary = self.state.unheard(turn)
        self._open(lane, turn, LaneState.COMPACTING, compacting.summary_request(turn))

    def _open(self, lane: Lane, turn: Turn, state: LaneState, request: UpstreamRequest) -> None:
        self.lanes.occupy(lane, state)
        number = turn.record.turn
        self.state.exchanges[number] = lane
        assert turn.placement is not None
        self.state.effects.append(OpenUpstream(number, request, turn.record, turn.placement))

    # The backend, or the store, answers

    def _receive_answer(self, event: Answer) -> None:
        if type(event) is Recalled:
            lane = self.lanes.lane_of(event.turn)
        else:
            lane = self.state.exchanges.get(event.turn)
            if type(event) is UpstreamEnded or type(event) is UpstreamFailed:
                self.state.exchanges.pop(event.turn, None)
        if lane is None or lane.turn is None:
            return  # cancelled while this was on its way, or the last bytes behind a response that is complete
        handler = TRANSITIONS[lane.state].get(type(event))
        if handler is None:
            raise UnexpectedEvent(lane, event)
        handler(self, lane, lane.turn, event)

    def _on_recalled(self, lane: Lane, turn: Turn, event: Answer) -> None:
        assert isinstance(event, Recalled) and isinstance(turn.asked, Create)
        self._prepare(lane, turn, turn.asked, event)

    def _on_opened(self, lane: Lane, turn: Turn, event: Answer) -> None:
        _note_replica(turn, event)
        lane.state = LaneState.STREAMING
        self.state.streams[event.turn] = turn.reply

    def _on_ended(self, lane: Lane, turn: Turn, event: Answer) -> None:
        self._conclude(lane, turn, turn.reply.end())

    def _on_failed(self, lane: Lane, turn: Turn, event: Answer) -> None:
        assert isinstance(event, UpstreamFailed)
        self._fail_or_ask_again(lane, turn, event.error)

    def _on_silence(self, lane: Lane, turn: Turn, event: Answer) -> None:
        """Codex's idle watchdog counts text frames only; OpenAI's own streams hold events of this type."""
        self.state.send([b"{" + lane_member(turn.record.lane) + b'"type":"keepalive"}'])

    def _on_summary_opened(self, lane: Lane, turn: Turn, event: Answer) -> None:
        assert turn.summary is not None
        _note_replica(turn, event)
        self.state.streams[event.turn] = turn.summary

    def _on_summary_ended(self, lane: Lane, turn: Turn, event: Answer) -> None:
        assert turn.summary is not None
        turn.summary.end()
        self._conclude_summary(lane, turn, turn.summary.outcome)

    def _on_summary_failed(self, lane: Lane, turn: Turn, event: Answer) -> None:
        assert isinstance(event, UpstreamFailed)
        self._conclude_summary(lane, turn, event.error)

    def _conclude_summary(self, lane: Lane, turn: Turn, outcome: Terminal | ProxyError | None) -> None:
        """The turn goes on with the summary; or without, if there is none: the conversation is only longer then."""
        self._close_exchange(turn)
        answered = outcome if isinstance(outcome, Terminal) and outcome.kind != "failed" else None
        summary = compaction.summary_text(answered.items) if answered is not None else None
        if answered is not None and summary is not None:
            endings.begin_with_summary(self.state, turn, summary, answered)
            if turn.only_compacts:
                endings.complete_summary(self.state, lane, turn)
                return
        elif turn.only_compacts:
            self.state.reply_to(turn)
            error = outcome if isinstance(outcome, ProxyError) else UpstreamProtocolError("its summary has no text")
            endings.fail(self.state, lane, turn, error)
            return
        else:
            self.state.reply_to(turn)
        self._ask_backend(lane, turn)

    def _conclude(self, lane: Lane, turn: Turn, frames: list[bytes]) -> None:
        """A stream has an outcome; `frames` come before what it makes of the turn."""
        if lane.state is LaneState.COMPACTING:
            assert turn.summary is not None
            self._conclude_summary(lane, turn, turn.summary.outcome)
            return
        match turn.reply.outcome:
            case Terminal() as terminal:
                self._complete(lane, turn, terminal, frames)
            case ProxyError() as error:
                self.state.send(frames)
                self._fail_or_ask_again(lane, turn, error)
            case None:
                raise AssertionError("a stream that goes on cannot be concluded")

    def _complete(self, lane: Lane, turn: Turn, terminal: Terminal, frames: list[bytes]) -> None:
        if not turn.injected or terminal.kind != "completed" or turns.owed(turn, terminal.heads):
            endings.complete(self.state, lane, turn, terminal, frames)
            return
        # All its tools have been answered while it ran: it is not over.
        self.state.send(frames)
        self._close_exchange(turn)
        turns.go_on(turn, terminal)
        self._ask_backend(lane, turn)

    def _fail_or_ask_again(self, lane: Lane, turn: Turn, error: ProxyError) -> None:
        if not endings.may_ask_again(turn, error):
            endings.fail(self.state, lane, turn, error)
            return
        self._close_exchange(turn)
        turn.continues = None
        self.state.reply_to(turn)
        self._ask_backend(lane, turn)

    def _close_exchange(self, turn: Turn) -> None:
        number = turn.record.turn
        self.state.streams.pop(number, None)
        if self.state.exchanges.pop(number, None) is not None:
            self.state.effects.append(CancelUpstream(number))

    # The connection ends

    def _leave_if_idle(self) -> None:
        leaving = self.state.leaving
        if leaving is None or self.state.is_closed or not self.lanes.is_idle:
            return
        self._close()
        if leaving.is_announced:
            self.state.send([rescue.error_frame(leaving.error)])
        self.state.effects.append(leaving.close)

    def _abandon(self, *, may_outlive: bool) -> None:
        if may_outlive:
            outliving.begin(self.state)
        for turn in self.lanes.abandon():
            self.state.observe_gone(turn)
        if not self.state.outliving:
            self._close()

    def _close(self) -> None:
        self.state.is_closed = True
        self.state.effects += [CancelUpstream(number) for number in self.state.exchanges]
        self.state.exchanges.clear()
        self.state.streams.clear()
        self.cache.close()


def _note_replica(turn: Turn, event: Answer) -> None:
    """The one that answered has the chain's prefix in its cache from now on."""
    assert isinstance(event, UpstreamOpened) and turn.placement is not None
    turn.placement = turn.placement.at(event.replica)


Answer = UpstreamOpened | UpstreamBytes | UpstreamEnded | UpstreamFailed | Recalled | SilenceReached
Handler = Callable[[Session, Lane, Turn, Answer], None]

#: What may happen to the turn that runs in a lane, by the lane's state. An idle lane has no turn, so nothing can; the bytes
#: of a stream are taken before this is looked at.
TRANSITIONS: Final[dict[LaneState, dict[type[Answer], Handler]]] = {
    LaneState.IDLE: {},
    LaneState.RECALLING: {
        Recalled: Session._on_recalled,
    },
    LaneState.COMPACTING: {
        UpstreamOpened: Session._on_summary_opened,
        UpstreamEnded: Session._on_summary_ended,
        UpstreamFailed: Session._on_summary_failed,
        SilenceReached: Session._on_silence,
    },
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
