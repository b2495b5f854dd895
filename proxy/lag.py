"""How late the event loop is: what every user of a busy process waits for, whatever they asked.

A timer says when it wants to be called and notes how much later that was; nothing else is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

_INTERVAL: Final = 0.5
"""Seconds between two looks."""


class LoopLag:
    """Looks at the clock twice a second, for as long as the context lasts.

    Args:
        observe: Told by how many seconds the loop was late; 0 or more.
    """

    def __init__(self, observe: Callable[[float], object]) -> None:
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._arm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        self._timer = self._loop.call_at(self._loop.time() + _INTERVAL, self._look, self._loop.time() + _INTERVAL)

    def _look(self, wanted: float) -> None:
        self._observe(max(self._loop.time() - wanted, 0.0))
        self._arm()
