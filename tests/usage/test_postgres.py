"""The sink that is a table in PostgreSQL (proxy.usage.postgres), against a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from proxy.observe import TurnRecord
from proxy.protocol.records import TurnEnded
from proxy.usage import postgres as driver
from proxy.usage import record
from proxy.usage.postgres import Postgres
from tests.fakes import ScriptedUpstream, eventually, serving, stall
from tests.rig.postgres import Server, postgres
from tests.usage.test_ledger import GOOD, backend, options, rollout


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One that a test starts."""
    with postgres() as server:
        yield server


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[Server]:
    """One that runs."""
    with server.running():
        yield server


def made(turn: int, **facts: Any) -> bytes:
    """The record of a turn."""
    ended = TurnEnded(turn, None, 100, 10.0, **facts)
    return record.entry(TurnRecord("conn_1", ended, 12.0, None), {"x-team": "blue"}, 1, 1_700_000_000).payload


async def test_records_become_rows_exactly_once(database: Server) -> None:
    """Those that come again change nothing; each value has a type of its own."""
    one = Postgres(database.url, "once")
    records = [made(number, model="m") for number in range(5)]
    await one.take(records[:3])
    await one.take(records)
    await one.close()
    again = Postgres(database.url, "once")
    await again.take(records)
    await again.close()
    rows = [json.loads(row) for row in database.query("select to_jsonb(once) from once order by turn")]
    written = [json.loads(one) for one in records]
    for row in rows + written:
        row["time"] = row["time"][:19]
    assert rows == written
    assert database.query("select labels->>'x-team', extract(year from time), total_seconds from once limit 1") == [
        "blue|2023|2"
    ]


@pytest.mark.parametrize("text", ["\x00", "a\udc80b", "\u2028'\";--", "é" * 600, "\\u0000"])
async def test_texts_of_others_do_no_harm(database: Server, text: str) -> None:
    """What clients choose cannot make a record that is never taken."""
    one = Postgres(database.url, "texts")
    await one.take([made(1, model=text, response_id=text)])
    await one.close()
    assert database.query("select count(*) > 0 from texts") == ["t"]


async def test_batch_is_taken_as_a_whole_or_not(database: Server) -> None:
    """One row that cannot be leaves nothing of its batch, and does no harm to the next."""
    one = Postgres(database.url, "whole")
    await one.take([made(1)])
    with pytest.raises(Exception, match="not-null"):
        await one.take([made(2), b'{"id":"01923456-789a-7000-8000-000000000000"}'])
    await one.take([made(3)])
    await one.close()
    assert database.query("select turn from whole order by turn") == ["1", "3"]


async def test_table_may_be_somebody_elses(database: Server) -> None:
    """With the right to insert into it, and none to make one."""
    one = Postgres(database.url, "given")
    await one.take([made(1)])
    await one.close()
    for statement in ("create role writer login", "grant insert, select on given to writer"):
        database.query(statement)
    other = Postgres(database.url.replace("slipstream:", "writer:"), "given")
    await other.take([made(2)])
    await other.close()
    assert database.query("select count(*) from given") == ["2"]


async def test_server_that_hangs_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes the connection and says nothing."""
    monkeypatch.setattr(driver, "_CONNECT_TIMEOUT", 0.05)
    async with ScriptedUpstream([stall]) as upstream:
        one = Postgres(upstream.url.replace("http://", "postgresql://"), "t")
        with pytest.raises(TimeoutError):
            await one.take([made(1)])
        await one.close()


async def test_lock_has_a_limit(database: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's transaction holds the table; once it ends, the next try is taken."""
    one, other = Postgres(database.url, "locked"), Postgres(database.url, "locked")
    await one.take([made(1)])
    assert one._connection is not None
    transaction = one._connection.transaction()
    await transaction.start()
    await one._connection.execute("lock table locked")
    monkeypatch.setattr(driver, "_TIMEOUT", 0.1)
    with pytest.raises(TimeoutError):
        await other.take([made(2)])
    monkeypatch.undo()
    await transaction.rollback()
    await other.take([made(2)])
    await one.close()
    await other.close()
    assert database.query("select turn from locked order by turn") == ["1", "2"]


async def test_workers_make_the_table_at_once(database: Server) -> None:
    """Who loses the race succeeds with the next try."""
    sinks = [Postgres(database.url, "race") for _ in range(4)]

    async def insist(sink: Postgres, number: int) -> None:
        for _ in range(5):
            try:
                return await sink.take([made(number)])
            except asyncpg.PostgresError:
                continue
        raise AssertionError("never taken")

    async with asyncio.TaskGroup() as tasks:
        for number, sink in enumerate(sinks):
            tasks.create_task(insist(sink, number))
    for sink in sinks:
        await sink.close()
    assert database.query("select turn from race order by turn") == ["0", "1", "2", "3"]


async def test_server_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns of before, during and after an outage are in the table, once each; no turn noticed it."""
    monkeypatch.setattr("proxy.usage.delivery.FIRST_PAUSE", 0.01)
    monkeypatch.setattr("proxy.usage.delivery.LONGEST_PAUSE", 0.1)
    with postgres() as server:
        chosen = options(tmp_path, usage__sql__url=server.url)

        def count() -> int:
            return int(server.query("select count(*) from slipstream_turns")[0])

        async with backend(6) as upstream, serving(upstream, **chosen) as product:
            assert await rollout(product, 2) == [GOOD] * 2
            with server.running():
                await eventually(lambda: server.query("select to_regclass('slipstream_turns')") != [""])
                await eventually(lambda: count() == 2)
            assert await rollout(product, 2) == [GOOD] * 2
            with server.running():
                await eventually(lambda: count() == 4)
                assert await rollout(product, 2) == [GOOD] * 2
                await eventually(lambda: count() == 6)
                assert server.query("select count(distinct (connection_id, turn)) from slipstream_turns") == ["6"]
