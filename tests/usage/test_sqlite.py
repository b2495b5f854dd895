"""The sink that is a table in SQLite (proxy.usage.sqlite)."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from proxy.usage.sqlite import Sqlite


def record(number: int) -> bytes:
    """One that can be told apart."""
    return b'{"id":"%d","time":"2026-01-02T03:04:05.678Z","turn":%d,"total_seconds":0.5}' % (number, number)


def turns(path: Path) -> list[int]:
    """Which records are there."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        return [turn for (turn,) in database.execute("select turn from turns order by turn")]


async def test_records_become_rows_exactly_once(tmp_path: Path) -> None:
    """Those that come again change nothing."""
    path = tmp_path / "usage.db"
    one = Sqlite(str(path), "turns")
    await one.take([record(1), record(2)])
    await one.take([record(2), record(3)])
    assert turns(path) == [1, 2, 3]
    await one.close()
    again = Sqlite(str(path), "turns")
    await again.take([record(3), record(4)])
    await again.close()
    assert turns(path) == [1, 2, 3, 4]


async def test_batch_is_taken_as_a_whole_or_not(tmp_path: Path) -> None:
    """One row that cannot be (it has no time) leaves nothing of its batch, and does no harm to the next."""
    path = tmp_path / "usage.db"
    one = Sqlite(str(path), "turns")
    await one.take([record(1)])
    with pytest.raises(sqlite3.IntegrityError):
        await one.take([record(2), b'{"id":"3"}'])
    assert turns(path) == [1]
    await one.take([record(2)])
    assert turns(path) == [1, 2]
    await one.close()


async def test_workers_share_a_file(tmp_path: Path) -> None:
    """One that finds it locked waits, without holding up anybody else; readers read meanwhile."""
    path = tmp_path / "usage.db"
    one, other = Sqlite(str(path), "turns"), Sqlite(str(path), "turns")
    for number in range(0, 40, 2):
        await one.take([record(number)])
        await other.take([record(number + 1)])
    assert turns(path) == list(range(40))
    await one.close()
    await other.close()


async def test_folder_that_is_not_there_is_tried_again(tmp_path: Path) -> None:
    """As after any failure, the file is opened anew."""
    path = tmp_path / "later" / "usage.db"
    one = Sqlite(str(path), "turns")
    with pytest.raises(sqlite3.OperationalError):
        await one.take([record(1)])
    path.parent.mkdir()
    await one.take([record(1)])
    assert turns(path) == [1]
    await one.close()
