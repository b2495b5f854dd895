"""The model of a link: times that RFC 5681 and RFC 6928 give, on a clock of the tests' own."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.bench.link import INITIAL_WINDOW, MSS, Direction, Link

RTT = 0.05
FAST = Link(RTT)
MEGABYTE = 1_000_000


def duration(link: Link, size: int) -> float:
    """How long so many bytes take on a new connection, from the first sent to the last received."""
    return Direction(link).send(0, size)[-1][0]


@pytest.mark.parametrize(
    ("segments", "round_trips"),
    # Windows of 10, 20, 40, 80 and 160 segments: 10, 30, 70, 150 and 310 in all.
    [(1, 0.5), (10, 0.5), (11, 1.5), (30, 1.5), (31, 2.5), (70, 2.5), (71, 3.5), (150, 3.5), (151, 4.5), (310, 4.5)],
)
def test_window_doubles_each_round_trip(segments: int, round_trips: float) -> None:
    """From 10 segments on; without a limit of bandwidth only round trips take time."""
    assert duration(FAST, segments * MSS) == pytest.approx(round_trips * RTT)


@pytest.mark.parametrize(
    ("size", "bandwidth", "seconds"),
    [
        (MSS, MSS, 1 + RTT / 2),  # one segment a second
        (10 * MSS, 100 * MSS, 0.1 + RTT / 2),  # the window is never the limit: the path holds 5 segments
        (1_000 * MSS, 100 * MSS, 10 + RTT / 2),
        (11 * MSS, 1_000 * MSS, RTT + 0.001 + 0.001 + RTT / 2),  # the first acknowledgement makes room for the last
    ],
)
def test_bandwidth_is_what_is_left_of_the_window(size: int, bandwidth: float, seconds: float) -> None:
    """A transfer is no faster than the bandwidth, and no slower once the window has reached what the path holds."""
    assert duration(Link(RTT, bandwidth), size) == pytest.approx(seconds)


def test_long_transfer_takes_its_bandwidth() -> None:
    """Slow start costs a few round trips, whatever the length."""
    link = Link(RTT, 10 * MEGABYTE)
    assert 10 < duration(link, 100 * MEGABYTE) < 10 + 8 * RTT


def test_window_is_kept_while_there_is_something_to_send() -> None:
    """What follows within the retransmission timeout goes out at once."""
    direction = Direction(FAST)
    direction.send(0, 70 * MSS)
    now = 3 * RTT + FAST.retransmission_timeout - RTT
    assert direction.send(now, 70 * MSS)[-1][0] == pytest.approx(now + RTT / 2)


def test_window_is_lost_by_being_idle() -> None:
    """After more than the retransmission timeout it starts anew (RFC 5681, section 4.1)."""
    direction = Direction(FAST)
    direction.send(0, 70 * MSS)
    now = 10.0
    assert direction.send(now, 70 * MSS)[-1][0] == pytest.approx(now + duration(FAST, 70 * MSS))


@pytest.mark.parametrize(("timeouts", "round_trips"), [(0.9, 0.5), (1.5, 0.5), (2.5, 1.5), (9, 2.5)])
def test_window_is_halved_by_being_idle_on_linux(timeouts: float, round_trips: float) -> None:
    """Once for each retransmission timeout: of 150 segments 75 are left, then 37, and at last the first 10."""
    link = Link(RTT, halves_when_idle=True)
    direction = Direction(link)
    direction.send(0, 140 * MSS)  # all of which are acknowledged: with the first ten a window of 150
    now = 4 * RTT + timeouts * link.retransmission_timeout - RTT / 2
    assert direction.send(now, 70 * MSS)[-1][0] == pytest.approx(now + round_trips * RTT)


def test_window_does_not_grow_by_being_idle() -> None:
    """A window that never grew is no larger after a rest than at first."""
    direction = Direction(FAST)
    direction.send(0, 1)
    assert direction.send(10, INITIAL_WINDOW + 1)[-1][0] == pytest.approx(10 + 1.5 * RTT)


@pytest.mark.parametrize(("tls_round_trips", "round_trips"), [(0, 1), (1, 2), (2, 3)])
def test_handshake_takes_round_trips(tls_round_trips: int, round_trips: int) -> None:
    """TCP's one, and those of TLS."""
    assert Link(RTT, math.inf, tls_round_trips).handshake_seconds == pytest.approx(round_trips * RTT)


def test_end_arrives_behind_all_bytes() -> None:
    """The end of a stream does not overtake what was sent before."""
    direction = Direction(Link(RTT, 1_000))
    last = direction.send(0, 5_000)[-1][0]
    assert direction.end(0) == pytest.approx(last)
    assert direction.end(100) == pytest.approx(100 + RTT / 2)


@given(
    st.lists(st.tuples(st.floats(0, 2), st.integers(1, 500_000)), min_size=1, max_size=20),
    st.sampled_from([math.inf, 12.5 * MEGABYTE, 0.1 * MEGABYTE]),
)
def test_bytes_arrive_in_order_and_all_of_them(sends: list[tuple[float, int]], bandwidth: float) -> None:
    """However they are sent: none is lost, none arrives early, none overtakes, none exceeds the bandwidth."""
    direction = Direction(Link(RTT, bandwidth))
    now = 0.0
    arrivals: list[tuple[float, int]] = []
    for pause, size in sends:
        now += pause
        arrived = direction.send(now, size)
        assert sum(length for _, length in arrived) == size
        assert arrived[0][0] >= now + RTT / 2
        arrivals += arrived
    assert all(one[0] <= other[0] for one, other in pairwise(arrivals))
    total = sum(length for _, length in arrivals)
    assert arrivals[-1][0] >= total / bandwidth
