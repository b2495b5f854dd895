"""The sink that is a table in PostgreSQL. Imported only where it is wanted: its driver is an extra."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import asyncpg

from proxy.usage import columns
from proxy.usageconfig import SinkKind

_CONNECT_TIMEOUT: Final = 10.0
_TIMEOUT: Final = 30.0
"""Seconds for one batch, or for making the table."""


class Postgres:
    """A table of a server.

    Args:
        url: The database, as libpq takes it.
        table: The table, made if it is not there.
    """

    kind: SinkKind = "sql"
    batch = 1000

    def __init__(self, url: str, table: str) -> None:
        self._url = url
        self._table = table
        self._insert = columns.insert(table, "postgres")
        self._connection: asyncpg.Connection | None = None

    async def take(self, records: Sequence[bytes]) -> None:
        """Insert records, in one transaction.

        Raises:
            Exception: whatever the driver raises; nothing was inserted, unless the answer was lost.
        """
        rows = [columns.row(record, "postgres") for record in records]
        try:
            if self._connection is None:
                self._connection = await self._connect()
            async with asyncio.timeout(_TIMEOUT):
                await self._connection.executemany(self._insert, rows)
        except BaseException:
            self._abandon()  # nobody knows what state it is in
            raise

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()

    async def _connect(self) -> asyncpg.Connection:
        connection = await asyncpg.connect(
            self._url,
            timeout=_CONNECT_TIMEOUT,
            statement_cache_size=0,  # what is prepared does not outlive its transaction where PgBouncer stands in between
            server_settings={"application_name": "slipstream"},
        )
        try:
            async with asyncio.timeout(_TIMEOUT):
                # Making it "if not exists" wants the right to make tables, even if it does exist.
                if await connection.fetchval("select to_regclass($1)", f'"{self._table}"') is None:
                    await connection.execute(columns.create(self._table, "postgres"))
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _abandon(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
