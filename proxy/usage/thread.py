"""A thread of one's own for what blocks: files, and databases in files.

One for each of those who may hang, so that a sink on a disk that does not answer holds up nobody else. Threads of the
loop's own pool would be waited for at the end of the process; these are not.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Thread:
    """Makes calls one after the other, in the order in which they were asked for.

    Args:
        name: For whoever looks at the process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, call: Callable[[], T]) -> T:
        """Make a call there.

        Raises:
            Exception: whatever the call raises.

        Cancellation: the call is made all the same, and nobody hears of it.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def make() -> None:
            try:
                result = call()
            except Exception as exc:  # noqa: BLE001 - it is for whoever asked
                error = exc
                tell(lambda: answer.set_exception(error))
            else:
                tell(lambda: answer.set_result(result))

        def tell(how: Callable[[], None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(lambda: None if answer.done() else how())

        self._calls.put(make)
        return await answer

    def close(self) -> None:
        """End after the calls that were asked for; nobody waits for them."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
