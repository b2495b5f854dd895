"""The backend's side: one HTTP client, set up for long answers.

What aiohttp does by default is made for pages, and bites here: no total timeout (an answer may take an hour), no cookie
jar (one client's cookie must not reach another's request), no redirects and no proxies from the environment (the
credential would travel), no decompression, no limit of connections that queues silently, and idle connections given up
before the backend closes them. Head and body of a request leave in one write: two segments cost 40 ms a turn on a real
llama-server, for delayed acknowledgements.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Final

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from yarl import URL

from proxy import __version__
from proxy.observe import Exchange
from proxy.protocol import refusals
from proxy.protocol.errors import (
    UpstreamDisconnected,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from proxy.protocol.request import UpstreamRequest

_MAX_ERROR_BODY: Final = 2**20
_STREAM_HEADERS: Final = {
    "Accept": "text/event-stream",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
    "User-Agent": f"slipstream/{__version__}",
}


class Upstream:
    """The HTTP client for one backend.

    Use as an async context manager; it owns its connections.

    Args:
        url: Base URL, without a slash at its end.
        connect_timeout: Seconds to open a connection; 0 for none.
        keepalive: Seconds for which an idle connection may be used again; 0 for no reuse.
        retry_stale: Send a request once more when a kept connection was dead.
    """

    def __init__(self, url: str, *, connect_timeout: float, keepalive: float, retry_stale: bool) -> None:
        self.url = url
        self._connect_timeout = connect_timeout
        self._keepalive = keepalive
        self._retry_stale = retry_stale
        self._pooled: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Upstream:
        self._fresh = self._session(aiohttp.TCPConnector(limit=0, force_close=True))
        self._pooled = (
            self._session(aiohttp.TCPConnector(limit=0, keepalive_timeout=self._keepalive))
            if self._keepalive
            else self._fresh
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in (self._pooled, self._fresh):
            if session is not None:
                await session.close()

    async def post_responses(
        self, request: UpstreamRequest, headers: Mapping[str, str], exchange: Exchange
    ) -> Answer:
        """Ask for a response.

        Args:
            request: The body.
            headers: Headers besides those that every such request has.
            exchange: Where to note how it went.

        Returns:
            A stream of events; the caller closes it.

        Raises:
            UpstreamError: there is none; a refusal by the backend is one of the kinds.
        """
        response = await self.send(
            "POST", "/responses", headers={**_STREAM_HEADERS, **headers}, body=_Body(request), exchange=exchange
        )
        answer = Answer(response)
        try:
            await answer.check()
        except BaseException:
            answer.close()
            raise
        return answer

    async def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: Payload | aiohttp.StreamReader | bytes | None,
        exchange: Exchange,
    ) -> aiohttp.ClientResponse:
        """Send a request; the caller releases or closes the response.

        A request whose kept connection turns out to be dead before any byte of an answer came is sent once more, on a
        fresh connection: the backend closed it before it saw the request. (RFC 9110 section 9.2.2 allows this only
        where the request was not applied; a backend that reads a request, works on it and then closes without a word
        would work twice. `retry_stale: false` is for those.) A body that is read from a client as it comes cannot be
        sent again, so it gets a fresh connection from the start.

        Args:
            method: HTTP method.
            path: Path and query below the base URL, percent-encoded.
            headers: All headers.
            body: The body.
            exchange: Where to note how it went.

        Raises:
            UpstreamError: no answer came.
        """
        assert self._pooled is not None and self._fresh is not None, "use Upstream as a context manager"
        once = isinstance(body, aiohttp.StreamReader)
        try:
            return await self._attempt(self._fresh if once else self._pooled, method, path, headers, body, exchange)
        except UpstreamDisconnected:
            if once or not exchange.reused or not self._retry_stale:
                raise
        exchange.retries += 1
        return await self._attempt(self._fresh, method, path, headers, body, exchange)

    async def _attempt(
        self,
        session: aiohttp.ClientSession,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Payload | aiohttp.StreamReader | bytes | None,
        exchange: Exchange,
    ) -> aiohttp.ClientResponse:
        exchange.reused = False
        try:
            response = await session.request(
                method,
                URL(self.url + path, encoded=True),
                headers=headers,
                data=body,
                allow_redirects=False,
                trace_request_ctx=exchange,
            )
        except (aiohttp.ConnectionTimeoutError, TimeoutError) as exc:
            raise UpstreamTimeout("connect", self._connect_timeout) from exc
        except aiohttp.ClientConnectorError as exc:
            raise UpstreamUnreachable from exc
        except (aiohttp.ClientConnectionError, ConnectionError) as exc:
            raise UpstreamDisconnected from exc
        except aiohttp.ClientError as exc:
            raise UpstreamProtocolError("it is not HTTP") from exc
        exchange.status = response.status
        return response

    def _session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout or None),
            trace_configs=[trace],
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
        )


class Answer:
    """A stream of events from the backend.

    Args:
        response: The HTTP response.
    """

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def check(self) -> None:
        """Make sure that it is a stream.

        Raises:
            UpstreamError: it is an error answer, or something else.
        """
        response = self._response
        if response.status != 200:
            raise refusals.from_answer(response.status, response.headers, await self._read_error())
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise UpstreamProtocolError(f"it is compressed ({response.headers['Content-Encoding']})")
        if response.content_type not in ("text/event-stream", "application/octet-stream"):  # the latter: none was sent
            body = await self._read_error()
            if b'"error"' in body[:2000]:
                raise refusals.from_answer(502, response.headers, body)
            raise UpstreamProtocolError(f"expected text/event-stream, got {response.content_type}")

    async def read(self) -> bytes:
        """The next bytes; empty at the end.

        Raises:
            UpstreamDisconnected: the connection broke.
        """
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, ConnectionError) as exc:
            raise UpstreamDisconnected from exc

    def close(self) -> None:
        """Give the connection back if the answer was read to its end, else close it, which cancels the backend's work."""
        self._response.close()

    async def _read_error(self) -> bytes:
        body = b""
        try:
            while len(body) < _MAX_ERROR_BODY and (data := await self.read()):
                body += data
        except UpstreamError:
            pass  # what came is all there is to say
        return body[:_MAX_ERROR_BODY]


class _Body(Payload):
    """A request body in pieces, written at once."""

    _autoclose = True

    def __init__(self, request: UpstreamRequest) -> None:
        super().__init__(request, content_type="application/json")
        self._size = request.size

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._value_bytes().decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await writer.write(self._value_bytes())

    def _value_bytes(self) -> bytes:
        request: UpstreamRequest = self._value
        return request.body()


async def _note_reuse(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
    exchange: Exchange = context.trace_request_ctx
    exchange.reused = True

