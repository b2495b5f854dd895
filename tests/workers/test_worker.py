"""How one worker takes its orders (:mod:`proxy.workers.worker`), here in this process; as processes: test_supervisor.py."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator

import orjson
import pytest

from proxy.config import Address, Config
from proxy.values import REVEALED
from proxy.workers.channel import Channel
from proxy.workers.messages import (
    Abort,
    Answer,
    Collect,
    Drain,
    Inspect,
    Inspected,
    Load,
    Loaded,
    Question,
    Refused,
    Report,
    Start,
    Started,
    Statement,
    Update,
    Watch,
)
from proxy.workers.worker import work
from tests.fakes import (
    STREAM_HEAD,
    Gate,
    ScriptedUpstream,
    Step,
    ask,
    chunk,
    configure,
    connect_to,
    create,
    created,
    read,
    receive,
    send,
)


class Supervisor:
    """The other end of the channel."""

    channel: Channel

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Statement] = asyncio.Queue()
        self.asked: list[Question] = []

    def hear(self, statement: Statement) -> None:
        """Remember it."""
        self.heard.put_nowait(statement)

    async def answer(self, question: Question) -> Answer:
        """Nobody has anything."""
        self.asked.append(question)
        return Loaded(0, None)

    async def next(self, kind: type[Statement]) -> Statement:
        """What is said next of a kind."""
        async with asyncio.timeout(10):
            while not isinstance(statement := await self.heard.get(), kind):
                pass
        return statement


def free_address() -> Address:
    """Where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return Address("127.0.0.1", probe.getsockname()[1])


@contextlib.asynccontextmanager
async def working(config: Config) -> AsyncIterator[tuple[Supervisor, asyncio.Task[int]]]:
    """A worker that was told to start."""
    supervisor = Supervisor()
    ours, theirs = socket.socketpair()
    supervisor.channel = await Channel.open(ours, supervisor)
    loop = asyncio.get_running_loop()
    worker = loop.create_task(work(theirs))
    supervisor.channel.tell(Start(7, config.model_dump_json(context=REVEALED).encode(), b"k" * 32))
    try:
        yield supervisor, worker
    finally:
        supervisor.channel.close()
        async with asyncio.timeout(10):
            await worker
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def test_worker_serves_reports_and_ends() -> None:
    """It says what its figures are called, answers what it is asked, and its last report has all of them."""
    address = free_address()
    async with (
        ScriptedUpstream() as upstream,
        working(configure(upstream, listen=str(address), live__inspect=True)) as (supervisor, worker),
    ):
        started = await supervisor.next(Started)
        assert isinstance(started, Started)
        name = "slipstream_turns_total[('outcome', 'completed')]"
        async with connect_to(address) as client:
            supervisor.channel.tell(Watch(is_on=True))
            assert orjson.loads((await _update(supervisor)).data)["kind"] == "snapshot"
            await ask(client)
            assert orjson.loads((await _update(supervisor)).data)["kind"] == "delta"
            supervisor.channel.tell(Watch(is_on=False))
            report = await supervisor.channel.ask(Collect(), Report, seconds=5)
            assert dict(zip(started.series, report.values, strict=True))[name] == 1
            assert orjson.loads(report.general)["totals"]["turns"] == 1
            row = orjson.loads(report.general)
            assert row["open"] == 1
            inspected = await supervisor.channel.ask(Inspect("conn_x", 1, shows_text=True), Inspected, seconds=5)
            assert inspected.data is None
            loaded = await supervisor.channel.ask(Load(b"o", "resp_1"), Loaded, seconds=5)
            assert (loaded.known, loaded.entry) == (0, None)  # not this owner's
            assert isinstance(await supervisor.next(Report), Report)  # without being asked
            await ask(client, previous_response_id="resp_elsewhere")
            assert [question.response_id for question in supervisor.asked if isinstance(question, Load)] == [
                "resp_elsewhere"
            ]
            supervisor.channel.tell(Drain(5))
            async with asyncio.timeout(10):
                await supervisor.channel.is_lost.wait()
        assert await worker == 0
        last = None
        while not supervisor.heard.empty():
            statement = supervisor.heard.get_nowait()
            last = statement if isinstance(statement, Report) else last
        assert last is not None
        figures = dict(zip(started.series, last.values, strict=True))
        assert (figures[name], figures["slipstream_connections_open[]"]) == (1, 0)
        assert figures["slipstream_connection_closes_total[('cause', 'drain')]"] == 1


async def _update(supervisor: Supervisor) -> Update:
    update = await supervisor.next(Update)
    assert isinstance(update, Update)
    return update


@pytest.mark.parametrize("how", ["abort", "lost"])
async def test_worker_that_is_left_alone_drains_and_one_that_is_aborted_does_not(how: str) -> None:
    """A turn that never ends is cut at once, or when the time to drain is over."""
    address = free_address()
    never: list[Step] = [read, send(STREAM_HEAD + chunk(created())), Gate()]
    config = {"listen": str(address), "drain_timeout": 0.3 if how == "lost" else 60}
    async with ScriptedUpstream(never) as upstream, working(configure(upstream, **config)) as (supervisor, worker):
        await supervisor.next(Started)
        async with connect_to(address) as client:
            await client.send(create())
            assert (await receive(client))["type"] == "response.created"
            if how == "abort":
                supervisor.channel.tell(Abort())
            else:
                supervisor.channel.close()
            await asyncio.wait((worker,), timeout=10)
            assert worker.result() == 0


async def test_worker_says_why_it_cannot_listen() -> None:
    """And ends with exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        async with working(configure("http://127.0.0.1:9/v1", listen=str(address))) as (supervisor, worker):
            refused = await supervisor.next(Refused)
            assert isinstance(refused, Refused)
            assert "in use" in refused.reason
            await asyncio.wait((worker,), timeout=10)
            assert worker.result() == 1
