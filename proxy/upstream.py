"""The backend's side of a turn: connections kept warm, requests in one write, answers as they come.

What HTTP clients do by default is made for pages and bites here, so none of it is there: no total timeout (an answer may
take an hour), no cookies (one client's must not reach another's request), no redirects and no proxies from the
environment (the credential would travel), no decompression, no limit that queues silently. An idle connection is not used
again once the backend may be about to close it. Head and body leave in one write: two segments cost 40 ms a turn on a
real llama-server, for delayed acknowledgements.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Hashable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from proxy import __version__
from proxy.observe import Exchange
from proxy.pool import Pool
from proxy.protocol import refusals
from proxy.protocol.request import UpstreamRequest
from proxy.protocol.upstream_errors import (
    UpstreamDisconnected,
    UpstreamError,
    UpstreamProtocolError,
)
from proxy.values import HEADER_NAME
from proxy.wire import Head, Receiver, Wire

_MAX_ERROR_BODY: Final = 2**20
_ERROR_BODY_TIMEOUT: Final = 5.0
"""Seconds for the body of an error answer; its status alone says most of it."""
_HAS_ERROR: Final = re.compile(rb'"error"\s*:\s*[{"]')
_FORBIDDEN: Final = re.compile(r"[\r\n\0]")


class Upstream:
    """One backend, asked for responses.

    Args:
        url: Its base URL, without a slash at its end.
        pool: The connections to it.
        reuse: Ask it to keep connections.
        retry_stale: Send a request once more when a kept connection was dead.
    """

    def __init__(self, url: str, pool: Pool, *, reuse: bool, retry_stale: bool) -> None:
        self._url = url
        parts = urlsplit(url)
        self._pool = pool
        self._retry_stale = retry_stale
        self._head = (
            f"POST {parts.path}/responses HTTP/1.1\r\n"
            f"Host: {parts.netloc}\r\n"
            f"User-Agent: slipstream/{__version__}\r\n"
            "Accept: text/event-stream\r\n"
            "Accept-Encoding: identity\r\n"
            "Content-Type: application/json\r\n"
        ).encode("latin-1")
        if not reuse:
            self._head += b"Connection: close\r\n"

    def expect(self, whom: Hashable) -> None:
        """A client will ask before long: a connection may be opened for it."""
        self._pool.expect(whom)

    def dismiss(self, whom: Hashable) -> None:
        """It has asked, or will not ask any more."""
        self._pool.dismiss(whom)

    async def post(self, request: UpstreamRequest, headers: bytes, exchange: Exchange) -> Answer:
        """Ask for a response.

        A request whose kept connection turns out to be dead before any byte of an answer came is sent once more, on a
        fresh connection: the backend closed it before it saw the request. (RFC 9110 section 9.2.2 allows this only
        where the request was not applied; a backend that reads a request, works on it and then closes without a word
        would work twice. `retry_stale: false` is for those.)

        Args:
            request: The body.
            headers: Further header lines (:func:`header_lines`).
            exchange: Where to note how it goes.

        Returns:
            A stream of events; the caller closes it.

        Raises:
            UpstreamError: there is none; a refusal by the backend is one of the kinds.
        """
        wire, head = await self._ask(request, headers, exchange)
        exchange.status = head.status
        answer = Answer(wire)
        try:
            await _check(answer, head)
        except BaseException:
            answer.close()
            raise
        return answer

    def _buffers(self, request: UpstreamRequest, headers: bytes, exchange: Exchange) -> Sequence[bytes]:
        """A request as it goes on the wire, once: each time it is sent is traced by itself."""
        if exchange.trace is not None:
            headers += header_lines(exchange.trace.outgoing(self._url))
        return [b"%b%bContent-Length: %d\r\n\r\n" % (self._head, headers, request.size), *request.buffers]

    async def _ask(self, request: UpstreamRequest, headers: bytes, exchange: Exchange) -> tuple[Wire, Head]:
        taken = self._pool.take()
        buffers = self._buffers(request, headers, exchange)
        if taken is not None:
            wire, exchange.reused = taken
            exchange.ahead = not exchange.reused
            try:
                exchange.dispatched = time.perf_counter()
                return wire, await wire.request(buffers)
            except UpstreamDisconnected as error:
                if not self._retry_stale or wire.has_answered:
                    raise
                if exchange.trace is not None:
                    exchange.trace.failed(error)
                    buffers = self._buffers(request, headers, exchange)
            exchange.dispatched = None
            exchange.retries += 1
            exchange.reused = exchange.ahead = False
        began = time.perf_counter()
        wire = await self._pool.connect()
        exchange.dispatched = time.perf_counter()
        exchange.connect = exchange.dispatched - began
        return wire, await wire.request(buffers)


class Answer:
    """A stream of events from the backend.

    Args:
        wire: The connection that it comes over.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._is_read = False

    async def read(self, receive: Receiver) -> None:
        """Hand on the bytes, in the callbacks in which they are read, until the end.

        Args:
            receive: Given the bytes. It must not raise.

        Raises:
            UpstreamDisconnected: the connection broke.
        """
        await self._wire.read(receive)
        self._is_read = True

    def pause(self) -> None:
        """Read no more for now."""
        if not self._is_read:  # else it may serve somebody else already
            self._wire.pause()

    def resume(self) -> None:
        """Read on."""
        if not self._is_read:
            self._wire.resume()

    def close(self) -> None:
        """Stop the backend's work, unless all was read; then its connection is kept already."""
        if not self._is_read:
            self._wire.close()


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Headers as they go on the wire.

    Raises:
        ValueError: a name or a value cannot be a header (RFC 9110 sections 5.1 and 5.5).
    """
    lines = []
    for name, value in headers.items():
        if not HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of a header")
        if _FORBIDDEN.search(value):
            raise ValueError(f"the value of the header {name!r} holds a line break or a null")
        lines.append(f"{name}: {value}\r\n")
    # What a client sent that is no UTF-8 goes on as it came.
    return "".join(lines).encode("utf-8", errors="surrogateescape")


async def _check(answer: Answer, head: Head) -> None:
    """Make sure that an answer is a stream.

    Raises:
        UpstreamError: it is an error answer, or something else.
    """
    encoding = head.headers.get("Content-Encoding", "").strip().lower() or "identity"
    if head.status != 200:
        if not 400 <= head.status <= 599:
            raise UpstreamProtocolError(f"expected status 200, got {head.status}")
        body = await _read_error(answer)
        raise refusals.from_answer(head.status, head.headers, body if encoding == "identity" else b"")
    if encoding != "identity":
        raise UpstreamProtocolError(f"it is compressed ({encoding})")
    content_type = head.headers.get("Content-Type", "text/event-stream").partition(";")[0].strip().lower()
    if content_type != "text/event-stream":
        body = await _read_error(answer)
        if _HAS_ERROR.search(body, 0, 2000):
            raise refusals.from_answer(502, head.headers, body)
        raise UpstreamProtocolError(f"expected text/event-stream, got {content_type}")


async def _read_error(answer: Answer) -> bytes:
    """The body of an error answer, as far as it came and no more than is sensible."""
    body = bytearray()

    def receive(data: bytes) -> None:
        body.extend(data)
        if len(body) > _MAX_ERROR_BODY:
            answer.close()

    with contextlib.suppress(UpstreamError, TimeoutError):  # what came is all there is to say
        async with asyncio.timeout(_ERROR_BODY_TIMEOUT):
            await answer.read(receive)
    return bytes(body[:_MAX_ERROR_BODY])
