"""What a client of the demo sends, counted where it leaves the process.

The sockets themselves count what they are given, so that nothing is estimated and nothing forgotten: handshakes, headers,
framing, closes. Only asyncio's own event loop sends through the socket object; uvloop goes past it to the file
descriptor, and nothing would be counted there.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any, Final

import aiohttp

_HEADERS: Final = {"Authorization": "Bearer demo"}
"""What every client of the API sends; nobody checks it here."""


class Meter:
    """Counts what a client does, as its sockets and its HTTP library see it.

    Attributes:
        connections: TCP connections that were set up.
        sent_bytes: Handed to the sockets: HTTP and WebSocket framing included, TCP and IP headers not.
        received_bytes: Taken from them, likewise.
        requests: HTTP requests, a WebSocket's upgrade among them.
        kept_alive: Those that went over a connection that was there already.
        messages: WebSocket messages sent.
    """

    def __init__(self) -> None:
        self.connections = 0
        self.sent_bytes = 0
        self.received_bytes = 0
        self.requests = 0
        self.kept_alive = 0
        self.messages = 0

    def session(self) -> aiohttp.ClientSession:
        """An HTTP client whose doings are counted; the caller closes it."""
        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(self._request_started)
        trace.on_connection_reuseconn.append(self._connection_reused)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(socket_factory=self._socket),
            headers=_HEADERS,
            timeout=aiohttp.ClientTimeout(total=None),
            trace_configs=[trace],
        )

    def _socket(self, address: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol = address[:3]
        return _CountedSocket(self, family, kind, protocol)

    async def _request_started(self, *_: object) -> None:
        self.requests += 1

    async def _connection_reused(self, *_: object) -> None:
        self.kept_alive += 1


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
