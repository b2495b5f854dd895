"""The sink that is a table in SQLite: a file, written in a thread.

The standard library's own driver in a thread of ours does what an asynchronous one would do. The write-ahead log lets
others read meanwhile, and several workers write one after the other.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Final

from proxy.usage import columns
from proxy.usage.thread import Thread
from proxy.usageconfig import SinkKind

_BUSY: Final = 5.0
"""Seconds to wait for another process that writes."""


class Sqlite:
    """A table in a file.

    Args:
        path: The file, made if it is not there.
        table: The table, likewise.
    """

    kind: SinkKind = "sql"
    batch = 1000

    def __init__(self, path: str, table: str) -> None:
        self._path = path
        self._create = columns.create(table, "sqlite")
        self._insert = columns.insert(table, "sqlite")
        self._connection: sqlite3.Connection | None = None
        self._thread = Thread("slipstream-usage-sqlite")

    async def take(self, records: Sequence[bytes]) -> None:
        """Insert records, in one transaction."""
        await self._thread.run(partial(self._write, [columns.row(record, "sqlite") for record in records]))

    async def close(self) -> None:
        """Close the file, and end the thread."""
        await self._thread.run(self._disconnect)
        self._thread.close()

    def _write(self, rows: list[tuple[object, ...]]) -> None:
        try:
            if self._connection is None:
                self._connection = self._connect()
            with self._connection as transaction:
                transaction.executemany(self._insert, rows)
        except sqlite3.Error:
            self._disconnect()  # it may be the file that is gone
            raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=_BUSY)
        try:
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = full")  # what was taken is not handed out again
            with connection:
                connection.execute(self._create)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
