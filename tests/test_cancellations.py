"""Whatever ends a turn, and in whichever phase: nothing of it is left.

Phases are those of an exchange with the backend; what ends it is the client, the backend, a timer, or the deadline of a
drain. Afterwards there is no task, no connection, no memory, and nothing is counted as running.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.fakes import (
    CLOSE,
    STREAM_HEAD,
    TEXT,
    Gate,
    Product,
    RawClient,
    ScriptedUpstream,
    Step,
    answer,
    chunk,
    client_frame,
    create,
    created,
    eventually,
    forever,
    read,
    reset,
    send,
    serving,
    soon,
    stall,
    stream,
)

Phase = Literal["connecting", "awaiting the head", "awaiting an event", "streaming", "tail"]
PHASES: tuple[Phase, ...] = ("connecting", "awaiting the head", "awaiting an event", "streaming", "tail")

SAID: dict[Phase, list[Step]] = {
    "awaiting the head": [],
    "awaiting an event": [send(STREAM_HEAD)],
    "streaming": [send(STREAM_HEAD + chunk(created()))],
    "tail": [send(STREAM_HEAD + chunk(stream("Hello")))],
}
LIMITS = {
    "connecting": "upstream__timeouts__connect",
    "awaiting the head": "upstream__timeouts__first_event",
    "awaiting an event": "upstream__timeouts__first_event",
    "streaming": "upstream__timeouts__idle",
    "tail": "upstream__timeouts__idle",
}


@dataclass
class Scene:
    """A turn that has come to its phase.

    Attributes:
        product: The product.
        client: The client, which has been sent what the backend has said so far.
        upstream: The backend; None while nobody accepts its connections.
        gate: Where the backend waits, to cut the connection when it is opened.
        listener: Where nobody accepts.
    """

    product: Product
    client: RawClient
    upstream: ScriptedUpstream | None
    gate: Gate
    listener: socket.socket | None

    async def status(self) -> int:
        """The status of the error frame that comes next."""
        frame = await self.client.read_frame()
        assert frame.opcode == TEXT
        assert frame.payload.startswith(b'{"type":"error","status":')
        return int(frame.payload[25:28])


@contextlib.contextmanager
def nobody_accepts() -> Iterator[socket.socket]:
    """A listener whose queue is full, so that a connection to it is never established."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as stack:
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        yield listener


@contextlib.asynccontextmanager
async def scene(phase: Phase, **options: Any) -> AsyncIterator[Scene]:
    """A turn in its phase; at the end nothing may be left of it."""
    async with contextlib.AsyncExitStack() as stack:
        upstream, listener, gate = None, None, Gate()
        if phase == "connecting":
            listener = stack.enter_context(nobody_accepts())
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        else:
            upstream = await stack.enter_async_context(ScriptedUpstream([read, *SAID[phase], gate, reset]))
            url = upstream.url
        product = await stack.enter_async_context(serving(url, **options))
        before, files = tasks(), open_files()
        with await RawClient.upgrade(product.address) as client:
            await client.send_frame(TEXT, create().encode())
            if upstream is not None:
                await soon(gate.reached)
            await eventually(
                lambda: phase == "tail" or (product.running.door.connections and turns_in_flight(product) == 1)
            )
            for _ in range({"streaming": 1, "tail": 3}.get(phase, 0)):
                assert (await client.read_frame()).opcode == TEXT
            yield Scene(product, client, upstream, gate, listener)
        await expect_nothing_left(product, upstream, before, files)


async def expect_nothing_left(
    product: Product, upstream: ScriptedUpstream | None, before: set[asyncio.Task[Any]], files: int
) -> None:
    """No task, no connection, no memory, nothing that counts as running."""
    await eventually(lambda: not product.running.door.connections)
    if upstream is not None:
        for peer in upstream.peers:
            await soon(peer.gone)
    assert not product.running.door._backends.first._pool._idle
    await eventually(lambda: not (tasks() - before))
    await eventually(lambda: open_files() <= files)
    budget = product.running.door._budget
    assert (budget.used, budget.entries) == (0, 0)
    assert turns_in_flight(product) == 0
    assert product.running.metrics.connections._value.get() == 0


def turns_in_flight(product: Product) -> float:
    """The gauge."""
    value: float = product.running.metrics.turns_in_flight._value.get()
    return value


def open_files() -> int:
    """How many file descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


def tasks() -> set[asyncio.Task[Any]]:
    """The tasks that are not the tests' own."""
    return {task for task in asyncio.all_tasks() if "/tests/" not in repr(task)}


# The matrix


@pytest.mark.parametrize("how", ["reset", "leave", "half-close", "close frame"])
@pytest.mark.parametrize("phase", PHASES)
async def test_client_that_leaves_cancels_its_turn(phase: Phase, how: str) -> None:
    """However it goes, the backend's connection is closed within a second."""
    async with scene(phase) as this:
        if how == "reset":
            this.client.reset()
        elif how == "half-close":
            this.client.half_close()
        elif how == "leave":
            this.client.sock.close()
        else:
            await this.client.send_frame(CLOSE, (1000).to_bytes(2, "big"))
        async with asyncio.timeout(1):
            if this.upstream is not None:
                await this.upstream.peers[0].gone.wait()
            await eventually(lambda: not this.product.running.door.connections)


@pytest.mark.parametrize("how", ["reset", "close frame"])
@pytest.mark.parametrize("phase", PHASES)
async def test_response_outlives_its_client_for_so_long(phase: Phase, how: str) -> None:
    """Where it may, and does not end; then nothing is left of it either."""
    chosen = {"websocket__on_disconnect": "drain", "websocket__disconnect_timeout": "300ms"}
    async with scene(phase, **chosen) as this:
        if how == "reset":
            this.client.reset()
        else:
            await this.client.send_frame(CLOSE, (1000).to_bytes(2, "big"))
            await this.client.read_all()  # the connection is lost, too
        if phase != "tail":
            await eventually(lambda: next(iter(this.product.running.door._connections))._is_over)
            assert turns_in_flight(this.product) == 1


@pytest.mark.parametrize("phase", PHASES)
async def test_response_that_outlives_its_client_is_cut_with_the_server(phase: Phase) -> None:
    """It is waited for in a drain, as those of clients that are there, and no longer."""
    async with scene(phase, websocket__on_disconnect="drain", websocket__disconnect_timeout="1h") as this:
        this.client.reset()
        if phase != "tail":
            await eventually(lambda: next(iter(this.product.running.door._connections))._is_over)
            async with asyncio.timeout(10):
                await this.product.running.drain(0.1)
                assert turns_in_flight(this.product) == 1
        async with asyncio.timeout(10):
            await this.product.running.door.close()


@pytest.mark.parametrize("phase", PHASES[1:4])
async def test_backend_that_fails_after_its_client_has_left_ends_it(phase: Phase) -> None:
    """There is nobody to tell, and nothing left to wait for."""
    async with scene(phase, websocket__on_disconnect="drain", websocket__disconnect_timeout="1h") as this:
        this.client.reset()
        await eventually(lambda: next(iter(this.product.running.door._connections))._is_over)
        this.gate.open()


@pytest.mark.parametrize("phase", PHASES)
async def test_upstream_that_fails_ends_its_turn(phase: Phase) -> None:
    """The turn ends with an error, unless its response was complete, and the connection goes on."""
    async with scene(phase, upstream__timeouts__connect=30) as this:
        if this.listener is not None:
            this.listener.close()  # what knocks again is refused
        this.gate.open()
        if phase != "tail":
            assert await this.status() == 502
        connection = next(iter(this.product.running.door._connections))
        await eventually(lambda: not connection._running)
        await expect_an_answer(this)


@pytest.mark.parametrize("phase", PHASES)
async def test_timer_that_fires_ends_its_turn(phase: Phase, monkeypatch: pytest.MonkeyPatch) -> None:
    """So does a limit, which says so."""
    monkeypatch.setattr("proxy.exchange._TAIL_TIMEOUT", 0.2)
    async with scene(phase, **{LIMITS[phase]: 0.2}) as this:
        if phase != "tail":
            assert await this.status() == 504
        connection = next(iter(this.product.running.door._connections))
        await eventually(lambda: not connection._running)
        await expect_an_answer(this)


async def expect_an_answer(this: Scene) -> None:
    """The connection is still good: a bad frame is answered, which needs no backend."""
    await this.client.send_frame(TEXT, b"{}")
    assert await this.status() == 400


@pytest.mark.parametrize("phase", PHASES[:4])
async def test_drain_whose_deadline_passes_cuts_its_turns(phase: Phase) -> None:
    """What runs at the deadline is cut with the server."""
    async with scene(phase) as this:
        await this.product.running.drain(0.1)
        await this.product.running.door.close()
        with pytest.raises((EOFError, ConnectionResetError)):
            await this.client.read_frame()


async def test_drain_does_not_wait_for_a_tail() -> None:
    """A connection whose response is complete is idle: it is closed at once, and what the backend still says is not wanted."""
    async with scene("tail") as this, asyncio.TaskGroup() as draining:
        draining.create_task(this.product.running.drain(60))
        frame = await this.client.read_frame()
        assert (frame.opcode, frame.payload[:2]) == (CLOSE, (1012).to_bytes(2, "big"))
        await this.client.send_frame(CLOSE, frame.payload[:2])


@pytest.mark.parametrize("phase", PHASES)
async def test_server_that_ends_at_once_leaves_nothing(phase: Phase) -> None:
    """Leaving the server's context without a drain ends everything before it returns."""
    async with contextlib.AsyncExitStack() as stack:
        upstream = None
        if phase == "connecting":
            url = f"http://127.0.0.1:{stack.enter_context(nobody_accepts()).getsockname()[1]}/v1"
        else:
            upstream = await stack.enter_async_context(ScriptedUpstream([read, *SAID[phase], stall]))
            url = upstream.url
        before = tasks()
        async with serving(url) as product:
            client = stack.enter_context(await RawClient.upgrade(product.address))
            await client.send_frame(TEXT, create().encode())
            await eventually(lambda: product.running.door.connections)
            if upstream is not None:
                peer = await upstream.peer()
                await eventually(lambda: peer.requests)
        assert not product.running.door.connections
        assert turns_in_flight(product) == 0
        if upstream is not None:
            await soon(upstream.peers[0].gone)
        assert not tasks() - before


# More than one at a time


async def test_client_that_leaves_cancels_all_its_lanes() -> None:
    """Sixteen lanes before the end of their streams, seven behind it, and seven that wait: nothing is left of any."""
    scripts: list[list[Step]] = [
        [read, *SAID[phase], stall] for phase in ("awaiting the head", "streaming", "tail")
    ] * 8
    async with ScriptedUpstream(*scripts) as upstream, serving(upstream) as product:
        before, files = tasks(), open_files()
        client = await RawClient.upgrade(product.address)
        for number in range(30):
            await client.send_frame(TEXT, create(stream_id=f"lane{number}").encode())
        await eventually(lambda: len(upstream.requests) == 16 + 7)
        client.reset()
        await expect_nothing_left(product, upstream, before, files)


async def test_clients_that_come_and_go_leave_nothing() -> None:
    """Many clients that leave at any moment, some with data unread, some in the middle of a frame."""
    steps: list[Step] = [read, send(STREAM_HEAD + chunk(created())), send(chunk(stream("x" * 200_000))), stall]
    async with ScriptedUpstream(then=steps) as upstream, serving(upstream) as product:
        before, files = tasks(), open_files()

        async def visit(number: int) -> None:
            with await RawClient.upgrade(product.address) as client:
                frame = client_frame(TEXT, create().encode())
                await client.send_bytes(frame if number % 3 else frame[:-5])
                for _ in range(number % 4):
                    await asyncio.sleep(0)
                if number % 5 == 0:
                    await client.receive_some(1000) if number % 3 else None
                if number % 2:
                    client.reset()

        async with asyncio.TaskGroup() as visits:
            for number in range(60):
                visits.create_task(visit(number))
        await eventually(lambda: not product.running.door.connections)
        for peer in upstream.peers:
            await soon(peer.gone)
        await expect_nothing_left(product, upstream, before, files)


async def test_turns_of_many_clients_leave_nothing() -> None:
    """After a hundred conversations there is what was there before, apart from what is kept on purpose."""
    async with ScriptedUpstream(then=[forever(read, send(answer("Hello")))]) as upstream, serving(upstream) as product:
        before = tasks()

        async def converse() -> None:
            async with product.connect() as client:
                for _ in range(3):
                    await client.send(create())
                    for _ in range(3):
                        await client.recv()

        async with asyncio.TaskGroup() as conversations:
            for _ in range(50):
                conversations.create_task(converse())
        await eventually(lambda: not product.running.door.connections)
        await eventually(lambda: not (tasks() - before))
        assert len(product.running.door._backends.first._pool._idle) == len(upstream.peers) <= 50
        assert product.running.door._budget.used == 0
