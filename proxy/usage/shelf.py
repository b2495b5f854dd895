"""The spools of one process: its own, and those that processes left behind which are no more.

Below the operator's folder each process has one of its own, the first that is free: ``0``, ``1``, … Whoever is started
after it in its place finds what it left. A folder that nobody has claimed, for there were more processes once, is taken on
by whoever looks first, until it is empty.

Everything here blocks, and belongs into one thread.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from proxy.usage.segment import Entry
from proxy.usage.spool import Batch, Spool
from proxy.usageconfig import SinkKind


class Shelf:
    """What waits for the sinks.

    Args:
        root: The operator's folder.
        sinks: Who takes records.
        max_bytes: For each spool.
        on_drop: Called with how many records a sink will never get.
    """

    def __init__(
        self, root: Path, sinks: Sequence[SinkKind], max_bytes: int, on_drop: Callable[[SinkKind, int], object]
    ) -> None:
        self._root = root
        self._sinks = sinks
        self._max_bytes = max_bytes
        self._on_drop = on_drop
        self._own: Spool | None = None
        self._left: list[Spool] = []

    @property
    def used(self) -> int:
        """Bytes of all spools."""
        return sum(spool.used for spool in self._spools())

    def open(self) -> None:
        """Claim a folder, and those that were left behind.

        Raises:
            OSError: nothing can be written there.
        """
        for number in itertools.count():
            self._own = self._claim(self._root / str(number))
            if self._own is not None:
                break
        self.adopt()

    def adopt(self) -> bool:
        """Claim what others left behind since; whether there was anything."""
        found = False
        for folder in sorted(self._root.iterdir()):
            if folder.name.isdecimal() and any(folder.glob("*.v1")):
                with contextlib.suppress(OSError):  # somebody else's, by the rights of its files
                    spool = self._claim(folder)
                    if spool is not None:
                        self._left.append(spool)
                        found = True
        return found

    def append(self, entries: Sequence[Entry]) -> None:
        """Have records survive this process.

        Raises:
            OSError: they do not; none of them was written.
        """
        assert self._own is not None
        self._own.append(entries)

    def read(self, sink: SinkKind, most: int) -> Batch | None:
        """The next records for a sink, after those that it was handed before; None if there are none.

        Raises:
            OSError: they cannot be read.
        """
        for spool in self._spools():
            if (batch := spool.read(sink, most)) is not None:
                return batch
        return None

    def acknowledge(self, sink: SinkKind, batch: Batch) -> None:
        """A sink has taken a batch."""
        batch.spool.acknowledge(sink, batch.end)
        for spool in self._left:
            if spool.is_empty:
                spool.close()
        self._left = [spool for spool in self._left if not spool.is_empty]

    def close(self) -> None:
        """Let others have it all."""
        for spool in self._spools():
            spool.close()
        self._own, self._left = None, []

    def _spools(self) -> list[Spool]:
        return self._left if self._own is None else [*self._left, self._own]

    def _claim(self, folder: Path) -> Spool | None:
        return Spool.claim(folder, self._sinks, self._max_bytes, self._on_drop)
