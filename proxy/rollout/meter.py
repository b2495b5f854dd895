"""What a client sends, counted where it leaves the process.

The sockets themselves count what they are given, so that nothing is estimated and nothing forgotten: handshakes, headers,
framing, closes. Only asyncio's own event loop sends through the socket object; uvloop goes past it to the file
descriptor, and nothing would be counted there.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import aiohttp


class Meter:
    """Counts what a client does, as its sockets and its HTTP library see it.

    Args:
        handshake_seconds: What setting up a connection takes besides, for a link that is simulated.

    Attributes:
        connections: TCP connections that were set up.
        setup_seconds: What that took, TLS and the upgrade to a WebSocket included.
        sent_bytes: Handed to the sockets: HTTP and WebSocket framing included, TCP and IP headers not.
        received_bytes: Taken from them, likewise.
        requests: HTTP requests, a WebSocket's upgrade among them.
        kept_alive: Those that went over a connection that was there already.
        messages: WebSocket messages sent.
    """

    def __init__(self, handshake_seconds: float = 0) -> None:
        self.connections = 0
        self.setup_seconds = 0.0
        self.sent_bytes = 0
        self.received_bytes = 0
        self.requests = 0
        self.kept_alive = 0
        self.messages = 0
        self._handshake_seconds = handshake_seconds

    def session(self, headers: Mapping[str, str], *, keeps_alive: bool = True) -> aiohttp.ClientSession:
        """An HTTP client whose doings are counted; the caller closes it.

        Args:
            headers: What each request says.
            keeps_alive: Use connections again.
        """
        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(self._request_started)
        trace.on_connection_reuseconn.append(self._connection_reused)
        trace.on_connection_create_start.append(self._connecting)
        trace.on_connection_create_end.append(self._connected)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(socket_factory=self._socket, force_close=not keeps_alive),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None),
            trace_configs=[trace],
        )

    @contextlib.contextmanager
    def setting_up(self) -> Iterator[None]:
        """Count what is done meanwhile as set-up, and nothing of it twice."""
        began, before = time.perf_counter(), self.setup_seconds
        yield
        self.setup_seconds = before + time.perf_counter() - began

    def _socket(self, address: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol = address[:3]
        return _CountedSocket(self, family, kind, protocol)

    async def _request_started(self, *_: object) -> None:
        self.requests += 1

    async def _connection_reused(self, *_: object) -> None:
        self.kept_alive += 1

    async def _connecting(self, _session: object, context: SimpleNamespace, _parameters: object) -> None:
        context.began = time.perf_counter()

    async def _connected(self, _session: object, context: SimpleNamespace, _parameters: object) -> None:
        if self._handshake_seconds:
            await asyncio.sleep(self._handshake_seconds)
        self.setup_seconds += time.perf_counter() - context.began


class _CountedSocket(socket.socket):
    """A socket that tells a meter what goes through it, by the calls that asyncio's transports make."""

    def __init__(self, meter: Meter, family: int, kind: int, protocol: int) -> None:
        super().__init__(family, kind, protocol)
        self._meter = meter

    def connect(self, address: Any) -> None:
        self._meter.connections += 1
        super().connect(address)

    def send(self, data: Any, flags: int = 0) -> int:
        return self._sent(super().send(data, flags))

    def sendmsg(self, buffers: Iterable[Any], *rest: Any) -> int:
        return self._sent(super().sendmsg(buffers, *rest))

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        self._meter.received_bytes += len(data)
        return data

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        length = super().recv_into(buffer, size, flags)
        self._meter.received_bytes += length
        return length

    def _sent(self, length: int) -> int:
        self._meter.sent_bytes += length
        return length
