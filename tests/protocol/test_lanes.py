"""Lanes: who may start, who waits, and in which order."""

from __future__ import annotations

import pytest

from proxy.protocol.errors import InvalidMessage, QueueFull, TooManyLanes
from proxy.protocol.lanes import Lane, LaneLimits, Lanes, LaneState, Turn
from proxy.protocol.messages import Create
from proxy.protocol.records import TurnEnded


def turn(number: int, *, warmup: bool = False, size: int = 10) -> Turn:
    """A turn that needs the backend, unless it is a warm-up."""
    create = Create(None, None, warmup, [], [], [], size)
    return Turn(create, TurnEnded(number, None, size), 0)


def run(lanes: Lanes, lane: Lane) -> None:
    """Mark the lane's turn as running, as a session does."""
    lanes.occupy(lane, LaneState.REQUESTED)


def started(lanes: Lanes) -> list[int]:
    """The numbers of all turns that can start now; each is marked as running."""
    numbers = []
    while (ready := lanes.next()) is not None:
        lane, next_turn = ready
        numbers.append(next_turn.record.turn)
        run(lanes, lane)
    return numbers


def test_turns_of_a_lane_start_one_after_the_other() -> None:
    """First come, first served, and only when the one before is over."""
    lanes = Lanes(LaneLimits())
    lane = lanes.open(None)
    for number in (1, 2, 3):
        lanes.enqueue(lane, turn(number))
    assert started(lanes) == [1]
    lanes.release(lane)
    assert started(lanes) == [2]
    lanes.release(lane)
    assert started(lanes) == [3]
    lanes.release(lane)
    assert started(lanes) == []
    assert lanes.is_idle
    assert lanes.in_flight == 0


def test_lanes_start_side_by_side_up_to_the_limit() -> None:
    """The lane that waited longest comes first when a place is free."""
    lanes = Lanes(LaneLimits(in_flight=2))
    opened = [lanes.open(name) for name in "abcd"]
    for number, lane in enumerate(opened):
        lanes.enqueue(lane, turn(number))
    assert started(lanes) == [0, 1]
    lanes.release(opened[1])
    assert started(lanes) == [2]
    lanes.enqueue(opened[1], turn(9))
    lanes.release(opened[0])
    assert started(lanes) == [3]
    lanes.release(opened[2])
    assert started(lanes) == [9]


@pytest.mark.parametrize("asked", [Create(None, None, True, [], [], [], 1), InvalidMessage("x")])
def test_what_needs_no_backend_starts_at_once(asked: Create | InvalidMessage) -> None:
    """Warm-ups and refusals take no place in flight, but keep their lane's order."""
    lanes = Lanes(LaneLimits(in_flight=1))
    busy, other = lanes.open("a"), lanes.open("b")
    lanes.enqueue(busy, turn(1))
    assert started(lanes) == [1]
    lanes.enqueue(other, Turn(asked, TurnEnded(2, None, 1), 0))
    ready = lanes.next()
    assert ready is not None
    assert ready[1].record.turn == 2
    lanes.release(other)
    assert lanes.in_flight == 1


def test_queue_is_bounded_and_what_starts_at_once_needs_no_room() -> None:
    """Only what has to wait counts against the bound."""
    lanes = Lanes(LaneLimits(queued=1))
    lane = lanes.open(None)
    lanes.enqueue(lane, turn(1))
    assert started(lanes) == [1]
    lanes.enqueue(lane, turn(2))
    with pytest.raises(QueueFull, match="1 requests"):
        lanes.enqueue(lane, turn(3))
    lanes.release(lane)
    assert started(lanes) == [2]
    lanes.enqueue(lane, turn(4))


def test_queue_is_bounded_in_bytes() -> None:
    """A frame that does not fit is refused, a smaller one is not."""
    lanes = Lanes(LaneLimits(queued_bytes=100))
    lane = lanes.open(None)
    lanes.enqueue(lane, turn(1, size=1000))
    assert started(lanes) == [1]
    lanes.enqueue(lane, turn(2, size=60))
    with pytest.raises(QueueFull, match="100 bytes"):
        lanes.enqueue(lane, turn(3, size=60))
    lanes.enqueue(lane, turn(4, size=40))


def test_named_lanes_are_limited() -> None:
    """The default lane does not count, and a lane that is known can always be used."""
    lanes = Lanes(LaneLimits(named=2))
    first = lanes.open("a")
    lanes.open("b")
    with pytest.raises(TooManyLanes):
        lanes.open("c")
    assert lanes.open("a") is first
    assert lanes.open(None).name is None


def test_abandoning_gives_back_every_turn() -> None:
    """What ran and what waited is handed over, and nothing starts any more."""
    lanes = Lanes(LaneLimits())
    lane = lanes.open(None)
    for number in (1, 2):
        lanes.enqueue(lane, turn(number))
    started(lanes)
    lanes.enqueue(lanes.open("x"), turn(3, warmup=True))
    assert [left.record.turn for left in lanes.abandon()] == [1, 2, 3]
    assert lanes.next() is None
