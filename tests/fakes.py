"""A backend and a client that do exactly what a test tells them, on raw sockets.

:class:`ScriptedUpstream` is driven by scripts, one a connection: what to read, which bytes to send and how, when to wait,
and how to end. It keeps what it received byte for byte. :class:`RawClient` sends what no library would. :func:`serving` runs
the product between them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import signal
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from multidict import CIMultiDict
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import ClientConnection, connect

from proxy import app
from proxy.config import Address, Config

PATIENCE: Final = 20.0
"""Seconds after which what a test waits for will not come any more."""

# What a backend says


def event(event_type: str, **members: Any) -> bytes:
    """One server-sent event of a Responses stream."""
    data = json.dumps({"type": event_type, **members}, separators=(",", ":"))
    return f"event: {event_type}\ndata: {data}\n\n".encode()


def response(response_id: str, status: str, output: Sequence[Any] = ()) -> dict[str, Any]:
    """A Response object with all that clients look at."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": 1_700_000_000,
        "status": status,
        "model": "m",
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2} if status == "completed" else None,
    }


def created(response_id: str = "resp_1") -> bytes:
    """The first event of a stream."""
    return event("response.created", sequence_number=0, response=response(response_id, "in_progress"))


def delta(text: str, number: int = 1) -> bytes:
    """A piece of text."""
    return event(
        "response.output_text.delta",
        sequence_number=number,
        item_id="msg_1",
        output_index=0,
        content_index=0,
        delta=text,
        logprobs=[],
    )


def completed(response_id: str = "resp_1", number: int = 9) -> bytes:
    """The last event of a stream."""
    return event("response.completed", sequence_number=number, response=response(response_id, "completed"))


def stream(*texts: str, response_id: str = "resp_1") -> bytes:
    """A whole stream with a delta for each text."""
    deltas = b"".join(delta(text, number) for number, text in enumerate(texts, 1))
    return created(response_id) + deltas + completed(response_id, len(texts) + 1)


def head(*headers: str, status: str = "200 OK") -> bytes:
    """The head of an answer."""
    return "\r\n".join((f"HTTP/1.1 {status}", *headers, "", "")).encode("latin-1")


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def answer(*texts: str, response_id: str = "resp_1") -> bytes:
    """A whole answer with a stream in it, its connection kept open."""
    return STREAM_HEAD + chunk(stream(*texts, response_id=response_id)) + END


def json_answer(body: Any, *headers: str, status: str = "200 OK") -> bytes:
    """A whole answer with JSON in it."""
    data = json.dumps(body).encode()
    return head("Content-Type: application/json", f"Content-Length: {len(data)}", *headers, status=status) + data


STREAM_HEAD: Final = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
END: Final = b"0\r\n\r\n"

# What a backend does

Step = Callable[["Peer"], Awaitable[None]]
Script = Sequence[Step]


async def read(peer: Peer) -> None:
    """Step: read one request and keep it."""
    await peer.read()


def send(data: bytes) -> Step:
    """Step: send bytes, at once."""

    async def step(peer: Peer) -> None:
        await peer.send(data)

    return step


def apart(*segments: bytes) -> Step:
    """Step: send segments, each of them read before the next comes (by a reader in the same event loop)."""

    async def step(peer: Peer) -> None:
        for segment in segments:
            await peer.send(segment)
            await asyncio.sleep(0)  # the loop sees that there is something to read,
            await asyncio.sleep(0)  # and it was read

    return step


def drip(data: bytes) -> Step:
    """Step: send bytes one by one."""
    return apart(*(data[index : index + 1] for index in range(len(data))))


def flood(data: bytes, times: int) -> Step:
    """Step: send the same bytes many times; see :attr:`Peer.sent`."""

    async def step(peer: Peer) -> None:
        for _ in range(times):
            await peer.send(data)

    return step


async def stall(peer: Peer) -> None:
    """Step: do nothing until the other side is gone."""
    await peer.gone.wait()


async def close(peer: Peer) -> None:
    """Step: close the connection."""
    await peer.end()


async def reset(peer: Peer) -> None:
    """Step: cut the connection with a reset."""
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await peer.end()


async def half_close(peer: Peer) -> None:
    """Step: send no more, but go on reading."""
    peer.sock.shutdown(socket.SHUT_WR)


def forever(*steps: Step) -> Step:
    """Step: these again and again, until the other side is gone."""

    async def step(peer: Peer) -> None:
        while True:
            for each in steps:
                await each(peer)

    return step


class Gate:
    """Step: stop here until the test opens.

    Attributes:
        reached: Set once a script is here.
    """

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def __call__(self, peer: Peer) -> None:  # noqa: D102 - it is a step
        self.reached.set()
        await peer.wait(self._opened)

    def open(self) -> None:
        """Let it go on."""
        self._opened.set()


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came.

    Attributes:
        raw: All its bytes.
        method: Its method.
        target: Its target.
        headers: Its headers.
        body: Its body, without chunks.
    """

    raw: bytes
    method: str
    target: str
    headers: CIMultiDict[str]
    body: bytes

    @property
    def json(self) -> Any:
        """Its body."""
        return json.loads(self.body)


class Gone(Exception):
    """The other side is gone: the end of a script."""


class Peer:
    """One connection that the proxy opened.

    Args:
        sock: Its socket, not blocking.

    Attributes:
        sock: The socket.
        requests: What was asked, as far as the script read it.
        segments: What each read got.
        sent: Bytes that the network took.
        gone: Set once the proxy has closed or reset it, or the script has.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.requests: list[Request] = []
        self.segments: list[bytes] = []
        self.sent = 0
        self.gone = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._unread = bytearray()
        self._news = asyncio.Event()
        self._waiting: set[asyncio.Event] = set()
        self._reader: asyncio.Task[None] | None = None

    async def run(self, script: Script) -> None:
        """Play a script, then keep the connection as it is until the proxy ends it."""
        async with asyncio.TaskGroup() as tasks:
            self._reader = tasks.create_task(self._receive())
            with contextlib.suppress(Gone, OSError):
                for step in script:
                    await step(self)
        self.sock.close()

    async def read(self) -> Request:
        """The next request, in full; it is kept."""
        while True:
            if (request := _parse_request(bytes(self._unread))) is not None:
                del self._unread[: len(request.raw)]
                self.requests.append(request)
                return request
            if self.gone.is_set():
                raise Gone
            self._news.clear()
            await self._news.wait()

    async def send(self, data: bytes) -> None:
        """Send bytes; waits while the network takes no more."""
        for start in range(0, len(data), 2**16):
            piece = data[start : start + 2**16]
            await self._loop.sock_sendall(self.sock, piece)
            self.sent += len(piece)

    async def wait(self, event: asyncio.Event) -> None:
        """Wait for an event, but no longer than the connection lasts.

        Raises:
            Gone: it ended first.
        """
        if self.gone.is_set():
            raise Gone
        self._waiting.add(event)
        await event.wait()
        if self.gone.is_set():
            raise Gone

    async def end(self) -> None:
        """Close the socket."""
        assert self._reader is not None
        self._reader.cancel()
        await asyncio.sleep(0)  # until nobody waits for the socket any more
        self.sock.close()
        self.gone.set()
        raise Gone

    async def _receive(self) -> None:
        with contextlib.suppress(OSError):
            while data := await self._loop.sock_recv(self.sock, 2**20):
                self.segments.append(data)
                self._unread += data
                self._news.set()
        self.gone.set()
        for event in (self._news, *self._waiting):
            event.set()


class ScriptedUpstream:
    """A backend that plays one script a connection. Use as an async context manager.

    Args:
        scripts: One for each connection, in the order in which they come.
        then: What each connection does behind its script, and those that have none from the start; by default it gives a
            good answer to each request.

    Attributes:
        peers: The connections so far.
    """

    def __init__(self, *scripts: Script, then: Script | None = None) -> None:
        self.peers: list[Peer] = []
        self._scripts = list(scripts)
        self._then = [forever(read, send(answer("Hello")))] if then is None else then
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.setblocking(False)
        self._news = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        self._accepter: asyncio.Task[None] | None = None
        self._players: list[asyncio.Task[None]] = []

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """What the product is told."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def requests(self) -> list[Request]:
        """What was asked, over all connections."""
        return [request for peer in self.peers for request in peer.requests]

    async def peer(self, number: int = 0) -> Peer:
        """A connection, once it is there."""
        async with asyncio.timeout(PATIENCE):
            while len(self.peers) <= number:
                self._news.clear()
                await self._news.wait()
        return self.peers[number]

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._accepter = self._tasks.create_task(self._accept())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._accepter is not None
        for task in (self._accepter, *self._players):
            task.cancel()
        await self._tasks.__aexit__(None, None, None)  # what failed in the test is not its matter
        self._listener.close()
        for peer in self.peers:
            peer.sock.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(self._listener)
            peer = Peer(sock)
            script = self._scripts.pop(0) if self._scripts else []
            self._players.append(self._tasks.create_task(peer.run([*script, *self._then])))
            self.peers.append(peer)
            self._news.set()


def _parse_request(data: bytes) -> Request | None:
    """The request at the start of some bytes; None while it is not complete."""
    raw_head, mark, rest = data.partition(b"\r\n\r\n")
    if not mark:
        return None
    first, *lines = raw_head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers: CIMultiDict[str] = CIMultiDict()
    for line in lines:
        name, _, value = line.partition(":")
        headers.add(name, value.strip())
    if "chunked" in headers.get("Transfer-Encoding", ""):
        parsed = _parse_chunks(rest)
        if parsed is None:
            return None
        body, size = parsed
    else:
        size = int(headers.get("Content-Length", "0"))
        body = rest[:size]
        if len(body) < size:
            return None
    return Request(data[: len(raw_head) + 4 + size], method, target, headers, body)


def _parse_chunks(data: bytes) -> tuple[bytes, int] | None:
    """A chunked body and the bytes that it takes; None while it is not complete."""
    body, position = bytearray(), 0
    while (border := data.find(b"\r\n", position)) >= 0:
        size = int(data[position:border], 16)
        start = border + 2
        if len(data) < start + size + 2:
            return None
        body += data[start : start + size]
        position = start + size + 2
        if not size:
            return bytes(body), position
    return None


# The product


@dataclass(frozen=True, slots=True)
class Product:
    """The product, running in this process.

    Attributes:
        running: Its inside.
    """

    running: app.Running

    @property
    def address(self) -> Address:
        """Where clients connect."""
        return self.running.listen

    @property
    def url(self) -> str:
        """What a client of the HTTP API is told."""
        return f"http://{self.address}/v1"

    def connect(self, path: str = "/v1/responses", **chosen: Any) -> connect:
        """A client of another implementation than ours; use as an async context manager."""
        return connect_to(self.address, path, **chosen)

    async def gauges(self) -> dict[str, float]:
        """What `/metrics` says about what there is now, by the names' last parts."""
        _, body = await get(self.running.admin, "/metrics")
        text = body.decode()
        return {
            family.name.removeprefix("slipstream_"): family.samples[0].value
            for family in text_string_to_metric_families(text)
            if family.type == "gauge"
        }

    async def counts(self, name: str) -> dict[str, float]:
        """The values of a counter by its labels, those that are not 0."""
        counter = getattr(self.running.metrics, name)
        if isinstance(counter, dict):
            return {label: child._value.get() for label, child in counter.items() if child._value.get()}
        return {"": counter._value.get()}


def connect_to(address: Address | str, path: str = "/v1/responses", **chosen: Any) -> connect:
    """A client of the `websockets` library."""
    return connect(f"ws://{address}{path}", proxy=None, **{"max_size": None, "ping_interval": None, **chosen})


def options(upstream: ScriptedUpstream | str, **chosen: Any) -> dict[str, Any]:
    """A configuration file's content for free ports; `upstream__x=1` sets `upstream.x`, and `backends` are instead."""
    url = upstream if isinstance(upstream, str) else upstream.url
    values: dict[str, Any] = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "upstream": {"url": url}}
    for path, value in chosen.items():
        section = values
        *parents, name = path.split("__")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[name] = value
    if "backends" in values:
        del values["upstream"]
    return values


def configure(upstream: ScriptedUpstream | str, **chosen: Any) -> Config:
    """A configuration, with options as for :func:`options`."""
    return Config.model_validate(options(upstream, **chosen))


@contextlib.asynccontextmanager
async def serving(upstream: ScriptedUpstream | str, **chosen: Any) -> AsyncIterator[Product]:
    """The product in front of a backend, with options as for :func:`options`."""
    async with app.start(configure(upstream, **chosen)) as running:
        yield Product(running)


@dataclass(frozen=True, slots=True)
class Process:
    """The product in a process of its own, as it is run in production.

    Attributes:
        process: The process.
        address: Where clients connect.
        admin: Where the operator's listener is.
        log: The file with its log lines.
    """

    process: asyncio.subprocess.Process
    address: Address
    admin: Address
    log: Path

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Its exit code, once it has ended."""
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()

    def resident_bytes(self) -> int:
        """How much memory it has now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def lines(self) -> list[dict[str, Any]]:
        """What it has logged so far."""
        return [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]


@contextlib.asynccontextmanager
async def running(upstream: ScriptedUpstream | str, folder: Path, **chosen: Any) -> AsyncIterator[Process]:
    """`slipstream serve` in front of a backend, with options as for :func:`options`; killed at the end if it still runs."""
    file, log = folder / "slipstream.json", folder / "slipstream.log"
    file.write_text(json.dumps(options(upstream, **{"log__format": "json", **chosen})), encoding="utf-8")
    with log.open("wb") as stderr:
        command = (sys.executable, "-m", "proxy", "serve", "--config", str(file))
        process = await asyncio.create_subprocess_exec(*command, stderr=stderr)
    try:
        await eventually(lambda: b'"listening"' in log.read_bytes() or process.returncode is not None)
        listening = json.loads(log.read_bytes().splitlines()[0])
        yield Process(process, _address_in(listening["url"]), _address_in(listening["admin"]), log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _address_in(url: str) -> Address:
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    return Address(parts.hostname, parts.port)


async def get(address: Address, target: str) -> tuple[int, bytes]:
    """Status and body of a GET, on a connection of its own."""
    with await RawClient.open(address) as client:
        await client.send_bytes(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answered, _, body = (await client.read_all()).partition(b"\r\n\r\n")
    return int(answered.split(b" ")[1]), body


async def eventually(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)


async def soon(event: asyncio.Event) -> None:
    """Wait for an event that has to come."""
    async with asyncio.timeout(PATIENCE):
        await event.wait()


# A turn, through the `websockets` library


def create(text: str = "hi", **fields: Any) -> str:
    """A `response.create`."""
    return json.dumps({"type": "response.create", "model": "m", "input": text, **fields})


async def ask(client: ClientConnection, text: str = "hi", **fields: Any) -> list[dict[str, Any]]:
    """One turn: all its frames."""
    await client.send(create(text, **fields))
    return await receive_turn(client)


async def receive_turn(client: ClientConnection) -> list[dict[str, Any]]:
    """The frames up to the end of a turn."""
    frames = []
    async with asyncio.timeout(PATIENCE):
        while True:
            frame = await receive(client)
            frames.append(frame)
            if frame["type"] in ENDS:
                return frames


async def receive(client: ClientConnection) -> dict[str, Any]:
    """The next frame, which has to be text."""
    async with asyncio.timeout(PATIENCE):
        message = await client.recv()
    assert isinstance(message, str)
    frame: dict[str, Any] = json.loads(message)
    return frame


def types(frames: Sequence[dict[str, Any]]) -> list[str]:
    """The types of frames, without their common beginning."""
    return [str(frame["type"]).removeprefix("response.") for frame in frames]


def text_of(frames: Sequence[dict[str, Any]]) -> str:
    """What the deltas of a turn say together."""
    return "".join(frame["delta"] for frame in frames if frame["type"] == "response.output_text.delta")


ENDS: Final = ("response.completed", "response.incomplete", "response.failed", "error")

# A client without manners


@dataclass(slots=True)
class Frame:
    """A WebSocket frame as it came.

    Attributes:
        opcode: What it is.
        payload: Its payload.
        is_final: Whether no fragment of the same message follows.
    """

    opcode: int
    payload: bytes
    is_final: bool = True


TEXT: Final = 1
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10


@dataclass(slots=True)
class RawClient:
    """A client on a raw socket. Use as a context manager; leaving it closes the socket.

    Attributes:
        sock: The socket, not blocking.
        unread: Bytes that were received and not looked at.
    """

    sock: socket.socket
    unread: bytearray = field(default_factory=bytearray)

    @classmethod
    async def open(cls, address: Address, *, receive_buffer: int = 0) -> Self:
        """Connect; a small receive buffer makes a slow client."""
        sock = socket.socket()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, tuple(address))
        except OSError:
            sock.close()
            raise
        return cls(sock)

    @classmethod
    async def upgrade(cls, address: Address, *headers: str, receive_buffer: int = 0) -> Self:
        """Connect and become a WebSocket."""
        client = await cls.open(address, receive_buffer=receive_buffer)
        await client.send_bytes(upgrade_request(*headers))
        assert (await client.read_head()).startswith(b"HTTP/1.1 101 ")
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    async def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def send_frame(self, opcode: int, payload: bytes, *, is_final: bool = True, flags: int = 0) -> None:
        """Send one frame."""
        await self.send_bytes(client_frame(opcode, payload, is_final=is_final, flags=flags))

    async def receive_some(self, size: int = 2**20) -> bytes:
        """What one read gets; nothing at the end of the stream."""
        async with asyncio.timeout(PATIENCE):
            return await asyncio.get_running_loop().sock_recv(self.sock, size)

    async def read_exactly(self, size: int) -> bytes:
        """So many bytes.

        Raises:
            EOFError: the stream ended before.
        """
        while len(self.unread) < size:
            data = await self.receive_some()
            if not data:
                raise EOFError(bytes(self.unread))
            self.unread += data
        data = bytes(self.unread[:size])
        del self.unread[:size]
        return data

    async def read_until(self, mark: bytes) -> bytes:
        """Bytes up to a mark, the mark included."""
        while (position := self.unread.find(mark)) < 0:
            data = await self.receive_some()
            if not data:
                raise EOFError(bytes(self.unread))
            self.unread += data
        return await self.read_exactly(position + len(mark))

    async def read_head(self) -> bytes:
        """The head of an answer."""
        return await self.read_until(b"\r\n\r\n")

    async def read_all(self) -> bytes:
        """Everything up to the end of the stream."""
        while data := await self.receive_some():
            self.unread += data
        return bytes(self.unread)

    async def read_frame(self) -> Frame:
        """The next frame."""
        first, second = await self.read_exactly(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", await self.read_exactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await self.read_exactly(8))
        assert not second & 0x80, "a server's frames are not masked"
        return Frame(first & 0x0F, await self.read_exactly(size), bool(first & 0x80))

    def half_close(self) -> None:
        """Send no more, but go on reading."""
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Vanish with a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def upgrade_request(*headers: str, target: str = "/v1/responses", method: str = "GET") -> bytes:
    """A WebSocket handshake."""
    key = base64.b64encode(bytes(16)).decode()
    lines = (
        f"{method} {target} HTTP/1.1",
        "Host: proxy",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {key}",
        *headers,
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def client_frame(opcode: int, payload: bytes, *, is_final: bool = True, flags: int = 0) -> bytes:
    """A frame as a client sends it, with a mask that changes nothing."""
    first = (0x80 if is_final else 0) | flags | opcode
    return bytes([first]) + client_frame_size(len(payload)) + bytes(4) + payload


def client_frame_size(size: int) -> bytes:
    """The size in a frame's header, with the bit for a mask."""
    if size < 126:
        return bytes([0x80 | size])
    if size < 65536:
        return struct.pack("!BH", 0x80 | 126, size)
    return struct.pack("!BQ", 0x80 | 127, size)


def frames_in(data: bytes) -> Iterator[Frame]:
    """The frames of a server in some bytes, which end with a frame."""
    position = 0
    while position < len(data):
        first, second = data[position], data[position + 1]
        position += 2
        size = second & 0x7F
        if size == 126:
            size = struct.unpack_from("!H", data, position)[0]
            position += 2
        elif size == 127:
            size = struct.unpack_from("!Q", data, position)[0]
            position += 8
        yield Frame(first & 0x0F, data[position : position + size], bool(first & 0x80))
        position += size
    assert position == len(data)
