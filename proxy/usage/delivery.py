"""How records get to a sink: in batches, in order, each again and again until it is taken.

A sink that is down costs nothing but the room in the spool. What it cannot take it cannot take: nobody here knows better
than its operator whether a refusal is meant to last.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import structlog

from proxy.usage.shelf import Shelf
from proxy.usage.spool import Batch
from proxy.usage.thread import Thread
from proxy.usageconfig import SinkKind

_log: Final = structlog.get_logger("slipstream")

FIRST_PAUSE: Final = 0.5
"""Seconds until a batch that was not taken is tried again; doubled each time."""
LONGEST_PAUSE: Final = 30.0
_SILENCE: Final = 60.0
"""Seconds between two lines about a sink that does not take anything."""


class NotTaken(Exception):
    """A sink refused a batch, and says why."""


class Sink(Protocol):
    """Where records go.

    Attributes:
        kind: Which of them.
        batch: Records that it takes at once, at most.
    """

    kind: SinkKind
    batch: int

    async def take(self, records: Sequence[bytes]) -> None:
        """Take records, JSON objects, as a whole or not at all; once this returns they are safe.

        Raises:
            Exception: they were not taken. Some may have been all the same.
        """

    async def close(self) -> None:
        """Take no more."""


class Delivery:
    """Hands records to one sink.

    Args:
        sink: It.
        shelf: Where they wait.
        thread: Where that is looked at.
        on_taken: Called with how many it has taken.
        on_failure: Called when it has not.

    Attributes:
        oldest: When the oldest record was made that is known to be not taken, in seconds since 1970; None for none.
    """

    def __init__(
        self,
        sink: Sink,
        shelf: Shelf,
        thread: Thread,
        on_taken: Callable[[int], object],
        on_failure: Callable[[], object],
    ) -> None:
        self.oldest: float | None = None
        self._sink = sink
        self._shelf = shelf
        self._thread = thread
        self._on_taken = on_taken
        self._on_failure = on_failure
        self._news = asyncio.Event()
        self._is_ending = asyncio.Event()
        self._said = -_SILENCE

    def notify(self) -> None:
        """There are records."""
        self._news.set()

    def end(self) -> None:
        """No more will come: :meth:`run` ends once all that are there are taken, or one try has failed."""
        self._is_ending.set()
        self._news.set()

    async def run(self) -> None:
        """Hand over what comes.

        Cancellation: what is not taken stays in the spool.
        """
        with contextlib.suppress(NotTaken):
            while True:
                self._news.clear()
                is_ending = self._is_ending.is_set()
                batch = await self._next()
                if batch is not None:
                    await self._hand_over(batch)
                elif is_ending:
                    return
                else:
                    await self._news.wait()

    async def _next(self) -> Batch | None:
        """What is to be handed over; None if there is nothing."""
        kind = self._sink.kind
        try:
            batch = await self._thread.run(lambda: self._shelf.read(kind, self._sink.batch))
        except Exception as exc:  # noqa: BLE001 - a disk's fault, or a bug: it must not end all deliveries for good
            self._say("usage spool cannot be read", exc)
            batch = None
        self.oldest = None if batch is None else batch.entries[0].milliseconds / 1000
        return batch

    async def _hand_over(self, batch: Batch) -> None:
        """Have a batch taken.

        Raises:
            NotTaken: it was not, and there is no time to try again.
        """
        records = [entry.payload for entry in batch.entries]
        pause = FIRST_PAUSE
        while True:
            is_ending = self._is_ending.is_set()
            try:
                await self._sink.take(records)
            except Exception as exc:
                self._on_failure()
                self._say("usage records are not taken", exc)
                if is_ending:
                    raise NotTaken from exc
            else:
                break
            with contextlib.suppress(TimeoutError):
                # Many processes find a sink down at once; they do not all come back at once.
                async with asyncio.timeout(pause * random.uniform(0.75, 1.25)):  # noqa: S311 - no secret
                    await self._is_ending.wait()
            pause = min(2 * pause, LONGEST_PAUSE)
        self._on_taken(len(records))
        await self._thread.run(partial(self._shelf.acknowledge, self._sink.kind, batch))

    def _say(self, text: str, error: Exception) -> None:
        """Say seldom what goes wrong: no values, which may be a database's password or a key."""
        now = time.monotonic()
        if now - self._said >= _SILENCE:
            self._said = now
            reason = str(error) if isinstance(error, NotTaken) else type(error).__name__
            if isinstance(error, OSError) and error.strerror:
                reason = error.strerror
            _log.warning(text, sink=self._sink.kind, reason=reason)
