"""The connection to the backend, against a server that sends it every form of answer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from proxy.protocol.upstream_errors import UpstreamDisconnected, UpstreamError, UpstreamProtocolError
from proxy.wire import Head, Wire, WireState
from tests.fakes import (
    END,
    PATIENCE,
    Gate,
    Peer,
    ScriptedUpstream,
    Step,
    apart,
    chunk,
    close,
    drip,
    eventually,
    flood,
    half_close,
    head,
    read,
    reset,
    send,
    soon,
    stall,
)

REQUEST = [b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n", b"{}"]

BODY = b"one two three"
LENGTH = head(f"Content-Length: {len(BODY)}") + BODY
CHUNKED = head("Transfer-Encoding: chunked") + chunk(b"one ") + chunk(b"two three") + END
ODD_CHUNKS = head("Transfer-Encoding: Chunked") + b"4;a=b\r\none \r\n09\r\ntwo three\r\n0\r\nX-Trailer: t\r\n\r\n"
UNTIL_END = head("Content-Type: text/event-stream") + BODY
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + CHUNKED
BROKEN = head("Transfer-Encoding: chunked") + chunk(b"one") + chunk(b"two") + b"garbage\r\n"

FORMS = pytest.mark.parametrize(
    "data", [LENGTH, CHUNKED, ODD_CHUNKS, INTERIM], ids=["length", "chunks", "odd-chunks", "interim"]
)


@dataclass
class Wired:
    """A connection and its other end.

    Attributes:
        wire: The connection.
        peer: Its other end.
        told: How often it told its pool that something is up.
    """

    wire: Wire
    peer: Peer
    told: list[WireState]

    async def ask(self) -> tuple[Head, bytes]:
        """One exchange: the head and the body."""
        async with asyncio.timeout(PATIENCE):
            answered = await self.wire.request(REQUEST)
            body = bytearray()
            await self.wire.read(body.extend)
        return answered, bytes(body)

    async def fail(self) -> tuple[bytes, UpstreamError]:
        """One exchange whose body breaks off: what came of it, and the error."""
        body = bytearray()
        async with asyncio.timeout(PATIENCE):
            await self.wire.request(REQUEST)
            with pytest.raises(UpstreamError) as caught:
                await self.wire.read(body.extend)
        return bytes(body), caught.value


@contextlib.asynccontextmanager
async def wired(*script: Step) -> AsyncIterator[Wired]:
    """A connection to a server that plays a script."""
    async with ScriptedUpstream(script, then=[]) as upstream:
        told: list[WireState] = []
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(
            lambda: Wire(lambda wire: told.append(wire.state)), "127.0.0.1", upstream.port
        )
        yield Wired(wire, await upstream.peer(), told)
        wire.close()


# Forms of answers


@FORMS
async def test_wire_reads_an_answer_however_it_is_framed(data: bytes) -> None:
    """With a length, in chunks, in unusual chunks, behind interim answers: the same body, and the connection is kept."""
    async with wired(read, send(data)) as this:
        answered, body = await this.ask()
        assert (answered.status, body) == (200, BODY)
        assert this.told == [WireState.IDLE]


@FORMS
async def test_wire_reads_an_answer_byte_by_byte(data: bytes) -> None:
    """Nothing depends on what comes in one segment."""
    async with wired(read, drip(data)) as this:
        answered, body = await this.ask()
        assert (answered.status, body) == (200, BODY)
        assert this.told == [WireState.IDLE]


@pytest.mark.parametrize("border", range(1, len(CHUNKED), 5))
async def test_wire_reads_an_answer_cut_in_two_anywhere(border: int) -> None:
    """A segment may end in the head, between head and body, or in the middle of a chunk's size."""
    async with wired(read, apart(CHUNKED[:border], CHUNKED[border:])) as this:
        assert (await this.ask())[1] == BODY


@pytest.mark.parametrize("step", [send(UNTIL_END), drip(UNTIL_END)], ids=["at once", "byte by byte"])
async def test_wire_reads_a_body_that_ends_with_the_connection(step: Step) -> None:
    """Without a length and without chunks the end of the connection is the end of the body, and a clean one."""
    async with wired(read, step, half_close, stall) as this:
        assert (await this.ask())[1] == BODY
        assert this.wire.state is WireState.CLOSED
        await soon(this.peer.gone)


async def test_wire_hands_on_what_comes_while_it_comes() -> None:
    """A body is read in the callback in which its bytes come, not when it is complete."""
    gate = Gate()
    parts: list[bytes] = []
    async with (
        wired(
            read, send(head("Transfer-Encoding: chunked")), send(chunk(b"one")), gate, send(chunk(b"two") + END)
        ) as this,
        asyncio.timeout(PATIENCE),
        asyncio.TaskGroup() as tasks,
    ):
        await this.wire.request(REQUEST)
        reading = tasks.create_task(this.wire.read(parts.append))
        await soon(gate.reached)
        await eventually(lambda: parts == [b"one"])
        gate.open()
        await reading
        assert parts == [b"one", b"two"]


async def test_wire_takes_headers_of_unusual_form() -> None:
    """Empty and repeated headers, odd capitals, bytes beyond ASCII, no reason phrase, a refused upgrade."""
    data = (
        b"HTTP/1.1 200\r\nx-empty:\r\nX-SPACES: \t a b \t\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\nX-Latin: caf\xe9\r\n"
        b"Connection: Upgrade\r\nUpgrade: h2c\r\ncontent-length: 2\r\n\r\nhi"
    )
    async with wired(read, send(data)) as this:
        answered, body = await this.ask()
        assert body == b"hi"
        assert answered.headers["X-Empty"] == ""
        assert answered.headers["X-Spaces"] == "a b"
        assert answered.headers.getall("Set-Cookie") == ["a=1", "b=2"]
        assert answered.headers["X-Latin"] == "café"


async def test_wire_takes_no_trailer_for_a_header() -> None:
    """What stands behind the body does not change what was known before it."""
    async with wired(read, send(ODD_CHUNKS)) as this:
        answered, _ = await this.ask()
        assert "X-Trailer" not in answered.headers


@pytest.mark.parametrize(
    "data",
    [
        head("Connection: close", "Content-Length: 2") + b"hi",
        head("Connection: close", "Transfer-Encoding: chunked") + chunk(b"hi") + END,
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    ],
    ids=["length", "chunks", "http-1.0"],
)
async def test_wire_is_not_kept_when_the_backend_does_not_want_it(data: bytes) -> None:
    """`Connection: close` and HTTP/1.0 end the connection with the answer."""
    async with wired(read, send(data), stall) as this:
        assert (await this.ask())[1] == b"hi"
        assert this.told == []
        await soon(this.peer.gone)


async def test_wire_serves_one_request_after_the_other() -> None:
    """A connection that both sides keep is good for any number of requests, whatever the forms of their answers."""
    empty = head(status="204 No Content")
    async with wired(read, send(LENGTH), read, send(CHUNKED), read, send(empty), read, drip(INTERIM)) as this:
        bodies = [(await this.ask())[1] for _ in range(4)]
        assert bodies == [BODY, BODY, b"", BODY]
        assert this.told == [WireState.IDLE] * 4


async def test_wire_sends_head_and_body_in_one_segment() -> None:
    """A small request is one write, so that no acknowledgement is waited for in the middle of it."""
    async with wired(read, send(LENGTH)) as this:
        await this.ask()
        assert this.peer.segments == [b"".join(REQUEST)]


# Fast answers and slow clients


@pytest.mark.parametrize("size", [10, 150_000])
async def test_wire_serves_again_after_an_answer_in_one_segment(size: int) -> None:
    """An answer that came whole, its head included, before anybody read it: even a large one leaves the connection usable.

    (A large one pauses it.)
    """
    body = b"x" * size
    whole = head(f"Content-Length: {size}") + body
    async with wired(read, send(whole), read, send(whole)) as this:
        for _ in range(2):
            await this.wire.request(REQUEST)
            await eventually(lambda: this.wire._is_complete or len(this.wire._early) > 2**16)
            received = bytearray()
            async with asyncio.timeout(PATIENCE):
                await this.wire.read(received.extend)
            assert received == body


async def test_wire_serves_again_after_it_was_paused() -> None:
    """Somebody pauses the connection when the last bytes come, and is gone before it would resume: the next one is served."""
    async with wired(read, send(CHUNKED), read, send(CHUNKED)) as this:
        await this.wire.request(REQUEST)
        await this.wire.read(lambda _: this.wire.pause())
        assert this.wire.state is WireState.IDLE
        assert (await this.ask())[1] == BODY


async def test_wire_reads_nothing_while_paused() -> None:
    """A pause reaches the backend: it can send no more than fits into the network's buffers."""
    block, times = b"x" * 2**16, 640
    size = len(block) * times
    async with (
        wired(read, send(head(f"Content-Length: {size}")), flood(block, times)) as this,
        asyncio.TaskGroup() as tasks,
    ):
        received = 0
        paused = asyncio.Event()

        def receive(data: bytes) -> None:
            nonlocal received
            received += len(data)
            if not paused.is_set():
                paused.set()
                this.wire.pause()

        await this.wire.request(REQUEST)
        reading = tasks.create_task(this.wire.read(receive))
        await soon(paused)
        before = received
        sent = -1
        while sent != this.peer.sent:
            sent = this.peer.sent
            await asyncio.sleep(0.02)
        assert received == before
        assert sent < size
        this.wire.resume()
        async with asyncio.timeout(PATIENCE):
            await reading
        assert received == size


async def test_wire_pauses_while_nobody_reads() -> None:
    """Between head and reader it keeps a bounded number of bytes."""
    block, times = b"x" * 2**16, 320
    size = len(block) * times
    async with wired(read, send(head(f"Content-Length: {size}")), flood(block, times)) as this:
        await this.wire.request(REQUEST)
        await eventually(lambda: this.wire._early)
        sent = -1
        while sent != this.peer.sent:
            sent = this.peer.sent
            await asyncio.sleep(0.02)
        assert len(this.wire._early) < 2**20
        body = bytearray()
        async with asyncio.timeout(PATIENCE):
            await this.wire.read(body.extend)
        assert len(body) == size


# Ends


@pytest.mark.parametrize("end", [close, reset])
@pytest.mark.parametrize(
    "data", [b"", b"HTTP/1.1 2", b"HTTP/1.1 100 Continue\r\n\r\n"], ids=["none", "some", "interim"]
)
async def test_wire_says_when_no_answer_came(data: bytes, end: Step) -> None:
    """A connection that ends before the head is an error, and it is known whether any byte came."""
    async with wired(read, send(data), end) as this:
        with pytest.raises(UpstreamDisconnected):
            await this.ask()
        if end is close:  # a reset may overtake what was sent before it
            assert this.wire.has_answered is bool(data)
        assert this.wire.state is WireState.CLOSED
        assert this.told == []


@pytest.mark.parametrize("end", [close, half_close, reset])
@pytest.mark.parametrize(
    "data",
    [head("Content-Length: 99"), head("Transfer-Encoding: chunked") + b"99\r\n", CHUNKED[: -len(END)]],
    ids=["length", "in a chunk", "between chunks"],
)
async def test_wire_says_when_the_body_broke_off(data: bytes, end: Step) -> None:
    """A body that ends before its length or its last chunk is never a clean end, and what came of it is handed on."""
    gate = Gate()
    async with wired(read, send(data), *([] if b"one" in data else [send(b"one")]), gate, end) as this:
        body = bytearray()

        def receive(part: bytes) -> None:
            body.extend(part)
            gate.open()

        await this.wire.request(REQUEST)
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(UpstreamDisconnected):
                await this.wire.read(receive)
        assert body.startswith(b"one")


async def test_wire_hands_on_what_came_before_anybody_read() -> None:
    """The connection broke between the head and the reader: the reader gets what came, then the error."""
    async with wired(read, send(head("Content-Length: 99") + b"one"), close) as this:
        await this.wire.request(REQUEST)
        await eventually(lambda: this.wire.state is WireState.CLOSED)
        body = bytearray()
        with pytest.raises(UpstreamDisconnected):
            await this.wire.read(body.extend)
        assert body == b"one"


async def test_wire_takes_a_whole_answer_from_a_connection_that_is_gone() -> None:
    """All had come when the connection ended: that is an answer."""
    async with wired(read, send(CHUNKED), close) as this:
        await this.wire.request(REQUEST)
        await eventually(lambda: this.wire.state is WireState.CLOSED)
        body = bytearray()
        await this.wire.read(body.extend)
        assert body == BODY


async def test_wire_closes_when_its_reader_is_cancelled() -> None:
    """Cancellation closes the connection, which is how the backend is told to stop, before the head and in the body."""
    for script in ([read, stall], [read, send(head("Content-Length: 99")), stall]):
        async with wired(*script) as this:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await this.ask()
            await soon(this.peer.gone)


@pytest.mark.parametrize("asks_before", [False, True])
async def test_wire_gives_up_an_idle_connection_that_the_backend_closes(*, asks_before: bool) -> None:
    """Its pool is told, once, and does not find it again."""
    gate = Gate()
    async with wired(*([read, send(LENGTH)] if asks_before else []), gate, close) as this:
        if asks_before:
            await this.ask()
        gate.open()
        await eventually(lambda: this.wire.state is WireState.CLOSED)
        await asyncio.sleep(0)
        assert this.told == [WireState.IDLE, WireState.CLOSED][not asks_before :]


async def test_wire_gives_up_an_idle_connection_on_which_the_backend_speaks() -> None:
    """An answer that nobody asked for (a 408 to an idle client) is not taken for the answer to the next request."""
    gate = Gate()
    async with wired(read, send(LENGTH), gate, send(head("Content-Length: 0", status="408 Timeout")), stall) as this:
        await this.ask()
        gate.open()
        await eventually(lambda: this.told == [WireState.IDLE, WireState.CLOSED])
        await soon(this.peer.gone)


# What is no answer


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"\x15\x03\x01\x00\x02\x02",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi",
        b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        head("Content-Length: 2", "Content-Length: 3") + b"hi",
        head("Content-Length: 2", "Transfer-Encoding: chunked") + chunk(b"hi") + END,
    ],
)
async def test_wire_refuses_what_is_no_answer(data: bytes) -> None:
    """Other protocols, broken heads, upgrades and contradictions are errors, and the connection is closed."""
    async with wired(read, send(data), stall) as this:
        with pytest.raises(UpstreamProtocolError, match="not HTTP"):
            await this.ask()
        await soon(this.peer.gone)


@pytest.mark.parametrize("border", [0, 4, len(BROKEN) - len(b"garbage\r\n"), len(BROKEN) - 1])
async def test_wire_hands_on_what_came_before_garbage(border: int) -> None:
    """A broken chunk ends the body with an error; what stood before it, in the same segment even, is handed on."""
    async with wired(read, apart(BROKEN[:border], BROKEN[border:]), stall) as this:
        body, error = await this.fail()
        assert body == b"onetwo"
        assert isinstance(error, UpstreamProtocolError)
        await soon(this.peer.gone)


@pytest.mark.parametrize("surplus", [b"garbage", LENGTH, LENGTH[:20]], ids=["garbage", "answer", "part of one"])
@pytest.mark.parametrize("cut", [0, 4, len(CHUNKED) - 3])
async def test_wire_takes_one_answer_and_no_more(surplus: bytes, cut: int) -> None:
    """What comes behind an answer is not handed on, and is not the answer to the next request: the connection is closed."""
    data = CHUNKED + surplus
    async with wired(read, apart(data[:cut], data[cut:]), stall) as this:
        assert (await this.ask())[1] == BODY
        assert this.told == []
        await soon(this.peer.gone)


async def test_wire_ignores_line_ends_behind_an_answer() -> None:
    """They are allowed between messages (RFC 9112 section 2.2)."""
    async with wired(read, send(LENGTH + b"\r\n"), read, send(LENGTH)) as this:
        assert (await this.ask())[1] == BODY
        assert (await this.ask())[1] == BODY


@pytest.mark.parametrize("line", [b"X-Filler: " + b"x" * 8000 + b"\r\n", b"x" * 8000], ids=["lines", "one line"])
async def test_wire_refuses_a_head_without_end(line: bytes) -> None:
    """A head may have 64 KiB, and not one connection more memory than that and a read."""
    async with wired(read, send(b"HTTP/1.1 200 OK\r\nX: "), flood(line, 2000), stall) as this:
        with pytest.raises(UpstreamProtocolError, match="its head has more than 65536 bytes"):
            await this.ask()
        await soon(this.peer.gone)


async def test_wire_refuses_interim_answers_without_end() -> None:
    """A backend cannot keep a turn alive with interim answers for ever."""
    async with wired(read, flood(b"HTTP/1.1 100 Continue\r\n\r\n", 10_000), stall) as this:
        with pytest.raises(UpstreamProtocolError, match="its head has more than 65536 bytes"):
            await this.ask()
        await soon(this.peer.gone)


# Memory


async def test_wire_keeps_no_reader_alive() -> None:
    """An idle connection has forgotten for whom it read: a client's whole state may hang on that."""

    class Reader:
        def receive(self, _: bytes) -> None:
            """Take bytes."""

    async with wired(read, send(CHUNKED)) as this:
        reader = Reader()
        trace = weakref.ref(reader)
        await this.wire.request(REQUEST)
        await this.wire.read(reader.receive)
        del reader
        assert trace() is None


async def test_wire_is_freed_when_it_ends() -> None:
    """A closed connection leaves no cycle for the collector: with a backend that closes, there is one a turn."""
    async with ScriptedUpstream([read, send(CHUNKED), close], then=[]) as upstream:
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(lambda: Wire(lambda _: None), "127.0.0.1", upstream.port)
        trace = weakref.ref(wire)
        gc.collect()
        gc.disable()
        try:
            await wire.request(REQUEST)
            await wire.read(lambda _: None)
            del _, wire
            await eventually(lambda: trace() is None)
        finally:
            gc.enable()
