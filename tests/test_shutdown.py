"""The end of the process: what runs is finished, nothing new begins, and it is over in time."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from proxy.downstream import Downstream
from tests.fakes import (
    CLOSE,
    END,
    PATIENCE,
    STREAM_HEAD,
    TEXT,
    Frame,
    Gate,
    Process,
    RawClient,
    ScriptedUpstream,
    Step,
    answer,
    chunk,
    completed,
    connect_to,
    create,
    created,
    eventually,
    get,
    read,
    receive,
    receive_turn,
    running,
    send,
    serving,
    soon,
    stall,
    types,
)


def slow(gate: Gate) -> list[Step]:
    """A turn that ends when the gate opens."""
    return [read, send(STREAM_HEAD + chunk(created())), gate, send(chunk(completed()) + END)]


async def close_code(client: object) -> int:
    """The code of the close frame that comes next."""
    with pytest.raises(ConnectionClosed) as caught:
        await receive(client)  # type: ignore[arg-type]
    return caught.value.rcvd.code if caught.value.rcvd else 1006


async def is_draining(process: Process) -> None:
    """Wait until the process has begun to end."""
    async with asyncio.timeout(PATIENCE):
        while (await get(process.admin, "/readyz"))[0] != 503:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


async def test_process_finishes_what_runs(tmp_path: Path) -> None:
    """Not ready, no new connections, idle sockets closed with 1012, running turns finished, exit code 0."""
    gate = Gate()
    async with ScriptedUpstream(slow(gate)) as upstream, running(upstream, tmp_path) as process:
        assert await get(process.admin, "/readyz") == (200, b"ok\n")
        async with connect_to(process.address) as busy, connect_to(process.address) as idle:
            await busy.send(create())
            assert (await receive(busy))["type"] == "response.created"
            process.signal()
            assert await close_code(idle) == 1012
            await is_draining(process)
            assert (await get(process.admin, "/livez"))[0] == 200
            with pytest.raises(ConnectionRefusedError):
                await RawClient.open(process.address)
            await busy.send(create(stream_id="late"))
            late = await receive(busy)
            assert (late["status"], late["error"]["code"]) == (503, "server_restarting")
            gate.open()
            assert (await receive(busy))["type"] == "response.completed"
            assert await close_code(busy) == 1012
        assert await process.ended() == 0
        assert len(upstream.requests) == 1
    events = [line["event"] for line in process.lines() if line["event"] not in ("turn", "connection")]
    assert events == ["listening", "draining", "stopped"]
    causes = [line["cause"] for line in process.lines() if line["event"] == "connection"]
    assert causes == ["drain", "drain"]


async def test_process_ends_at_once_when_nothing_runs(tmp_path: Path) -> None:
    """Clients that only keep their HTTP connection open do not hold it up; Ctrl-C does the same as SIGTERM."""
    async with ScriptedUpstream() as upstream, running(upstream, tmp_path) as process:
        with await RawClient.open(process.address) as idle, await RawClient.open(process.address):
            await idle.send_bytes(b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            await idle.read_head()
            process.signal(signal.SIGINT)
            assert await process.ended() == 0


async def test_process_finishes_plain_requests(tmp_path: Path) -> None:
    """An HTTP answer that streams is finished, and its connection then closed."""
    gate = Gate()
    async with ScriptedUpstream(slow(gate)) as upstream, running(upstream, tmp_path) as process:
        with await RawClient.open(process.address) as client:
            await client.send_bytes(b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            await client.read_until(chunk(created()))
            process.signal()
            await is_draining(process)
            gate.open()
            assert (await client.read_all()).endswith(chunk(completed()) + END)
        assert await process.ended() == 0


async def test_process_cuts_what_does_not_finish(tmp_path: Path) -> None:
    """At the deadline turns and plain requests are cut, the backend's work is stopped, and the exit code is still 0."""
    scripts = [slow(Gate()), slow(Gate())]
    async with ScriptedUpstream(*scripts) as upstream, running(upstream, tmp_path, drain_timeout=0.5) as process:
        with await RawClient.upgrade(process.address) as socket, await RawClient.open(process.address) as plain:
            await begin(socket, plain)
            process.signal()
            await expect_cut(upstream, socket, plain)
        assert await process.ended() == 0
    assert "drain timed out" in [line["event"] for line in process.lines()]


async def test_process_ends_at_once_after_a_second_signal(tmp_path: Path) -> None:
    """Whoever asks twice does not want to wait: everything is cut, and the exit code says so."""
    scripts = [slow(Gate()), slow(Gate())]
    async with ScriptedUpstream(*scripts) as upstream, running(upstream, tmp_path, drain_timeout=600) as process:
        with await RawClient.upgrade(process.address) as socket, await RawClient.open(process.address) as plain:
            await begin(socket, plain)
            process.signal()
            await is_draining(process)
            process.signal()
            async with asyncio.timeout(2):
                assert await process.ended() == 143
            await expect_cut(upstream, socket, plain)
    assert "aborted by a second signal" in [line["event"] for line in process.lines()]


async def begin(socket: RawClient, plain: RawClient) -> None:
    """A turn and a plain request, both begun."""
    await socket.send_frame(TEXT, create().encode())
    await plain.send_bytes(b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
    await socket.read_frame()
    await plain.read_until(chunk(created()))


async def expect_cut(upstream: ScriptedUpstream, socket: RawClient, plain: RawClient) -> None:
    """The backend's connections are closed, and neither client's answer has a clean end."""
    for number in range(2):
        await soon((await upstream.peer(number)).gone)
    for client in (socket, plain):
        with pytest.raises((EOFError, ConnectionResetError)):
            await client.read_until(END)


# In this process


async def test_drain_asks_clients_of_http_to_go_elsewhere() -> None:
    """A request on a connection that was there before is answered, and told that it was the last."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        with await RawClient.open(product.address) as client:
            for is_draining_now in (False, True):
                if is_draining_now:
                    await product.running.drain(5)
                await client.send_bytes(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
                answered = await client.read_head()
                assert answered.startswith(b"HTTP/1.1 200 ")
                assert (b"\r\nConnection: close\r\n" in answered) is is_draining_now
                await client.read_until(END)
            assert await client.read_all() == b""


async def test_drain_waits_for_turns_that_wait() -> None:
    """What a client has been promised is kept: a create that waits for its lane when the drain begins still runs."""
    gate = Gate()
    script = [*slow(gate), read, send(answer("second"))]
    async with ScriptedUpstream(script) as upstream, serving(upstream) as product, product.connect() as client:
        await client.send(create())
        assert (await receive(client))["type"] == "response.created"
        await client.send(create())
        (connection,) = product.running.door._connections
        await eventually(lambda: connection.session.lanes._queued == 1)
        async with asyncio.TaskGroup() as tasks:
            draining = tasks.create_task(product.running.drain(PATIENCE))
            await eventually(lambda: product.running.door.is_draining)
            gate.open()
            assert types(await receive_turn(client)) == ["completed"]
            assert types(await receive_turn(client)) == ["created", "output_text.delta", "completed"]
            assert await close_code(client) == 1012
            await draining


async def test_drain_is_not_held_up_by_a_client_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that neither reads nor answers the close frame is cut after a moment."""
    monkeypatch.setattr("proxy.downstream._CLOSE_TIMEOUT", 0.2)
    async with ScriptedUpstream([read, stall]) as upstream, serving(upstream) as product:
        with await RawClient.upgrade(product.address):
            async with asyncio.timeout(PATIENCE):
                await product.running.drain(600)
            assert not product.running.door.connections


async def test_drain_can_be_asked_for_twice() -> None:
    """A second drain finds nothing to do."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product, product.connect() as client:
        await product.running.door.drain(5)
        await product.running.door.drain(5)
        assert await close_code(client) == 1012


async def test_drain_reaches_a_connection_that_is_just_being_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade that was let in a moment before the drain is not forgotten by it."""
    accept = Downstream.accept
    async with ScriptedUpstream() as upstream, serving(upstream) as product:

        async def accept_late(self: Downstream) -> None:
            product.running.door.is_draining = True
            await accept(self)

        monkeypatch.setattr(Downstream, "accept", accept_late)
        async with product.connect() as client:
            assert await close_code(client) == 1012


async def test_close_is_said_once() -> None:
    """A second reason to close does not add a second close frame."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        with await RawClient.upgrade(product.address) as client:
            (connection,) = product.running.door._connections
            for code in (1012, 1011):
                connection.downstream.close(code, "end")
            connection.downstream.ping()
            assert await client.read_frame() == Frame(CLOSE, (1012).to_bytes(2, "big") + b"end")
            await client.send_frame(CLOSE, b"")
            assert await client.read_all() == b""
