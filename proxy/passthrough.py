"""Plain HTTP, unchanged: a client that falls back from WebSocket mode must notice nothing.

What is changed after all, and answered by the proxy itself, is :mod:`proxy.stored`'s; it uses the same pieces.

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
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, Self

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from proxy.backends import Backends
from proxy.config import Config
from proxy.credentials import Credentials
from proxy.gate import Gate
from proxy.observe import HttpSource, Observer, PassThroughRecord
from proxy.plain import MAX_BUFFERED, PlainClient
from proxy.propagation import HEADERS, Trace, Tracer, from_headers
from proxy.protocol import compaction, rawjson, rescue
from proxy.protocol.errors import BodyTooLarge, InvalidMessage, ProxyError
from proxy.protocol.routes import Placement, RoutingTable
from proxy.protocol.upstream_errors import (
    UpstreamError,
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

_TRACE: Final = web.RequestKey("trace", Trace)

Answered = tuple[web.StreamResponse, HttpSource]
"""An answer that was given, and who chose its status."""


class Filler(Protocol):
    """Changes a body on its way: takes its bytes, and gives what the client is to have by now; at its end the rest."""

    def feed(self, data: bytes) -> bytes: ...  # noqa: D102
    def end(self) -> bytes: ...  # noqa: D102


class PassThrough:
    """Hands plain HTTP requests to the backends: those with a model to that model's, all others to the default one.

    Use as an async context manager; it owns its connections to the backend.

    Args:
        config: The operator's choices.
        backends: Whom to ask.
        routes: Which of them serves a model.
        observer: Whom to tell.
        tracer: Who traces requests; None for nobody.
    """

    def __init__(
        self,
        config: Config,
        backends: Backends,
        routes: RoutingTable,
        observer: Observer,
        tracer: Tracer | None = None,
    ) -> None:
        self._backends = backends
        self._routes = routes
        self._base_path = config.base_path
        self._max_body = config.websocket.max_message
        self._observer = observer
        self._tracer = tracer
        self._client = PlainClient()
        self._credentials = {one.name: Credentials(one) for one in config.served}
        self._gates: dict[int, list[Gate]] = {}
        self._requests: dict[int, web.Request] = {}  # by identity: aiohttp's requests cannot be hashed
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.__aexit__()

    def credentials(self, request: web.Request) -> dict[str, dict[str, str]]:
        """The headers of a WebSocket handshake that go to each backend with each turn."""
        return {name: one.of_handshake(request.headers) for name, one in self._credentials.items()}

    async def wait_idle(self) -> None:
        """Until no request is on its way."""
        await self._is_idle.wait()

    def abort(self) -> None:
        """Break off all requests that are on their way, on both sides."""
        for request in self._requests.values():
            if request.transport is not None:
                request.transport.abort()

    async def count(
        self, request: web.Request, answer: Callable[[web.Request], Awaitable[Answered]]
    ) -> web.StreamResponse:
        """Have a request answered, as one that is on its way until then; an error that `answer` raises is the answer."""
        self._requests[id(request)] = request
        self._is_idle.clear()
        began = time.perf_counter()
        trace = None
        if self._tracer is not None:
            trace = request[_TRACE] = self._tracer.request(request.method, request.path, from_headers(request.headers))
        status = 499  # the client left before there was an answer
        source: HttpSource = "proxy"
        try:
            try:
                response, source = await answer(request)
            except ProxyError as error:
                body = rescue.error_body(error)
                response, source = (
                    web.Response(
                        status=error.status, body=body, content_type="application/json", headers=error.headers
                    ),
                    "proxy",
                )
            status = response.status
            return response
        finally:
            del self._requests[id(request)]
            self._leave(request)
            if not self._requests:
                self._is_idle.set()
            seconds = time.perf_counter() - began
            record = PassThroughRecord(request.method, request.path, status, source, seconds, trace)
            self._observer.passed_through(record)

    async def forward(self, request: web.Request) -> Answered:
        """Send a request on, and its answer back.

        Raises:
            ProxyError: the request cannot be sent on, or no answer came.
        """
        headers, body = await self._request_of(request)
        answer = await self.send(request, headers, body)
        try:
            return await self.relay(request, answer), "upstream"
        finally:
            answer.close()

    async def read(self, request: web.Request) -> tuple[CIMultiDict[str], bytes] | None:
        """Head and body of a request for the backend, the body as a whole and inflated.

        Returns:
            Its headers and its body; None, and nothing is read, for an encoding that is not known here.

        Raises:
            BodyTooLarge: it is larger than a message may be.
            InvalidMessage: it cannot be inflated.
        """
        encoding = request.headers.get("Content-Encoding", "").lower()
        if encoding not in _INFLATED and encoding not in ("", "identity"):
            return None
        headers = self._head_of(request)
        if encoding in _INFLATED:
            return headers, await self._inflate(request, headers)
        if (request.content_length or 0) > self._max_body:
            raise BodyTooLarge(self._max_body)
        return headers, await self._read_all(request)

    async def send(
        self,
        request: web.Request,
        headers: CIMultiDict[str],
        body: bytes | aiohttp.StreamReader | None,
        target: str | None = None,
    ) -> aiohttp.ClientResponse:
        """Send a request on, without compaction items that only the proxy can read.

        Args:
            request: The request as it came.
            headers: The headers that it is to have; `Content-Length` is taken away if it does not hold.
            body: The body that it is to have.
            target: Path and query below the backend's base URL; None for the request's own.

        Returns:
            The answer, its body unread, for the caller to close.

        Raises:
            ProxyError: no answer came.
        """
        target = target or self.target(request)
        placement, admitted = route_body(self._routes, body)
        if isinstance(admitted, bytes):
            admitted = compaction.admit_body(admitted)
        if admitted is not body:
            headers.popall("Content-Length", None)
        fleet = self._backends.fleets[placement.route.backend]
        self._credentials[fleet.name].put_into(headers)
        limit = self._backends.timeouts[fleet.name].connect
        tried: list[int] = []
        while True:
            replica, _ = fleet.choose(placement, tried)
            await self._enter(request, replica.gate)
            if (trace := request.get(_TRACE)) is not None:
                for name in HEADERS:
                    headers.popall(name, None)
                headers.update(trace.outgoing(replica.url))
            try:
                answer = await self._client.send(replica.url + target, request.method, headers, admitted, limit)
            except UpstreamError as error:
                self._leave(request)
                tried.append(replica.index)
                may_move = fleet.may_move(replica, error, placement, tried) is not None
                if not may_move or isinstance(admitted, aiohttp.StreamReader):
                    raise
            else:
                if answer.status < 500:
                    fleet.succeeded(replica.index)
                return answer

    async def _enter(self, request: web.Request, gate: Gate) -> None:
        """Take a place among those that a replica works for, until the request is over; a look at something needs none."""
        if request.method == "POST":
            await gate.enter()
            self._gates.setdefault(id(request), []).append(gate)

    def _leave(self, request: web.Request) -> None:
        for gate in self._gates.pop(id(request), ()):
            gate.leave()

    async def relay(
        self, request: web.Request, answer: aiohttp.ClientResponse, filler: Filler | None = None, begun: bytes = b""
    ) -> web.StreamResponse:
        """Give the client the backend's answer while it comes.

        Args:
            request: The request.
            answer: The answer.
            filler: What changes its body; None for nothing.
            begun: What has been read of its body already.
        """
        headers = _end_to_end(answer.headers)
        if filler is not None:
            headers.popall("Content-Length", None)
        response = Relayed(answer.status, answer.reason, headers)
        await response.prepare(request)
        try:
            data = begun or await answer.content.readany()
            while data:
                if out := filler.feed(data) if filler else data:
                    await response.write(out)
                data = await answer.content.readany()
        except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError):
            # The backend broke off. Breaking off too is the only honest end: a clean one would look complete.
            if request.transport is not None:
                request.transport.abort()
            return response
        await response.write_eof(filler.end() if filler else b"")
        return response

    async def give(self, request: web.Request, answer: aiohttp.ClientResponse, body: bytes) -> web.StreamResponse:
        """Give the client the backend's answer with another body."""
        headers = _end_to_end(answer.headers)
        headers["Content-Length"] = str(len(body))
        response = Relayed(answer.status, answer.reason, headers)
        await response.prepare(request)
        await response.write_eof(body)
        return response

    def target(self, request: web.Request) -> str:
        """Path and query below the backend's base URL, as the client wrote them."""
        target = _AUTHORITY.sub("", request.raw_path)  # clients write a host to what they take for a proxy
        assert target.startswith("/"), "what is no path is not routed here"  # or it would become part of the URL's host
        path, mark, query = target.partition("?")
        if self._base_path and (path == self._base_path or path.startswith(f"{self._base_path}/")):
            path = path[len(self._base_path) :]
        return _ALIASES.get(path, path) + mark + query

    def _head_of(self, request: web.Request) -> CIMultiDict[str]:
        headers = _end_to_end(request.headers)
        headers.popall("Host", None)
        headers.popall("Expect", None)
        return headers

    async def _request_of(self, request: web.Request) -> tuple[CIMultiDict[str], bytes | aiohttp.StreamReader | None]:
        headers = self._head_of(request)
        size = request.content_length
        if headers.get("Content-Encoding", "").lower() in _INFLATED:
            return headers, await self._inflate(request, headers)
        if not request.body_exists:
            return headers, None
        # A conversation may hold what has to be replaced, however long it is.
        limit = self._max_body if request.method == "POST" and "/responses" in request.path else MAX_BUFFERED
        if size is None or size > limit:
            return headers, request.content
        return headers, await request.read()

    async def _read_all(self, request: web.Request) -> bytes:
        body = bytearray()
        while data := await request.content.readany():
            body += data
            if len(body) > self._max_body:
                raise BodyTooLarge(self._max_body)
        return bytes(body)

    async def _inflate(self, request: web.Request, headers: CIMultiDict[str]) -> bytes:
        """The body without its encoding, of which the headers then say nothing any more."""
        del headers["Content-Encoding"]
        headers.popall("Content-Length", None)
        try:
            return await self._read_all(request)
        except (aiohttp.ClientError, web.RequestPayloadError) as exc:
            raise InvalidMessage("The body does not have the encoding that Content-Encoding says.") from exc


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


def route_body(
    routes: RoutingTable, body: bytes | aiohttp.StreamReader | None
) -> tuple[Placement, bytes | aiohttp.StreamReader | None]:
    """Where a plain request goes, and the body that it has there: by the model in it, if it can be looked into.

    Args:
        routes: Which backend serves a model.
        body: As it came; a stream is not looked into.
    """
    if routes.is_trivial or not isinstance(body, bytes) or body.lstrip()[:1] != b"{":
        return routes.follow(None, {}, None), body
    try:
        pairs = rawjson.split_object(body)
    except rawjson.InvalidJSON:
        return routes.follow(None, {}, None), body
    names = dict(pairs)
    placement = routes.follow(names.get("model"), names, None)
    addressed = placement.route.address(pairs)
    return placement, body if addressed is pairs else rawjson.join_object(addressed)


def _end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Headers without those that are for one hop only, those that `Connection` names included."""
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    spelt: dict[str, str] = {}  # aiohttp's client drops all but the last of headers that differ in their capitals only
    return CIMultiDict(
        (spelt.setdefault(name.lower(), name), value)
        for name, value in headers.items()
        if name.lower() not in _HOP_BY_HOP and name.lower() not in named
    )
