"""Several workers and who looks after them, as processes in front of a backend (:mod:`proxy.workers.supervisor`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tests.fakes import (
    END,
    STREAM_HEAD,
    Gate,
    Process,
    ScriptedUpstream,
    Step,
    answer,
    ask,
    chunk,
    completed,
    connect_to,
    create,
    created,
    eventually,
    get,
    options,
    read,
    receive,
    receive_turn,
    running,
    send,
)

MANY = 24
"""Connections of which it is all but impossible that the kernel gives all to one of two workers."""


def workers_of(process: Process) -> list[int]:
    """The process numbers of its workers."""
    children = Path(f"/proc/{process.process.pid}/task/{process.process.pid}/children")
    return [int(number) for number in children.read_text(encoding="ascii").split()]


def shown_of(number: int) -> list[bytes]:
    """What others can see of how a process was started."""
    return [Path(f"/proc/{number}/{name}").read_bytes() for name in ("cmdline", "environ")]


def is_alive(number: int) -> bool:
    """Whether a process runs, or could."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        state = Path(f"/proc/{number}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        return state not in "ZX"
    return False


async def figures(process: Process) -> dict[str, float]:
    """All that `/metrics` says, by name and labels; where the replica is does not matter."""
    _, body = await get(process.admin, "/metrics")
    return {
        sample.name.removeprefix("slipstream_")
        + "".join(f" {value}" for name, value in sorted(sample.labels.items()) if name != "replica"): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


async def figure(process: Process, name: str, value: float) -> None:
    """Wait until a figure has come to a value."""
    async with asyncio.timeout(20):
        while (await figures(process))[name] != value:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def connected(process: Process, count: int = MANY) -> AsyncIterator[list[ClientConnection]]:
    """So many clients."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connect_to(process.address)) for _ in range(count)]


def turns_by_worker(process: Process) -> dict[int, int]:
    """How many turns each worker has logged."""
    found: dict[int, int] = {}
    for line in process.lines():
        if line["event"] == "turn":
            found[line["worker"]] = found.get(line["worker"], 0) + 1
    return found


async def test_workers_share_an_address_and_are_counted_as_one(tmp_path: Path) -> None:
    """Clients reach all of them at one port, and each figure is the sum."""
    async with ScriptedUpstream() as upstream, running(upstream, tmp_path, workers=2) as process:
        async with connected(process) as clients:
            for client in clients:
                assert (await ask(client))[-1]["type"] == "response.completed"
            seen = await figures(process)
            assert seen["turns_total completed"] == seen["turn_duration_seconds_count"] == MANY
            assert seen["connections_open"] == seen["connections_total accepted"] == MANY
            assert seen["cache_entries"] == MANY
            assert (seen["workers"], seen["worker_restarts_total"], seen["ready"]) == (2, 0, 1)
            assert seen["cache_limit_bytes"] == 2**30
            assert seen["store_limit_bytes"] == 2**28
            assert [value for name, value in seen.items() if name.startswith("build_info")] == [1]
            by_worker = turns_by_worker(process)
            assert len(by_worker) == 2
            assert sum(by_worker.values()) == MANY
        await figure(process, "connections_open", 0)
        assert (await figures(process))["connections_total accepted"] == MANY


async def test_figures_are_those_of_one_process(tmp_path: Path) -> None:
    """The same dialogues, with one process and with two: every count is the same, but for times and connection pools."""
    counted = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        async with ScriptedUpstream() as upstream, running(upstream, folder, workers=workers) as process:
            async with connected(process, 8) as clients:
                for number, client in enumerate(clients):
                    await ask(client, "x" * number)
                    await ask(client, "y", previous_response_id="resp_1")
                    await ask(client, "z", previous_response_id="resp_unknown")
            await figure(process, "connections_open", 0)
            counted.append(await figures(process))
    one, two = counted
    assert one.keys() == two.keys()
    # On the wire a close frame may come before its last turn is counted, or after.
    timed = ("seconds", "process_", "upstream_connect", "workers", "event_loop", "store_", "wire", "tasks")
    for name, value in one.items():
        if not any(part in name for part in timed) or name.endswith("turn_duration_seconds_count"):
            assert two[name] == value, name
    assert (one["turns_total completed"], one["turns_total refused"]) == (16, 8)


async def test_killed_worker_takes_only_its_own_with_it(tmp_path: Path) -> None:
    """Its clients are cut, the others go on; gauges are right at once, counts stay, and another one takes its place."""
    async with ScriptedUpstream() as upstream, running(upstream, tmp_path, workers=2) as process:
        async with connected(process) as clients:
            for client in clients:
                await ask(client)
            before = await figures(process)
            victim, survivor = workers_of(process)
            os.kill(victim, signal.SIGKILL)
            await figure(process, "worker_restarts_total", 1)
            cut = []
            for client in clients:
                try:
                    await ask(client, previous_response_id="resp_1")
                except ConnectionClosed:
                    cut.append(client)
            assert 0 < len(cut) < MANY
            after = await figures(process)
            assert after["connections_open"] == MANY - len(cut)
            assert after["cache_entries"] == 2 * (MANY - len(cut))
            assert after["turns_total completed"] == before["turns_total completed"] + MANY - len(cut)
            await figure(process, "workers", 2)
            assert survivor in workers_of(process)
        async with connected(process) as clients:
            for client in clients:
                assert (await ask(client))[-1]["type"] == "response.completed"
        assert (await figures(process))["turns_total completed"] == 3 * MANY - len(cut)
        ended = [line for line in process.lines() if line["event"] == "worker ended"]
        assert [(line["exit_code"], line["starts_again_in"]) for line in ended] == [(-9, 0.5)]


async def test_worker_that_is_told_to_end_finishes_what_runs(tmp_path: Path) -> None:
    """SIGTERM to one worker is a drain of that one; the next one starts at once."""
    gate = Gate()
    slow: list[Step] = [read, send(STREAM_HEAD + chunk(created())), gate, send(chunk(completed()) + END)]
    async with ScriptedUpstream(slow) as upstream, running(upstream, tmp_path, workers=2) as process:
        async with connect_to(process.address) as client:
            await client.send(create())
            assert (await receive(client))["type"] == "response.created"
            for worker in workers_of(process):
                os.kill(worker, signal.SIGTERM)
            # The one that has nothing to do is replaced; the other one is still there.
            await figure(process, "worker_restarts_total", 1)
            gate.open()
            assert (await receive_turn(client))[-1]["type"] == "response.completed"
            with pytest.raises(ConnectionClosed) as caught:
                await receive(client)
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1012
        await figure(process, "worker_restarts_total", 2)
        await figure(process, "workers", 2)
        assert (await figures(process))["turns_total completed"] == 1
        ended = [line for line in process.lines() if line["event"] == "worker ended"]
        assert [(line["exit_code"], line["starts_again_in"]) for line in ended] == [(0, 0), (0, 0)]


async def test_process_finishes_what_runs(tmp_path: Path) -> None:
    """One drain for all: idle clients are told, running turns finished, exit code 0, and nobody is left."""
    gate = Gate()
    slow: list[Step] = [read, send(STREAM_HEAD + chunk(created())), gate, send(chunk(completed()) + END)]
    async with ScriptedUpstream(slow) as upstream, running(upstream, tmp_path, workers=2) as process:
        left = workers_of(process)
        async with connected(process, 6) as (busy, *idle):
            await busy.send(create())
            assert (await receive(busy))["type"] == "response.created"
            process.signal()
            for client in idle:
                with pytest.raises(ConnectionClosed) as caught:
                    await receive(client)
                assert caught.value.rcvd is not None
                assert caught.value.rcvd.code == 1012
            assert (await get(process.admin, "/readyz"))[0] == 503
            assert (await get(process.admin, "/livez"))[0] == 200
            gate.open()
            assert (await receive_turn(busy))[-1]["type"] == "response.completed"
        assert await process.ended() == 0
    assert not any(is_alive(worker) for worker in left)
    events = [line["event"] for line in process.lines() if line["event"] not in ("turn", "connection")]
    assert events == ["listening", "draining", "stopped"]


async def test_second_signal_ends_it(tmp_path: Path) -> None:
    """Whatever runs is cut."""
    never: list[Step] = [read, send(STREAM_HEAD + chunk(created())), Gate()]
    async with ScriptedUpstream(never) as upstream, running(upstream, tmp_path, workers=2) as process:
        left = workers_of(process)
        async with connect_to(process.address) as client:
            await client.send(create())
            assert (await receive(client))["type"] == "response.created"
            process.signal()
            await eventually(lambda: any(line["event"] == "draining" for line in process.lines()))
            process.signal(signal.SIGINT)
            assert await process.ended() == 143
    assert not any(is_alive(worker) for worker in left)


async def test_workers_end_without_their_supervisor(tmp_path: Path) -> None:
    """Even if it is killed: what runs is finished, and nobody is left who would hold the port."""
    gate = Gate()
    slow: list[Step] = [read, send(STREAM_HEAD + chunk(created())), gate, send(chunk(completed()) + END)]
    async with ScriptedUpstream(slow) as upstream, running(upstream, tmp_path, workers=2) as process:
        left = workers_of(process)
        async with connect_to(process.address) as client:
            await client.send(create())
            assert (await receive(client))["type"] == "response.created"
            process.signal(signal.SIGKILL)
            await process.ended()
            await eventually(lambda: sum(map(is_alive, left)) == 1)
            gate.open()
            assert (await receive_turn(client))[-1]["type"] == "response.completed"
        await eventually(lambda: not any(map(is_alive, left)))
    socket.create_server(process.address).close()


async def test_stuck_worker_does_not_hold_up_the_operator(tmp_path: Path) -> None:
    """Metrics come without what it has counted since it last reported; probes and the others do not wait at all."""
    async with ScriptedUpstream() as upstream, running(upstream, tmp_path, workers=2) as process:
        stuck, _ = workers_of(process)
        async with connected(process, 2) as clients:
            for client in clients:
                await ask(client)
            await figure(process, "turns_total completed", 2)
            os.kill(stuck, signal.SIGSTOP)
            try:
                assert (await get(process.admin, "/readyz")) == (200, b"ok\n")
                assert (await figures(process))["turns_total completed"] == 2
            finally:
                os.kill(stuck, signal.SIGCONT)
            for client in clients:
                assert (await ask(client))[-1]["type"] == "response.completed"
            await figure(process, "turns_total completed", 4)


async def test_stored_response_is_everybodys(tmp_path: Path) -> None:
    """Whichever worker has it: it is continued, shown and forgotten through any; by its owner alone."""
    stored = [read, send(answer("Remember", response_id="resp_stored"))]
    mine = {"Authorization": "Bearer mine"}
    async with (
        ScriptedUpstream(stored) as upstream,
        running(upstream, tmp_path, workers=2) as process,
        aiohttp.ClientSession(headers={**mine, "Connection": "close"}) as session,
    ):
        url = f"http://{process.address}/v1/responses"
        async with connect_to(process.address, additional_headers=mine) as client:
            await ask(client, "first words")
        for _ in range(MANY // 2):
            async with connect_to(process.address, additional_headers=mine) as client:
                assert (await ask(client, previous_response_id="resp_stored"))[-1]["type"] == "response.completed"
            body = {"model": "m", "input": "more", "previous_response_id": "resp_stored", "store": False}
            async with session.post(url, json=body) as answered:
                assert answered.status == 200
            async with session.get(f"{url}/resp_stored") as shown:
                assert (await shown.json())["id"] == "resp_stored"
        assert len(upstream.requests) == 1 + MANY
        for request in upstream.requests[1:]:
            texts = json.dumps(json.loads(request.body)["input"])
            assert "first words" in texts
        async with session.get(f"{url}/resp_stored", headers={"Authorization": "Bearer other"}) as refused:
            assert refused.status == 404
        async with session.delete(f"{url}/resp_stored") as deleted:
            assert deleted.status == 200
        for _ in range(MANY // 2):
            async with session.get(f"{url}/resp_stored") as gone:
                assert gone.status == 404


async def test_live_page_shows_all_workers(tmp_path: Path) -> None:
    """One page: the connections of all, what they do, and what one of them said."""
    async with (
        ScriptedUpstream() as upstream,
        running(upstream, tmp_path, workers=2, live__inspect=True) as process,
        connected(process) as clients,
        aiohttp.ClientSession(f"http://{process.admin}") as session,
        session.get("/live/events") as events,
    ):
        for client in clients:
            await ask(client, "canary")
        rows: dict[str, dict[str, Any]] = {}
        turns: dict[str, dict[str, Any]] = {}
        update: dict[str, Any] = {}
        async with asyncio.timeout(20):
            while len(turns) < MANY:
                update = await _next_update(events)
                if update["kind"] == "snapshot":
                    rows, turns = {}, {}
                rows |= {row["id"]: row for row in update["connections"]}
                turns |= {turn["connection"]: turn for turn in update["turns"]}
        assert rows.keys() == turns.keys()
        assert (update["open"], update["totals"]["turns"], update["totals"]["connections"]) == (MANY, MANY, MANY)
        assert b"canary" not in json.dumps(update).encode()
        for connection in list(rows)[:MANY]:
            async with session.get(f"/live/turns/{connection}/1?text=1") as said:
                assert "canary" in await said.text()
        async with session.get("/live/turns/conn_unknown/1") as missing:
            assert missing.status == 404
        victim = workers_of(process)[0]
        os.kill(victim, signal.SIGKILL)
        gone: set[str] = set()
        async with asyncio.timeout(20):
            while not gone:
                gone |= set((await _next_update(events)).get("gone", ()))
        assert 0 < len(gone) < MANY


async def _next_update(events: aiohttp.ClientResponse) -> dict[str, Any]:
    while True:
        line = await events.content.readline()
        assert line, "the page was let go"
        if line.startswith(b"data: "):
            update: dict[str, Any] = json.loads(line[6:])
            return update


async def test_secrets_are_not_on_a_command_line(tmp_path: Path) -> None:
    """What a worker starts with comes over its channel."""
    async with (
        ScriptedUpstream() as upstream,
        running(upstream, tmp_path, workers=2, upstream__api_key="sk-canary-12345678") as process,
    ):
        assert not any(b"canary" in shown for worker in workers_of(process) for shown in shown_of(worker))
        async with connect_to(process.address) as client:
            await ask(client)
        assert upstream.requests[0].headers["Authorization"] == "Bearer sk-canary-12345678"


@pytest.mark.parametrize("option", ["listen", "admin"])
async def test_address_in_use_is_said(tmp_path: Path, option: str) -> None:
    """Even if whoever is there would share it; nothing is started, and the exit code is 1."""
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        file = tmp_path / "slipstream.json"
        file.write_text(json.dumps(options("http://127.0.0.1:9/v1", workers=2, **{option: address})), encoding="utf-8")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "serve", "--config", str(file)), stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(20):
            _, said = await process.communicate()
    assert process.returncode == 1
    assert b"cannot start" in said
    assert b"Traceback" not in said


async def test_worker_needs_a_supervisor() -> None:
    """Its end of the channel leads nowhere: it ends, with exit code 1."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "worker", str(theirs.fileno())), pass_fds=(theirs.fileno(),)
        )
    ours.close()
    async with asyncio.timeout(20):
        assert await process.wait() == 1
