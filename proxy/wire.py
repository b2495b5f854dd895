"""One HTTP/1.1 connection to the backend: an asyncio protocol around a parser, and nothing between.

The bytes of a body are handed on in the callback in which they were read: no stream object, no queue, no wake-up of a
task, no timer, since such wake-ups are most of what a stream costs. httptools (llhttp) does the parsing; what is decided
here is whose turn it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, cast

import httptools
from multidict import CIMultiDict

from proxy.protocol.upstream_errors import UpstreamDisconnected, UpstreamError, UpstreamProtocolError

_MAX_HEAD_BYTES: Final = 64 * 2**10
_MAX_EARLY_BYTES: Final = 64 * 2**10

_NOT_PARSED: Final = (httptools.HttpParserError, httptools.HttpParserUpgrade)

Receiver = Callable[[bytes], None]


class WireState(Enum):
    """What a connection is doing."""

    IDLE = "idle"  #: may take a request
    AWAITING = "awaiting"  #: a request was sent, the answer's head has not come
    HEAD = "head"  #: the head has come, nobody reads the body yet
    BODY = "body"  #: the body is handed on as it comes
    CLOSED = "closed"  #: of no more use


_BODY: Final = WireState.BODY  # looked up for every read, which a class of Python 3.11 takes its time for


class Head:
    """Status and headers of an answer.

    Attributes:
        status: HTTP status.
        headers: All headers.
    """

    __slots__ = ("headers", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: CIMultiDict[str] = CIMultiDict()


_NO_PARSER: Final = httptools.HttpResponseParser(object())
"""Stands where nothing is to be parsed: a parser holds its callbacks, and would keep a connection until the collector comes."""
_NO_HEAD: Final = Head()


class Wire(asyncio.Protocol):
    """One connection; one request at a time.

    Args:
        on_idle: Told when the connection may take another request.

    Attributes:
        state: What it is doing.
        idle_since: When it became idle, on the loop's clock.
    """

    _parser: httptools.HttpResponseParser
    _head: Head
    _head_bytes: int
    _has_head: bool
    _is_complete: bool
    _ends_with_connection: bool
    _keeps_alive: bool
    _early: bytes
    _error: UpstreamError | None

    def __init__(self, on_idle: Callable[[Wire], None]) -> None:
        self.state = WireState.IDLE
        self.idle_since = 0.0
        self._on_idle = on_idle
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._parts: list[bytes] = []
        self.on_body = self._parts.append  # the parser's callback, for every chunk: without a frame of ours
        self._receive: Receiver = _drop
        self._begin()

    # Requests

    @property
    def has_answered(self) -> bool:
        """Whether any byte came in answer to the last request."""
        return self._head_bytes > 0

    async def request(self, buffers: Sequence[bytes]) -> Head:
        """Send a request and wait for the head of its answer.

        Args:
            buffers: Head and body as they go out, in one write.

        Raises:
            UpstreamError: no head came; the connection is closed.
        """
        assert self.state is WireState.IDLE and self._transport is not None
        self._begin()
        self.state = WireState.AWAITING
        self._waiter = self._loop.create_future()
        self._transport.writelines(buffers)
        try:
            await self._waiter
        except BaseException:
            self.close()
            raise
        return self._head

    async def read(self, receive: Receiver) -> None:
        """Hand on the body, in the callbacks in which it is read, until it ends.

        Args:
            receive: Given the bytes, never none of them. It must not raise.

        Raises:
            UpstreamError: the body broke off; the connection is closed.
        """
        early, self._early = self._early, b""
        if len(early) > _MAX_EARLY_BYTES:
            self.resume()  # before anybody may pause it again
        if early:
            receive(early)
        if not self._is_complete:
            if self.state is not WireState.HEAD:
                raise self._error or UpstreamDisconnected()
            self.state = WireState.BODY
            self._receive = receive
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            except BaseException:
                self.close()
                raise
            finally:
                self._receive = _drop  # an idle connection keeps nobody alive
        self._finish()

    def pause(self) -> None:
        """Read no more for now: whoever takes the bytes cannot pass them on."""
        if self._transport is not None and self.state is not WireState.CLOSED:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and self.state is not WireState.CLOSED:
            self._transport.resume_reading()

    def close(self) -> None:
        """Close the connection at once; a backend takes that as the wish to stop."""
        if self.state is WireState.CLOSED:
            return
        was_idle = self.state is WireState.IDLE
        self.state = WireState.CLOSED
        if self._transport is not None:
            self._transport.abort()
        if was_idle:
            self._on_idle(self)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        # Once for every read: the common case first.
        if self.state is _BODY and not self._is_complete:
            try:
                self._parser.feed_data(data)
            except _NOT_PARSED:
                self._stop_parsing()
                return
            parts = self._parts
            if parts:
                body = parts[0] if len(parts) == 1 else b"".join(parts)
                parts.clear()
                self._receive(body)
            if self._is_complete:
                self._wake(None)
        elif self.state in (WireState.AWAITING, WireState.HEAD) and not self._is_complete:
            self._received_early(data)
        else:
            self.close()  # nobody asked

    def _received_early(self, data: bytes) -> None:
        """Bytes of the head, or of the body in the moment before somebody reads it."""
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except _NOT_PARSED:
            self._stop_parsing()
            return
        if not self._has_head and self._head_bytes > _MAX_HEAD_BYTES:
            self._fail(UpstreamProtocolError(f"its head has more than {_MAX_HEAD_BYTES} bytes"))
            return
        self._early += b"".join(self._parts)
        self._parts.clear()
        if len(self._early) > _MAX_EARLY_BYTES:
            self.pause()

    def _stop_parsing(self) -> None:
        """What came is no HTTP, or no part of the answer; what came before it is good."""
        body = b"".join(self._parts)
        self._parts.clear()
        if self.state is not WireState.BODY:
            self._early += body
        elif body:
            self._receive(body)
        if self._is_complete:
            self.close()
            self._wake(None)
        else:
            self._fail(UpstreamProtocolError("it is not HTTP"))

    def eof_received(self) -> None:
        if self.state is WireState.IDLE:
            self.close()
        elif self._has_head and self._ends_with_connection:
            # Without a length and without chunks a body ends with the connection (RFC 9112 section 6.3).
            self._is_complete = True
            self._wake(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.state is WireState.IDLE:
            self.state = WireState.CLOSED
            self._on_idle(self)
        self.state = WireState.CLOSED
        if not self._is_complete:
            self._wake(UpstreamDisconnected(has_begun=self.has_answered))
        self._parser = _NO_PARSER

    # httptools callbacks

    def on_message_begin(self) -> None:
        if self._is_complete:
            raise _Unasked

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # else a trailer
            self._head.headers.add(name.decode("latin-1"), value.decode("latin-1").rstrip())

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return  # an interim answer; the real one follows
        self._head.status = status
        headers = self._head.headers
        self._ends_with_connection = (
            "Content-Length" not in headers
            and "chunked" not in headers.get("Transfer-Encoding", "").lower()
            and status not in (204, 304)
        )
        self._has_head = True
        if self.state is WireState.AWAITING:
            self.state = WireState.HEAD
            self._wake(None)

    def on_message_complete(self) -> None:
        if self._has_head:
            self._is_complete = True
            self._keeps_alive = self._parser.should_keep_alive()  # only now: it forgets the headers after this
        else:
            self._head = Head()  # after an interim answer

    # Ends and beginnings

    def _begin(self) -> None:
        self._parts.clear()
        self._receive = _drop
        self._parser = httptools.HttpResponseParser(self)
        self._head = Head()
        self._head_bytes = 0
        self._has_head = False
        self._is_complete = False
        self._ends_with_connection = False
        self._keeps_alive = False
        self._early = b""
        self._error = None

    def _finish(self) -> None:
        """The answer was read in full; the connection can serve again if both sides want it to."""
        if self.state is WireState.CLOSED:
            return
        if not self._keeps_alive:
            self.close()
            return
        self.resume()  # a slow client may have paused it, and the next one would wait for ever
        self._parser, self._head = _NO_PARSER, _NO_HEAD  # an idle connection keeps little
        self.state = WireState.IDLE
        self.idle_since = self._loop.time()
        self._on_idle(self)

    def _fail(self, error: UpstreamError) -> None:
        self._error = error
        self.close()
        self._wake(error)

    def _wake(self, error: UpstreamError | None) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            return
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


class _Unasked(Exception):
    """Raised into the parser: a second answer came behind the one that was asked for."""


def _drop(_: bytes) -> None:
    pass
