"""The client's WebSocket: text messages in, text messages out.

aiohttp does the handshake, reads frames (one reader, always reading, so that pings are answered and a client that
vanishes is noticed) and answers pings. Whatever else goes out, close frames too, goes past its writer, straight to the
transport, all that is ready in one write; :meth:`Downstream.drain` is where a slow client slows down whoever writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import sys
import termios
from collections.abc import Callable, MutableMapping
from typing import Final, Literal, cast

from aiohttp import WSCloseCode, WSMsgType, hdrs, web
from aiohttp.abc import AbstractStreamWriter

from proxy.observe import CloseCause
from proxy.protocol import frames
from proxy.protocol.rawjson import is_utf8

MAX_MESSAGE_HEADER: Final = "x-codex-websocket-max-message-bytes"
"""On the 101, for Codex from 0.171 on: it then refuses a message that is too large itself, and says why."""

_ACK_TIMEOUT: Final = 60.0
"""Seconds without a sign of life from the client's network stack while data is in flight (TCP_USER_TIMEOUT)."""
_CLOSE_TIMEOUT: Final = 5.0
"""Seconds for the client's answer to a close frame."""
_LINGER: Final = 30.0
"""Seconds for a client to notice a close frame while it is still sending what was refused."""
_LINGER_QUIET: Final = 0.5
_CLOSE: Final = 0x88
_EMPTY_CLOSE: Final = b"\x88\x00"
_NO_STATUS: Final = 1005
"""What stands for a close frame without a code (RFC 6455 section 7.1.5)."""
_RECEIVED_AT: Final = 128
"""Where in Linux' `struct tcp_info` the number of bytes that have arrived stands, as 64 bits (`tcpi_bytes_received`)."""
_MAX_REASON: Final = 123
"""Bytes that a close frame has for its reason (RFC 6455 section 5.5)."""


class Downstream:
    """One client's WebSocket.

    Args:
        request: The upgrade request.
        max_message: The largest message taken, in bytes; a larger one closes the connection with 1009.
        compression: Accept permessage-deflate for what the client sends.
        write_timeout: Seconds that the client may leave data unread without taking any before its connection is cut;
            0 for none.

    Attributes:
        cause: Why the connection ended; the client's wish until something else is known.
        close_code: The close code of whoever said it first; None if nobody did.
        sent: Bytes of frames written.
        protocol: aiohttp's end of the connection. While its `writing_paused` is true the client leaves so much unread that
            nothing more should be read upstream until :meth:`drain` returns.
    """

    def __init__(self, request: web.Request, *, max_message: int, compression: bool, write_timeout: float) -> None:
        self.cause: CloseCause = "client"
        self.close_code: int | None = None
        self.sent = 0
        self._request = request
        self.protocol = request.protocol
        self._transport = request.transport
        self._max_message = max_message
        self._write_timeout = write_timeout
        self._closer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.TimerHandle | None = None
        self._writer: AbstractStreamWriter | None = None
        self._arrived_before = 0
        # aiohttp refuses a message of exactly its limit.
        self.response = _Socket(self._note_violation, max_msg_size=max_message + 1, compress=compression)
        self.response.headers[MAX_MESSAGE_HEADER] = str(max_message)

    async def accept(self) -> None:
        """Answer the upgrade.

        Raises:
            aiohttp.web.HTTPException: it is no valid WebSocket handshake; nothing was sent.
            ConnectionError: the client has left.
        """
        self._writer = await self.response.prepare(self._request)
        sock = self._request.get_extra_info("socket")
        if sock is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            # Pings go unanswered by clients that run a tool in their event loop; the kernel still acknowledges them.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(_ACK_TIMEOUT * 1000))
        self._arrived_before = self.arrived()

    def arrived(self) -> int:
        """Bytes that have come over the network since the handshake, frames and all; 0 where the system does not tell."""
        try:
            info = self._request.get_extra_info("socket").getsockopt(
                socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + 8
            )
        except (AttributeError, OSError):  # another system; a socket that is closed
            return 0
        return int.from_bytes(info[_RECEIVED_AT:], sys.byteorder) - self._arrived_before

    async def receive(self) -> bytes | None:
        """The next message, valid UTF-8; None once the connection is over, however it ended; then :meth:`linger`.

        What still comes after :meth:`close` is dropped, until the client's own close frame.
        """
        while True:
            message = await self.response.receive()
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                if message.type is WSMsgType.CLOSE:
                    self._answer_close(cast("int", message.data))
                return None
            data = cast("bytes", message.data)
            if self.response.has_said_close:
                continue
            if len(data) > self._max_message:  # one that was compressed
                self._note_violation(WSCloseCode.MESSAGE_TOO_BIG)
                self.close(WSCloseCode.MESSAGE_TOO_BIG, "message too big")
                return None
            if data.isascii() or is_utf8(data):
                return data
            self._note_violation(WSCloseCode.INVALID_TEXT)
            self.close(WSCloseCode.INVALID_TEXT, "invalid UTF-8")
            return None

    async def linger(self) -> None:
        """Give a client that was refused something a moment to notice, then end the connection."""
        if self.response.has_said_close and self._transport is not None and not self._transport.is_closing():
            await self.receive()
        if self.response.discard is not None:
            await self.response.discard.until_quiet()
            self._end()

    def write(self, payloads: list[bytes]) -> None:
        """Send text messages, all in one write; see :attr:`protocol`."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            buffer = frames.encode(payloads)
            self.sent += len(buffer)
            transport.write(buffer)

    def ping(self) -> None:
        """Send a ping; nobody waits for the pong."""
        if self._transport is not None and not self._transport.is_closing() and not self.response.has_said_close:
            self._transport.write(frames.PING)

    async def drain(self) -> None:
        """Wait until the client has taken most of what was written; its connection is cut if it takes nothing for too long.

        aiohttp's own wait is never cut short: it is shared by all who wait, and cancelling one would cancel all.
        """
        if self.protocol.writing_paused and self._writer is not None:
            self._watch()
            with contextlib.suppress(ConnectionError):  # the reader sees it too
                await self._writer.drain()

    def close(self, code: int, reason: str) -> None:
        """Say a close frame. :meth:`receive` ends when the client has answered it, or has not for a moment."""
        if self.response.has_said_close or self._transport is None or self._transport.is_closing():
            return
        self.response.has_said_close = True
        if self.close_code is None:
            self.close_code = code
        self._transport.write(_close_frame(code, reason.encode()))
        self._closer = asyncio.get_running_loop().call_later(_CLOSE_TIMEOUT, self.abort)

    def abort(self) -> None:
        """End the connection without a word: for a client that does not read."""
        if self._transport is not None and self.protocol.connected:  # asyncio's own fails once the connection is lost
            self._transport.abort()

    def release(self) -> None:
        """Stop all timers: the connection is over."""
        for timer in (self._closer, self._watcher):
            if timer is not None:
                timer.cancel()

    def _end(self) -> None:
        if self._transport is not None and self._transport.get_write_buffer_size():
            self.abort()  # it has not even taken the close frame
        elif self._transport is not None:
            self._transport.close()

    def _answer_close(self, code: int) -> None:
        """The client said a close frame: as an answer to ours, or it wants one (RFC 6455 section 5.5.1)."""
        if self.close_code is None:
            self.close_code = code or _NO_STATUS
        if self._transport is None or self._transport.is_closing():
            return
        if not self.response.has_said_close:
            self._transport.write(_close_frame(code) if code else _EMPTY_CLOSE)
        self._transport.close()

    def _watch(self) -> None:
        """Look again after the write timeout whether the client has taken anything since."""
        if self._watcher is None and self._write_timeout:
            loop = asyncio.get_running_loop()
            self._watcher = loop.call_later(self._write_timeout, self._check_taken, self._taken())

    def _check_taken(self, before: int) -> None:
        self._watcher = None
        if not self.protocol.writing_paused or not self.protocol.connected:
            return
        if self._taken() > before:
            self._watch()
        else:
            self.cause = "slow_client"
            self.abort()

    def _note_violation(self, code: int) -> None:
        if self.close_code is None:
            self.close_code = code
            self.cause = "too_big" if code == WSCloseCode.MESSAGE_TOO_BIG else "protocol_error"

    def _taken(self) -> int:
        """Bytes that the client's side has taken, up to a constant; what aiohttp writes itself makes it less, not more."""
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self.sent - unsent - _unacknowledged(self._request.get_extra_info("socket"))


def say_no_takeover(headers: MutableMapping[str, str]) -> None:
    """Say in the answer to an upgrade that each message that goes out can be read by itself.

    Nothing that goes out is compressed; whoever hears of it keeps no memory for what might be (RFC 7692 section 7.1.1.1
    lets a server say so unasked).
    """
    chosen = headers.get(hdrs.SEC_WEBSOCKET_EXTENSIONS)
    if chosen is not None and "server_no_context_takeover" not in chosen:
        headers[hdrs.SEC_WEBSOCKET_EXTENSIONS] = f"{chosen}; server_no_context_takeover"


class _Socket(web.WebSocketResponse[Literal[False]]):
    """aiohttp's WebSocket, with a close for what cannot be read that reaches a client which is still sending it.

    Closing a TCP connection with unread data in it makes the kernel send a reset, which can throw away the close frame
    on the other side. So the frame goes out, and what still comes in is read and dropped until the client pauses.

    Args:
        on_violation: Told the close code.
        max_msg_size: Messages of this size and more are a violation.
        compress: Accept permessage-deflate.

    Attributes:
        discard: What reads and drops, after a violation.
        has_said_close: A close frame was sent already.
    """

    def __init__(self, on_violation: Callable[[int], None], *, max_msg_size: int, compress: bool) -> None:
        super().__init__(
            timeout=_CLOSE_TIMEOUT,
            max_msg_size=max_msg_size,
            compress=compress,
            decode_text=False,
            autoclose=False,  # we answer close frames ourselves
        )
        self.discard: _Discard | None = None
        self.has_said_close = False
        self._on_violation = on_violation

    async def close(self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True) -> bool:
        transport = self._req.transport if self._req is not None else None
        if code == WSCloseCode.OK or transport is None or transport.is_closing():
            return await super().close(code=code, message=message, drain=drain)
        self._on_violation(code)
        self.discard = _Discard(cast("asyncio.Protocol", transport.get_protocol()))
        transport.set_protocol(self.discard)
        if not self.has_said_close:
            transport.write(_close_frame(code, b"message too big" if code == WSCloseCode.MESSAGE_TOO_BIG else b""))
        transport.resume_reading()
        return True


class _Discard(asyncio.Protocol):
    """Reads and drops; everything but data goes to the protocol in whose place it stands."""

    def __init__(self, inner: asyncio.Protocol) -> None:
        self._inner = inner
        self._is_over = asyncio.Event()
        self._reads = 0

    def data_received(self, data: bytes) -> None:
        self._reads += 1

    def eof_received(self) -> bool | None:
        self._is_over.set()
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over.set()
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    async def until_quiet(self) -> None:
        """Until the other side is gone or has sent nothing for a moment, and in any case not for ever."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _LINGER
        reads = -1
        while reads != self._reads and loop.time() < end and not self._is_over.is_set():
            reads = self._reads
            try:
                async with asyncio.timeout(_LINGER_QUIET):
                    await self._is_over.wait()
            except TimeoutError:
                continue


def _unacknowledged(sock: socket.socket | None) -> int:
    """Bytes that the kernel has and the other side does not; 0 where that cannot be known.

    A socket is not writable again before a third of its buffer is free, which is a megabyte and half a minute for a client
    that is slow enough; what it acknowledges shows at once that it goes on.
    """
    if sock is None:
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def _close_frame(code: int, reason: bytes = b"") -> bytes:
    payload = code.to_bytes(2, "big") + reason[:_MAX_REASON]
    return bytes((_CLOSE, len(payload))) + payload
