"""The table of records (proxy.usage.columns)."""

from __future__ import annotations

import datetime as dt
import sqlite3

from proxy.usage import columns
from proxy.usage.record import COLUMNS


def test_table_has_a_column_for_each_field() -> None:
    """In SQLite, as it understands the statement; PostgreSQL's is of the same columns."""
    with sqlite3.connect(":memory:") as database:
        database.execute(columns.create("t", "sqlite"))
        found = [(name, kind) for _, name, kind, *_ in database.execute("pragma table_info(t)")]
    database.close()
    assert [name for name, _ in found] == list(COLUMNS)
    assert dict(found)["input_tokens"] == "INTEGER" or dict(found)["input_tokens"] == "integer"
    assert all(f'"{name}" ' in columns.create("t", "postgres") for name in COLUMNS)
    assert f"${len(COLUMNS)})" in columns.insert("t", "postgres")


def test_row_has_a_value_for_each_column() -> None:
    """Null for what a record of another version lacks; what it has besides is left out."""
    record = b'{"id":"i","time":"2026-01-02T03:04:05.678Z","labels":{"x-team":"a"},"turn":1,"later":true}'
    row = dict(zip(COLUMNS, columns.row(record, "sqlite"), strict=True))
    assert {name: value for name, value in row.items() if value is not None} == {
        "id": "i",
        "time": "2026-01-02T03:04:05.678Z",
        "labels": '{"x-team":"a"}',
        "turn": 1,
    }
    row = dict(zip(COLUMNS, columns.row(record, "postgres"), strict=True))
    assert row["time"] == dt.datetime(2026, 1, 2, 3, 4, 5, 678_000, dt.UTC)
