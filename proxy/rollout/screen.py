"""Where words and progress go: a terminal, on which a line can be written over, or a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from proxy.rollout.meter import Meter

_BAR: Final = 20
_PLAIN_STEP: Final = 5
"""Where lines cannot be written over, every fifth turn gets one."""


class Screen:
    """Where words go.

    Args:
        write: Writes text as it is, and flushes.
        is_terminal: Whether a line can be written over.

    Attributes:
        is_terminal: Likewise.
    """

    def __init__(self, write: Callable[[str], object], *, is_terminal: bool) -> None:
        self.is_terminal = is_terminal
        self._write = write
        self._open_line = 0  # characters in the line that may be written over

    def say(self, text: str = "") -> None:
        """Write lines, below whatever progress is shown."""
        self._end_line()
        self._write(f"{text}\n")

    def stopped(self) -> None:
        """Say that this was the end; on a terminal there is a ^C in the line by now."""
        if self.is_terminal:
            self._write("\n")
            self._open_line = 0
        self.say("Stopped.")

    def progress(self, name: str, total: int, done: int, meter: Meter) -> None:
        """Show how far it is.

        Args:
            name: What goes on.
            total: Turns there will be.
            done: Turns that are over, 1..total.
            meter: What the client of this rollout counted so far.
        """
        if not self.is_terminal:
            if done % _PLAIN_STEP == 0 or done == total:
                self.say(f"  {name}: turn {done} of {total}, {meter.sent_bytes:,} bytes sent")
            return
        bar = "#" * (_BAR * done // total)
        line = f"  {name:<14} [{bar:.<{_BAR}}] turn {done} of {total}, {meter.sent_bytes:,} bytes sent"
        self._write(f"\r{line:<{self._open_line}}")
        self._open_line = len(line)
        if done == total:
            self._end_line()

    def _end_line(self) -> None:
        if self._open_line:
            self._write("\n")
            self._open_line = 0
