"""A spool: a folder of segments, and how far each sink is in them.

One process writes and reads it, and says so by a lock that ends with it. Segments only grow, and are numbered; after a
start a new one is begun, so that a torn end stays where it is and is passed over. What a sink has taken stands in a file
of its own, put there in one piece; a segment goes when all have taken it. Where that file is lost or old, records are
handed out once more: each has an id.

Everything here blocks, and belongs into one thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from proxy.usage import segment
from proxy.usage.segment import Entry
from proxy.usageconfig import SinkKind

_log: Final = structlog.get_logger("slipstream")

_SEGMENT: Final = re.compile(r"([0-9]{12})\.v1")
_CURSOR: Final = re.compile(rb"([0-9]{1,12}) ([0-9]{1,12})\n")
_MAX_SEGMENT: Final = 4 * 2**20
_LEAST_SEGMENT: Final = 64 * 2**10
_WINDOW: Final = 2**20
"""Bytes that are read at once."""

Position = tuple[int, int]
"""A segment, and bytes in it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some records, oldest first.

    Attributes:
        spool: Where they are.
        entries: They.
        end: The position behind them.
    """

    spool: Spool
    entries: list[Entry]
    end: Position


class Spool:
    """A folder that is ours until :meth:`close`.

    Args:
        folder: It; it is there.
        lock: The file that is locked.
        sinks: Who takes records.
        max_bytes: Beyond this the oldest segment is dropped.
        on_drop: Called with how many records a sink will never get.
    """

    def __init__(
        self,
        folder: Path,
        lock: int,
        sinks: Sequence[SinkKind],
        max_bytes: int,
        on_drop: Callable[[SinkKind, int], object],
    ) -> None:
        self.folder = folder
        self._lock = lock
        self._max_bytes = max_bytes
        self._segment_bytes = max(_LEAST_SEGMENT, min(_MAX_SEGMENT, max_bytes // 8))
        self._on_drop = on_drop
        self._segments: dict[int, int] = {}
        for file in folder.iterdir():
            if match := _SEGMENT.fullmatch(file.name):
                self._segments[int(match[1])] = file.stat().st_size
            elif file.name.startswith("taken.") and file.name.removeprefix("taken.") not in sinks:
                file.unlink()  # a sink that comes back later begins with what is there then
        self._taken = {sink: self._read_cursor(sink) for sink in sinks}
        self._read = dict(self._taken)
        self._next = 1 + max([0, *self._segments, *(number for number, _ in self._taken.values())])
        self._current: tuple[int, int] | None = None
        self._tidy()

    @classmethod
    def claim(
        cls, folder: Path, sinks: Sequence[SinkKind], max_bytes: int, on_drop: Callable[[SinkKind, int], object]
    ) -> Spool | None:
        """Make a folder ours, made if it is not there; None if it is another process'.

        Raises:
            OSError: it cannot be made or read.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return cls(folder, lock, sinks, max_bytes, on_drop)
        except BlockingIOError:
            os.close(lock)
            return None
        except BaseException:
            os.close(lock)
            raise

    @property
    def used(self) -> int:
        """Bytes of all segments."""
        return sum(self._segments.values())

    @property
    def is_empty(self) -> bool:
        """Whether every sink has taken everything."""
        return not self._segments

    def close(self) -> None:
        """Let another process have it."""
        self._close_current()
        os.close(self._lock)

    # Writing

    def append(self, entries: Sequence[Entry]) -> None:
        """Have records survive this process.

        Raises:
            OSError: they do not; none of them was written.
        """
        data = segment.pack(entries)
        while self._segments and self.used + len(data) > self._max_bytes:
            self._drop(min(self._segments))
        number, file = self._current or self._begin_segment()
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
        except OSError:
            try:
                os.ftruncate(file, self._segments[number])
            except OSError:
                self._close_current()  # with a torn end, which whoever reads it knows
            raise
        self._segments[number] += len(data)
        if self._segments[number] >= self._segment_bytes:
            self._close_current()

    def _begin_segment(self) -> tuple[int, int]:
        number = self._next
        file = os.open(self._path(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._next += 1
        self._segments[number] = 0
        self._current = number, file
        folder = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)  # else the file may be gone after a power failure, whatever is in it
        finally:
            os.close(folder)
        return self._current

    def _close_current(self) -> None:
        if self._current is not None:
            os.close(self._current[1])
            self._current = None

    # Reading

    def read(self, sink: SinkKind, most: int) -> Batch | None:
        """The next records for a sink, after those that it was handed before; None if there are none.

        Raises:
            OSError: they cannot be read.
        """
        while (position := self._locate(self._read[sink])) is not None:
            number, start = position
            with self._path(number).open("rb") as file:
                file.seek(start)
                data = file.read(min(_WINDOW, self._segments[number] - start))
            if entries := list(itertools.islice(segment.unpack(data), most)):
                end = number, start + sum(entry.size for entry in entries)
                self._read[sink] = end
                return Batch(self, entries, end)
            if data:
                _log.warning("torn records in the usage spool", file=str(self._path(number)), bytes=len(data))
            self._pass_over(sink, (number + 1, 0))
        return None

    def _locate(self, position: Position) -> Position | None:
        """Where the next bytes are at or behind a position; None if there are none."""
        number, start = position
        if self._segments.get(number, 0) > start:
            return position
        later = [other for other in self._segments if other > number and self._segments[other]]
        return (min(later), 0) if later else None

    def _pass_over(self, sink: SinkKind, position: Position) -> None:
        """Go on behind what cannot be read."""
        if self._taken[sink] == self._read[sink]:
            self._taken[sink] = position
        self._read[sink] = position
        self._tidy()

    def acknowledge(self, sink: SinkKind, end: Position) -> None:
        """A sink has taken everything up to a position."""
        self._taken[sink] = max(end, self._taken[sink])
        self._tidy()
        try:
            self._write_cursor(sink)
        except OSError as exc:  # a full disk: after a restart some records are handed out once more
            _log.warning("usage cursor cannot be written", folder=str(self.folder), reason=exc.strerror)

    # Forgetting

    def _tidy(self) -> None:
        """Delete what all have taken."""
        for number in list(self._segments):
            end = number, self._segments[number]
            is_empty = not end[1] and self._current is None  # it was begun, and then there was no room
            if is_empty or all(taken >= end for taken in self._taken.values()):
                self._delete(number)

    def _drop(self, number: int) -> None:
        """Delete a segment that somebody has not taken, and say how much that was."""
        data = b""
        with contextlib.suppress(OSError):
            data = self._path(number).read_bytes()
        for sink, (at, start) in self._read.items():
            if at <= number:
                lost = sum(1 for _ in segment.unpack(data[start if at == number else 0 :]))
                self._read[sink] = number + 1, 0
                if lost:
                    self._on_drop(sink, lost)
        self._delete(number)

    def _delete(self, number: int) -> None:
        if self._current is not None and self._current[0] == number:
            self._close_current()
        with contextlib.suppress(OSError):
            self._path(number).unlink()
        del self._segments[number]

    # Files

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:012d}.v1"

    def _read_cursor(self, sink: SinkKind) -> Position:
        try:
            match = _CURSOR.fullmatch((self.folder / f"taken.{sink}").read_bytes())
        except OSError:
            match = None
        return (int(match[1]), int(match[2])) if match else (0, 0)

    def _write_cursor(self, sink: SinkKind) -> None:
        number, end = self._taken[sink]
        new = self.folder / f"taken.{sink}.new"
        new.write_bytes(b"%d %d\n" % (number, end))
        new.replace(self.folder / f"taken.{sink}")
