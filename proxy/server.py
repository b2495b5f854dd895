"""The door: who comes in, and by which way.

An upgrade on `…/responses` becomes a :class:`~proxy.connection.Connection`; every other request is plain HTTP, and goes
through but for what is stored (:mod:`proxy.stored`) and what has to be compacted (:mod:`proxy.compactor`). Whatever is
refused is refused before the 101, at once and with a body that says why: an upgrade that is never answered costs Codex
15 s a try, and a connection that is closed right after it opened looks to clients like a missing feature.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import structlog
from aiohttp import web

from proxy.backends import Backends
from proxy.compactor import Compactor
from proxy.config import Config
from proxy.connection import Connection
from proxy.custody import Custody
from proxy.downstream import Downstream, say_no_takeover
from proxy.exchange import ConnectionSettings
from proxy.garbage import Sweeper
from proxy.observe import ConnectionRecord, Observer, RefusalReason
from proxy.owners import Owners
from proxy.passthrough import PassThrough, Relayed
from proxy.propagation import Tracer, from_headers, without
from proxy.protocol.chain import CacheBudget, Entry
from proxy.protocol.lanes import LaneLimits
from proxy.protocol.rawjson import dumps
from proxy.protocol.routes import Route, RoutingTable, Served
from proxy.protocol.session import Session
from proxy.protocol.settings import SessionSettings
from proxy.protocol.store import ResponseStore
from proxy.stored import StoredResponses
from proxy.upstream import header_lines

_log: Final = structlog.get_logger("slipstream")

_FIRST_GENERATION: Final = "responses_websockets=2026-02-04"
_SECOND_GENERATION: Final = "responses_websockets=2026-02-06"
"""What clients say in `OpenAI-Beta` of the protocol that they speak; most say nothing."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a process remembers.

    Attributes:
        budget: What all connections may remember together.
        store: What outlives a connection; None for nothing.
        owners: Whose that is.
    """

    budget: CacheBudget
    store: ResponseStore | None
    owners: Owners


class Door:
    """What answers on the clients' listener.

    Args:
        config: The operator's choices.
        backends: Whom to ask, for turns.
        pass_through: The way to them for everything else.
        memory: What is remembered.
        observer: Whom to tell.
        tracer: Who traces turns; None for nobody.

    Attributes:
        is_draining: Nothing new comes in.
    """

    def __init__(
        self,
        config: Config,
        backends: Backends,
        pass_through: PassThrough,
        memory: Memory,
        observer: Observer,
        tracer: Tracer | None = None,
    ) -> None:
        self.is_draining = False
        self._config = config
        self._backends = backends
        self._budget = memory.budget
        self._store = None if memory.store is None else Custody(memory.store)
        self._owner_of = memory.owners.owner_of
        self._observer = observer
        self._tracer = tracer
        self._connections: set[Connection] = set()
        self._sweeper = Sweeper()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._pass_through = pass_through
        self._session_settings = session_settings(config)
        self._rollout_settings = replace(self._session_settings, rollout=True)
        self._compactor = Compactor(config, self._session_settings.routes, pass_through, self._load)
        self._stored = StoredResponses(
            config, self._session_settings, pass_through, self._store, memory.owners, partial(new_id, "resp")
        )
        self._connection_settings = ConnectionSettings(backends.timeouts, config.websocket)
        base = config.base_path
        self._socket_paths = {f"{prefix}{path}" for prefix in ("", base) for path in ("/responses", "/codex/responses")}

    @property
    def connections(self) -> int:
        """WebSockets that are open."""
        return len(self._connections)

    def application(self) -> web.Application:
        """The aiohttp application of the clients' listener."""
        application = web.Application(client_max_size=0)
        application.router.add_route("*", "/{path:.*}", self.handle)
        application.on_response_prepare.append(self._prepare)
        return application

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one HTTP request."""
        if "websocket" in request.headers.get("Upgrade", "").lower():
            return await self._upgrade(request)
        if self._compactor.takes(request):
            return await self._compactor.handle(request)
        return await self._stored.handle(request)

    async def drain(self, seconds: float) -> None:
        """Take nothing new, let what runs finish, then leave.

        Args:
            seconds: How long that may take; :meth:`close` cuts what still runs then.
        """
        self.is_draining = True
        for connection in list(self._connections):
            connection.drain()
        try:
            async with asyncio.timeout(seconds):
                await self._is_empty.wait()
                await self._pass_through.wait_idle()
        except TimeoutError:
            _log.warning("drain timed out", connections=len(self._connections), seconds=seconds)

    async def close(self) -> None:
        """Cut what still runs, and wait until it has ended."""
        self.is_draining = True
        for connection in self._connections:
            connection.cut()
        self._pass_through.abort()
        await self._is_empty.wait()
        await self._pass_through.wait_idle()
        self._sweeper.close()

    async def _prepare(self, _: web.Request, response: web.StreamResponse) -> None:
        """Take back what aiohttp puts into an answer's head; in a drain, ask the client to go elsewhere."""
        if isinstance(response, Relayed):
            response.forget_additions()
        else:
            response.headers.pop("Server", None)
        if response.status == 101:
            say_no_takeover(response.headers)
        if self.is_draining and response.status != 101:
            response.force_close()
            response.headers["Connection"] = "close"

    # One WebSocket

    async def _upgrade(self, request: web.Request) -> web.StreamResponse:
        if request.path.rstrip("/") not in self._socket_paths:
            return self._refuse(
                404,
                "not_found",
                f"No WebSocket is served at {request.path}; it is served at {self._config.base_path}/responses.",
            )
        if not self._config.websocket.enabled:
            return self._refuse(426, "disabled", "WebSocket mode is switched off here; use HTTP.")
        if self.is_draining:
            return self._refuse(503, "draining", "The server is about to restart.", {"Retry-After": "1"})
        if request.method != "GET":
            return self._refuse(400, "bad_handshake", "This is no WebSocket handshake: it has to be a GET.")
        settings = self._config.websocket
        downstream = Downstream(
            request,
            max_message=settings.max_message,
            compression=settings.compression,
            write_timeout=settings.write_timeout,
        )
        headers = {
            name: header_lines(chosen if self._tracer is None else without(chosen))
            for name, chosen in self._pass_through.credentials(request).items()
        }
        try:
            await downstream.accept()
        except web.HTTPException as exc:
            return self._refuse(exc.status, "bad_handshake", f"This is no WebSocket handshake: {exc.text}")
        try:
            await self._serve(request, downstream, headers)
            await downstream.linger()
        finally:
            downstream.release()
        return downstream.response

    async def _serve(self, request: web.Request, downstream: Downstream, headers: Mapping[str, bytes]) -> None:
        record = ConnectionRecord(
            connection_id=f"conn_{secrets.token_hex(8)}",
            client=request.headers.get("User-Agent", "")[:200],
            opened=asyncio.get_running_loop().time(),
            trace=from_headers(request.headers),
            labels=_labels(request, self._config.usage.labels),
        )
        connection = Connection(
            session=Session(self._settings_for(request), self._budget, new_id),
            downstream=downstream,
            backends=self._backends,
            headers=headers,
            settings=self._connection_settings,
            observer=self._observer,
            record=record,
            store=self._store,
            owner=self._owner_of(request),
            tracer=self._tracer,
        )
        self._connections.add(connection)
        self._is_empty.clear()
        if self.is_draining:  # since a moment ago
            connection.drain()
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            self._sweeper.connection_ended(len(self._connections))
            if not self._connections:
                self._is_empty.set()

    async def _load(self, request: web.Request, response_id: str) -> Entry | None:
        """A response that is stored for whoever sent a request."""
        return None if self._store is None else await self._store.load(self._owner_of(request), response_id)

    def _settings_for(self, request: web.Request) -> SessionSettings:
        """The settings for a client of this generation."""
        rollout = self._config.websocket.rollout
        asked = ",".join(request.headers.getall("OpenAI-Beta", ()))
        spoken = {value.strip() for value in asked.split(",")}
        is_first = _FIRST_GENERATION in spoken or (rollout == "always" and _SECOND_GENERATION not in spoken)
        return self._rollout_settings if is_first and rollout != "never" else self._session_settings

    def _refuse(
        self, status: int, reason: RefusalReason, message: str, headers: Mapping[str, str] | None = None
    ) -> web.Response:
        self._observer.connection_refused(reason)
        error = {"type": "invalid_request_error", "code": f"websocket_{reason}", "message": message, "param": None}
        response = web.Response(
            status=status, body=dumps({"error": error}), content_type="application/json", headers=headers
        )
        response.force_close()
        return response


def session_settings(config: Config) -> SessionSettings:
    """What the core is told of the operator's choices."""
    socket = config.websocket
    return SessionSettings(
        routing_table(config),
        lanes=LaneLimits(
            named=socket.max_lanes,
            in_flight=socket.max_in_flight,
            queued=socket.max_queued,
            queued_bytes=socket.max_queued_bytes,
            side_by_side=socket.protocol == "openai",
        ),
        max_items=socket.max_items,
        max_event_bytes=config.max_event,
        max_entries=config.cache.max_responses,
        max_bytes=config.cache.max_bytes,
        lifetime_minutes=socket.lifetime / 60,
        appends=socket.rollout != "never",
        steering=socket.steering,
        stores=config.response_store.enabled,
        inspects=config.live.enabled and config.live.inspect,
    )


def _labels(request: web.Request, names: Sequence[str]) -> dict[str, str]:
    """What a handshake says in headers that the operator has named; those that it lacks are left out."""
    return {name.lower(): ",".join(values) for name in names if (values := request.headers.getall(name, ()))}


def routing_table(config: Config) -> RoutingTable:
    """Which backend serves a model."""
    inherits = frozenset(config.inherit)
    routes = {
        one.name: Route(
            one.name, one.rules(inherits), replicas=len(one.replicas), overflow_fails=one.overflow_as_failed
        )
        for one in config.served
    }
    served = [Served(routes[one.name], one.models, one.aliases) for one in config.served]
    return RoutingTable(routes[config.default.name], served)


def new_id(kind: str) -> str:
    """An id that nobody can guess, in the form the API uses."""
    return f"{kind}_{secrets.token_hex(24)}"
