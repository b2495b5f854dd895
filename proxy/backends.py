"""All backends, as the configuration has them, each with its replicas and the connections to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Self

from proxy.config import Config
from proxy.fleet import Fleet, Listeners, Replica
from proxy.gate import Gate
from proxy.observe import Exchange
from proxy.pool import Pool, Preconnection
from proxy.protocol.effects import OpenUpstream
from proxy.protocol.upstream_errors import UpstreamError, UpstreamTimeout
from proxy.served import Backend, Timeouts
from proxy.upstream import Answer, Upstream


class Asked:
    """A request for a response, and its answer; use as an async context manager.

    What of the answer is not read by the end of the context is not wanted. Entering raises `UpstreamError` if there is none.

    Args:
        fleet: The backend that is asked.
        order: What to ask, and where its chain is.
        headers: Further header lines.
        exchange: Where to note how it goes.

    Attributes:
        answer: Its stream.
        replica: Who gives it.
    """

    __slots__ = ("_exchange", "_fleet", "_headers", "_order", "answer", "replica")

    answer: Answer
    replica: Replica

    def __init__(self, fleet: Fleet, order: OpenUpstream, headers: bytes, exchange: Exchange) -> None:
        self._fleet = fleet
        self._order = order
        self._headers = headers
        self._exchange = exchange

    async def __aenter__(self) -> Self:
        self.replica, self.answer = await self._fleet.open(self._order, self._headers, self._exchange)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        self.answer.close()
        self.replica.gate.leave()
        if error is None:
            self._fleet.succeeded(self.replica.index)
        elif isinstance(error, UpstreamError):
            self._fleet.failed(self.replica.index, error)


class Backends:
    """All of them. The loop has to run.

    Args:
        config: The operator's choices.
        listeners: Who wants to know what happens to replicas.
        on_preconnection: Told what became of each connection that was opened ahead.

    Attributes:
        fleets: Each backend by its name.
        default: The one for what is not for any other.
        timeouts: The limits of an exchange with each backend.
    """

    def __init__(
        self, config: Config, listeners: Listeners, on_preconnection: Callable[[Preconnection], object] = bool
    ) -> None:
        self._pools: list[Pool] = []
        self._on_preconnection = on_preconnection
        self.fleets: Final = {
            one.name: Fleet(
                one,
                config.routing,
                [self._replica(one, index, url) for index, url in enumerate(one.replicas)],
                listeners,
                names_servers=config.upstream is None,
            )
            for one in config.served
        }
        self.default = self.fleets[config.default.name]
        self.timeouts: Mapping[str, Timeouts] = {one.name: one.timeouts for one in config.served}

    def _replica(self, backend: Backend, index: int, url: str) -> Replica:
        pool = Pool(
            url,
            connect_timeout=backend.timeouts.connect,
            keepalive=backend.kept_alive,
            ahead=backend.opened_ahead(url),
            on_preconnection=self._on_preconnection,
        )
        self._pools.append(pool)
        upstream = Upstream(url, pool, reuse=backend.kept_alive > 0, retry_stale=backend.retry_stale)
        return Replica(index, url, upstream, Gate(backend.max_in_flight, backend.max_queued, backend.queue_timeout))

    @property
    def first(self) -> Upstream:
        """The server that a client is most likely to ask first."""
        return self.default.replicas[0].upstream

    def ask(self, order: OpenUpstream, headers: Mapping[str, bytes], exchange: Exchange) -> Asked:
        """Ask for a response, for as long as the context lasts.

        Args:
            order: What to ask, and where its chain is.
            headers: Further header lines for each backend, by its name.
            exchange: Where to note how it goes.
        """
        name = order.placement.route.backend
        return Asked(self.fleets[name], order, headers[name], exchange)

    def expired(self, exchange: Exchange, error: UpstreamTimeout) -> None:
        """An exchange took too long, which only who looks at the clock knows."""
        if exchange.backend is not None and exchange.replica is not None:
            self.fleets[exchange.backend].failed(exchange.replica, error)

    def made(self, exchange: Exchange, sealed: bytes) -> None:
        """In an exchange something was said that only who said it can read."""
        if exchange.backend is not None and exchange.replica is not None:
            self.fleets[exchange.backend].made(exchange.replica, sealed)

    def close(self) -> None:
        """Close all connections that serve nobody."""
        for pool in self._pools:
            pool.close()
