"""A command for a client to run that takes as long as a test needs to do something meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.rig.processes import wait_until


class Pause:
    """The command, and what goes on while it runs: the client's turn is over then, and its next one has not begun.

    Args:
        folder: Where its marks go.

    Attributes:
        command: What to run; it writes `go on` once the pause is over.
    """

    def __init__(self, folder: Path) -> None:
        self._begun, self._over = folder / "pause-begun", folder / "pause-over"
        self.command = f"touch '{self._begun}'; until [ -e '{self._over}' ]; do sleep 0.1; done; echo go on"

    @contextlib.contextmanager
    def used_to(self, act: Callable[[], None]) -> Iterator[None]:
        """Do something in the pause; it must have been done when the context ends."""

        def work() -> None:
            assert wait_until(self._begun.exists, 120)
            act()
            self._over.touch()

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(work)
            yield
            done.result()
