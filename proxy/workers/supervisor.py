"""The process that looks after workers, drains them, and answers the operator for all of them.

The clients' address is held from the start (bound, never listened on), so that its port is known and nobody else's. A
worker that ends is started again: at once if it was told to end or had lived for a minute, else after a pause that doubles
up to half a minute. One that falls silent is killed, since nobody is served by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Final

import structlog
from prometheus_client import CollectorRegistry

from proxy import __version__, admin, app
from proxy.app import ABORTED, Signals
from proxy.config import Address, Config
from proxy.metrics import Metrics
from proxy.owners import Owners
from proxy.protocol.chain import CacheBudget
from proxy.workers.crew import Crew
from proxy.workers.messages import Report, Update
from proxy.workers.pictures import Pictures
from proxy.workers.process import Template
from proxy.workers.sums import Sums

_log: Final = structlog.get_logger("slipstream")

_GRACE: Final = 5.0
"""Seconds that workers have to end in once their time to drain is over."""


async def serve(config: Config, workers: int) -> int:
    """Serve with several workers until SIGTERM or SIGINT.

    Args:
        config: The operator's choices.
        workers: How many, at least 1.

    Returns:
        The exit code: 0 after a drain, 143 after a second signal.

    Raises:
        OSError: an address cannot be listened on.
    """
    signals = Signals()
    async with contextlib.AsyncExitStack() as stack:
        address = stack.enter_context(_hold(config.listen))
        desk = _Desk(config, Template.of(config, address, workers, Owners().key), workers)
        crew = desk.crew
        operator = admin.application(desk.registry, lambda: crew.is_ready, desk.pictures, crew.collect)
        _, admin_address = await app.listen(stack, operator, config.admin)
        stack.push_async_callback(crew.close)
        loop = asyncio.get_running_loop()
        starting = loop.create_task(crew.start(), name="first start")
        stack.callback(starting.cancel)
        stopping = loop.create_task(signals.first.wait(), name="first signal")
        stack.callback(stopping.cancel)
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            _log.info(
                "listening",
                version=__version__,
                url=f"http://{address}{config.base_path}",
                admin=f"http://{admin_address}",
                **app.described(config),
                workers=workers,
            )
        await stopping
        _log.info("draining", workers=len(crew.serving), seconds=config.drain_timeout)
        crew.drain(config.drain_timeout)
        signals.call_on_second(crew.abort)
        try:
            async with asyncio.timeout(config.drain_timeout + _GRACE):
                await crew.ended()
        except TimeoutError:
            _log.warning("workers did not end in time", workers=len(crew.serving))
        if signals.has_second:
            _log.warning("aborted by a second signal")
            return ABORTED
    _log.info("stopped")
    return 0


class _Desk:
    """What the workers say, put together.

    Args:
        config: The operator's choices.
        template: What each worker starts with.
        workers: How many there are to be.

    Attributes:
        crew: The workers.
        registry: Their metrics.
        pictures: Their picture; None where the live page is off.
    """

    def __init__(self, config: Config, template: Template, workers: int) -> None:
        self.crew = Crew(template, workers, self)
        own = CollectorRegistry()
        # A budget of 0 bytes: the limits that are shown are the workers', summed.
        self._metrics = Metrics(own, CacheBudget(0), lambda: self.crew.is_ready, replicas=config.replicas)
        self._sums = Sums(own)
        self.registry = CollectorRegistry()
        self.registry.register(self._sums)
        self.pictures: Pictures | None = None
        if config.live.enabled:
            self.pictures = Pictures(inspects=config.live.inspect, watch=self.crew.watch, inspect=self.crew.inspect)

    def is_watched(self) -> bool:
        """Whether somebody looks at the live page."""
        return self.pictures is not None and self.pictures.is_watched

    def counted(self, serving: int) -> None:
        """So many workers serve clients now."""
        self._metrics.workers.set(serving)

    def restarting(self) -> None:
        """A worker ended by itself."""
        self._metrics.worker_restarts.inc()

    def reported(self, worker: int, series: list[str], report: Report) -> None:
        """What a worker has counted."""
        self._sums.report(worker, series, report.values)
        if self.pictures is not None:
            self.pictures.report(worker, report.general)

    def updated(self, worker: int, update: Update) -> None:
        """What has changed in a worker's picture."""
        if self.pictures is not None:
            self.pictures.update(worker, update.data)

    def ended(self, worker: int) -> None:
        """A worker lives no more."""
        self._sums.end(worker)
        if self.pictures is not None:
            self.pictures.end(worker)


@contextlib.contextmanager
def _hold(address: Address) -> Iterator[Address]:
    """Keep an address for the workers, and for nobody else.

    Yields:
        The address with the real port.

    Raises:
        OSError: it is in use, or not this machine's.
    """
    family = app.family_of(address)
    with socket.create_server(address, family=family) as probe:  # sharing would let it be somebody's who shares too
        chosen = Address(address.host, probe.getsockname()[1])
    with socket.socket(family) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as asyncio's and Python's own servers have it
        held.bind(chosen)
        yield chosen
