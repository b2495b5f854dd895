"""The connections to a backend: kept for the next request, and opened ahead of one that is to be expected.

A client whose tools run will ask again before long. If its backend is far away, or speaks TLS, opening a connection costs
some round trips, which can be over by then. How many are opened ahead is bounded; none is where the backend is so near that
it does not matter (:attr:`proxy.config.Upstream.preconnect`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, Literal
from urllib.parse import urlsplit

from proxy.protocol.upstream_errors import UpstreamError, UpstreamTimeout, UpstreamUnreachable
from proxy.values import address_of_url
from proxy.wire import Wire, WireState

Preconnection = Literal["used", "unused", "failed"]
"""What became of a connection that was opened ahead."""

_HORIZON: Final = 300.0
"""Seconds for which a client that has been answered is expected to ask again."""
_FRESH: Final = 50.0
"""Seconds for which a connection that has not served yet is good: servers give a first request more time than a later one
(a minute is common), but for those that close it, which is noticed."""
_LOOK: Final = 1.0
_FIRST_PAUSE: Final = 1.0
"""Seconds without further attempts after one was for nothing; twice as many after the next, up to the longest pause."""
_LONGEST_PAUSE: Final = 60.0


class Pool:
    """The connections to one backend.

    Args:
        url: Its base URL.
        connect_timeout: Seconds to open a connection; 0 for none.
        keepalive: Seconds for which an idle connection may be used again; 0 for no reuse.
        ahead: How many to open ahead, at most.
        on_preconnection: Told what became of each that was.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout: float,
        keepalive: float,
        ahead: int = 0,
        on_preconnection: Callable[[Preconnection], object] = bool,
    ) -> None:
        self._host, self._port = address_of_url(url)
        self._tls = ssl.create_default_context() if urlsplit(url).scheme == "https" else None
        self._connect_timeout = connect_timeout
        self._keepalive = keepalive
        self._ahead = ahead if keepalive else 0
        self._on_preconnection = on_preconnection
        self._loop = asyncio.get_running_loop()
        self._idle: deque[Wire] = deque()
        self._fresh: deque[Wire] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._expected: dict[Hashable, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pause = 0.0
        self._paused_until = 0.0

    def take(self) -> tuple[Wire, bool] | None:
        """A connection that is at hand, and whether it has served before: the one used last, as it is the least likely dead."""
        self._close_old()
        for wires, has_served in ((self._idle, True), (self._fresh, False)):
            while wires:
                wire = wires.pop()
                if wire.state is WireState.IDLE:
                    if not has_served:
                        self._pause = 0.0
                        self._on_preconnection("used")
                    return wire, has_served
        return None

    async def connect(self) -> Wire:
        """Open a connection.

        Raises:
            UpstreamTimeout: it took too long.
            UpstreamUnreachable: nobody answers there.
        """
        try:
            async with asyncio.timeout(self._connect_timeout or None):
                _, wire = await self._loop.create_connection(
                    lambda: Wire(self._give_back),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
        except TimeoutError as exc:
            raise UpstreamTimeout("connect", self._connect_timeout) from exc
        except (OSError, UnicodeError) as exc:  # UnicodeError: a host that cannot be a name
            raise UpstreamUnreachable from exc
        return wire

    def expect(self, whom: Hashable) -> None:
        """Somebody will ask before long; called again, they will from now on."""
        if self._ahead:
            self._expected.pop(whom, None)
            self._expected[whom] = self._loop.time() + _HORIZON
            self._open_some()

    def dismiss(self, whom: Hashable) -> None:
        """They have asked, or will not ask any more."""
        self._expected.pop(whom, None)

    def close(self) -> None:
        """Close all connections that serve nobody."""
        self._expected.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._opening:
            task.cancel()
        for wires in (self._idle, self._fresh):
            while wires:
                wires.pop().close()

    def _give_back(self, wire: Wire) -> None:
        """A connection serves nobody any more, or is gone."""
        if wire.state is not WireState.CLOSED:
            if self._keepalive:
                self._idle.append(wire)
            else:
                wire.close()
        elif wire in self._fresh:
            self._fresh.remove(wire)
            self._fail("unused")
        elif wire in self._idle:
            self._idle.remove(wire)
            self._open_some()

    def _close_old(self) -> None:
        now = self._loop.time()
        while self._idle and self._idle[0].idle_since < now - self._keepalive:
            self._idle.popleft().close()
        while self._fresh and self._fresh[0].idle_since < now - _FRESH:
            wire = self._fresh.popleft()
            self._on_preconnection("unused")
            wire.close()

    # Ahead

    def _open_some(self) -> None:
        """Open as many as are missing for those who are expected."""
        now = self._loop.time()
        self._close_old()
        while self._expected and next(iter(self._expected.values())) <= now:  # the oldest come first
            del self._expected[next(iter(self._expected))]
        wanted = min(len(self._expected), self._ahead)
        if wanted and self._timer is None:
            self._timer = self._loop.call_later(_LOOK, self._look)
        if now >= self._paused_until:
            for _ in range(wanted - len(self._idle) - len(self._fresh) - len(self._opening)):
                task = self._loop.create_task(self._open(), name="preconnect")
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)

    def _look(self) -> None:
        self._timer = None
        self._open_some()

    async def _open(self) -> None:
        try:
            wire = await self.connect()
        except UpstreamError:
            self._fail("failed")
            return
        wire.idle_since = self._loop.time()
        self._fresh.append(wire)

    def _fail(self, what: Preconnection) -> None:
        """One was for nothing: there is no hurry with the next."""
        self._on_preconnection(what)
        self._pause = min(max(_FIRST_PAUSE, self._pause * 2), _LONGEST_PAUSE)
        self._paused_until = self._loop.time() + self._pause
