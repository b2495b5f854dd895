"""What connections leave behind when they end: cycles, which the collector alone finds.

aiohttp's objects hold each other, and so does whatever an exception passed through when a client was cut; with them go the
last bytes that were read for it. Left to itself the collector looks when enough *new* objects have piled up, and relaying
makes next to none: garbage of a hundred megabytes would wait for hours. So it is told to look when enough connections have
ended, for what it costs in relation to that: its work grows with what is alive.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final

_FEW: Final = 32
"""Connections that end without a look; then it is a few milliseconds."""
_SHARE: Final = 4
"""One for so many that are still open: what is alive is looked at once for each of them."""
_DELAY: Final = 1.0
"""Seconds until whoever held a connection has let go of it."""


def settle() -> None:
    """Start-up is over: what it made stays for good, and need not be looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


class Sweeper:
    """Has garbage collected when enough connections have ended.

    Args:
        collect: Collects.
        delay: Seconds from the moment at which there is enough.
    """

    def __init__(self, collect: Callable[[], object] = gc.collect, delay: float = _DELAY) -> None:
        self._collect = collect
        self._delay = delay
        self._ended = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_ended(self, still_open: int) -> None:
        """Count one; so many others are open."""
        self._ended += 1
        if self._timer is None and self._ended >= max(_FEW, still_open // _SHARE):
            self._timer = asyncio.get_running_loop().call_later(self._delay, self._sweep)

    def close(self) -> None:
        """Forget about it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        self._timer = None
        self._ended = 0
        self._collect()
