"""The table of records, in the words of SQLite and PostgreSQL.

A record's id is the key: one that comes again changes nothing, so that a table holds each exactly once.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final, Literal

import orjson

from proxy.usage.record import COLUMNS, Kind

Dialect = Literal["sqlite", "postgres"]

_TYPES: Final[dict[Dialect, dict[Kind, str]]] = {
    "sqlite": {
        "id": "text primary key",
        "time": "text not null",
        "text": "text",
        "integer": "integer",
        "real": "real",
        "json": "text",
    },
    "postgres": {
        "id": "uuid primary key",
        "time": "timestamptz not null",
        "text": "text",
        "integer": "bigint",
        "real": "double precision",
        "json": "jsonb",
    },
}


def create(table: str, dialect: Dialect) -> str:
    """The statement that makes the table if it is not there."""
    types = _TYPES[dialect]
    columns = ", ".join(f'"{name}" {types[kind]}' for name, kind in COLUMNS.items())
    return f'create table if not exists "{table}" ({columns})'


def insert(table: str, dialect: Dialect) -> str:
    """The statement that puts one record in, unless it is there."""
    names = ", ".join(f'"{name}"' for name in COLUMNS)
    marks = ", ".join(f"${number}" if dialect == "postgres" else "?" for number in range(1, len(COLUMNS) + 1))
    return f'insert into "{table}" ({names}) values ({marks}) on conflict ("id") do nothing'  # noqa: S608 - checked names


def row(record: bytes, dialect: Dialect) -> tuple[Any, ...]:
    """A record's values, in the order of :data:`~proxy.usage.record.COLUMNS`; those that it does not have are null."""
    fields = orjson.loads(record)
    return tuple(_value(fields, name, kind, dialect) for name, kind in COLUMNS.items())


def _value(fields: Mapping[str, Any], name: str, kind: Kind, dialect: Dialect) -> Any:
    value = fields.get(name)
    if value is None:
        return None
    if kind == "json":
        return orjson.dumps(value).decode()
    if kind == "time" and dialect == "postgres":
        return dt.datetime.fromisoformat(value)
    return value
