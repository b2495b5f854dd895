"""Plain HTTP, unchanged: a client that falls back from WebSocket mode must notice nothing.

Method, path, query, headers and body go to the backend as they came and the answer comes back as it is, streamed both
ways; only hop-by-hop headers stay behind (RFC 9110 section 7.6.1), and `Expect`, since the client has been told to go on
already. Bodies that a client compressed are inflated, since no backend here can (pi sends zstd), and compaction items that
the proxy made become messages, since no backend can read them. When the client leaves, the request to the backend is
cancelled with the handler.

aiohttp's client does the work here, set up as :mod:`proxy.upstream` describes. Requests that cannot be repeated get a
fresh connection each, so that none can meet one that the backend has just closed; the others share connections, and
aiohttp repeats them itself.
"""

from __future__ import annotations

import asyncio
import io
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Self

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from proxy.config import Config
from proxy.observe import HttpSource, Observer, PassThroughRecord
from proxy.protocol import compaction, rescue
from proxy.protocol.errors import (
    InvalidMessage,
    ProxyError,
    UpstreamDisconnected,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnreachable,
)

_HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_INFLATED: Final = frozenset({"gzip", "deflate", "zstd", "br"})
"""What aiohttp inflates on its own."""

_AUTHORITY: Final = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
_ALIASES: Final = {"/codex/responses": "/responses"}
"""pi and Codex in its ChatGPT form put this behind their base URL."""

_MAX_BUFFERED: Final = 4 * 2**20
"""Bodies up to this size are read first, so that they leave in one write with their head."""

_MAX_AT_ONCE: Final = 2**20
"""Bytes of a body that go to the transport in one piece."""

_KEEPALIVE: Final = 4.0
"""Seconds for which an idle connection is used again; uvicorn closes its own after 5."""

_REPEATABLE: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})
"""Methods that may be sent twice (RFC 9110 section 9.2.2)."""


Answer = Callable[[web.Request], Awaitable[tuple[web.StreamResponse, HttpSource]]]
"""Answers a request, and says who chose the status. May raise a ProxyError."""


class PassThrough:
    """Hands plain HTTP requests to the backend.

    Use as an async context manager; it owns its connections to the backend.

    Args:
        config: The operator's choices.
        observer: Whom to tell.
    """

    def __init__(self, config: Config, observer: Observer) -> None:
        self._url = config.upstream.url
        self._connect_timeout = config.upstream.timeouts.connect
        self._base_path = config.base_path
        self._max_body = config.websocket.max_message
        self._observer = observer
        self._shared: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None
        options = config.upstream
        self._fixed = {name.lower(): value for name, value in options.headers.items()}
        if options.api_key is not None:
            self._fixed["authorization"] = f"Bearer {options.api_key.get_secret_value()}"
        self._forwarded = frozenset({"authorization", *(name.lower() for name in options.forward_headers)})
        self._requests: dict[int, web.Request] = {}  # by identity: aiohttp's requests cannot be hashed
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def __aenter__(self) -> Self:
        self._shared = self._session(aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE))
        self._fresh = self._session(aiohttp.TCPConnector(limit=0, force_close=True))
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in (self._shared, self._fresh):
            if session is not None:
                await session.close()

    def credentials(self, request: web.Request) -> dict[str, str]:
        """The headers of a WebSocket handshake that go to the backend with each turn."""
        chosen = {name.lower(): value for name, value in request.headers.items() if name.lower() in self._forwarded}
        return {**chosen, **self._fixed}

    async def wait_idle(self) -> None:
        """Until no request is on its way."""
        await self._is_idle.wait()

    def abort(self) -> None:
        """Break off all requests that are on their way, on both sides."""
        for request in self._requests.values():
            if request.transport is not None:
                request.transport.abort()

    async def handle(self, request: web.Request, answer: Answer | None = None) -> web.StreamResponse:
        """Answer one request, counted as long as it is on its way.

        Args:
            request: The request.
            answer: What answers it; by default the backend does.
        """
        self._requests[id(request)] = request
        self._is_idle.clear()
        began = time.perf_counter()
        status = 499  # the client left before there was an answer
        source: HttpSource = "proxy"
        try:
            response, source = await _answered(request, answer or self._forward)
            status = response.status
            return response
        finally:
            del self._requests[id(request)]
            if not self._requests:
                self._is_idle.set()
            seconds = time.perf_counter() - began
            self._observer.passed_through(PassThroughRecord(request.method, request.path, status, source, seconds))

    async def _forward(self, request: web.Request) -> tuple[web.StreamResponse, HttpSource]:
        headers, body = await self._request_of(request)
        answer = await self.send(request.method, self.target(request), headers, body)
        try:
            return await self.relay(request, answer), "upstream"
        finally:
            answer.close()

    async def send(
        self, method: str, target: str, headers: CIMultiDict[str], body: bytes | aiohttp.StreamReader | None
    ) -> aiohttp.ClientResponse:
        """Send a request to the backend, without compaction items that only the proxy can read.

        Args:
            method: Its method.
            target: Path and query below the backend's base URL.
            headers: Its headers, credentials included; `Content-Length` is taken away if it no longer holds.
            body: Its body; None for none.

        Raises:
            UpstreamError: no answer came.
        """
        url = URL(self._url + target, encoded=True)
        if isinstance(body, bytes) and (admitted := compaction.admit_body(body)) is not body:
            headers.popall("Content-Length", None)
            body = admitted
        is_repeatable = method in _REPEATABLE and not isinstance(body, aiohttp.StreamReader)
        session = self._shared if is_repeatable else self._fresh
        assert session is not None, "use PassThrough as a context manager"
        try:
            # aiohttp writes bytes at once, however many, and warns of that; a file's it writes in pieces.
            data = io.BytesIO(body) if isinstance(body, bytes) and len(body) > _MAX_AT_ONCE else body
            return await session.request(method, url, headers=headers, data=data, allow_redirects=False)
        except (aiohttp.ConnectionTimeoutError, TimeoutError) as exc:
            raise UpstreamTimeout("connect", self._connect_timeout) from exc
        except aiohttp.ClientConnectorError as exc:
            raise UpstreamUnreachable from exc
        except (aiohttp.ClientConnectionError, ConnectionError) as exc:
            raise UpstreamDisconnected from exc
        except aiohttp.ClientError as exc:
            raise UpstreamProtocolError("it is not HTTP") from exc

    async def read(self, request: web.Request) -> tuple[CIMultiDict[str], bytes]:
        """The headers that go to the backend with a request, credentials included, and its body as a whole.

        Raises:
            InvalidMessage: the body is too large, or cannot be inflated.
        """
        headers, body = await self._request_of(request)
        if isinstance(body, aiohttp.StreamReader):
            body = await self._read_all(request, "")
        return headers, body or b""

    async def _request_of(self, request: web.Request) -> tuple[CIMultiDict[str], bytes | aiohttp.StreamReader | None]:
        headers = _end_to_end(request.headers)
        headers.popall("Host", None)
        headers.popall("Expect", None)
        headers.update(self._fixed)
        size = request.content_length
        if headers.get("Content-Encoding", "").lower() in _INFLATED:
            del headers["Content-Encoding"]
            headers.popall("Content-Length", None)
            return headers, await self._read_all(request, " when inflated")
        if not request.body_exists:
            return headers, None
        # A conversation may hold what has to be replaced, however long it is.
        limit = self._max_body if request.method == "POST" and "/responses" in request.path else _MAX_BUFFERED
        if size is None or size > limit:
            return headers, request.content
        return headers, await request.read()

    async def _read_all(self, request: web.Request, when: str) -> bytes:
        body = bytearray()
        try:
            while data := await request.content.readany():
                body += data
                if len(body) > self._max_body:
                    raise InvalidMessage(f"The body is larger than {self._max_body} bytes{when}.")
        except (aiohttp.ClientError, web.RequestPayloadError) as exc:
            raise InvalidMessage("The body does not have the encoding that Content-Encoding says.") from exc
        return bytes(body)

    def target(self, request: web.Request) -> str:
        """Path and query below the backend's base URL, as the client wrote them."""
        target = _AUTHORITY.sub("", request.raw_path)  # clients write a host to what they take for a proxy
        assert target.startswith("/"), "what is no path is not routed here"  # or it would become part of the URL's host
        path, mark, query = target.partition("?")
        if self._base_path and (path == self._base_path or path.startswith(f"{self._base_path}/")):
            path = path[len(self._base_path) :]
        return _ALIASES.get(path, path) + mark + query

    async def relay(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        """Answer a request with what the backend answered, while it comes."""
        response = Relayed(answer.status, answer.reason, _end_to_end(answer.headers))
        await response.prepare(request)
        try:
            while data := await answer.content.readany():
                await response.write(data)
        except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError):
            # The backend broke off. Breaking off too is the only honest end: a clean one would look complete.
            if request.transport is not None:
                request.transport.abort()
            return response
        await response.write_eof()
        return response

    def _session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout or None),
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
        )


class Relayed(web.StreamResponse):
    """The backend's answer on its way.

    Args:
        status: Its status.
        reason: Its reason phrase; None for none.
        headers: Its headers that are for both hops.
    """

    def __init__(self, status: int, reason: str | None, headers: CIMultiDict[str]) -> None:
        super().__init__(status=status, reason=reason, headers=headers)
        self._given = frozenset(name.lower() for name in headers)

    def forget_additions(self) -> None:
        """Take back the headers that aiohttp puts into every answer, where the backend did not send them."""
        for name in ("Server", "Content-Type"):
            if name.lower() not in self._given:
                self.headers.pop(name, None)


async def _answered(request: web.Request, answer: Answer) -> tuple[web.StreamResponse, HttpSource]:
    try:
        return await answer(request)
    except ProxyError as error:
        body = rescue.error_body(error)
        return web.Response(status=error.status, body=body, content_type="application/json"), "proxy"


def _end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Headers without those that are for one hop only, those that `Connection` names included."""
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    spelt: dict[str, str] = {}  # aiohttp's client drops all but the last of headers that differ in their capitals only
    return CIMultiDict(
        (spelt.setdefault(name.lower(), name), value)
        for name, value in headers.items()
        if name.lower() not in _HOP_BY_HOP and name.lower() not in named
    )
