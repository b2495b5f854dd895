"""Limits of a connection: the size of a message, and time.

Timers are tested with short limits; a test waits for what must come, and where nothing may come, for something that comes
later.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import zlib
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, ConnectionClosedError
from websockets.sync.client import connect as connect_sync

from tests.fakes import (
    CLOSE,
    END,
    PATIENCE,
    PING,
    STREAM_HEAD,
    TEXT,
    Gate,
    Product,
    RawClient,
    ScriptedUpstream,
    Step,
    ask,
    chunk,
    client_frame,
    client_frame_size,
    completed,
    create,
    created,
    eventually,
    flood,
    read,
    receive,
    receive_turn,
    send,
    serving,
    soon,
    stall,
    types,
    upgrade_request,
)

LIMIT = 64 * 2**10
COMPRESSED = 0x40
GOOD = ["created", "output_text.delta", "completed"]


def message_of(size: int) -> str:
    """A create of so many bytes."""
    message = create("x" * (size - len(create(""))))
    assert len(message) == size
    return message


def deflated(data: bytes) -> bytes:
    """A compressed text frame."""
    compressor = zlib.compressobj(wbits=-15)
    payload = compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)
    return client_frame(TEXT, payload.removesuffix(b"\0\0\xff\xff"), flags=COMPRESSED)


async def close_causes(product: Product) -> dict[str, float]:
    """Why connections ended, once none is open."""
    await eventually(lambda: not product.running.door.connections)
    return await product.counts("closes")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server believes soon that a client whose message it refused has stopped sending."""
    monkeypatch.setattr("proxy.downstream._LINGER_QUIET", 0.05)


# The size of a message


async def test_client_may_send_a_message_of_just_the_limit() -> None:
    """The limit itself is allowed, and announced on the 101."""
    async with (
        ScriptedUpstream() as upstream,
        serving(upstream, websocket__max_message=LIMIT) as product,
        product.connect() as client,
    ):
        assert client.response is not None
        assert client.response.headers["x-codex-websocket-max-message-bytes"] == str(LIMIT)
        await client.send(message_of(LIMIT))
        assert types(await receive_turn(client)) == GOOD


@pytest.mark.parametrize("pieces", [1, 3])
async def test_client_may_not_send_a_message_above_the_limit(pieces: int, impatient: None) -> None:
    """One byte more, whole or in fragments, ends the connection with 1009, and is counted as that."""
    async with ScriptedUpstream() as upstream, serving(upstream, websocket__max_message=LIMIT) as product:
        async with product.connect() as client:
            message = message_of(LIMIT + 1)
            size = -(-len(message) // pieces)
            await client.send([message[start : start + size] for start in range(0, len(message), size)])
            with pytest.raises(ConnectionClosedError) as caught:
                await receive(client)
            assert caught.value.rcvd is not None
            assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1009, "message too big")
        assert await close_causes(product) == {"too_big": 1}
        assert not upstream.peers


@pytest.mark.parametrize(("size", "is_taken"), [(LIMIT, True), (LIMIT + 1, False), (20 * 2**20, False)])
async def test_limit_holds_for_what_compressed_messages_become(size: int, impatient: None, *, is_taken: bool) -> None:
    """What counts is the inflated size, and a bomb is not inflated beyond it."""
    options = {"websocket__max_message": LIMIT, "websocket__compression": True}
    async with ScriptedUpstream() as upstream, serving(upstream, **options) as product:
        with await RawClient.upgrade(product.address, "Sec-WebSocket-Extensions: permessage-deflate") as client:
            await client.send_bytes(deflated(message_of(size).encode()))
            frame = await client.read_frame()
            if is_taken:
                assert b"response.created" in frame.payload
            else:
                assert (frame.opcode, frame.payload[:2]) == (CLOSE, (1009).to_bytes(2, "big"))


def _send_slowly(address: tuple[str, int], size: int) -> tuple[bytes, int]:
    """Send a large message on a blocking socket without reading in between; what came back, and how much was sent."""
    with socket.create_connection(address) as sock:
        sock.settimeout(PATIENCE)
        sock.sendall(upgrade_request())
        assert sock.recv(2**16).startswith(b"HTTP/1.1 101 ")
        sock.sendall(b"\x81" + client_frame_size(size) + bytes(4))
        block = bytes(2**20)
        for _ in range(size // len(block)):
            sock.sendall(block)
        return sock.recv(2**16), size


async def test_client_that_is_still_sending_gets_the_close_frame() -> None:
    """A client that sends 80 MiB before it looks for an answer finds 1009, not a reset."""
    async with ScriptedUpstream() as upstream, serving(upstream, websocket__max_message=LIMIT) as product:
        data, _ = await asyncio.to_thread(_send_slowly, product.address, 80 * 2**20)
        assert data[:1] == b"\x88"
        assert struct.unpack_from("!H", data, 2) == (1009,)


async def test_library_client_that_is_still_sending_gets_the_close_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms of the `websockets` client see 1009 after they sent, or while they send, 16 MiB."""
    monkeypatch.setattr("proxy.downstream._LINGER_QUIET", 0.2)
    message = b"x" * (16 * 2**20)

    def send_blocking(address: str) -> int | None:
        with connect_sync(f"ws://{address}/v1/responses", proxy=None, max_size=None, compression=None) as client:
            try:
                client.send(message, text=True)
                client.recv(timeout=PATIENCE)
            except ConnectionClosed as closed:
                return closed.rcvd.code if closed.rcvd else None
        return None

    async with ScriptedUpstream() as upstream, serving(upstream, websocket__max_message=LIMIT) as product:
        assert await asyncio.to_thread(send_blocking, str(product.address)) == 1009
        async with product.connect() as client:
            with contextlib.suppress(ConnectionClosed):
                await client.send(message, text=True)
            with pytest.raises(ConnectionClosed) as caught:
                await receive(client)
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1009


async def test_cause_of_the_end_is_known_although_the_client_leaves_at_once() -> None:
    """A client that closes its socket as soon as it sees 1009 is counted as one that sent too much."""
    async with ScriptedUpstream() as upstream, serving(upstream, websocket__max_message=LIMIT) as product:
        with await RawClient.upgrade(product.address) as client:
            await client.send_bytes(b"\x81" + client_frame_size(2**30) + bytes(100))
            assert (await client.read_frame()).opcode == CLOSE
        assert await close_causes(product) == {"too_big": 1}


async def test_client_that_sends_too_much_and_reads_nothing_is_cut(impatient: None) -> None:
    """The close frame stands behind what the client leaves unread: it is not waited for."""
    block = chunk(b'data: {"type":"response.x","x":"' + b"x" * 60_000 + b'"}\n\n')
    script: list[Step] = [read, send(STREAM_HEAD + chunk(created())), flood(block, 500), stall]
    async with ScriptedUpstream(script) as upstream, serving(upstream, websocket__max_message=LIMIT) as product:
        with await RawClient.upgrade(product.address, receive_buffer=4096) as client:
            await client.send_frame(TEXT, create().encode())
            await eventually(lambda: product.running.door.connections)
            (connection,) = product.running.door._connections
            await eventually(lambda: connection.downstream.protocol.writing_paused)
            await client.send_bytes(b"\x81" + client_frame_size(LIMIT + 1) + bytes(4))
            await soon(upstream.peers[0].gone)
            with pytest.raises((EOFError, ConnectionResetError)):
                await client.read_exactly(2**30)
        assert await close_causes(product) == {"too_big": 1}


@pytest.mark.parametrize("data", [b"\x81" + client_frame_size(2**30) + bytes(4), client_frame(TEXT, b"\xff")])
async def test_client_that_is_refused_has_its_turns_cancelled(data: bytes) -> None:
    """A connection that is to end has no turns: they are stopped before the client has noticed, and send nothing more."""
    gate = Gate()
    script: list[Step] = [read, send(STREAM_HEAD + chunk(created())), gate, stall]
    async with ScriptedUpstream(script) as upstream, serving(upstream, websocket__max_message=LIMIT) as product:
        with await RawClient.upgrade(product.address) as client:
            await client.send_frame(TEXT, create().encode())
            await client.read_frame()
            await soon(gate.reached)
            await client.send_bytes(data)
            async with asyncio.timeout(1):
                await upstream.peers[0].gone.wait()
            assert not product.running.door.connections
            await client.send_bytes(bytes(1000))
            assert (await client.read_frame()).opcode == CLOSE
            await client.send_frame(CLOSE, b"")
            client.half_close()
            assert await client.read_all() == b""


async def test_large_message_does_not_disturb_the_turn_of_another_client(impatient: None) -> None:
    """Whoever is refused is refused alone."""
    gate = Gate()
    script: list[Step] = [read, send(STREAM_HEAD + chunk(created())), gate, send(chunk(completed()) + END)]
    async with (
        ScriptedUpstream(script) as upstream,
        serving(upstream, websocket__max_message=LIMIT) as product,
        product.connect() as client,
        product.connect() as other,
    ):
        await client.send(create())
        await soon(gate.reached)
        await other.send(message_of(LIMIT + 1))
        with pytest.raises(ConnectionClosedError):
            await receive(other)
        gate.open()
        assert types(await receive_turn(client)) == ["created", "completed"]


# Pings and keepalives


async def test_server_pings_at_its_interval() -> None:
    """Pings come without end, idle or not, and nobody is cut for not answering them."""
    loop = asyncio.get_running_loop()
    async with ScriptedUpstream([read, stall]) as upstream, serving(upstream, websocket__ping_interval=0.2) as product:
        with await RawClient.upgrade(product.address) as client:
            times = [loop.time()]
            for number in range(4):
                if number == 2:
                    await client.send_frame(TEXT, create().encode())
                frame = await client.read_frame()
                assert (frame.opcode, frame.payload) == (PING, b"")
                times.append(loop.time())
            assert times[-1] - times[0] > 4 * 0.2 - 0.2


async def test_server_does_not_ping_when_told_so() -> None:
    """With an interval of 0 no ping comes before the end of the connection."""
    options = {"websocket__ping_interval": 0, "websocket__lifetime": 0.4}
    async with ScriptedUpstream() as upstream, serving(upstream, **options) as product:
        with await RawClient.upgrade(product.address) as client:
            assert [(await client.read_frame()).opcode, (await client.read_frame()).opcode] == [TEXT, CLOSE]


async def test_keepalive_comes_in_a_long_silence() -> None:
    """While a turn runs and nothing is sent, text frames come that clients without pings count; none before or after."""
    gate = Gate()
    script: list[Step] = [read, send(STREAM_HEAD + chunk(created())), gate, send(chunk(completed()) + END)]
    options = {"websocket__keepalive_interval": 0.2, "websocket__ping_interval": 0}
    async with (
        ScriptedUpstream(script) as upstream,
        serving(upstream, **options) as product,
        product.connect() as client,
    ):
        await client.send(create())
        frames = [await receive(client) for _ in range(3)]
        assert frames[1:] == [{"type": "keepalive"}] * 2
        gate.open()
        rest = await receive_turn(client)
        assert rest[-1]["type"] == "response.completed"
        assert {frame["type"] for frame in rest[:-1]} <= {"keepalive"}
        await asyncio.sleep(0.6)  # idle is no silence
        assert types(await ask(client)) == GOOD


async def test_keepalive_names_its_lane() -> None:
    """Each turn that is silent gets its own, also before the backend has answered."""
    options = {"websocket__keepalive_interval": 0.2}
    async with (
        ScriptedUpstream(then=[read, stall]) as upstream,
        serving(upstream, **options) as product,
        product.connect() as client,
    ):
        await client.send(create(stream_id="a"))
        await client.send(create(stream_id="b"))
        frames = [await receive(client) for _ in range(2)]
        assert frames == [{"stream_id": "a", "type": "keepalive"}, {"stream_id": "b", "type": "keepalive"}]


async def test_keepalive_does_not_come_while_something_is_sent() -> None:
    """Only silence counts: events in between put it off."""
    gates = [Gate() for _ in range(5)]
    script: list[Step] = [read, send(STREAM_HEAD + chunk(created()))]
    for gate in gates:
        script += [gate, send(chunk(b'data: {"type":"response.x"}\n\n'))]
    options = {"websocket__keepalive_interval": 0.7}
    async with (
        ScriptedUpstream([*script, send(chunk(completed()) + END)]) as upstream,
        serving(upstream, **options) as product,
    ):
        async with product.connect() as client, asyncio.TaskGroup() as tasks:
            turn = tasks.create_task(ask(client))
            for gate in gates:
                await soon(gate.reached)
                await asyncio.sleep(0.2)
                gate.open()
        assert types(turn.result()) == ["created", *["x"] * 5, "completed"]


async def test_backends_own_keepalive_and_comments_are_no_end_of_silence() -> None:
    """Comments are not relayed, so they do not put the keepalive off."""
    gate = Gate()
    comments: list[Step] = []
    pauses = [Gate() for _ in range(6)]
    for pause in pauses:
        comments += [send(chunk(b": ping\n\n")), pause]
    script: list[Step] = [read, send(STREAM_HEAD), *comments, gate, send(chunk(created() + completed()) + END)]
    options = {"websocket__keepalive_interval": 0.3}
    async with (
        ScriptedUpstream(script) as upstream,
        serving(upstream, **options) as product,
        product.connect() as client,
    ):
        await client.send(create())
        for pause in pauses:
            await soon(pause.reached)
            await asyncio.sleep(0.1)
            pause.open()
        assert await receive(client) == {"type": "keepalive"}
        gate.open()


# The age of a connection

LIMIT_ERROR = {
    "type": "invalid_request_error",
    "code": "websocket_connection_limit_reached",
    "message": "Responses websocket connection limit reached (0.005 minutes). Create a new websocket connection to continue.",
    "param": None,
}


async def expect_limit(client: Any) -> None:
    """The error that says that the connection is too old, and right behind it the close."""
    frame = await receive(client)
    assert (frame["type"], frame["status"], frame["error"]) == ("error", 400, LIMIT_ERROR)
    with pytest.raises(ConnectionClosed) as caught:
        await receive(client)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1001


async def test_idle_connection_ends_at_its_limit() -> None:
    """Error frame and close frame leave together: an error that stands alone would be taken for the next turn's."""
    async with ScriptedUpstream() as upstream, serving(upstream, websocket__lifetime=0.3) as product:
        async with product.connect() as client:
            assert types(await ask(client)) == GOOD
            await expect_limit(client)
        with await RawClient.upgrade(product.address) as raw:
            assert [(await raw.read_frame()).opcode, (await raw.read_frame()).opcode] == [TEXT, CLOSE]
        assert await close_causes(product) == {"lifetime": 2}


async def test_running_turn_is_finished_at_the_limit() -> None:
    """The turn ends as it would; creates that come after the limit are refused; then the connection ends."""
    gate = Gate()
    script: list[Step] = [read, send(STREAM_HEAD + chunk(created())), gate, send(chunk(completed()) + END)]
    async with (
        ScriptedUpstream(script) as upstream,
        serving(upstream, websocket__lifetime=0.3) as product,
        product.connect() as client,
    ):
        await client.send(create())
        assert (await receive(client))["type"] == "response.created"
        (connection,) = product.running.door._connections
        await eventually(lambda: connection.session.state.leaving is not None)
        await client.send(create(stream_id="late"))
        late = await receive(client)
        assert (late["stream_id"], late["error"]) == ("late", LIMIT_ERROR)
        gate.open()
        assert (await receive(client))["type"] == "response.completed"
        await expect_limit(client)
        assert len(upstream.requests) == 1


async def test_connection_without_a_limit_lives_on() -> None:
    """0 means no limit."""
    options = {"websocket__lifetime": 0, "websocket__ping_interval": 0.1}
    async with ScriptedUpstream() as upstream, serving(upstream, **options) as product:
        with await RawClient.upgrade(product.address) as client:
            assert [(await client.read_frame()).opcode for _ in range(4)] == [PING] * 4


async def test_client_that_only_pings_and_never_reads_is_held_within_bounds() -> None:
    """Answers to pings are not piled up in memory: at some point the client's own sending stalls."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        with await RawClient.upgrade(product.address, receive_buffer=4096) as client:
            pings = client_frame(PING, bytes(125)) * 1000

            async def ping_on() -> None:
                async with asyncio.timeout(0.5):
                    while True:
                        await client.send_bytes(pings)

            with pytest.raises(TimeoutError):
                await ping_on()
            (connection,) = product.running.door._connections
            transport = connection.downstream._transport
            assert transport is not None
            assert transport.get_write_buffer_size() < 2**20
