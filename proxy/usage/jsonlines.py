"""The sink that is a file: JSON Lines, with rotation.

Several workers may write one file, and whoever rotates logs may move it: it is opened for each batch, under a lock in a
file beside it, and a batch is whole lines or nothing. A line that a process was killed in is cut off by the next one; its
record comes again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from proxy.usage.thread import Thread
from proxy.usageconfig import SinkKind, UsageFile

_WINDOW: Final = 128 * 2**10
"""Bytes at a file's end in which the last line's end is; twice the longest record."""


class JsonLines:
    """A file with one record a line.

    Args:
        options: The operator's choices; there is a path.
    """

    kind: SinkKind = "file"
    batch = 1000

    def __init__(self, options: UsageFile) -> None:
        assert options.path is not None
        self._path = Path(options.path)
        self._options = options
        self._thread = Thread("slipstream-usage-file")

    async def take(self, records: Sequence[bytes]) -> None:
        """Append records."""
        data = b"".join(record + b"\n" for record in records)
        await self._thread.run(partial(self.append, data))

    async def close(self) -> None:
        """End the thread."""
        self._thread.close()

    def append(self, data: bytes) -> None:
        """Append whole lines; blocks.

        Raises:
            OSError: nothing was appended.
        """
        with self._locked():
            if self._size() + len(data) > self._options.max_bytes:
                self._rotate()
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                size = _end_of_lines(file)
                _append(file, size, data)
            finally:
                os.close(file)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def _rotate(self) -> None:
        """Move the file and those before it on by one; the oldest goes."""
        if not self._size():
            return
        names = [self._path, *(Path(f"{self._path}.{number}") for number in range(1, self._options.keep + 1))]
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            if newer.exists():
                newer.replace(older)
        if not self._options.keep:
            self._path.unlink()


def _append(file: int, size: int, data: bytes) -> None:
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    except OSError:
        os.ftruncate(file, size)
        raise


def _end_of_lines(file: int) -> int:
    """The file's size, once a line at its end that is not whole is cut off."""
    size = os.fstat(file).st_size
    start = max(0, size - _WINDOW)
    tail = os.pread(file, size - start, start)
    if tail and not tail.endswith(b"\n"):
        size = start + tail.rfind(b"\n") + 1
        os.ftruncate(file, size)
    return size
