"""Responses that outlive their client: it is gone, and they may end all the same.

What a backend has been asked for costs the same whoever hears it; only its end says how much that was. So its stream is read
to that end, and nothing of it is kept but the count.
"""

from __future__ import annotations

from typing import Final

from proxy.protocol.effects import CancelUpstream
from proxy.protocol.events import ClientGone, Event, UpstreamBytes, UpstreamEnded, UpstreamFailed
from proxy.protocol.lanes import LaneState
from proxy.protocol.state import State
from proxy.protocol.terminals import Terminal

_GENERATING: Final = (LaneState.REQUESTED, LaneState.STREAMING)


def begin(state: State) -> None:
    """Keep the turns that the backend works on; all others end here, and the connection's memory is given back."""
    state.leaving = None
    for turn in state.lanes.abandon():
        lane = state.exchanges.get(turn.record.turn)
        if lane is not None and lane.turn is turn and lane.state in _GENERATING:
            state.note_reply(turn)  # what comes from now on reaches nobody
            state.outliving[turn.record.turn] = turn
        else:
            state.observe_gone(turn)
    left = [number for number in state.exchanges if number not in state.outliving]
    for number in left:
        del state.exchanges[number]
    state.effects += [CancelUpstream(number) for number in left]
    state.streams.clear()
    state.cache.close()


def take(state: State, event: Event) -> None:
    """Take a fact about one of them; whatever else happens is of no matter any more."""
    match event:
        case UpstreamBytes(number, data) if number in state.outliving:
            reply = state.outliving[number].reply
            reply.feed(data)
            if reply.outcome is not None:
                _end(state, number)
        case UpstreamEnded(number) if number in state.outliving:
            state.exchanges.pop(number, None)
            state.outliving[number].reply.end()
            _end(state, number)
        case UpstreamFailed(number) if number in state.outliving:
            state.exchanges.pop(number, None)
            _end(state, number)
        case ClientGone():  # there is no more time
            for number in list(state.outliving):
                _end(state, number)


def _end(state: State, number: int) -> None:
    turn = state.outliving.pop(number)
    outcome = turn.reply.outcome
    if isinstance(outcome, Terminal):
        turn.record.usage, turn.record.answered_by = outcome.usage, outcome.model
    state.observe_end(turn.record, "client_gone", None)
    if state.exchanges.pop(number, None) is not None:
        state.effects.append(CancelUpstream(number))
