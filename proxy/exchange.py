"""One exchange with the backend while it runs: who runs it, what has come so far, which limit it has run into.

Its limits are looked at by the clock of its connection (:mod:`proxy.connection`), so that no read has to arm a timer or
read the clock: what counts is whether the number of reads has changed since the last look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from proxy.config import Timeouts, WebSocket
from proxy.observe import Exchange
from proxy.protocol.events import UpstreamBytes
from proxy.protocol.upstream_errors import Phase, UpstreamTimeout

_TAIL_TIMEOUT: Final = 1.0
"""Seconds for what is left behind a complete response, so that the backend's connection can serve again."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """What an operator can choose about running a connection.

    Attributes:
        timeouts: Limits of an exchange with each backend, by its name.
        websocket: Lifetime, pings, keepalive.
    """

    timeouts: Mapping[str, Timeouts]
    websocket: WebSocket

    @property
    def tick(self) -> float:
        """Seconds between two looks at the clock: a quarter of the shortest limit, at most 5 s."""
        socket = self.websocket
        limits = [socket.lifetime, socket.ping_interval, socket.keepalive_interval]
        for timeouts in self.timeouts.values():
            limits += [timeouts.first_event, timeouts.idle, timeouts.turn]
        return min([5.0, *(limit / 4 for limit in limits if limit)])


@dataclass(slots=True)
class Running:
    """An exchange with the backend. All times are on the loop's clock.

    Attributes:
        turn: Its number.
        exchange: How it goes.
        started: When it was ordered.
        ordered: The same on the clock of the exchange's times.
        timeouts: The limits that it has.
        bytes: The fact that bytes came, used again for each read.
        reads: How often bytes came.
        seen_reads: How often they had come at the last look at the clock.
        last_read: When that had last changed; None before the first bytes.
        task: Who runs it.
        expired: The limit it ran into.
        is_complete: Its response is complete; only the tail is left.
        began: When its turn asked for the first time; None if that is when it was ordered.
    """

    turn: int
    exchange: Exchange
    started: float
    ordered: float
    timeouts: Timeouts
    bytes: UpstreamBytes
    reads: int = 0
    seen_reads: int = 0
    last_read: float | None = None
    task: asyncio.Task[None] | None = None
    expired: UpstreamTimeout | None = None
    is_complete: bool = False
    began: float | None = None

    def cancel(self) -> None:
        """Stop it, soon."""
        if self.task is not None:
            self.task.cancel()

    def finish(self, now: float) -> None:
        """The response is complete."""
        self.is_complete = True
        self.last_read = now

    def check_limits(self, now: float, *, is_held_up: bool) -> None:
        """Stop it if it has taken too long; `expired` then says for which limit.

        Args:
            now: The time.
            is_held_up: The client is slow, so that nothing is read: no silence of the backend's.
        """
        timeouts = self.timeouts
        if self.reads != self.seen_reads or (is_held_up and self.last_read is not None):
            self.seen_reads, self.last_read = self.reads, now
        if self.is_complete:
            self._check("idle", _TAIL_TIMEOUT, self.last_read or self.started, now)
            return
        if self.last_read is None:
            self._check("first_event", timeouts.first_event, self.started, now)
        else:
            self._check("idle", timeouts.idle, self.last_read, now)
        self._check("turn", timeouts.turn, self.started if self.began is None else self.began, now)

    def _check(self, phase: Phase, limit: float, since: float, now: float) -> None:
        if limit and now - since >= limit and self.expired is None:
            self.expired = UpstreamTimeout(phase, limit)
            self.cancel()


async def until_all_ended(running: Mapping[int, Running], seconds: float) -> None:
    """Wait until no exchange of a connection runs, for at most so long.

    Args:
        running: Those that run; each leaves it by itself.
        seconds: How long.

    Cancellation: passed over once, for aiohttp does it to whoever serves a connection that is lost.
    """
    loop, waiter = asyncio.get_running_loop(), asyncio.current_task()
    end = loop.time() + seconds
    while running and (left := end - loop.time()) > 0:
        tasks = [one.task for one in running.values() if one.task is not None]
        try:
            await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if waiter is None:
                raise
            waiter.uncancel()
            waiter = None
