"""The sink that is a file (proxy.usage.jsonlines)."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.usage.jsonlines import JsonLines
from proxy.usageconfig import UsageFile
from tests.usage.test_spool import no_file_longer_than


def sink(path: Path, **options: Any) -> JsonLines:
    """One."""
    return JsonLines(UsageFile.model_validate({"path": str(path), **options}))


def lines(*numbers: int, size: int = 0) -> bytes:
    """Records that can be told apart."""
    return b"".join(b'{"n":%d,"x":"%s"}\n' % (number, b"x" * size) for number in numbers)


def numbers(*files: Path) -> list[int]:
    """Which records are in files; each line is whole."""
    return [json.loads(line)["n"] for file in files for line in file.read_bytes().splitlines()]


async def test_records_become_lines(tmp_path: Path) -> None:
    """In a folder that is made if need be; what is there is kept, whoever moves the file away."""
    path = tmp_path / "a" / "usage.jsonl"
    one = sink(path)
    await one.take([b'{"n":1}', b'{"n":2}'])
    await one.take([b'{"n":3}'])
    assert numbers(path) == [1, 2, 3]
    assert path.stat().st_mode & 0o077 == 0
    path.rename(tmp_path / "moved")
    await one.take([b'{"n":4}'])
    assert (numbers(tmp_path / "moved"), numbers(path)) == ([1, 2, 3], [4])
    await one.close()


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_rotation_keeps_so_many(tmp_path: Path, keep: int) -> None:
    """No file gets longer than it may, the newest are kept, and no line is in two of them."""
    path = tmp_path / "usage.jsonl"
    one = sink(path, max_bytes="64KiB", keep=keep)
    for number in range(60):
        one.append(lines(number, size=10_000))
    files = [*(Path(f"{path}.{number}") for number in range(keep, 0, -1)), path]
    assert all(file.stat().st_size <= 64 * 2**10 for file in files)
    found = numbers(*files)
    assert found == list(range(found[0], 60))
    assert len(found) > 6 * keep
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {file.name for file in files} | {"usage.jsonl.lock"}


def test_batch_that_is_too_long_has_a_file_of_its_own(tmp_path: Path) -> None:
    """It is not lost, and no empty file is kept for it."""
    path = tmp_path / "usage.jsonl"
    sink(path, max_bytes="64KiB").append(lines(1, 2, size=60_000))
    assert numbers(path) == [1, 2]
    assert not Path(f"{path}.1").exists()


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(1, 100))
def test_torn_line_is_cut_off(cut: int) -> None:
    """One that a process was killed in: its record comes again, and the file stays readable."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "usage.jsonl"
        one = sink(path)
        one.append(lines(1, 2, 3, size=20))
        size = path.stat().st_size
        os.truncate(path, max(0, size - cut))
        whole = [number for number in (1, 2, 3) if size * number // 3 <= size - cut]
        one.append(lines(4))
        assert numbers(path) == [*whole, 4]


def test_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    """All of a batch or nothing (the full disk is simulated by a limit of the process)."""
    path = tmp_path / "usage.jsonl"
    one = sink(path)
    one.append(lines(1))
    with no_file_longer_than(path.stat().st_size + 10), pytest.raises(OSError, match="File too large"):
        one.append(lines(2, 3))
    assert numbers(path) == [1]
    one.append(lines(2, 3))
    assert numbers(path) == [1, 2, 3]


def _write(path: Path, first: int) -> None:
    one = sink(path, max_bytes="64KiB", keep=100)
    for number in range(first, first + 200):
        one.append(lines(number, size=1000))


def test_processes_share_a_file(tmp_path: Path) -> None:
    """Workers that write and rotate at once: each line is there once, and whole."""
    path = tmp_path / "usage.jsonl"
    processes = [
        multiprocessing.get_context("spawn").Process(target=_write, args=(path, first)) for first in (0, 1000, 2000)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    files = [file for file in tmp_path.iterdir() if re.search(r"jsonl(\.\d+)?$", file.name)]
    assert len(files) > 3
    assert sorted(numbers(*files)) == sorted([*range(200), *range(1000, 1200), *range(2000, 2200)])
