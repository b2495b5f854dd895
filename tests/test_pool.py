"""Connections that are opened ahead of a request (:mod:`proxy.pool`); those that are kept are in test_upstream.py."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proxy import pool
from proxy.config import Config
from proxy.pool import Pool
from proxy.wire import WireState
from tests.fakes import (
    Gate,
    Product,
    ScriptedUpstream,
    Step,
    answer,
    ask,
    close,
    create,
    eventually,
    read,
    send,
    serving,
    types,
)

GOOD = ["created", "output_text.delta", "completed"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"url": "http://backend/v1"}, 0),
        ({"url": "https://backend/v1"}, 16),
        ({"url": "https://backend/v1", "preconnect": 0}, 0),
        ({"url": "http://backend/v1", "preconnect": 3}, 3),
        ({"url": "http://backend/v1", "preconnect": None}, 0),
    ],
)
def test_default_is_for_backends_that_are_far_away(options: dict[str, Any], expected: int) -> None:
    """A handshake of TLS takes some round trips; a connection to a neighbour takes nothing worth mentioning."""
    assert Config.model_validate({"upstream": options}).default.opened_ahead(options["url"]) == expected


@contextlib.asynccontextmanager
async def opening(
    *scripts: list[Step], ahead: int = 4, **options: Any
) -> AsyncIterator[tuple[Product, ScriptedUpstream]]:
    """The product, in front of a backend to which it opens connections ahead."""
    async with (
        ScriptedUpstream(*scripts) as upstream,
        serving(upstream, upstream__preconnect=ahead, **options) as product,
    ):
        yield product, upstream


def fresh(product: Product) -> int:
    """How many connections are at hand that have not served yet."""
    return len(product.running.door._backends.first._pool._fresh)


async def test_nothing_is_opened_ahead_unless_it_is_wanted() -> None:
    """By default, to a backend without TLS."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product, product.connect() as client:
        await asyncio.sleep(0.05)
        assert not upstream.peers
        assert types(await ask(client)) == GOOD
        assert await product.counts("upstream_connections") == {"new": 1}
        assert await product.counts("preconnections") == {}


async def test_first_turn_finds_a_connection() -> None:
    """It was opened when its client connected; and what was opened ahead is counted as that once."""
    async with opening() as (product, upstream), product.connect() as client:
        await eventually(lambda: fresh(product) == 1)
        assert types(await ask(client)) == GOOD
        assert types(await ask(client)) == GOOD
        assert len(upstream.peers) == 1
        assert await product.counts("upstream_connections") == {"ahead": 1, "reused": 1}
        assert await product.counts("preconnections") == {"used": 1}
        assert (await product.gauges())["connections_open"] == 1


async def test_next_turn_finds_a_connection_although_the_backend_has_closed_the_last() -> None:
    """While a client's tools run, another one is opened."""
    gate = Gate()
    async with opening([read, send(answer("one")), gate, close]) as (product, upstream), product.connect() as client:
        await ask(client)
        gate.open()
        await eventually(lambda: fresh(product) == 1)
        assert types(await ask(client)) == GOOD
        assert len(upstream.peers) == 2
        assert await product.counts("upstream_connections") == {"ahead": 2}


async def test_connection_that_is_too_old_is_replaced() -> None:
    """One that was kept for as long as the backend's limit allows."""
    async with opening(upstream__keepalive=0.05) as (product, upstream), product.connect() as client:
        await ask(client)
        await eventually(lambda: len(upstream.peers) == 2)
        await eventually(lambda: fresh(product) == 1)


async def test_no_more_are_opened_than_the_limit_says_or_than_clients_are_expected() -> None:
    """Each client is expected once, and while its turn runs it is not."""
    scripts: list[list[Step]] = [[read, Gate()] for _ in range(3)]
    async with opening(*scripts, ahead=3) as (product, upstream), contextlib.AsyncExitStack() as stack:
        clients = []
        for count in (1, 2, 3, 3, 3):
            clients.append(await stack.enter_async_context(product.connect()))
            await eventually(lambda: fresh(product) == count)  # noqa: B023 - it is over before there is another
        await asyncio.sleep(0.05)
        assert len(upstream.peers) == 3
        await clients[0].send(create())
        await eventually(lambda: len(upstream.requests) == 1)
        pools = product.running.door._backends.first._pool
        assert len(pools._expected) == 4


async def test_nobody_is_expected_who_is_gone() -> None:
    """What was opened for them stays until it is too old, or serves somebody else."""
    async with opening() as (product, upstream):
        async with product.connect():
            await eventually(lambda: fresh(product) == 1)
        pools = product.running.door._backends.first._pool
        await eventually(lambda: not pools._expected)
        async with product.connect() as client:
            assert types(await ask(client)) == GOOD
        assert len(upstream.peers) == 1


async def test_dead_connection_is_replaced_by_a_new_one() -> None:
    """The backend closed it at the moment at which it was taken: the turn is asked once more."""
    async with opening([read, close]) as (product, upstream), product.connect() as client:
        await eventually(lambda: fresh(product) == 1)
        assert types(await ask(client)) == GOOD
        assert len(upstream.peers) == 2
        assert await product.counts("upstream_connections") == {"new": 1}


async def test_backend_that_closes_at_once_is_left_in_peace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause between two attempts doubles, until one is used."""
    monkeypatch.setattr(pool, "_LOOK", 0.01)
    monkeypatch.setattr(pool, "_FIRST_PAUSE", 0.05)
    scripts: list[list[Step]] = [[close] for _ in range(50)]
    async with opening(*scripts) as (product, upstream), product.connect():
        await asyncio.sleep(0.4)
        # At 0, 0.05, 0.15 and 0.35 s; a machine that is busy is at fewer.
        assert 1 <= len(upstream.peers) <= 4
        counted = await product.counts("preconnections")
        assert counted == {"unused": len(upstream.peers)}


async def test_backend_that_is_down_costs_no_more_than_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own turn is refused as ever."""
    monkeypatch.setattr(pool, "_LOOK", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with serving(f"http://127.0.0.1:{port}/v1", upstream__preconnect=4) as product, product.connect() as client:
        await asyncio.sleep(0.1)
        assert await product.counts("preconnections") == {"failed": 1}
        (error,) = await ask(client)
        assert error["error"]["code"] == "upstream_unreachable"


class Counted(Pool):
    """A pool whose connections' ends are counted."""

    def __init__(self, port: int, **options: Any) -> None:
        self.results: list[str] = []
        super().__init__(
            f"http://127.0.0.1:{port}/v1",
            connect_timeout=5,
            on_preconnection=self.results.append,
            **{"keepalive": 60, "ahead": 4, **options},
        )


async def test_connection_that_nobody_used_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the backend may close it; whoever is still expected gets another one."""
    monkeypatch.setattr(pool, "_FRESH", 0.05)
    monkeypatch.setattr(pool, "_LOOK", 0.01)
    async with ScriptedUpstream() as upstream:
        counted = Counted(upstream.port)
        counted.expect("somebody")
        await eventually(lambda: len(upstream.peers) >= 3)
        assert counted.results[:2] == ["unused", "unused"]
        counted.dismiss("somebody")
        await asyncio.sleep(0.1)
        before = len(upstream.peers)
        await asyncio.sleep(0.1)
        assert len(upstream.peers) == before
        assert counted.take() is None
        counted.close()


async def test_client_is_not_expected_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has said nothing for minutes waits for a connection like everybody."""
    monkeypatch.setattr(pool, "_HORIZON", 0.05)
    monkeypatch.setattr(pool, "_FRESH", 0.1)
    monkeypatch.setattr(pool, "_LOOK", 0.01)
    async with ScriptedUpstream() as upstream:
        counted = Counted(upstream.port)
        counted.expect("somebody")
        await eventually(lambda: counted._fresh)
        await eventually(lambda: not counted._expected)
        await eventually(lambda: counted._timer is None)
        counted.close()


async def test_pool_takes_what_has_served_first() -> None:
    """It is the least likely to be dead; and each of those that are at hand is given once."""
    async with ScriptedUpstream() as upstream:
        counted = Counted(upstream.port)
        counted.expect("somebody")
        await eventually(lambda: counted._fresh)
        kept = await counted.connect()
        counted._give_back(kept)
        kept.idle_since = asyncio.get_running_loop().time()
        assert counted.take() == (kept, True)
        taken = counted.take()
        assert taken is not None
        assert taken[1] is False
        assert counted.take() is None
        assert counted.results == ["used"]
        counted.close()
        for wire in (kept, taken[0]):
            wire.close()
            assert wire.state is WireState.CLOSED


async def test_backend_that_keeps_no_connection_gets_none_ahead() -> None:
    """It would close it after one request, and may count them."""
    async with ScriptedUpstream() as upstream:
        counted = Counted(upstream.port, keepalive=0)
        counted.expect("somebody")
        await asyncio.sleep(0.05)
        assert not upstream.peers
        counted.close()


async def test_pool_that_is_closed_opens_no_more() -> None:
    """Those that are being opened are given up."""
    async with ScriptedUpstream() as upstream:
        counted = Counted(upstream.port)
        counted.expect("somebody")
        counted.close()
        await asyncio.sleep(0.05)
        assert not counted._fresh
        assert not counted._opening
        assert counted._timer is None


async def test_kept_connections_are_closed_in_time_although_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a busy hour their sockets are given back, whether or not a backend closes them; then nothing is looked at."""
    monkeypatch.setattr(pool, "_LOOK", 0.01)
    async with ScriptedUpstream() as upstream:
        counted = Counted(upstream.port, keepalive=0.05, ahead=0)
        wires = [await counted.connect() for _ in range(3)]
        for wire in wires:
            wire.idle_since = asyncio.get_running_loop().time()
            counted._give_back(wire)
        await eventually(lambda: all(wire.state is WireState.CLOSED for wire in wires))
        await eventually(lambda: counted._timer is None)
        counted.close()
