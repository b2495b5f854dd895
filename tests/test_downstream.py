"""The client's WebSocket: what is taken, how frames leave, how it ends."""

from __future__ import annotations

import asyncio
import json
import zlib
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.frames import CloseCode

from proxy.protocol.frames import MAX_FRAME_BYTES
from tests.fakes import (
    CLOSE,
    END,
    PATIENCE,
    PING,
    PONG,
    STREAM_HEAD,
    TEXT,
    Frame,
    Gate,
    Product,
    RawClient,
    ScriptedUpstream,
    Step,
    ask,
    chunk,
    client_frame,
    completed,
    create,
    created,
    delta,
    eventually,
    frames_in,
    read,
    receive,
    receive_turn,
    send,
    serving,
    soon,
    stall,
    text_of,
    types,
    upgrade_request,
)

BINARY = 2
CONTINUATION = 0
COMPRESSED = 0x40


def deflate(data: bytes) -> bytes:
    """A payload as permessage-deflate has it (RFC 7692 section 7.2.1)."""
    compressor = zlib.compressobj(wbits=-15)
    return (compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)).removesuffix(b"\0\0\xff\xff")


async def closes(client: RawClient) -> tuple[int, str]:
    """Code and reason of the close frame that comes next, behind any others."""
    while (frame := await client.read_frame()).opcode != CLOSE:
        pass
    return int.from_bytes(frame.payload[:2], "big"), frame.payload[2:].decode()


async def read_turn(client: RawClient) -> list[dict[str, Any]]:
    """The frames of a turn, on a raw socket."""
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in ("response.completed", "error"):
        frame = await client.read_frame()
        assert frame.opcode == TEXT
        events.append(json.loads(frame.payload))
    return events


async def causes(product: Product) -> dict[str, float]:
    """Why connections ended, once none is open."""
    await eventually(lambda: not product.running.door.connections)
    return await product.counts("closes")


# What is taken


async def test_downstream_takes_a_message_in_fragments() -> None:
    """A client may cut its message, even inside a character, and put a ping between the pieces."""
    text = "Grüße"
    message = json.dumps({"type": "response.create", "model": "m", "input": text}, ensure_ascii=False).encode()
    border = message.index("ü".encode()) + 1
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        with await RawClient.upgrade(product.address) as client:
            await client.send_frame(TEXT, message[:border], is_final=False)
            await client.send_frame(PING, b"between")
            await client.send_frame(CONTINUATION, b"", is_final=False)
            await client.send_frame(CONTINUATION, message[border:])
            assert await client.read_frame() == Frame(PONG, b"between")
            assert types(await read_turn(client)) == ["created", "output_text.delta", "completed"]
        assert upstream.requests[0].json["input"][0]["content"] == text


async def test_downstream_takes_binary_messages_for_text() -> None:
    """A create in a binary frame is a create; what comes back is text."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product, product.connect() as client:
        await client.send(create().encode())
        assert text_of(await receive_turn(client)) == "Hello"


async def test_downstream_takes_messages_that_come_with_the_handshake() -> None:
    """A client that does not wait for the 101 loses nothing."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        with await RawClient.open(product.address) as client:
            await client.send_bytes(upgrade_request() + client_frame(TEXT, create().encode()))
            assert (await client.read_head()).startswith(b"HTTP/1.1 101 ")
            assert types(await read_turn(client)) == ["created", "output_text.delta", "completed"]


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
async def test_downstream_refuses_what_is_no_utf8(opcode: int) -> None:
    """Bytes that are no UTF-8 end the connection with 1007, in text and in what is taken for text."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        with await RawClient.upgrade(product.address) as client:
            await client.send_frame(opcode, b'{"type":"\xff"}')
            assert await closes(client) == (1007, "invalid UTF-8")
            await client.send_frame(CLOSE, (1007).to_bytes(2, "big"))
            assert await client.read_all() == b""
        assert await causes(product) == {"protocol_error": 1}


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (client_frame(3, b"x"), 1002),
        (client_frame(TEXT, b"x", flags=0x20), 1002),
        (client_frame(TEXT, deflate(b"x"), flags=COMPRESSED), 1002),
        (client_frame(PING, b"x", is_final=False), 1002),
        (client_frame(CONTINUATION, b"x"), 1002),
        (client_frame(TEXT, b"x", is_final=False) + client_frame(TEXT, b"x"), 1002),
        (client_frame(CLOSE, b"x"), 1002),
        (client_frame(CLOSE, (999).to_bytes(2, "big")), 1002),
    ],
    ids=["opcode", "flag", "compressed", "ping", "continuation", "interleaved", "close", "close code"],
)
async def test_downstream_refuses_what_is_no_websocket(data: bytes, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A violation ends the connection with a close frame that says so, and is counted as what it is."""
    monkeypatch.setattr("proxy.downstream._LINGER_QUIET", 0.05)
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        with await RawClient.upgrade(product.address) as client:
            await client.send_bytes(data)
            assert (await closes(client))[0] == code
            assert await client.read_all() == b""
        assert await causes(product) == {"protocol_error": 1}


# Pings


async def test_downstream_answers_pings_during_a_turn() -> None:
    """Pongs come while the backend is silent, before and in its stream: clients drop a connection without them."""
    before, within = Gate(), Gate()
    script: list[Step] = [read, before, send(STREAM_HEAD + chunk(created())), within, send(chunk(completed()) + END)]
    async with ScriptedUpstream(script) as upstream, serving(upstream) as product, product.connect() as client:
        await client.send(create())
        await soon(before.reached)
        async with asyncio.timeout(PATIENCE):
            await (await client.ping())
        before.open()
        assert (await receive(client))["type"] == "response.created"
        async with asyncio.timeout(PATIENCE):
            await (await client.ping())
        within.open()
        assert (await receive(client))["type"] == "response.completed"


# How frames leave


async def test_downstream_sends_frames_of_one_read_in_one_write() -> None:
    """What one segment of the backend holds reaches the client in one segment."""
    events = created() + b"".join(delta(f"word {number}", number) for number in range(1, 31)) + completed(number=31)
    async with (
        ScriptedUpstream([read, send(STREAM_HEAD + chunk(events) + END)]) as upstream,
        serving(upstream) as product,
    ):
        with await RawClient.upgrade(product.address) as client:
            await client.send_frame(TEXT, create().encode())
            frames = list(frames_in(await client.receive_some()))
        assert [frame.opcode for frame in frames] == [TEXT] * 32
        assert all(frame.is_final for frame in frames)


@pytest.mark.parametrize(
    "size", [125, 126, 65535, 65536, MAX_FRAME_BYTES, MAX_FRAME_BYTES + 1, 2 * MAX_FRAME_BYTES + 5]
)
async def test_downstream_sends_frames_of_up_to_8_mib(size: int) -> None:
    """Messages of more than 8 MiB leave in fragments, all others whole; not one byte differs."""
    empty = b'{"type":"response.x","x":""}'
    message = empty[:-2] + b"x" * (size - len(empty)) + b'"}'
    body = created() + b"data: " + message + b"\n\n" + completed()
    async with (
        ScriptedUpstream([read, send(STREAM_HEAD + chunk(body) + END)]) as upstream,
        serving(upstream) as product,
    ):
        with await RawClient.upgrade(product.address) as client:
            await client.send_frame(TEXT, create().encode())
            assert b"response.created" in (await client.read_frame()).payload
            frames = [await client.read_frame()]
            while not frames[-1].is_final:
                frames.append(await client.read_frame())
            assert b"response.completed" in (await client.read_frame()).payload
    pieces = -(-size // MAX_FRAME_BYTES)
    assert [frame.opcode for frame in frames] == [TEXT] + [CONTINUATION] * (pieces - 1)
    assert max(len(frame.payload) for frame in frames) <= MAX_FRAME_BYTES
    assert b"".join(frame.payload for frame in frames) == message


async def test_downstream_sends_uncompressed_although_it_takes_compression() -> None:
    """The client's messages may be deflated; what comes back never is, and the handshake says so."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        async with product.connect(compression="deflate") as client:
            chosen = client.response.headers["Sec-WebSocket-Extensions"]  # type: ignore[union-attr]
            assert chosen == "permessage-deflate; server_no_context_takeover"
            assert text_of(await ask(client)) == "Hello"
        with await RawClient.upgrade(product.address, "Sec-WebSocket-Extensions: permessage-deflate") as raw:
            await raw.send_frame(TEXT, deflate(create().encode()), flags=COMPRESSED)
            assert types(await read_turn(raw)) == ["created", "output_text.delta", "completed"]
    assert upstream.requests[0].json["input"] == upstream.requests[1].json["input"]


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ("permessage-deflate", "permessage-deflate; server_no_context_takeover"),
        ("permessage-deflate; client_max_window_bits", "permessage-deflate; server_no_context_takeover"),
        ("permessage-deflate; client_max_window_bits=12", "permessage-deflate; server_no_context_takeover"),
        ("permessage-deflate; server_no_context_takeover", "permessage-deflate; server_no_context_takeover"),
        (
            "permessage-deflate; server_max_window_bits=10",
            "permessage-deflate; server_max_window_bits=10; server_no_context_takeover",
        ),
        (
            "permessage-deflate; server_max_window_bits=8, permessage-deflate",
            "permessage-deflate; server_no_context_takeover",
        ),
        ("x-webkit-deflate-frame", None),
        ("", None),
    ],
)
async def test_downstream_keeps_the_clients_context(offered: str, chosen: str | None) -> None:
    """Whatever of it is offered: the client may refer to all that it has said, which is what makes it worth while."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        with await RawClient.open(product.address) as raw:
            await raw.send_bytes(upgrade_request(f"Sec-WebSocket-Extensions: {offered}"))
            lines = (await raw.read_head()).decode().split("\r\n")
            answered = [line.partition(": ")[2] for line in lines if line.startswith("Sec-WebSocket-Extensions")]
            assert answered == ([] if chosen is None else [chosen])
            if chosen is None:
                return
            compressor = zlib.compressobj(wbits=-15)
            sizes = []
            for _ in range(3):
                text = create(tools=[{"type": "function", "name": f"tool_{number}"} for number in range(50)]).encode()
                payload = compressor.compress(text) + compressor.flush(zlib.Z_SYNC_FLUSH)
                sizes.append(len(payload))
                await raw.send_frame(TEXT, payload.removesuffix(b"\0\0\xff\xff"), flags=COMPRESSED)
                assert types(await read_turn(raw))[-1] == "completed"
            assert sizes[1] < sizes[0] / 4


async def test_downstream_refuses_compression_where_it_is_off() -> None:
    """Then clients go without."""
    async with (
        ScriptedUpstream() as upstream,
        serving(upstream, websocket__compression=False) as product,
        product.connect(compression="deflate") as client,
    ):
        assert "Sec-WebSocket-Extensions" not in client.response.headers  # type: ignore[union-attr]


@pytest.mark.parametrize("is_compressed", [False, True])
async def test_downstream_counts_what_came_over_the_network(*, is_compressed: bool) -> None:
    """To the byte: frames as they were sent, their heads, and pongs; not the handshake."""
    extensions = ["Sec-WebSocket-Extensions: permessage-deflate"] if is_compressed else []
    sent = 0
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        with await RawClient.upgrade(product.address, *extensions) as raw:
            for text in ("short", "long " * 30_000, "short again"):
                payload = create(text).encode()
                frame = (
                    client_frame(TEXT, deflate(payload), flags=COMPRESSED)
                    if is_compressed
                    else client_frame(TEXT, payload)
                )
                pong = client_frame(PONG, b"x")
                await raw.send_bytes(pong + frame)
                sent += len(pong + frame)
                assert types(await read_turn(raw))[-1] == "completed"
                counted = await product.counts("arrived_bytes")
                assert counted == {"": sent}
        said = sum((await product.counts("client_bytes")).values())
    assert (said > 150_000 > sent) if is_compressed else (sent > said > 150_000)


# How it ends


@pytest.mark.parametrize("code", [1000, 1001, 3000])
async def test_downstream_answers_a_close_frame(code: int) -> None:
    """The client's close is answered with its own code, then the connection ends."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        with await RawClient.upgrade(product.address) as client:
            await client.send_frame(CLOSE, code.to_bytes(2, "big") + b"bye")
            assert await client.read_frame() == Frame(CLOSE, code.to_bytes(2, "big"))
            assert await client.read_all() == b""
        assert await causes(product) == {"client": 1}


async def test_downstream_answers_a_close_frame_without_a_code() -> None:
    """It is answered with one that has none either."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        with await RawClient.upgrade(product.address) as client:
            await client.send_frame(CLOSE, b"")
            assert await client.read_frame() == Frame(CLOSE, b"")
            assert await client.read_all() == b""


async def test_downstream_waits_for_the_answer_to_its_close_frame() -> None:
    """A client that is still sending when the connection is closed gets the close frame, not a reset."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        with await RawClient.upgrade(product.address) as client:
            await client.send_frame(PING, b"")
            assert (await client.read_frame()).opcode == PONG
            message = client_frame(TEXT, b"x" * 1_000_000)
            await client.send_bytes(message[:500_000])
            (connection,) = product.running.door._connections
            connection.drain()
            assert await closes(client) == (1012, "the server restarts")
            await client.send_bytes(message[500_000:])
            await client.send_frame(CLOSE, (1012).to_bytes(2, "big"))
            assert await client.read_all() == b""
        assert not upstream.peers


async def test_downstream_does_not_wait_for_ever_for_the_answer_to_its_close_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that neither answers nor leaves is cut."""
    monkeypatch.setattr("proxy.downstream._CLOSE_TIMEOUT", 0.1)
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        with await RawClient.upgrade(product.address) as client:
            (connection,) = product.running.door._connections
            connection.drain()
            assert (await closes(client))[0] == 1012
            await eventually(lambda: not product.running.door.connections)


async def test_downstream_close_reaches_the_library_client() -> None:
    """The `websockets` library sees code and reason."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product, product.connect() as client:
        (connection,) = product.running.door._connections
        connection.drain()
        with pytest.raises(ConnectionClosedError) as caught:
            await receive(client)
        assert caught.value.rcvd is not None
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (CloseCode.SERVICE_RESTART, "the server restarts")


async def test_downstream_tells_the_close_code_to_the_observer() -> None:
    """Whoever said it first: the client's code, ours, or none when the connection just went away."""
    async with ScriptedUpstream([read, stall]) as upstream, serving(upstream) as product:
        records: list[Any] = []
        observers = product.running.door._observer._observers  # type: ignore[attr-defined]
        for observer in observers:
            observer.connection_closed = records.append
        async with product.connect() as client:
            await client.close(1001)
        await eventually(lambda: records)
        with await RawClient.upgrade(product.address):
            await eventually(lambda: product.running.door.connections)
        await eventually(lambda: not product.running.door.connections)
        assert [record.close_code for record in records] == [1001] * len(observers) + [None] * len(observers)
