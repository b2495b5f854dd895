"""Which replicas can be asked: what ejects one, for how long, and what never does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from proxy.health import MAX_RETRY_AFTER, Health, RetryBudget, retry_after


def health(count: int = 3) -> Health:
    """Replicas that are ejected after two failures, for 10 s at first and 40 s at most."""
    return Health(count, after=2, seconds=10, longest=40)


def fail(own: Health, index: int, now: float, times: int = 1, *, is_unreachable: bool = False) -> list[bool]:
    """Failures in a row: for each, whether it ejects."""
    return [own.failed(index, now, is_unreachable=is_unreachable) for _ in range(times)]


def test_replica_is_ejected_after_failures_in_a_row() -> None:
    """A success in between begins the row anew."""
    own = health()
    assert fail(own, 0, 0) == [False]
    own.succeeded(0, 0)
    assert fail(own, 0, 0, 2) == [False, True]
    assert own.usable(0) == [1, 2]
    assert [own.is_up(index, 0) for index in range(3)] == [False, True, True]


def test_ejections_become_longer_up_to_a_limit() -> None:
    """10, 20, 40, 40 seconds; back from one, a single failure is enough for the next."""
    own, now = health(), 0.0
    fail(own, 0, now)
    for seconds in (10, 20, 40, 40):
        assert fail(own, 0, now) == [True]
        assert own.is_ejected(0, now + seconds - 0.1)
        now += seconds
        assert not own.is_ejected(0, now)


def test_ejections_are_forgotten_after_as_long_a_good_time() -> None:
    """A success soon after the return changes nothing about the next term; one that much later does."""
    own = health()
    fail(own, 0, 0, 2)
    own.succeeded(0, 11)
    fail(own, 0, 11, 2)
    assert own.is_ejected(0, 30)
    own.succeeded(0, 51)
    fail(own, 0, 51, 2)
    assert own.is_ejected(0, 60.9)
    assert not own.is_ejected(0, 61)


def test_last_replica_is_never_ejected_and_says_that_it_is_down() -> None:
    """Somebody has to be asked; what is shown is the truth all the same."""
    own = health(1)
    assert not any(fail(own, 0, 0, 10))
    assert own.usable(0) == [0]
    assert not own.is_up(0, 0)


def test_probe_brings_back_who_could_not_be_reached() -> None:
    """A probe says that somebody is there, so it ends what that was the reason for, and nothing else."""
    own = health()
    fail(own, 0, 0, 2, is_unreachable=True)
    fail(own, 1, 0, 2)
    own.probed(0, 1, is_alive=True)
    own.probed(1, 1, is_alive=True)
    assert own.usable(1) == [0, 2]
    assert own.is_up(0, 1)


def test_probes_eject_too() -> None:
    """A server that hangs is found out before a client meets it."""
    own = health()
    assert [own.probed(2, 0, is_alive=False) for _ in range(2)] == [False, True]
    assert own.usable(0) == [0, 1]


def test_replica_that_wants_to_be_left_alone_is() -> None:
    """Until it said; if all want that, they are asked as before."""
    own = health(2)
    own.leave_alone(0, 5)
    assert (own.usable(0), own.usable(5)) == ([1], [0, 1])
    own.leave_alone(1, 5)
    assert own.usable(0) == [0, 1]
    assert own.is_up(0, 0)


class Replicas(RuleBasedStateMachine):
    """Whatever happens to replicas, somebody can be asked."""

    def __init__(self) -> None:
        super().__init__()
        self.own = health(3)
        self.now = 0.0

    @rule(index=st.integers(0, 2), is_unreachable=st.booleans())
    def fail(self, index: int, is_unreachable: bool) -> None:  # noqa: FBT001
        """One fails."""
        self.own.failed(index, self.now, is_unreachable=is_unreachable)

    @rule(index=st.integers(0, 2))
    def succeed(self, index: int) -> None:
        """One answers."""
        self.own.succeeded(index, self.now)

    @rule(index=st.integers(0, 2), is_alive=st.booleans())
    def probe(self, index: int, is_alive: bool) -> None:  # noqa: FBT001
        """One is probed."""
        self.own.probed(index, self.now, is_alive=is_alive)

    @rule(index=st.integers(0, 2), seconds=st.floats(0, 100))
    def rest(self, index: int, seconds: float) -> None:
        """One wants to be left alone."""
        self.own.leave_alone(index, self.now + seconds)

    @rule(seconds=st.floats(0, 50))
    def wait(self, seconds: float) -> None:
        """Time goes by."""
        self.now += seconds

    @invariant()
    def somebody_is_left(self) -> None:
        """The last one is never ejected, and nobody who is ejected is asked."""
        usable = self.own.usable(self.now)
        assert usable
        assert not any(self.own.is_ejected(index, self.now) for index in usable)


test_last_replica_is_never_ejected: Any = Replicas.TestCase


@given(asked=st.integers(0, 200), share=st.floats(0, 1))
def test_retry_budget_is_a_share_and_a_burst(asked: int, share: float) -> None:
    """However many ask, no more are sent once more than the share of all, and ten."""
    budget, sent = RetryBudget(share), 0
    for _ in range(asked):
        budget.asked()
        sent += budget.take()
    assert sent <= asked * share + 10
    assert share or not sent


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "99999"}, MAX_RETRY_AFTER),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 40),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:10 GMT"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": ""}, None),
    ],
)
def test_retry_after_is_read_in_all_its_forms(headers: dict[str, str], expected: float | None) -> None:
    """Seconds, milliseconds, a date; never for ever."""
    assert retry_after(headers, 60.0) == expected
