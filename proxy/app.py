"""The composition root: a configuration becomes a running server.

Resources are opened in order and closed in reverse. A drain is a sequence with one deadline: not ready, listeners shut,
connections told, running turns finished, idle sockets closed with 1012; what is left at the deadline is cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog
from aiohttp import web
from aiohttp.http import HttpProcessingError
from prometheus_client import CollectorRegistry

from proxy import __version__, admin, garbage
from proxy.backends import Backends
from proxy.config import Address, Config
from proxy.fleet import Listeners
from proxy.lag import LoopLag
from proxy.live import Live
from proxy.logs import Logs
from proxy.metrics import Metrics
from proxy.observe import Observers
from proxy.owners import Owners
from proxy.passthrough import PassThrough
from proxy.probes import Probes
from proxy.protocol.chain import CacheBudget
from proxy.protocol.store import MemoryStore, ResponseStore, StoreEviction
from proxy.server import Door, Memory, routing_table

if TYPE_CHECKING:
    from proxy.tracing import Tracing
    from proxy.usage.ledger import Ledger

_log: Final = structlog.get_logger("slipstream")

ABORTED: Final = 143
"""Exit code after a second signal: 128 + SIGTERM, as if there had been no handler."""

_BACKLOG: Final = 1024

_CLIENTS_FAULTS: Final = (ConnectionError, HttpProcessingError, web.RequestPayloadError)
"""A client left, or sent what is no HTTP: aiohttp answers, and would log each with a traceback as if it were a bug."""

_server_log: Final = logging.getLogger("slipstream.http")
_server_log.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], _CLIENTS_FAULTS)))


@dataclass(frozen=True, slots=True)
class Running:
    """A server that listens.

    Attributes:
        listen: Where clients connect; the port is the real one where 0 was asked for.
        admin: Where the operator's listener is.
        door: What answers clients.
        metrics: What was counted.
        live: What goes on; None where nobody may look.
        store: What outlives a connection; None for nothing.
    """

    listen: Address
    admin: Address
    door: Door
    metrics: Metrics
    live: Live | None
    store: MemoryStore | None
    _site: web.BaseSite
    _tracing: Tracing | None = None
    _ledger: Ledger | None = None

    async def drain(self, seconds: float) -> None:
        """Take nothing new and let what runs finish, for at most so many seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        self.door.is_draining = True
        await self._site.stop()
        await self.door.drain(seconds)
        for one in (self._tracing, self._ledger):
            if one is not None:
                one.allow(deadline - loop.time())


@dataclass(frozen=True, slots=True)
class Membership:
    """What a process has that is one of several workers: they share the clients' address, and others answer the operator.

    Attributes:
        worker: Its number.
        owners: Tells owners of stored responses apart, in all of them alike.
        share: Makes a store that knows of the others' of one that does not.
    """

    worker: int
    owners: Owners
    share: Callable[[MemoryStore], ResponseStore]


@contextlib.asynccontextmanager
async def start(config: Config, membership: Membership | None = None) -> AsyncIterator[Running]:
    """Listen, for as long as the context lasts.

    Args:
        config: The operator's choices.
        membership: For one of several workers; the operator's listener is not theirs.

    Raises:
        OSError: an address cannot be listened on, or the spool of usage records cannot be written.
    """
    budget = CacheBudget(config.cache.max_total_bytes)
    store = response_store(config, lambda reason: metrics.store_evictions[reason].inc())
    listeners = Listeners(
        on_ejection=lambda backend, replica: metrics.replicas.ejections[backend, replica].inc(),
        on_exhaustion=lambda: metrics.replicas.exhausted.inc(),  # noqa: PLW0108 - there are none yet
    )
    backends = Backends(config, listeners, lambda result: metrics.preconnections[result].inc())
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(backends.close)
        registry = CollectorRegistry()
        metrics = Metrics(registry, budget, lambda: not door.is_draining, store, replicas=config.replicas)
        for fleet in backends.fleets.values():
            metrics.replicas.show(fleet)
        await stack.enter_async_context(Probes(config, backends))
        stack.enter_context(LoopLag(metrics.lag_seconds.observe))
        tracing = _tracing(config)
        if tracing is not None:
            stack.push_async_callback(tracing.close)
        ledger = _ledger(config, metrics, None if membership is None else membership.worker)
        if ledger is not None:
            await stack.enter_async_context(ledger)
        live = Live(config.replicas, inspects=config.live.inspect) if config.live.enabled else None
        observers = Observers([metrics, Logs(), *(one for one in (tracing, ledger, live) if one is not None)])
        pass_through = await stack.enter_async_context(
            PassThrough(config, backends, routing_table(config), observers, tracing)
        )
        memory = Memory(budget, store, Owners())
        if membership is not None:
            shared = None if store is None else membership.share(store)
            memory = Memory(budget, shared, membership.owners)
        door = Door(config, backends, pass_through, memory, observers, tracing)
        admin_address = config.admin
        if membership is None:
            metrics.workers.set(1)
            operator = admin.application(registry, lambda: not door.is_draining, live)
            _, admin_address = await listen(stack, operator, config.admin)
        site, address = await listen(stack, door.application(), config.listen, is_shared=membership is not None)
        stack.push_async_callback(door.close)
        yield Running(address, admin_address, door, metrics, live, store, site, tracing, ledger)


async def serve(config: Config) -> int:
    """Serve until SIGTERM or SIGINT.

    Returns:
        The exit code: 0 after a drain, 143 after a second signal.

    Raises:
        OSError: an address cannot be listened on.
    """
    signals = Signals()
    async with start(config) as running:
        garbage.settle()
        _log.info(
            "listening",
            version=__version__,
            url=f"http://{running.listen}{config.base_path}",
            admin=f"http://{running.admin}",
            **described(config),
        )
        await signals.first.wait()
        _log.info("draining", connections=running.door.connections, seconds=config.drain_timeout)
        async with asyncio.TaskGroup() as tasks:
            drain = tasks.create_task(running.drain(config.drain_timeout))
            signals.call_on_second(drain.cancel)
        if drain.cancelled():
            _log.warning("aborted by a second signal", connections=running.door.connections)
            return ABORTED
    _log.info("stopped")
    return 0


def described(config: Config) -> dict[str, object]:
    """What the first line of the log says of backends."""
    if config.upstream is not None:
        return {"upstream": config.upstream.url, "profile": config.upstream.profile}
    return {"backends": {one.name: list(one.replicas) for one in config.served}}


def response_store(config: Config, on_evict: Callable[[StoreEviction], object] = bool) -> MemoryStore | None:
    """Where responses outlive their connection; None for nowhere."""
    options = config.response_store
    if not options.enabled:
        return None
    return MemoryStore(time.monotonic, max_bytes=options.max_bytes, max_age=options.max_age, on_evict=on_evict)


def _tracing(config: Config) -> Tracing | None:
    """Who traces; None for nobody, and then nothing of it is even imported."""
    if not config.tracing.enabled:
        return None
    from proxy.tracing import Tracing  # noqa: PLC0415 - it is an extra, and takes its time

    return Tracing.of(config)


def _ledger(config: Config, metrics: Metrics, worker: int | None) -> Ledger | None:
    """Who records usage; None for nobody."""
    if not config.usage.sinks:
        return None
    from proxy.usage.ledger import Ledger  # noqa: PLC0415 - databases are not for everybody

    metrics.usage.spool_limit.set(config.usage.spool.max_bytes)
    return Ledger(config, metrics, worker)


class Signals:
    """SIGTERM and SIGINT: the first asks for a drain, the second for an end.

    Attributes:
        first: Set with the first.
        has_second: There was a second.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.has_second = False
        self._on_second: Callable[[], object] = bool
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._receive)

    def call_on_second(self, callback: Callable[[], object]) -> None:
        """Say what to do at the second signal; it is done now if that has come already."""
        self._on_second = callback
        if self.has_second:
            callback()

    def _receive(self) -> None:
        if self.first.is_set():
            self.has_second = True
            self._on_second()
        self.first.set()


async def listen(
    stack: contextlib.AsyncExitStack, application: web.Application, address: Address, *, is_shared: bool = False
) -> tuple[web.SockSite, Address]:
    """Serve an application, for as long as the stack is open.

    Args:
        stack: Who closes it.
        application: What to serve.
        address: Where.
        is_shared: Other processes listen there too, and the kernel spreads clients over all of them.

    Returns:
        What listens, and the address with the real port.

    Raises:
        OSError: the address cannot be listened on.
    """
    # Cancelled handlers are how a client that leaves stops the backend's work.
    runner = web.AppRunner(
        application, handler_cancellation=True, shutdown_timeout=0.5, access_log=None, logger=_server_log
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    listener = socket.create_server(address, family=family_of(address), backlog=_BACKLOG, reuse_port=is_shared)
    site = web.SockSite(runner, listener, backlog=_BACKLOG)
    await site.start()
    return site, Address(address.host, listener.getsockname()[1])


def family_of(address: Address) -> socket.AddressFamily:
    """The family of sockets that listen at an address."""
    return socket.AF_INET6 if ":" in address.host else socket.AF_INET
