"""A bounded number of requests to one replica, and a bounded queue before it, first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque

from proxy.protocol.upstream_errors import BackendBusy


class Gate:
    """The way to one replica. Whoever enters has to leave.

    Args:
        limit: How many may be inside; None for any number.
        queued: How many may wait.
        patience: Seconds for which one may wait.

    Attributes:
        inside: How many are.
    """

    def __init__(self, limit: int | None, queued: int, patience: float) -> None:
        self.inside = 0
        self._limit = limit
        self._queued = queued
        self._patience = patience
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def load(self) -> int:
        """How many are inside, or want to be."""
        return self.inside + len(self._waiting)

    @property
    def has_room(self) -> bool:
        """Whether one more could enter at once."""
        return self._limit is None or (self.inside < self._limit and not self._waiting)

    @property
    def may_wait(self) -> bool:
        """Whether one more could wait."""
        return len(self._waiting) < self._queued

    async def enter(self) -> None:
        """Go in, once there is room.

        Raises:
            BackendBusy: too many wait already, or it took too long.
        """
        if self.has_room:
            self.inside += 1
            return
        if not self.may_wait:
            raise BackendBusy
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout(self._patience):
                await place
        except BaseException as exc:
            if place.done() and not place.cancelled():
                self.leave()  # it was let in at the very moment in which it went away
            elif place in self._waiting:
                self._waiting.remove(place)
            if isinstance(exc, TimeoutError):
                raise BackendBusy from exc
            raise

    def leave(self) -> None:
        """Go out; who has waited longest takes the place."""
        self.inside -= 1
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                self.inside += 1
                place.set_result(None)
                return
