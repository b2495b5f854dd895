"""Which replica is asked; how it goes with real sockets is in test_backends.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.fleet import Fleet, Listeners, Replica
from proxy.gate import Gate
from proxy.protocol.profiles import PROFILES, RequestRules
from proxy.protocol.routes import Placement, Route
from proxy.protocol.upstream_errors import (
    BackendBusy,
    UpstreamDisconnected,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from proxy.served import Backend, Routing
from proxy.upstream import Upstream

ROUTE = Route("main", RequestRules.of(PROFILES["generic"]), replicas=3)
LATER = {"retry-after": "30"}


def refused(status: int, headers: dict[str, str] | None = None) -> UpstreamRefused:
    """A refusal by a backend."""
    return UpstreamRefused("no", status=status, type="x", headers=headers)


def fleet(count: int = 3, told: list[Any] | None = None, *, limit: int | None = None, **routing: Any) -> Fleet:
    """Replicas that nobody asks anything, of which two may wait where there is a limit."""
    urls = [f"http://replica-{index}/v1" for index in range(count)]
    backend = Backend.model_validate({"name": "main", "replicas": urls})
    replicas = [Replica(index, url, cast("Upstream", None), Gate(limit, 2, 1)) for index, url in enumerate(urls)]
    told = [] if told is None else told
    listeners = Listeners(lambda *names: told.append(names), lambda: told.append("exhausted"))
    return Fleet(backend, Routing.model_validate(routing), replicas, listeners)


def at(replica: int | None, *, prefix: bytes = b"p", is_bound: bool = False) -> Placement:
    """A chain that is somewhere."""
    return Placement(ROUTE, b'"m"', replica, prefix, is_bound=is_bound)


ERRORS: list[UpstreamError] = [
    refused(400),
    refused(500),
    refused(502),
    refused(503),
    refused(429),
    UpstreamUnreachable(),
    UpstreamTimeout("connect", 1),
    UpstreamTimeout("first_event", 1),
    UpstreamDisconnected(has_begun=False),
    UpstreamProtocolError("x"),
]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UpstreamUnreachable(), "unreachable"),
        (UpstreamTimeout("connect", 1), "unreachable"),
        (UpstreamTimeout("first_event", 1), None),
        (UpstreamTimeout("idle", 1), None),
        (UpstreamDisconnected(has_begun=False), "disconnected"),
        (UpstreamDisconnected(), None),
        (UpstreamProtocolError("x"), None),
        (BackendBusy(), None),
        (refused(502), "refused"),
        (refused(503), "refused"),
        (refused(503, LATER), "refused"),
        (refused(429, LATER), "refused"),
        (refused(429), None),
        (refused(500), None),
        (refused(504), None),
        (refused(400), None),
    ],
)
def test_only_what_was_not_executed_moves(error: UpstreamError, reason: str | None) -> None:
    """And a chain that only one can read never does, nor is there anybody when all were asked."""
    own = fleet()
    assert own.may_move(own.replicas[0], error, at(0), [0]) == reason
    assert own.may_move(own.replicas[0], error, at(0, is_bound=True), [0]) is None
    assert own.may_move(own.replicas[0], error, at(0), [0, 1, 2]) is None


@pytest.mark.parametrize(
    ("error", "is_ejected"),
    [
        (UpstreamUnreachable(), True),
        (UpstreamTimeout("first_event", 1), True),
        (UpstreamTimeout("turn", 1), False),
        (UpstreamDisconnected(), True),
        (UpstreamProtocolError("x"), True),
        (refused(502), True),
        (refused(504), True),
        (refused(500), False),
        (refused(400), False),
        (refused(429, LATER), False),
        (BackendBusy(), False),
    ],
)
def test_only_a_servers_own_faults_eject_it(error: UpstreamError, is_ejected: bool) -> None:  # noqa: FBT001
    """What a request brings on itself says nothing about its replica."""
    told: list[Any] = []
    own = fleet(told=told, eject_after=2)
    for _ in range(2):
        own.failed(1, error)
    assert told == ([("main", "http://replica-1/v1")] if is_ejected else [])
    assert own.is_up(1) is not is_ejected


def test_probe_ejects_and_brings_back() -> None:
    """The listener is told of the one, and the chain that was there comes back after the other."""
    told: list[Any] = []
    own = fleet(told=told, eject_after=1)
    own.probed(0, is_alive=False)
    assert told == [("main", "http://replica-0/v1")]
    replica, moved = own.choose(at(0))
    assert (replica.index != 0, moved) == (True, "replica_failed")
    own.probed(0, is_alive=True)
    assert own.choose(at(0)) == (own.replicas[0], None)


def test_budget_is_for_what_was_really_sent() -> None:
    """What reached nobody may always move; the listener hears of what may not."""
    told: list[Any] = []
    own = fleet(told=told, retry_budget=0, eject_after=100)
    assert own.may_move(own.replicas[0], UpstreamUnreachable(), at(0), [0]) == "unreachable"
    assert own.may_move(own.replicas[0], refused(503), at(0), [0]) is None
    assert told == ["exhausted"]


async def test_chain_leaves_a_full_replica_only_when_it_cannot_wait() -> None:
    """Waiting costs less than a prompt without its cache; a full queue is another matter."""
    own = fleet(limit=1)
    await own.replicas[0].gate.enter()
    assert own.choose(at(0)) == (own.replicas[0], None)
    own.replicas[0].gate._queued = 0
    replica, moved = own.choose(at(0))
    assert (replica.index != 0, moved) == (True, "replica_full")


def test_ejected_replicas_are_the_last_resort() -> None:
    """If all others were asked in vain."""
    own = fleet(2, eject_after=1)
    own.failed(0, UpstreamUnreachable())
    assert own.choose(at(None), [1])[0].index == 0


@given(
    events=st.lists(st.tuples(st.integers(0, 2), st.sampled_from([*ERRORS, None])), max_size=30),
    prefix=st.binary(max_size=4),
    home=st.integers(0, 2),
)
def test_chain_stays_where_it_was_while_its_replica_is_up(
    events: Sequence[tuple[int, UpstreamError | None]], prefix: bytes, home: int
) -> None:
    """Whatever happens to the replicas: as long as its own is not ejected it is asked, and somebody always is."""
    own = fleet()
    for index, error in events:
        if error is None:
            own.succeeded(index)
        else:
            own.failed(index, error)
        replica, moved = own.choose(at(home, prefix=prefix))
        is_home = replica.index == home
        assert is_home == (moved is None)
        assert is_home or not own.is_up(home)
