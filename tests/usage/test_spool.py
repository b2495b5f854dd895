"""The spool on disk (proxy.usage.spool), on a real disk; where one is full, that is simulated by a small limit."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.usage.segment import Entry
from proxy.usage.spool import Spool
from proxy.usageconfig import SinkKind

BIG = 2**20
Dropped = list[tuple[SinkKind, int]]


def entries(*numbers: int, size: int = 10) -> list[Entry]:
    """Records that can be told apart."""
    return [Entry(number, b"%d" % number + b" " * size) for number in numbers]


def opened(
    folder: Path, *sinks: SinkKind, max_bytes: int = BIG, on_drop: Callable[[SinkKind, int], object] = max
) -> Spool:
    """A spool that is nobody else's."""
    spool = Spool.claim(folder, sinks or ("file",), max_bytes, on_drop)
    assert spool is not None
    return spool


def numbers(spool: Spool, sink: SinkKind = "file", most: int = 1000, *, takes: bool = True) -> list[int]:
    """All that a sink is handed now."""
    found: list[int] = []
    while (batch := spool.read(sink, most)) is not None:
        found += [entry.milliseconds for entry in batch.entries]
        if takes:
            spool.acknowledge(sink, batch.end)
    return found


def segments(folder: Path) -> list[Path]:
    """The files with records."""
    return sorted(folder.glob("*.v1"))


@contextlib.contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """A disk that is full, simulated by a limit of the process on its files (RLIMIT_FSIZE)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


# Handing out


def test_records_come_in_order_and_once(tmp_path: Path) -> None:
    """In batches of at most so many."""
    spool = opened(tmp_path)
    spool.append(entries(1, 2, 3))
    spool.append(entries(4, 5))
    batch = spool.read("file", 2)
    assert batch is not None
    assert [entry.milliseconds for entry in batch.entries] == [1, 2]
    assert numbers(spool, most=2) == [3, 4, 5]
    spool.append(entries(6))
    assert numbers(spool) == [6]
    spool.close()


def test_each_sink_has_its_own_place(tmp_path: Path) -> None:
    """One that takes nothing holds up nobody, and what all have taken is deleted."""
    spool = opened(tmp_path, "file", "sql")
    spool.append(entries(1, 2))
    assert numbers(spool, "file") == [1, 2]
    assert len(segments(tmp_path)) == 1
    assert spool.used > 0
    assert numbers(spool, "sql") == [1, 2]
    assert segments(tmp_path) == []
    assert spool.used == 0
    assert spool.is_empty
    spool.close()


# Restarts


def test_next_process_hands_out_what_was_not_taken(tmp_path: Path) -> None:
    """At least once: what was handed out and not confirmed comes again, what was confirmed does not."""
    spool = opened(tmp_path)
    spool.append(entries(1, 2, 3, 4))
    batch = spool.read("file", 2)
    assert batch is not None
    spool.acknowledge("file", batch.end)
    assert spool.read("file", 1) is not None
    spool.close()
    spool = opened(tmp_path)
    spool.append(entries(5))
    assert numbers(spool) == [3, 4, 5]
    spool.close()


def test_numbers_of_segments_do_not_come_again(tmp_path: Path) -> None:
    """Else what a sink has taken long ago would count as what it has taken of a new one."""
    for number in range(1, 5):
        spool = opened(tmp_path)
        spool.append(entries(number))
        assert numbers(spool) == [number]
        assert segments(tmp_path) == []
        spool.close()


def test_new_sink_gets_what_is_there(tmp_path: Path) -> None:
    """One that was left out for a while too."""
    spool = opened(tmp_path, "file", "sql")
    spool.append(entries(1, 2))
    assert numbers(spool, "sql") == [1, 2]
    spool.close()
    spool = opened(tmp_path, "file", "webhook")
    assert numbers(spool, "webhook") == [1, 2]
    spool.append(entries(3))
    spool.close()
    spool = opened(tmp_path, "sql", "file")
    assert numbers(spool, "sql") == [1, 2, 3]
    spool.close()


@pytest.mark.parametrize("content", [b"", b"nonsense", b"9 9", b"-1 -1\n"])
def test_lost_cursor_costs_no_record(tmp_path: Path, content: bytes) -> None:
    """They come once more."""
    spool = opened(tmp_path, "file", "sql")
    spool.append(entries(1, 2))
    assert numbers(spool) == [1, 2]
    spool.close()
    (tmp_path / "taken.file").write_bytes(content)
    spool = opened(tmp_path, "file", "sql")
    assert numbers(spool) == [1, 2]
    spool.close()


def test_folder_has_one_owner(tmp_path: Path) -> None:
    """Until it is closed; and only we can read it."""
    spool = opened(tmp_path / "a" / "b")
    assert Spool.claim(spool.folder, ("file",), BIG, max) is None
    spool.append(entries(1))
    assert spool.folder.stat().st_mode & 0o077 == 0
    assert segments(spool.folder)[0].stat().st_mode & 0o077 == 0
    spool.close()
    opened(spool.folder).close()


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 200), later=st.booleans())
def test_torn_tail_is_passed_over(cut: int, *, later: bool) -> None:
    """Cut at any byte, as by SIGKILL in the middle of a write: whole records come, and those that are written after."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spool = opened(folder)
        spool.append(entries(1, 2, 3, 4))
        spool.close()
        [file] = segments(folder)
        size = file.stat().st_size
        os.truncate(file, min(cut, size))
        whole = [number for number in (1, 2, 3, 4) if number * size // 4 <= cut]
        spool = opened(folder)
        if later:
            spool.append(entries(5))
        assert numbers(spool) == [*whole, *([5] if later else [])]
        assert spool.is_empty
        spool.close()


# Bounds


def test_oldest_are_dropped_and_counted(tmp_path: Path) -> None:
    """Beyond the bound; for each sink as many as it has not been handed."""
    dropped: Dropped = []
    spool = opened(tmp_path, "file", "sql", on_drop=lambda sink, count: dropped.append((sink, count)))
    for number in range(40):
        spool.append(entries(number, size=60_000))
        assert spool.used <= BIG
        if number == 2:
            assert numbers(spool, "sql", takes=False) == [0, 1, 2]
    lost = {sink: sum(count for one, count in dropped if one == sink) for sink in ("file", "sql")}
    kept = numbers(spool, "file")
    assert kept == list(range(lost["file"], 40))
    assert lost["sql"] == lost["file"] - 3
    assert 10 < len(kept) < 20
    spool.close()


def test_batch_in_hand_may_be_dropped(tmp_path: Path) -> None:
    """Whoever took it says so late, and goes on with what is there."""
    dropped: Dropped = []
    spool = opened(tmp_path, on_drop=lambda sink, count: dropped.append((sink, count)))
    spool.append(entries(1))
    batch = spool.read("file", 10)
    assert batch is not None
    for number in range(2, 40):
        spool.append(entries(number, size=60_000))
    spool.acknowledge("file", batch.end)
    found = numbers(spool)
    assert found[-1] == 39
    assert 1 + sum(count for _, count in dropped) + len(found) == 39
    spool.close()


# Disks


def test_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    """What could not be written can be written later, and what was is not hurt (simulated, see above)."""
    spool = opened(tmp_path)
    spool.append(entries(1, 2))
    size = spool.used
    with no_file_longer_than(size + 30):
        for _ in range(3):
            with pytest.raises(OSError, match="File too large"):
                spool.append(entries(3, 4, 5))
            assert [file.stat().st_size for file in segments(tmp_path)] == [size]
    spool.append(entries(3, 4, 5))
    assert numbers(spool) == [1, 2, 3, 4, 5]
    spool.close()


def test_disk_that_cannot_even_shorten_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torn tail is left behind then, and a new segment begun (failures of the disk are simulated)."""
    spool = opened(tmp_path)
    spool.append(entries(1))

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", fail)
        disk.setattr(os, "ftruncate", fail)
        with pytest.raises(OSError, match="No space left"):
            spool.append(entries(2))
    spool.append(entries(3))
    assert [number for number in numbers(spool) if number != 2] == [1, 3]
    spool.close()


def test_cursor_that_cannot_be_written_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs a repetition after a restart (the full disk is simulated)."""
    spool = opened(tmp_path, "file", "sql")
    spool.append(entries(1))

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_bytes", fail)
        assert numbers(spool) == [1]
    spool.append(entries(2))
    assert numbers(spool, takes=False) == [2]
    spool.close()
    spool = opened(tmp_path, "file", "sql")
    assert numbers(spool) == [1, 2]
    spool.close()
