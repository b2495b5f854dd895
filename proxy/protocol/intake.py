"""What a client says, and what is done about it at once.

Whatever asks for a response gets its place in its lane's order, and so does a frame that is malformed: inside a lane the
order of frames is all that tells a client which answer belongs to which question. What is said about a response that
runs passes that order. An `error` about such a frame does not: in the middle of a response clients would take it for its
end.
"""

from __future__ import annotations

from proxy.protocol import controls, endings, rawjson, steering, turns
from proxy.protocol.controls import CANCEL, INJECT, INTERRUPT, PROCESSED, STEER, Inject, Stop
from proxy.protocol.endings import StopReason
from proxy.protocol.errors import (
    ClientError,
    InjectRefused,
    ProxyError,
    ResponseNotRunning,
    RolloutModeOff,
    SteerRefused,
    UnknownEventType,
    cut,
)
from proxy.protocol.events import FrameReceived
from proxy.protocol.lanes import Lane, LaneState, Turn
from proxy.protocol.messages import APPEND, CREATE, Create, Frame, open_frame, read_append, read_create
from proxy.protocol.records import TurnEnded
from proxy.protocol.state import State
from proxy.protocol.transcript import is_call_output


def take(state: State, event: FrameReceived) -> None:
    """Take a frame of the client's."""
    stream_id: str | None = None
    try:
        frame = open_frame(event.data)
        stream_id = frame.stream_id
        asked = _ask(state, frame, event)
    except ClientError as error:
        _enqueue(state, error, stream_id, event)
    else:
        if asked is not None:
            _enqueue(state, asked, stream_id, event)


def _ask(state: State, frame: Frame, event: FrameReceived) -> Create | None:
    """What a frame asks for that takes its place in a lane; None if it was about a response that runs.

    Raises:
        ClientError: it is malformed, or cannot be done.
    """
    max_items = state.settings.max_items
    if frame.type == CREATE:
        return read_create(frame, max_items=max_items)
    if frame.type == APPEND:
        if not state.settings.appends:
            raise RolloutModeOff
        state.is_first_generation = True
        return read_append(frame, max_items=max_items)
    if frame.type in (CANCEL, INTERRUPT):
        _stop(state, controls.read_stop(frame))
    elif frame.type == STEER:
        _steer(state, frame, event)
    elif frame.type == INJECT:
        _inject(state, controls.read_inject(frame, max_items=max_items))
    elif frame.type != PROCESSED:
        raise UnknownEventType(frame.type)
    return None


def _enqueue(state: State, asked: Create | ProxyError, stream_id: str | None, event: FrameReceived) -> None:
    if state.leaving is not None:
        asked = state.leaving.error
    state.turns += 1
    turn = Turn(asked, TurnEnded(state.turns, stream_id, len(event.data), event.clock), int(event.at))
    if isinstance(asked, Create):
        turn.record.metadata = asked.metadata
    try:
        state.lanes.enqueue(state.lanes.open(stream_id), turn)
    except ClientError as error:  # out of its lane's order: to keep that would take what is used up
        state.refuse(turn.record, error)


# About a response that runs


def _stop(state: State, wish: Stop) -> None:
    """Cancel or interrupt.

    What has ended already is passed over in silence: the client cannot have known, and an error now would be taken for
    the answer to its next create.

    Raises:
        ResponseNotRunning: it names a response that never was.
    """
    if wish.response_id is None:
        if (current := state.lanes.current(wish.stream_id)) is not None:
            _stop_turn(state, *current, "cancelled")
        return
    running = state.lanes.running(wish.response_id)
    if running is not None:
        _stop_turn(state, *running, "interrupted" if wish.is_interrupt else "cancelled")
    elif wish.response_id not in state.ended and (wish.is_interrupt or not state.lanes.is_idle):
        raise ResponseNotRunning(wish.response_id)


def _stop_turn(state: State, lane: Lane, turn: Turn, reason: StopReason) -> None:
    if lane.turn is turn and lane.state in (LaneState.COMPACTING, LaneState.REQUESTED, LaneState.STREAMING):
        endings.stop(state, lane, turn, reason)
    else:
        turn.is_cancelled = True  # it ends in its turn, without the backend


def _steer(state: State, frame: Frame, event: FrameReceived) -> None:
    try:
        steer = controls.read_steer(frame, max_items=state.settings.max_items)
        steer.at, steer.clock = int(event.at), event.clock
        lane, turn = steering.accept(state, steer)
    except SteerRefused as error:
        state.send([controls.steer_failed(error, controls.submission_in(frame), _lane_of(state, frame))])
        return
    if not turns.owed(turn, turn.reply.finished):
        endings.stop(state, lane, turn, "steered")


def _lane_of(state: State, frame: Frame) -> bytes:
    """The lane of the response that a `response.steer` names, if that runs."""
    response_id = rawjson.string(dict(frame.pairs).get("previous_response_id", b""))
    running = state.lanes.running(response_id) if response_id is not None else None
    return running[1].reply.lane if running is not None else b""


def _inject(state: State, inject: Inject) -> None:
    """Outputs of tools for a response that runs: it goes on with them once the backend has said the rest."""
    running = state.lanes.running(inject.response_id)
    try:
        if running is None:
            raise _not_running(state, inject.response_id)
        _, turn = running
        owed = {head.call_id for head in turns.owed(turn, turn.reply.finished)}
        answered = {head.call_id for head in inject.heads if is_call_output(head)}
        if not answered or len(answered) < len(inject.heads) or answered - owed:
            raise InjectRefused(
                "invalid_input", "'input' may hold outputs of tools that this response has called only, one for each."
            )
    except InjectRefused as error:
        lane = running[1].reply.lane if running is not None else b""
        state.send([controls.inject_failed(error, inject, lane)])
        return
    turn.injected += inject.items
    turn.injected_heads += inject.heads
    turn.reply.holds_end = True
    state.send([controls.inject_created(inject, turn.reply.lane, turn.reply.next_number())])


def _not_running(state: State, response_id: str) -> InjectRefused:
    if response_id in state.ended:
        return InjectRefused("response_already_completed", "The response has ended.")
    return InjectRefused("response_not_found", f"Response '{cut(response_id)}' is not known on this connection.")
