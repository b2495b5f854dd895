"""How turns end: completed by the backend, stopped by the client, or failed.

Each way out of a turn is one function here: what it says to the client, what is remembered or forgotten, and what becomes
of input that waited for the end.
"""

from __future__ import annotations

from typing import Literal

from proxy.protocol import compacting, rescue, steering, turns
from proxy.protocol.chain import Entry
from proxy.protocol.diagnosis import diagnose
from proxy.protocol.effects import CancelUpstream, FinishUpstream
from proxy.protocol.errors import InvalidMessage, PreviousResponseNotFound, ProxyError
from proxy.protocol.lanes import Lane, Turn
from proxy.protocol.records import Outcome
from proxy.protocol.state import State
from proxy.protocol.terminals import Terminal
from proxy.protocol.upstream_errors import BackendBusy, ContextOverflow, UpstreamForgot, UpstreamRefused

StopReason = Literal["cancelled", "interrupted", "steered"]
"""`incomplete_details.reason` of a response that the client stopped."""


def complete(state: State, lane: Lane, turn: Turn, terminal: Terminal, frames: list[bytes]) -> None:
    """The backend has ended the response; `frames` are the last ones, its terminal event included."""
    record = turn.record
    record.usage, record.snapshot_differs = terminal.usage, terminal.snapshot_differs
    error = state.leaving.error if state.leaving is not None else None
    record.answered_by = terminal.model
    if terminal.kind == "failed":
        record.error_code, record.error_source = terminal.error_code, "upstream"
        state.evict_parent(lane, turn)
        error = UpstreamRefused("The response has failed.", status=502, type="")
    if error is not None and turn.steers:
        state.send(frames)
        steering.hand_back_steers(state, turn, error)
        frames = []
    frames += turn.reply.release()
    if terminal.kind == "failed":
        state.send(frames)
        _let_go(state, turn)
    else:
        entry = _keep(state, lane, turn, terminal, frames)
        _let_go(state, turn)
        _follow_up(state, lane, turn, terminal, entry)
    state.end(lane, turn, terminal.kind)


def _keep(state: State, lane: Lane, turn: Turn, terminal: Terminal, frames: list[bytes]) -> Entry:
    """Remember a response, and say its last words."""
    lane.tip = terminal.response_id
    entry = turns.entry(turn, lane, terminal, is_stored=state.is_stored(turn))
    state.remember(entry)
    state.send(frames)
    return entry


def _follow_up(state: State, lane: Lane, turn: Turn, terminal: Terminal, entry: Entry) -> None:
    owed = turns.owed(turn, terminal.heads)
    calls = [(item, head) for item, head in zip(terminal.items, terminal.heads, strict=True) if head in owed]
    steering.follow_up(state, lane, turn, entry, calls)


def stop(state: State, lane: Lane, turn: Turn, reason: StopReason) -> None:
    """The client wants no more of a response that runs: it ends with the items that are finished."""
    _cancel(state, turn)
    reply = turn.stream or state.reply_to(turn)
    if state.leaving is not None:
        steering.hand_back_steers(state, turn, state.leaving.error)
    frames = reply.stop(reason, is_interrupt=reason == "interrupted")
    terminal = reply.outcome
    assert isinstance(terminal, Terminal)
    turn.record.usage = terminal.usage
    entry = _keep(state, lane, turn, terminal, frames)
    _follow_up(state, lane, turn, terminal, entry)
    state.end(lane, turn, "cancelled")


def answer_warmup(state: State, lane: Lane, turn: Turn) -> None:
    """Answer a warm-up: a response with an id, no output, and nothing spent."""
    terminal = turns.warmup_terminal(turn, state.new_id("resp"))
    frames = turns.warmup_frames(turn, terminal)
    record = turn.record
    record.response_id, record.events, record.relayed_bytes = terminal.response_id, len(frames), sum(map(len, frames))
    lane.tip = terminal.response_id
    state.remember(turns.entry(turn, lane, terminal, is_stored=state.is_stored(turn)))
    state.send(frames)
    state.end(lane, turn, "warmup")


def begin_with_summary(state: State, turn: Turn, summary: str, outcome: Terminal) -> None:
    """The response begins with the item that holds the summary of what came before."""
    item, head = compacting.shorten(turn, summary, state.new_id("cmp"))
    state.send(state.reply_to(turn).begin([item], [head], outcome.raw_usage))


def complete_summary(state: State, lane: Lane, turn: Turn) -> None:
    """The summary was all that was wanted."""
    frames = turn.reply.complete(turn.created_at)
    terminal = turn.reply.outcome
    assert isinstance(terminal, Terminal)
    turn.record.usage = terminal.usage
    _keep(state, lane, turn, terminal, frames)
    state.end(lane, turn, "completed")


def fail(state: State, lane: Lane, turn: Turn, error: ProxyError) -> None:
    """End a turn that went wrong; the connection and its other lanes go on."""
    _cancel(state, turn)
    if isinstance(error, UpstreamRefused):
        error = diagnose(error, turn.route.rules.profile)
    if not isinstance(error, (InvalidMessage, PreviousResponseNotFound, BackendBusy)):  # nothing was tried with it
        state.evict_parent(lane, turn)
    steering.hand_back_uncommitted(state, turn, error)
    # A successor that never began was nobody's question: what it was to begin with has been handed back.
    is_silent = turn.succeeds and (turn.stream is None or turn.stream.response_id is None)
    if isinstance(error, ContextOverflow) and turn.route.overflow_fails and not is_silent:
        _overflow(state, lane, turn, error)
        return
    if state.is_first_generation and not is_silent:
        _fail_response(state, lane, turn, error)
        return
    number = turn.stream.next_number() if turn.stream else 0
    if not is_silent:
        state.send([rescue.error_frame(error, stream_id=turn.record.lane, sequence_number=number)])
    state.end(lane, turn, "error" if turn.stream else "refused", error)


def _overflow(state: State, lane: Lane, turn: Turn, error: ContextOverflow) -> None:
    """Codex compacts the conversation on this form of the error, and gives up on any other."""
    state.send(turn.reply.fail("context_length_exceeded", str(error)))
    state.end(lane, turn, "failed", error)


def _fail_response(state: State, lane: Lane, turn: Turn, error: ProxyError) -> None:
    """Codex 0.98 does not read `error` frames and would wait for its idle timeout; a failed response it tries again."""
    outcome: Outcome = "error" if turn.stream else "refused"
    state.send((turn.stream or state.reply_to(turn)).fail(error.code or "server_error", str(error)))
    state.end(lane, turn, outcome, error)


def may_ask_again(turn: Turn, error: ProxyError) -> bool:
    """Whether a backend that was told only what is new has forgotten the rest, and nothing of it reached the client."""
    return (
        turn.continues is not None
        and turn.reply.events == 0
        and isinstance(error, UpstreamRefused)
        and isinstance(diagnose(error, turn.route.rules.profile), UpstreamForgot)
    )


def _let_go(state: State, turn: Turn) -> None:
    """The response is complete; what little is left of the exchange may be read without anybody waiting for it."""
    if turn.record.turn in state.exchanges:
        state.exchanges[turn.record.turn] = None
        state.effects.append(FinishUpstream(turn.record.turn))


def _cancel(state: State, turn: Turn) -> None:
    if state.exchanges.pop(turn.record.turn, None) is not None:
        state.effects.append(CancelUpstream(turn.record.turn))
    state.streams.pop(turn.record.turn, None)
