"""The client's WebSocket: text messages in, text messages out.

aiohttp does the handshake, reads frames (one reader, always reading, so that pings are answered and a client that
vanishes is noticed) and closes. Frames go out past its writer, straight to the transport, all that are ready in one
write; :meth:`Downstream.drain` is where a slow client slows down whoever writes.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final, Literal, cast

from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.abc import AbstractStreamWriter

from proxy.observe import CloseCause
from proxy.protocol import frames

MAX_MESSAGE_HEADER: Final = "x-codex-websocket-max-message-bytes"
"""On the 101, for Codex from 0.171 on: it then refuses a message that is too large itself, and says why."""

_ACK_TIMEOUT: Final = 60.0
"""Seconds without a sign of life from the client's network stack while data is in flight (TCP_USER_TIMEOUT)."""
_CLOSE_TIMEOUT: Final = 5.0
"""Seconds for the client's answer to a close frame."""
_LINGER: Final = 30.0
_LINGER_QUIET: Final = 0.5


class Downstream:
    """One client's WebSocket.

    Args:
        request: The upgrade request.
        max_message: The largest message taken, in bytes; a larger one closes the connection with 1009.
        compression: Accept permessage-deflate for what the client sends.
        write_timeout: Seconds that the client may leave data unread before its connection is cut.

    Attributes:
        cause: Why the connection ended; the client's wish until something else is known.
        close_code: The close code of whoever said it first.
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
        self._write_timeout = write_timeout
        self._writer: AbstractStreamWriter | None = None
        # aiohttp refuses a message of exactly its limit.
        self.response = _Socket(
            timeout=_CLOSE_TIMEOUT, max_msg_size=max_message + 1, compress=compression, decode_text=False
        )
        self.response.headers[MAX_MESSAGE_HEADER] = str(max_message)

    async def accept(self) -> None:
        """Answer the upgrade.

        Raises:
            aiohttp.web.HTTPException: it is no valid WebSocket handshake; nothing was sent.
        """
        self._writer = await self.response.prepare(self._request)
        sock = self._request.get_extra_info("socket")
        if sock is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            # Pings go unanswered by clients that run a tool in their event loop; the kernel still acknowledges them.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(_ACK_TIMEOUT * 1000))

    async def receive(self) -> bytes | None:
        """The next message, valid UTF-8; None once the connection is over, however it ended."""
        while True:
            message = await self.response.receive()
            if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                data = cast("bytes", message.data)
                if data.isascii() or _is_utf8(data):
                    return data
                self.cause = "protocol_error"
                await self.close(WSCloseCode.INVALID_TEXT, "invalid UTF-8")
            elif self.close_code is None:
                self.close_code = self.response.close_code
                if self.close_code == WSCloseCode.MESSAGE_TOO_BIG:
                    self.cause = "too_big"
                elif message.type is WSMsgType.ERROR and self.close_code != WSCloseCode.ABNORMAL_CLOSURE:
                    self.cause = "protocol_error"
            return None

    def write(self, payloads: list[bytes]) -> None:
        """Send text messages, all in one write; see :attr:`protocol`."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            buffer = frames.encode(payloads)
            self.sent += len(buffer)
            transport.write(buffer)

    def ping(self) -> None:
        """Send a ping; nobody waits for the pong."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frames.PING)

    async def drain(self) -> None:
        """Wait until the client has taken most of what was written; cut the connection if it takes too long."""
        if not self.protocol.writing_paused or self._writer is None:
            return
        try:
            async with asyncio.timeout(self._write_timeout):
                await self._writer.drain()
        except TimeoutError:
            self.cause = "slow_client"
            self.abort()
        except ConnectionError:
            pass  # the reader sees it too

    async def close(self, code: int, reason: str) -> None:
        """Say a close frame and end the connection; the client's answer is waited for, a moment."""
        if self.close_code is None:
            self.close_code = code
        await self.response.close(code=code, message=reason.encode())

    def abort(self) -> None:
        """End the connection without a word: for a client that does not read."""
        if self._transport is not None:
            self._transport.abort()


class _Socket(web.WebSocketResponse[Literal[False]]):
    """aiohttp's WebSocket, with a close for messages that are too large which reaches a client that is still sending.

    Closing a TCP connection with unread data in it makes the kernel send a reset, which can throw away the close frame
    on the other side. So the frame goes out, and what still comes in is read and dropped until the client pauses.
    """

    async def close(self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True) -> bool:
        if code != WSCloseCode.MESSAGE_TOO_BIG or self._req is None or self._req.transport is None:
            return await super().close(code=code, message=message or b"", drain=drain)
        transport = self._req.transport
        discard = _Discard(cast("asyncio.Protocol", transport.get_protocol()))
        transport.set_protocol(discard)
        payload = int(code).to_bytes(2, "big") + b"message too big"
        await self.send_frame(payload, WSMsgType.CLOSE)
        transport.resume_reading()
        await discard.until_quiet()
        transport.close()
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


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
