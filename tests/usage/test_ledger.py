"""Records of turns from the client's frame to the sinks (proxy.usage.ledger): real turns, files, databases and servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.usage import ledger
from proxy.usage.segment import Entry
from proxy.usage.shelf import Shelf
from tests.fakes import (
    END,
    PATIENCE,
    STREAM_HEAD,
    Gate,
    Process,
    Product,
    Script,
    ScriptedUpstream,
    answer,
    ask,
    chunk,
    completed,
    connect_to,
    create,
    created,
    delta,
    eventually,
    get,
    read,
    receive,
    running,
    send,
    serving,
    stall,
    types,
)
from tests.test_metrics import samples
from tests.usage.server import Receiver

GOOD = ["created", "output_text.delta", "completed"]
Turns = list[tuple[str, int]]


def backend(turns: int = 1) -> ScriptedUpstream:
    """One that answers so many turns, each on a connection of its own or not."""
    return ScriptedUpstream(*([read, send(answer("ok", response_id=f"resp_{n}"))] for n in range(turns)), then=[stall])


def options(folder: Path, **chosen: Any) -> dict[str, Any]:
    """Records, at once, with the spool below a folder."""
    return {
        "upstream__keepalive": 0,
        "usage__flush_interval": "10ms",
        "usage__spool__folder": str(folder / "spool"),
        **chosen,
    }


def lines(file: Path) -> list[dict[str, Any]]:
    """The records in a file."""
    return [json.loads(line) for line in file.read_bytes().splitlines()] if file.exists() else []


def turns(records: list[dict[str, Any]]) -> Turns:
    """Which turns records are about."""
    return [(record["connection_id"], record["turn"]) for record in records]


def rows(file: Path) -> list[dict[str, Any]]:
    """The records in a database; none while there is no table."""
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.row_factory = sqlite3.Row
        try:
            return [dict(row) for row in database.execute("select * from slipstream_turns order by id")]
        except sqlite3.OperationalError:
            return []


async def counted(product: Product | Process) -> dict[str, float]:
    """The metrics of usage."""
    admin = product.running.admin if isinstance(product, Product) else product.admin
    found = samples((await get(admin, "/metrics"))[1].decode())
    return {name.removeprefix("usage_"): value for name, value in found.items() if name.startswith("usage_")}


async def until(product: Product | Process, name: str, holds: Callable[[float], bool]) -> None:
    """Wait until something is so of a metric."""
    async with asyncio.timeout(PATIENCE):
        while not holds((await counted(product))[name]):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


async def spooled(product: Product | Process, count: int, sink: str = "webhook") -> None:
    """Wait until so many records are on disk."""
    await until(product, f'records_total{{result="spooled",sink="{sink}"}}', lambda value: value >= count)


async def rollout(product: Product | Process, count: int, **chosen: Any) -> list[list[str]]:
    """So many turns on one connection: the types of their frames."""
    async with connect_to(product.address, **chosen) as client:
        return [types(await ask(client, f"turn {number}")) for number in range(count)]


# What is recorded


async def test_turns_reach_every_sink(tmp_path: Path) -> None:
    """With what the client asked, what the backend said, and the operator's labels; nobody's key, nothing that was said."""
    chosen = {
        "usage__labels": ["X-Team", "x-absent"],
        "usage__file__path": str(tmp_path / "usage.jsonl"),
        "usage__sql__url": f"sqlite:///{tmp_path}/usage.db",
    }
    async with Receiver() as receiver, backend(2) as upstream:
        chosen["usage__webhook__url"] = receiver.url
        headers = {"x-team": "blue", "Authorization": "Bearer sk-s3cret-key"}
        async with serving(upstream, **options(tmp_path, **chosen)) as product:
            assert await rollout(product, 2, additional_headers=headers) == [GOOD, GOOD]
            await receiver.received(2)
            await eventually(lambda: len(lines(tmp_path / "usage.jsonl")) == 2)
            await eventually(lambda: len(rows(tmp_path / "usage.db")) == 2)
            found = await counted(product)
    records = lines(tmp_path / "usage.jsonl")
    assert records == receiver.records
    assert [{**row, "labels": json.loads(row["labels"])} for row in rows(tmp_path / "usage.db")] == records
    first, second = records
    assert first["connection_id"] == second["connection_id"]
    assert (first["turn"], second["turn"]) == (1, 2)
    assert first["labels"] == {"x-team": "blue"}
    assert (first["outcome"], first["model"], first["answered_by"], first["worker"]) == ("completed", "m", "m", None)
    assert (first["input_tokens"], first["output_tokens"], first["upstream_status"]) == (1, 1, 200)
    assert first["total_seconds"] > 0
    written = (tmp_path / "usage.jsonl").read_text()
    assert "s3cret" not in written
    assert "turn 0" not in written
    for sink in ("file", "webhook", "sql"):
        assert found[f'records_total{{result="spooled",sink="{sink}"}}'] == 2
        assert found[f'records_total{{result="dropped",sink="{sink}"}}'] == 0
        assert found[f'failures_total{{sink="{sink}"}}'] == 0
    assert found["spool_limit_bytes"] == 256 * 2**20


async def test_client_that_leaves_is_recorded(tmp_path: Path) -> None:
    """With what is known: what came until then, and that nobody knows its tokens."""
    script = [read, send(STREAM_HEAD + chunk(created())), stall]
    file = tmp_path / "usage.jsonl"
    async with (
        ScriptedUpstream(script) as upstream,
        serving(upstream, **options(tmp_path, usage__file__path=str(file))) as product,
    ):
        async with product.connect() as client:
            await client.send(create())
            assert (await receive(client))["type"] == "response.created"
        await eventually(lambda: lines(file))
    [record] = lines(file)
    assert (record["outcome"], record["events"], record["upstream_status"]) == ("client_gone", 1, 200)
    assert record["input_tokens"] is None


async def test_response_that_outlives_its_client_is_counted(tmp_path: Path) -> None:
    """With `on_disconnect: drain`, once the backend has ended it: its tokens, and that its client heard one event of it."""
    gate = Gate()
    script: Script = [read, send(STREAM_HEAD + chunk(created())), gate, send(chunk(delta("x") + completed()) + END)]
    file = tmp_path / "usage.jsonl"
    chosen = options(tmp_path, usage__file__path=str(file), websocket__on_disconnect="drain")
    async with ScriptedUpstream(script) as upstream, serving(upstream, **chosen) as product:
        async with product.connect() as client:
            await client.send(create())
            assert (await receive(client))["type"] == "response.created"
        await eventually(lambda: next(iter(product.running.door._connections))._is_over)
        assert not lines(file)
        gate.open()
        await eventually(lambda: lines(file))
        await eventually(lambda: not product.running.door.connections)
    [record] = lines(file)
    assert (record["outcome"], record["events"], record["answered_by"]) == ("client_gone", 1, "m")
    assert (record["input_tokens"], record["output_tokens"], record["error_code"]) == (1, 1, None)


async def test_nothing_is_kept_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a sink there is no spool."""
    monkeypatch.chdir(tmp_path)
    async with backend() as upstream, serving(upstream) as product:
        assert await rollout(product, 1) == [GOOD]
        assert set((await counted(product)).values()) == {0}
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - it is asked for names


# Sinks that fail


async def test_sink_that_hangs_delays_no_turn(tmp_path: Path) -> None:
    """Clients get the same, turn after turn, while it has not answered once; then it is late, and nothing else is."""
    file = tmp_path / "usage.jsonl"
    async with Receiver() as receiver, backend(20) as upstream:
        receiver.mood = "hang"
        chosen = {"usage__webhook__url": receiver.url, "usage__file__path": str(file), "usage__webhook__timeout": "1h"}
        async with serving(upstream, **options(tmp_path, **chosen)) as product:
            assert await rollout(product, 20) == [GOOD] * 20
            await eventually(lambda: len(lines(file)) == 20)
            await eventually(lambda: len(receiver.requests) == 1)
            found = await counted(product)
            assert found['lag_seconds{sink="webhook"}'] > 0
            assert found["spool_bytes"] > 0
            assert found['records_total{result="taken",sink="webhook"}'] == 0
            assert receiver.records == []


async def test_sink_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is not there, then in trouble, then silent, then well: it has every turn once."""
    monkeypatch.setattr("proxy.usage.delivery.FIRST_PAUSE", 0.01)
    receiver = Receiver()
    async with receiver:
        pass  # so that its port is known
    chosen = {"usage__webhook__url": receiver.url, "usage__webhook__timeout": "100ms"}
    async with backend(8) as upstream, serving(upstream, **options(tmp_path, **chosen)) as product:
        failures = 'failures_total{sink="webhook"}'
        await rollout(product, 2)
        await until(product, failures, bool)
        receiver.mood = 500
        async with receiver:
            await rollout(product, 2)
            await eventually(lambda: receiver.requests)
            receiver.mood = "hang"
            seen = len(receiver.requests)
            await rollout(product, 2)
            await eventually(lambda: len(receiver.requests) > seen + 1)
            receiver.mood = 200
            await receiver.received(6)
            await rollout(product, 2)
            await receiver.received(8)
            await until(product, "spool_bytes", lambda value: value == 0)
            await until(product, 'lag_seconds{sink="webhook"}', lambda value: value == 0)
            found = await counted(product)
    assert len(set(receiver.turns)) == len(receiver.turns) == 8
    assert found['records_total{result="taken",sink="webhook"}'] == 8


# Disks that fail


async def test_spool_that_is_full_keeps_records_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until there is room again; turns go on (the full disk is simulated)."""
    file = tmp_path / "usage.jsonl"

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async with (
        backend(4) as upstream,
        serving(upstream, **options(tmp_path, usage__file__path=str(file))) as product,
    ):
        with monkeypatch.context() as disk:
            disk.setattr(Shelf, "append", fail)
            assert await rollout(product, 3) == [GOOD] * 3
            assert (await counted(product))['lag_seconds{sink="file"}'] > 0
        await eventually(lambda: len(lines(file)) == 3)
        assert await rollout(product, 1) == [GOOD]
        await eventually(lambda: len(lines(file)) == 4)
        await until(product, 'lag_seconds{sink="file"}', lambda value: value == 0)
    assert [record["turn"] for record in lines(file)] == [1, 2, 3, 1]


async def test_memory_has_a_bound_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What there is no room for is dropped, oldest first, and counted (the full disk is simulated)."""
    file = tmp_path / "usage.jsonl"

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ledger, "MAX_WAITING", 3000)
    async with (
        backend(9) as upstream,
        serving(upstream, **options(tmp_path, usage__file__path=str(file))) as product,
    ):
        with monkeypatch.context() as disk:
            disk.setattr(Shelf, "append", fail)
            assert await rollout(product, 9) == [GOOD] * 9
            dropped = (await counted(product))['records_total{result="dropped",sink="file"}']
        assert 0 < dropped < 9
        await eventually(lambda: len(lines(file)) == 9 - dropped)
    assert [record["turn"] for record in lines(file)][-1] == 9


async def test_spool_that_cannot_be_used_is_said_at_the_start(tmp_path: Path) -> None:
    """In words that name the option."""
    (tmp_path / "spool").touch()
    chosen = options(tmp_path, usage__file__path=str(tmp_path / "usage.jsonl"))
    with pytest.raises(OSError, match=r"usage\.spool\.folder cannot be used"):
        async with serving("http://127.0.0.1:9", **chosen):
            pass


# Processes that end


async def test_sigterm_loses_nothing(tmp_path: Path) -> None:
    """Whatever the flush interval is, and although the sink is down: the next process hands over what this one left."""
    receiver = Receiver()
    async with receiver:
        pass
    chosen = options(tmp_path, usage__webhook__url=receiver.url, usage__flush_interval="1h")
    async with backend(4) as upstream:
        async with running(upstream, tmp_path, **chosen) as process:
            assert await rollout(process, 3) == [GOOD] * 3
            process.signal()
            assert await process.ended() == 0
        async with receiver, running(upstream, tmp_path, **chosen):
            await receiver.received(3)
    assert [turn for _, turn in receiver.turns] == [1, 2, 3]


async def test_sigterm_hands_over_what_sinks_take(tmp_path: Path) -> None:
    """A sink that is well has everything when the process has ended."""
    file = tmp_path / "usage.jsonl"
    chosen = options(tmp_path, usage__file__path=str(file), usage__flush_interval="1h")
    async with backend(3) as upstream, running(upstream, tmp_path, **chosen) as process:
        assert await rollout(process, 3) == [GOOD] * 3
        process.signal()
        assert await process.ended() == 0
    assert [record["turn"] for record in lines(file)] == [1, 2, 3]
    assert list((tmp_path / "spool").rglob("*.v1")) == []


async def test_sigkill_loses_at_most_the_last_flush(tmp_path: Path) -> None:
    """What was flushed is handed over by the next process; turns since then are what the interval allows to lose."""
    receiver = Receiver()
    async with receiver:
        pass
    chosen = options(tmp_path, usage__webhook__url=receiver.url)
    async with backend(5) as upstream:
        async with running(upstream, tmp_path, **chosen) as process:
            assert await rollout(process, 3) == [GOOD] * 3
            await spooled(process, 3)
            assert await rollout(process, 2) == [GOOD] * 2
            process.signal(signal.SIGKILL)
            await process.ended()
        async with receiver, running(upstream, tmp_path, **chosen) as process:
            await receiver.received(3)
            process.signal()
            assert await process.ended() == 0
    assert [turn for _, turn in receiver.turns][:3] == [1, 2, 3]
    assert len(set(receiver.turns)) == len(receiver.turns) <= 5


async def test_workers_have_sinks_of_their_own(tmp_path: Path) -> None:
    """Two of them, one file and one database: every turn is there once, with who served it; nothing is left behind."""
    file, database = tmp_path / "usage.jsonl", tmp_path / "usage.db"
    chosen = options(tmp_path, usage__file__path=str(file), usage__sql__url=f"sqlite:///{database}", workers=2)
    async with backend(40) as upstream, running(upstream, tmp_path, **chosen) as process:
        for _ in range(20):
            assert await rollout(process, 2) == [GOOD] * 2
        await spooled(process, 40, "file")
        process.signal()
        assert await process.ended() == 0
    records = lines(file)
    assert len(records) == len(set(turns(records))) == 40
    assert sorted(turns(rows(database))) == sorted(turns(records))
    assert len({record["worker"] for record in records}) == 2
    assert list((tmp_path / "spool").rglob("*.v1")) == []
    assert sorted(folder.name for folder in (tmp_path / "spool").iterdir()) == ["0", "1"]


async def test_one_process_takes_on_what_several_left(tmp_path: Path) -> None:
    """Fewer workers than before, or one that ended while others run."""
    receiver = Receiver()
    async with receiver:
        pass
    chosen = options(tmp_path, usage__webhook__url=receiver.url)
    async with backend(12) as upstream:
        async with running(upstream, tmp_path, workers=2, **chosen) as process:
            for _ in range(12):
                assert await rollout(process, 1) == [GOOD]
            process.signal()
            assert await process.ended() == 0
        assert {file.parent.name for file in (tmp_path / "spool").rglob("*.v1")} == {"0", "1"}
        async with receiver, running(upstream, tmp_path, **chosen):
            await receiver.received(12)
    assert len(set(receiver.turns)) == 12


async def test_what_is_left_behind_is_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Now and then, since other processes end when they like."""
    monkeypatch.setattr(ledger, "ADOPT_INTERVAL", 0.01)
    file = tmp_path / "usage.jsonl"
    chosen = options(tmp_path, usage__file__path=str(file))
    async with backend(2) as upstream, serving(upstream, **chosen) as product:
        other = Shelf(tmp_path / "spool", ("file",), 2**20, max)
        other.open()
        other.append([Entry(1, b'{"turn":77}')])
        other.close()
        await eventually(lambda: [record["turn"] for record in lines(file)] == [77])
        assert await rollout(product, 1) == [GOOD]
        await eventually(lambda: [record["turn"] for record in lines(file)] == [77, 1])
