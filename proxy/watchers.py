"""Those who watch a picture: each gets a snapshot, then what has changed, at most four times a second.

One that does not keep up gets no backlog but another snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

INTERVAL: Final = 0.25
"""Seconds between two updates at least."""
MAX_WATCHERS: Final = 32
_MAX_WAITING: Final = 8


class TooManyWatchers(Exception):
    """There are enough already."""


class Watcher:
    """Somebody who watches: the updates that wait for it, at most a few.

    Args:
        snapshot: Makes an update that needs none before it.
    """

    def __init__(self, snapshot: Callable[[], bytes]) -> None:
        self._snapshot = snapshot
        self._waiting: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._news.set()
        self._is_lost = True  # it has seen nothing yet
        self.is_over = False

    def tell(self, update: bytes) -> None:
        """Put an update into its queue; if that is full, it starts anew."""
        if len(self._waiting) >= _MAX_WAITING:
            self.restart()
        if not self._is_lost:
            self._waiting.append(update)
        self._news.set()

    def restart(self) -> None:
        """What it has seen is worth nothing: it gets another snapshot."""
        self._waiting.clear()
        self._is_lost = True
        self._news.set()

    def end(self) -> None:
        """No more updates come."""
        self.is_over = True
        self._news.set()

    async def next(self) -> bytes | None:
        """Wait for an update; None once no more come.

        Cancellation: nothing is lost.
        """
        await self._news.wait()
        if self.is_over:
            return None
        if self._is_lost:
            self._is_lost = False
            self._waiting.clear()
            update = self._snapshot()
        else:
            update = self._waiting.popleft()
        if not self._waiting:
            self._news.clear()
        return update


class Watchers:
    """All who watch one picture.

    Args:
        snapshot: Makes an update that needs none before it.
        changes: Makes an update of what has changed since it was called last, or since somebody began to watch.
        on_watched: Told when the first one comes (True), and when the last one has gone (False).
        interval: Seconds between two updates at least.
    """

    def __init__(
        self,
        snapshot: Callable[[], bytes],
        changes: Callable[[], bytes],
        on_watched: Callable[[bool], object],
        interval: float = INTERVAL,
    ) -> None:
        self._snapshot = snapshot
        self._changes = changes
        self._on_watched = on_watched
        self._interval = interval
        self._watchers: set[Watcher] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._watchers)

    @contextlib.contextmanager
    def watch(self) -> Iterator[Watcher]:
        """Be told, for as long as the context lasts.

        Raises:
            TooManyWatchers: there are enough already.
        """
        if len(self._watchers) >= MAX_WATCHERS:
            raise TooManyWatchers
        if not self._watchers:
            self._on_watched(True)
        watcher = Watcher(self._snapshot)
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
            if not self._watchers:
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                self._on_watched(False)

    def changed(self) -> None:
        """Something is to be told, soon."""
        if self._watchers and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._tell)

    def restart(self) -> None:
        """Let all have another snapshot."""
        for watcher in self._watchers:
            watcher.restart()

    def close(self) -> None:
        """Let all go."""
        for watcher in self._watchers:
            watcher.end()

    def _tell(self) -> None:
        self._timer = None
        update = self._changes()
        for watcher in self._watchers:
            watcher.tell(update)
