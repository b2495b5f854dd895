"""Steering: user input that comes while a response runs, for backends that know nothing of it.

A response that is steered ends at once, as incomplete, and its successor begins by itself from the items that are
finished and the new input. If tools were called, the input waits: for the end of the response, and then for the outputs
that only the client has; the create that brings them begins with it. (Steering guide; openai-python `ResponseSteerEvent`
and its neighbours.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from proxy.protocol import controls, turns
from proxy.protocol.chain import Entry
from proxy.protocol.controls import Steer
from proxy.protocol.errors import ProxyError, SteerRefused, cut
from proxy.protocol.lanes import Lane, Turn
from proxy.protocol.messages import Create
from proxy.protocol.rawjson import Head
from proxy.protocol.records import TurnEnded
from proxy.protocol.relay import lane_member
from proxy.protocol.state import State

MAX_PENDING: Final = 16
"""How many submissions may wait for one response."""


def accept(state: State, steer: Steer) -> tuple[Lane, Turn]:
    """Take input for a response that runs.

    Returns:
        The response's lane and turn.

    Raises:
        SteerRefused: it cannot be taken.
    """
    running = state.lanes.running(steer.response_id)
    if running is None:
        raise _not_running(state, steer.response_id)
    if not state.settings.steering:
        raise SteerRefused("steering_not_supported", "Steering is switched off on this server.")
    lane, turn = running
    if state.leaving is not None:
        raise SteerRefused("successor_creation_failed", str(state.leaving.error))
    pending = [*state.lanes.steers(), *(waiting for steers in state.waiting.values() for waiting in steers)]
    limits = state.settings.lanes
    size = sum(waiting.size for waiting in pending) + steer.size
    if len(turn.steers) >= MAX_PENDING or len(pending) >= limits.queued or size > limits.queued_bytes:
        raise SteerRefused("too_many_pending_steers", "Too much steering input is pending.")
    steer.id = state.new_id("steer")
    turn.steers.append(steer)
    turn.reply.holds_end = True
    state.send([controls.steer_accepted(steer, turn.reply.lane, turn.reply.next_number())])
    return lane, turn


def _not_running(state: State, response_id: str) -> SteerRefused:
    if response_id not in state.ended and response_id not in state.cache:
        return SteerRefused("response_not_found", f"Response '{cut(response_id)}' is not known on this connection.")
    if state.ended.get(response_id, True):
        return SteerRefused("response_already_completed", "The response is complete.")
    return SteerRefused("response_not_active", "The response has ended.")


def follow_up(state: State, lane: Lane, turn: Turn, entry: Entry, owed: Sequence[tuple[bytes, Head]]) -> None:
    """A response has ended well: what becomes of the input that it was steered with.

    Args:
        state: The session's.
        lane: The response's lane.
        turn: Its turn.
        entry: What is remembered of it.
        owed: The calls of tools that wait for an output, each with its head.
    """
    steers, turn.steers = turn.steers, []
    if not steers:
        return
    if not owed:
        _succeed(state, lane, turn, entry, steers)
        return
    state.waiting[entry.response_id] = steers
    stubs = [controls.required_input(item, head) for item, head in owed]
    for steer in steers:
        number = turn.reply.next_number()
        state.send([controls.steer_pending(steer, stubs, turn.reply.lane, number)])


def _succeed(state: State, lane: Lane, turn: Turn, entry: Entry, steers: list[Steer]) -> None:
    """The successor: it inherits all settings, and comes before whatever else waits in the lane."""
    state.turns += 1
    create = Create(
        stream_id=turn.record.lane,
        previous_response_id=entry.response_id,
        is_warmup=False,
        items=[],
        heads=[],
        fields=[],
        size=sum(steer.size for steer in steers),
    )
    record = TurnEnded(state.turns, turn.record.lane, create.size, steers[0].clock, metadata=turn.record.metadata)
    state.lanes.enqueue_first(lane, Turn(create, record, steers[0].at, succeeds=True, committing=steers))


def begin(state: State, lane: Lane, turn: Turn, create: Create) -> None:
    """A create that brings outputs begins with the input that waited for them."""
    turn.committing += state.waiting.pop(turns.previous_of(create, lane) or "", [])


def hand_back_uncommitted(state: State, turn: Turn, error: ProxyError) -> None:
    """A turn failed: give back the input that it did not get to use, and that which nothing will follow."""
    if turn.stream is None or turn.stream.response_id is None:
        hand_back(state, turn.committing, turn, error)
    turn.committing = []
    hand_back_steers(state, turn, error)


def hand_back_steers(state: State, turn: Turn, error: ProxyError) -> None:
    """Nothing will follow a response: give back the input that it was steered with."""
    steers, turn.steers = turn.steers, []
    hand_back(state, steers, turn, error)


def hand_back(state: State, steers: Sequence[Steer], turn: Turn, error: ProxyError) -> None:
    """Input that was accepted and cannot be committed."""
    refusal = SteerRefused("successor_creation_failed", str(error))
    lane = lane_member(turn.record.lane)
    for steer in steers:
        number = turn.stream.next_number() if turn.stream else 0
        state.send([controls.steer_failed(refusal, controls.submission_of(steer), lane, number)])
