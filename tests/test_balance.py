"""Which replica takes a new chain: tables, and what must hold for any loads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import balance
from proxy.balance import FLOOR, Strategy, bound, order, rank

NAMES = [f"http://replica-{index}:8000/v1" for index in range(5)]
PREFIXES = [bytes([index]) * 16 for index in range(64)]

loads = st.lists(st.integers(0, 200), min_size=1, max_size=8)


def chosen(strategy: Strategy, load: list[int], *, prefix: bytes = b"", count: int = 0) -> int:
    """The replica that comes first."""
    names = [f"http://replica-{index}" for index in range(len(load))]
    return order(strategy, names, load, prefix=prefix, count=count, factor=1.25)[0]


@pytest.mark.parametrize(
    ("total", "count", "factor", "expected"),
    [(0, 3, 1.25, FLOOR), (29, 3, 1.0, 10), (29, 3, 1.25, 13), (100, 1, 1.0, 101), (1, 100, 2.0, FLOOR)],
)
def test_bound_is_a_share_and_some_more(total: int, count: int, factor: float, expected: int) -> None:
    """The mean with the new request in it, times the factor, rounded up; small numbers are always allowed."""
    assert bound(total, count, factor) == expected


@pytest.mark.parametrize(
    ("strategy", "load", "count", "expected"),
    [
        ("round_robin", [9, 0, 0], 0, 0),
        ("round_robin", [9, 0, 0], 4, 1),
        ("least_in_flight", [3, 1, 2], 0, 1),
        ("least_in_flight", [1, 1, 1], 0, 0),
        ("least_in_flight", [1, 1, 1], 2, 2),
        ("affinity", [3, 1, 2], 0, 1),
    ],
)
def test_order_without_a_prefix(strategy: Strategy, load: list[int], count: int, expected: int) -> None:
    """In turn; or the fewest requests, equal ones in turn; a prompt that shares nothing with others has no affinity."""
    assert chosen(strategy, load, count=count) == expected


def test_equal_prefixes_go_to_one_replica_and_different_ones_are_spread() -> None:
    """Agents with the same tools share a cache; many kinds of agents use all replicas."""
    first = [rank(prefix, NAMES)[0] for prefix in PREFIXES]
    assert first == [rank(prefix, NAMES)[0] for prefix in PREFIXES]
    assert set(first) == set(range(len(NAMES)))
    assert max(first.count(index) for index in range(len(NAMES))) < len(PREFIXES) / 2


def test_rank_does_not_depend_on_the_order_of_names() -> None:
    """A configuration in another order, or another process, comes to the same result."""
    turned = NAMES[2:] + NAMES[:2]
    for prefix in PREFIXES:
        assert turned[rank(prefix, turned)[0]] == NAMES[rank(prefix, NAMES)[0]]


@given(prefix=st.binary(min_size=1, max_size=64), gone=st.integers(0, len(NAMES) - 1))
def test_rendezvous_moves_only_what_must_move(prefix: bytes, gone: int) -> None:
    """Without one replica, what was on the others is where it was, and what was on it goes to its second choice."""
    left = [name for index, name in enumerate(NAMES) if index != gone]
    before = [NAMES[index] for index in rank(prefix, NAMES)]
    after = [left[index] for index in rank(prefix, left)]
    assert after == [name for name in before if name != NAMES[gone]]


@given(load=loads, prefix=st.binary(max_size=16), count=st.integers(0, 10), strategy=st.sampled_from(["affinity"]))
def test_bounded_load_holds(load: list[int], prefix: bytes, count: int, strategy: Strategy) -> None:
    """Whoever is chosen has no more than its share afterwards, times the factor; and each replica stands in the order once."""
    names = [f"http://replica-{index}" for index in range(len(load))]
    result = order(strategy, names, load, prefix=prefix, count=count, factor=1.25)
    assert sorted(result) == list(range(len(load)))
    assert load[result[0]] + 1 <= bound(sum(load), len(load), 1.25)


@given(load=loads, prefix=st.binary(min_size=1, max_size=16))
def test_affinity_wins_while_it_may(load: list[int], prefix: bytes) -> None:
    """The best by hash is first unless it has its share already."""
    names = [f"http://replica-{index}" for index in range(len(load))]
    best = balance.rank(prefix, names)[0]
    result = order("affinity", names, load, prefix=prefix, count=0, factor=1.25)
    assert (result[0] == best) == (load[best] < bound(sum(load), len(load), 1.25))
