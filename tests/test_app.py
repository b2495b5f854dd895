"""The whole server: what it listens on, what it leaves, and that it works on either event loop."""

from __future__ import annotations

import asyncio
import gc
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from structlog.testing import capture_logs

from proxy import app
from tests.fakes import (
    CLOSE,
    END,
    PATIENCE,
    STREAM_HEAD,
    TEXT,
    Gate,
    RawClient,
    ScriptedUpstream,
    Step,
    answer,
    ask,
    chunk,
    completed,
    configure,
    connect_to,
    create,
    created,
    delta,
    drip,
    eventually,
    flood,
    get,
    read,
    receive,
    reset,
    running,
    send,
    serving,
    soon,
    stall,
    text_of,
    types,
)

GOOD = ["created", "output_text.delta", "completed"]


# Listening


async def test_app_listens_on_the_ports_it_names() -> None:
    """Port 0 becomes a real one, for clients and for the operator."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        assert product.running.listen.port != product.running.admin.port != 0
        for target in ("/livez", "/readyz", "/metrics"):
            assert (await get(product.running.admin, target))[0] == 200
            assert (await get(product.address, f"/v1{target}"))[0] == 200  # the backend's, like every other path


async def test_app_listens_on_ipv6() -> None:
    """An IPv6 address is listened on as such."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("there is no IPv6 here")
    async with (
        ScriptedUpstream() as upstream,
        serving(upstream, listen="[::1]:0") as product,
        connect_to(product.address) as client,
    ):
        assert types(await ask(client)) == GOOD


@pytest.mark.parametrize("option", ["listen", "admin"])
async def test_app_says_when_it_cannot_listen(option: str) -> None:
    """A port that is taken is an error, and the other one is free again."""
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as other:
        ports = {"listen": other.getsockname()[1], "admin": other.getsockname()[1]}
        other.close()
        ports[option] = taken.getsockname()[1]
        config = configure("http://h/v1", **{name: f"127.0.0.1:{port}" for name, port in ports.items()})
        with pytest.raises(OSError, match="in use"):
            async with app.start(config):
                pass
        socket.create_server(other_address(ports, option)).close()


def other_address(ports: dict[str, int], option: str) -> tuple[str, int]:
    """Where the listener that was not in the way would have been."""
    return "127.0.0.1", next(port for name, port in ports.items() if name != option)


async def test_app_frees_its_ports() -> None:
    """Where it has listened another one can listen at once."""
    async with ScriptedUpstream() as upstream:
        async with serving(upstream) as product, product.connect() as client:
            await ask(client)
            addresses = [product.address, product.running.admin]
        for address in addresses:
            socket.create_server(tuple(address)).close()


async def test_app_logs_no_error_for_what_a_client_does(caplog: pytest.LogCaptureFixture) -> None:
    """Neither what is no HTTP nor a client that leaves at any moment is a bug of ours; a bug is logged."""
    request = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        for data in (b"\x16\x03\x01", b"SSH-2.0\r\n\r\n", request, request + b"X Y: z\r\n\r\n", request + b"\r\nhalf"):
            client = await RawClient.open(product.address)
            await client.send_bytes(data)
            await asyncio.sleep(0)
            client.reset()
        await get(product.address, "/v1/models")
        assert not caplog.records

        async def fail(_: object) -> None:
            raise ZeroDivisionError

        product.running.door._stored.handle = fail  # type: ignore[method-assign, assignment]
        assert (await get(product.address, "/v1/models"))[0] == 500
        assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]
        caplog.clear()


# The command


@pytest.mark.parametrize("signals", [1, 2])
async def test_serve_returns_the_exit_code(signals: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 after a drain, 143 after a second signal, even one that comes right behind the first."""
    monkeypatch.setattr(gc, "freeze", bool)
    monkeypatch.setattr(gc, "set_threshold", lambda *_: None)
    loop = asyncio.get_running_loop()
    gate = Gate()
    script: list[Step] = [read, send(STREAM_HEAD + chunk(created())), gate, send(chunk(completed()) + END)]
    async with ScriptedUpstream(script) as upstream:
        with capture_logs() as lines:
            async with asyncio.TaskGroup() as tasks:
                serve = tasks.create_task(app.serve(configure(upstream)))
                await eventually(lambda: lines)
                address = lines[0]["url"].removeprefix("http://").removesuffix("/v1")
                async with connect_to(address) as client:
                    await client.send(create())
                    await soon(gate.reached)
                    for _ in range(signals):
                        signal.raise_signal(signal.SIGTERM)
                    if signals == 1:
                        await eventually(lambda: "draining" in [line["event"] for line in lines])
                        gate.open()
                    async with asyncio.timeout(PATIENCE):
                        assert await serve == (0 if signals == 1 else 143)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


# Either event loop


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_app_works_on_either_event_loop(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Turns, reuse, cuts, slow and vanishing clients, large frames, plain HTTP and a drain, in one process."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_converse())
        runner.run(_stall())
        runner.run(_go())


async def _converse() -> None:
    whole = answer("whole")
    script: list[Step] = [
        *[read, send(whole)],
        *[read, drip(whole)],
        *[read, send(STREAM_HEAD + chunk(created() + delta("x" * 9_000_000, 1) + completed()) + END)],
        *[read, send(STREAM_HEAD + chunk(created()) + b"99\r\nda"), reset],
    ]
    async with ScriptedUpstream(script) as upstream, serving(upstream) as product:
        async with product.connect() as client:
            assert text_of(await ask(client)) == "whole"
            assert text_of(await ask(client)) == "whole"
            await eventually(lambda: product.running.door._backends.first._pool._idle)
            assert len(text_of(await ask(client))) == 9_000_000
            assert (await ask(client))[-1]["status"] == 502
            assert text_of(await ask(client)) == "Hello"
        assert len(upstream.peers) == 2
        assert all(peer.segments[0] == peer.requests[0].raw for peer in upstream.peers)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(product.running.drain(10))


async def _stall() -> None:
    block = chunk(b"".join(delta("x" * 1000) for _ in range(60)))
    script: list[Step] = [read, send(STREAM_HEAD + chunk(created())), flood(block, 1000), stall]
    async with (
        ScriptedUpstream(then=script) as upstream,
        serving(upstream, websocket__write_timeout=0.3, websocket__max_message=2**16) as product,
    ):
        with await RawClient.upgrade(product.address, receive_buffer=2**14) as slow:
            await slow.send_frame(TEXT, create().encode())
            await soon((await upstream.peer(0)).gone)
        assert upstream.peers[0].sent < 1000 * len(block)
        vanishing = await RawClient.upgrade(product.address, receive_buffer=2**14)
        await vanishing.send_frame(TEXT, create().encode())
        peer = await upstream.peer(1)
        await eventually(lambda: peer.sent > 2**20)
        vanishing.reset()
        await soon(peer.gone)
        with await RawClient.upgrade(product.address) as large:
            await large.send_frame(TEXT, b"x" * 2**20)
            frame = await large.read_frame()
            assert (frame.opcode, frame.payload[:2]) == (CLOSE, (1009).to_bytes(2, "big"))
        await eventually(lambda: not product.running.door.connections)
        assert await product.counts("closes") == {"slow_client": 1, "client": 1, "too_big": 1}


async def _go() -> None:
    gate, plain = Gate(), Gate()
    slow: list[Step] = [read, send(STREAM_HEAD + chunk(created())), gate, send(chunk(completed()) + END)]
    held: list[Step] = [read, send(STREAM_HEAD + chunk(created())), plain, send(chunk(completed()) + END)]
    async with ScriptedUpstream(slow, held) as upstream, serving(upstream) as product, product.connect() as client:
        await client.send(create())
        assert (await receive(client))["type"] == "response.created"
        with await RawClient.open(product.address) as http:
            await http.send_bytes(b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            await http.read_until(chunk(created()))
            async with asyncio.TaskGroup() as tasks:
                drain = tasks.create_task(product.running.drain(10))
                await eventually(lambda: product.running.door.is_draining)
                gate.open()
                assert (await receive(client))["type"] == "response.completed"
                await client.wait_closed()
                assert client.close_code == 1012
                assert not drain.done()
                plain.open()
                assert (await http.read_until(END)).endswith(chunk(completed()) + END)


# Writes


async def test_process_writes_once_a_request_and_once_a_read(tmp_path: Path) -> None:
    """Seen from outside: a turn is one write to the backend and one to the client for each read from the backend."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    gate = Gate()
    events = created() + b"".join(delta(f"word {number}", number) for number in range(20))
    script: list[Step] = [
        read,
        send(answer("warm")),
        read,
        send(STREAM_HEAD + chunk(events)),
        gate,
        send(chunk(completed()) + END),
    ]
    async with ScriptedUpstream(script) as upstream, running(upstream, tmp_path) as process:
        async with connect_to(process.address) as client:
            await ask(client)
            trace = tmp_path / "trace"
            calls = "trace=write,writev,sendto,sendmsg,recvfrom,read,readv"
            tracer = await asyncio.create_subprocess_exec(
                *(strace, "-f", "-e", calls, "-s", "100000", "-p", str(process.process.pid), "-o", str(trace)),
                stderr=asyncio.subprocess.PIPE,
            )
            assert tracer.stderr is not None
            if b"attached" not in await tracer.stderr.readline():
                pytest.skip("strace may not look at processes here")
            await client.send(create())
            for _ in range(21):
                await receive(client)
            await soon(gate.reached)
            gate.open()
            await receive(client)
            tracer.terminate()
            await tracer.wait()
        lines = [
            line
            for line in trace.read_text(encoding="utf-8", errors="replace").splitlines()
            if "write" in line or "send" in line
        ]
        requests = [line for line in lines if "POST /v1/responses" in line]
        frames = [line for line in lines if "response.created" in line or "response.completed" in line]
        assert len(requests) == 1
        assert '"input' in requests[0].replace('\\"', '"')
        assert len(frames) == 2
        assert "word 19" in frames[0]
