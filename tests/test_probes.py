"""Active probes (:mod:`proxy.probes`): what they ask, what they make of the answers, and that they cost nothing."""

from __future__ import annotations

import socket

import pytest

from tests.fakes import (
    ScriptedUpstream,
    Step,
    ask,
    close,
    eventually,
    forever,
    head,
    json_answer,
    read,
    send,
    stall,
    types,
)
from tests.rig.processes import free_port
from tests.test_backends import GOOD, main, serving

QUICK = {"probe_interval": 0.02, "probe_timeout": 0.5, "eject_after": 1, "eject_time": 300}
CLOSING = "Connection: close"


def health(status: str) -> list[Step]:
    """A server that answers everything with a status."""
    return [read, send(head("Content-Length: 0", CLOSING, status=status)), close]


@pytest.mark.parametrize(
    ("script", "is_up"),
    [
        (health("200 OK"), True),
        (health("401 Unauthorized"), True),
        (health("503 Service Unavailable"), False),
        ([read, close], False),
        ([stall], False),
        ([read, send(b"what?\r\n\r\n"), close], False),
    ],
)
async def test_probe_says_whether_a_replica_is_there(script: list[Step], is_up: bool) -> None:  # noqa: FBT001
    """Any answer but a 5xx does; silence and nonsense do not."""
    async with ScriptedUpstream(then=script) as one, ScriptedUpstream(then=health("200 OK")) as other:
        async with serving(main(one, other), routing={**QUICK, "probe_timeout": 0.1}) as product:
            fleet = product.running.door._backends.default
            await eventually(lambda: len(other.peers) > 3 and len(one.peers) > 1 and fleet.is_up(0) is is_up)
            assert fleet.is_up(1)
        assert {request.method for request in (*one.requests, *other.requests)} == {"GET"} or script == [stall]
        assert {request.target for request in other.requests} == {"/health"}


async def test_replica_that_knows_no_health_is_asked_for_its_models() -> None:
    """With the operator's key, which costs no tokens either."""
    models = json_answer({"data": []}, CLOSING)
    script = [*health("404 Not Found")]
    async with (
        ScriptedUpstream(*([script, [read, send(models), close]] * 50), then=[stall]) as one,
        ScriptedUpstream(then=health("200 OK")) as other,
        serving(main(one, other, api_key="k"), routing=QUICK),
    ):
        await eventually(lambda: len(one.requests) >= 4)
        first, second = one.requests[:2]
        assert (first.target, first.headers.get("Authorization")) == ("/health", None)
        assert (second.target, second.headers["Authorization"]) == ("/v1/models", "Bearer k")


async def test_replica_that_could_not_be_reached_is_back_once_a_probe_reaches_it() -> None:
    """Long before its time is over."""
    port = free_port()
    alive = forever(read, send(head("Content-Length: 0")))
    async with (
        ScriptedUpstream(then=[alive]) as other,
        serving(main(f"http://127.0.0.1:{port}/v1", other), routing=QUICK) as product,
    ):
        fleet = product.running.door._backends.default
        await eventually(lambda: not fleet.is_up(0))
        server = ScriptedUpstream(then=[alive])
        server._listener.close()
        server._listener = socket.create_server(("127.0.0.1", port))
        server._listener.setblocking(False)
        async with server:
            await eventually(lambda: fleet.is_up(0))


async def test_single_replica_is_left_in_peace() -> None:
    """Nothing would follow from it."""
    async with ScriptedUpstream() as only, serving(main(only), routing=QUICK) as product, product.connect() as client:
        for _ in range(3):
            assert types(await ask(client)) == GOOD
        assert {request.method for request in only.requests} == {"POST"}
