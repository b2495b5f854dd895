"""The replicas of one backend: which one is asked, what becomes of one that fails, and who goes on in its place.

A chain stays where its prefix is cached for as long as its replica can be asked. A request moves on to another replica only
as long as nothing of an answer came and nothing can have been executed: nobody was there, or it was refused, or the
connection died without a byte. Each process has its own view of all this.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from proxy import balance
from proxy.gate import Gate
from proxy.health import Health, RetryBudget, retry_after
from proxy.observe import Exchange, Moved, RerouteReason
from proxy.protocol.effects import OpenUpstream
from proxy.protocol.routes import Placement
from proxy.protocol.upstream_errors import (
    BackendBusy,
    UpstreamDisconnected,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from proxy.served import Backend, Routing
from proxy.upstream import Answer, Upstream

_log: Final = structlog.get_logger("slipstream")

_REMEMBERED: Final = 10_000
"""Conversations whose replica is remembered beyond their connection, by their `prompt_cache_key`; and as many things that
only one replica can read, by their hash."""

_PASSING: Final = (502, 503)
"""Statuses of a replica that did not take the request; after 504 it may have been executed."""


@dataclass(slots=True)
class Replica:
    """One of the servers.

    Attributes:
        index: Its place in the configuration, from 0.
        url: Its base URL.
        upstream: The way to ask it for responses.
        gate: How many may ask at once.
    """

    index: int
    url: str
    upstream: Upstream
    gate: Gate


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who wants to know what happens to replicas.

    Attributes:
        on_ejection: Told the backend's name and the replica's URL.
        on_exhaustion: Told that a request was not sent once more since too many were.
    """

    on_ejection: Callable[[str, str], object]
    on_exhaustion: Callable[[], object]


class Fleet:
    """All replicas of a backend.

    Args:
        backend: The operator's choices about it.
        routing: Those about all of them.
        replicas: The servers, in the configuration's order.
        listeners: Whom to tell.
        names_servers: Whether records say which server it was.

    Attributes:
        name: The backend's.
        replicas: See above.
    """

    def __init__(
        self,
        backend: Backend,
        routing: Routing,
        replicas: Sequence[Replica],
        listeners: Listeners,
        *,
        names_servers: bool = True,
    ) -> None:
        self.name = backend.name
        self._names_servers = names_servers
        self.replicas = replicas
        self._retry_stale = backend.retry_stale
        self._routing = routing
        self._listeners = listeners
        self._urls = [replica.url for replica in replicas]
        self._health = Health(
            len(replicas),
            after=routing.eject_after,
            seconds=routing.eject_time,
            longest=routing.max_eject_time,
        )
        self._budget = RetryBudget(routing.retry_budget)
        self._known: OrderedDict[bytes, int] = OrderedDict()
        self._makers: OrderedDict[bytes, int] = OrderedDict()
        self._placed = 0
        self._are_several = len(replicas) > 1
        self._has_failed = [False] * len(replicas)  # since it was last known to be as good as new

    def is_up(self, index: int) -> bool:
        """Whether a replica does its work, as far as is known here."""
        return self._health.is_up(index, time.monotonic())

    async def open(self, order: OpenUpstream, headers: bytes, exchange: Exchange) -> tuple[Replica, Answer]:
        """Ask for a response; the caller closes the answer and then leaves the replica's gate.

        Args:
            order: What to ask, and where its chain is.
            headers: Further header lines.
            exchange: Where to note how it goes.

        Raises:
            UpstreamError: no replica has answered with a stream.
        """
        placement = order.placement
        if self._are_several:
            self._budget.asked()
            placement = self._found(placement)
        tried: list[int] = []
        exchange.moved = None
        while True:
            replica, moved = self.choose(placement, tried)
            exchange.moved = exchange.moved or moved
            try:
                await replica.gate.enter()
            except BackendBusy:
                tried.append(replica.index)
                if placement.is_bound or not self._has_room(tried):
                    raise
                exchange.moved = "replica_full" if placement.replica is not None else None
                continue
            exchange.backend, exchange.replica = self.name, replica.index
            exchange.server = replica.url if self._names_servers else None
            try:
                answer = await replica.upstream.post(order.request, headers, exchange)
            except BaseException as error:
                replica.gate.leave()
                if not isinstance(error, UpstreamError):
                    raise
                tried.append(replica.index)
                reason = self.may_move(replica, error, placement, tried)
                if reason is None:
                    raise
                exchange.move_on(reason, error, is_chained=placement.replica is not None)
                continue
            if placement.conversation:
                _keep(self._known, placement.conversation, replica.index)
            return replica, answer

    def choose(self, placement: Placement, tried: Sequence[int] = ()) -> tuple[Replica, Moved | None]:
        """The replica to ask, and why it is not the one where the chain is.

        Args:
            placement: Where the chain is.
            tried: Those that have been asked; not all of them.
        """
        if not self._are_several:
            return self.replicas[0], None
        now = time.monotonic()
        moved: Moved | None = None
        home = placement.replica
        if home is not None and home < len(self.replicas) and home not in tried:
            replica = self.replicas[home]
            if not placement.is_bound and home not in self._health.usable(now):
                moved = "replica_failed"
            elif placement.is_bound or replica.gate.has_room or replica.gate.may_wait:
                return replica, None
            else:
                moved = "replica_full"
        return self.replicas[self._best(placement, tried, now)], moved

    def may_move(
        self, replica: Replica, error: UpstreamError, placement: Placement, tried: Sequence[int]
    ) -> RerouteReason | None:
        """Note how a replica has failed, before anything of an answer came; why another one may be asked, if it may."""
        reason = self._reason(error)
        self.failed(replica.index, error)
        if reason is None or placement.is_bound or len(tried) == len(self.replicas):
            return None
        if reason != "unreachable" and not self._budget.take():  # what reached nobody is not asked once more
            self._listeners.on_exhaustion()
            return None
        return reason

    def made(self, index: int, sealed: bytes) -> None:
        """A replica has said what only it can read."""
        _keep(self._makers, sealed, index)

    def succeeded(self, index: int) -> None:
        """A replica has answered to the end."""
        if not self._has_failed[index]:
            return
        self._has_failed[index] = not self._health.succeeded(index, time.monotonic())

    def failed(self, index: int, error: UpstreamError) -> None:
        """A replica has failed, whenever; what is the request's own fault says that it works."""
        self._has_failed[index] = True
        now = time.monotonic()
        match error:
            case UpstreamRefused():
                seconds = retry_after(error.headers, time.time()) if error.status in (429, 503) else None
                if seconds is not None:
                    self._health.leave_alone(index, now + seconds)
                elif error.status in (502, 503, 504):
                    self._fail(index, now, is_unreachable=False)
                else:
                    self._health.succeeded(index, now)
            case UpstreamUnreachable() | UpstreamTimeout(phase="connect"):
                self._fail(index, now, is_unreachable=True)
            case UpstreamDisconnected() | UpstreamProtocolError() | UpstreamTimeout(phase="first_event" | "idle"):
                self._fail(index, now, is_unreachable=False)

    def probed(self, index: int, *, is_alive: bool) -> None:
        """A probe was answered, or not."""
        self._has_failed[index] = True
        if self._health.probed(index, time.monotonic(), is_alive=is_alive):
            self._tell(index)

    def _fail(self, index: int, now: float, *, is_unreachable: bool) -> None:
        if self._health.failed(index, now, is_unreachable=is_unreachable):
            self._tell(index)

    def _tell(self, index: int) -> None:
        _log.warning("replica ejected", backend=self.name, replica=self._urls[index])
        self._listeners.on_ejection(self.name, self._urls[index])

    def _reason(self, error: UpstreamError) -> RerouteReason | None:
        """Why a request can be sent to somebody else, if it can: it was certainly not executed."""
        match error:
            case UpstreamUnreachable() | UpstreamTimeout(phase="connect"):
                return "unreachable"
            case UpstreamDisconnected(has_begun=False) if self._retry_stale:
                return "disconnected"
            case UpstreamRefused(status=status) if status in _PASSING:
                return "refused"
            case UpstreamRefused(status=429) if retry_after(error.headers, time.time()) is not None:
                return "refused"
            case _:
                return None

    def _best(self, placement: Placement, tried: Sequence[int], now: float) -> int:
        """The replica for a chain that is nowhere; if nobody else is left, one that is ejected is tried all the same."""
        usable = [index for index in self._health.usable(now) if index not in tried]
        usable = usable or [index for index in range(len(self.replicas)) if index not in tried]
        order = balance.order(
            self._routing.balance,
            [self._urls[index] for index in usable],
            [self.replicas[index].gate.load for index in usable],
            prefix=placement.prefix or placement.conversation,
            count=self._placed,
            factor=self._routing.load_factor,
        )
        self._placed += 1
        ranked = [usable[at] for at in order]
        known = self._known.get(placement.conversation) if placement.conversation else None
        if known in ranked and self._routing.balance == "affinity":
            ranked = [known, *(index for index in ranked if index != known)]
        gates = {index: self.replicas[index].gate for index in ranked}
        roomy = [index for index in ranked if gates[index].has_room] or [i for i in ranked if gates[i].may_wait]
        return (roomy or ranked)[0]

    def _has_room(self, tried: Sequence[int]) -> bool:
        """Whether somebody else could take a request at once."""
        usable = self._health.usable(time.monotonic())
        return any(self.replicas[index].gate.has_room for index in usable if index not in tried)

    def _found(self, placement: Placement) -> Placement:
        """Where a new chain has to be for what a client brings along: that goes to who made it, if that is known."""
        index = self._makers.get(placement.sealed) if placement.replica is None and placement.sealed else None
        return placement if index is None else placement.at(index).bound()


def _keep(memory: OrderedDict[bytes, int], key: bytes, index: int) -> None:
    memory[key] = index
    memory.move_to_end(key)
    if len(memory) > _REMEMBERED:
        memory.popitem(last=False)
