"""One worker: a whole proxy without the operator's listener, which ends when the supervisor says so or is gone.

SIGTERM lets this one worker finish what runs and end; the supervisor then starts another. SIGINT is left to the
supervisor: a terminal sends it to both.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from typing import Final, TypeVar

import msgspec
import orjson
import structlog

from proxy import app, garbage, logs
from proxy.app import Membership, Running
from proxy.config import Config
from proxy.owners import Owners
from proxy.workers import siblings, sums
from proxy.workers.channel import Channel, ChannelLost
from proxy.workers.messages import (
    Abort,
    Answer,
    Collect,
    Delete,
    Drain,
    Find,
    Inspect,
    Inspected,
    Load,
    Question,
    Refused,
    Report,
    Start,
    Started,
    Statement,
    Update,
    Watch,
)
from proxy.workers.siblings import Siblings, StoreQuestion

_log: Final = structlog.get_logger("slipstream")

REPORT_INTERVAL: Final = 1.0
"""Seconds between two reports: what a worker that is killed may have counted for nobody."""
SIBLING_TIMEOUT: Final = 2.0
"""Seconds for what other workers store; the supervisor gives each of them a part of that."""

A = TypeVar("A", bound=msgspec.Struct)


async def work(sock: socket.socket) -> int:
    """Be a worker.

    Args:
        sock: The worker's end of the channel.

    Returns:
        The exit code: 0 after a drain, 1 if it could not listen.
    """
    worker = _Worker()
    channel = worker.channel = await Channel.open(sock, worker)
    orders = asyncio.get_running_loop().create_task(worker.started.wait(), name="first order")
    lost = asyncio.get_running_loop().create_task(channel.is_lost.wait(), name="supervisor gone")
    try:
        await asyncio.wait((orders, lost), return_when=asyncio.FIRST_COMPLETED)
        if worker.start is None:
            return 1
        return await worker.serve(worker.start)
    finally:
        orders.cancel()
        lost.cancel()


class _Worker:
    """The worker's end of the channel.

    Attributes:
        channel: The way to the supervisor.
        start: What to serve; None until that is known.
        started: Set once it is.
    """

    channel: Channel

    def __init__(self) -> None:
        self.start: Start | None = None
        self.started = asyncio.Event()
        self._running: Running | None = None
        self._is_ending = asyncio.Event()
        self._seconds = 0.0
        self._is_aborted = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    async def serve(self, start: Start) -> int:
        """Serve clients until it is time to end."""
        config = Config.model_validate_json(start.config)
        logs.configure(config.log.level, config.log.format, worker=start.number)
        self._seconds = config.drain_timeout
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._is_ending.set)
        loop.add_signal_handler(signal.SIGINT, bool)
        membership = Membership(start.number, Owners(start.owner_key), lambda store: Siblings(store, self._ask))
        try:
            async with app.start(config, membership) as running, asyncio.TaskGroup() as tasks:
                self._running = running
                garbage.settle()
                self.channel.tell(Started(sums.series(running.metrics.registry)))
                reporting = tasks.create_task(self._report_often())
                await self._time_to_end()
                await self._drain(running)
                reporting.cancel()
                if self._watching is not None:
                    self._watching.cancel()
            self.channel.tell(self._report(running))
        except OSError as exc:
            self.channel.tell(Refused(exc.strerror or str(exc)))
            return 1
        finally:
            self.channel.close()
            await self.channel.is_lost.wait()
        return 0

    # What the supervisor says

    def hear(self, statement: Statement) -> None:
        """Do as the supervisor says."""
        match statement:
            case Start():
                self.start = statement
                self.started.set()
            case Drain(seconds):
                self._seconds = seconds
                self._is_ending.set()
            case Abort():
                self._is_ending.set()
                self._is_aborted.set()
            case Watch(is_on):
                self._watch(is_on=is_on)
            case _:
                raise AssertionError(statement)

    async def answer(self, question: Question) -> Answer:
        """Answer what the supervisor asks, or another worker through it."""
        running = self._running
        match question:
            case Collect():
                return Report([], b"") if running is None else self._report(running)
            case Inspect(connection_id, turn, shows_text):
                live = None if running is None else running.live
                found = None if live is None else await live.inspection(connection_id, turn, shows_text=shows_text)
                return Inspected(found)
            case Load() | Find() | Delete():
                return await siblings.answer(None if running is None else running.store, question)

    # Inside

    async def _ask(self, question: StoreQuestion, expected: type[A]) -> A:
        return await self.channel.ask(question, expected, seconds=SIBLING_TIMEOUT)

    async def _time_to_end(self) -> None:
        """Wait until somebody says so; if the supervisor is gone, that is the time."""
        async with asyncio.TaskGroup() as tasks:
            waits = [tasks.create_task(event.wait()) for event in (self._is_ending, self.channel.is_lost)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        if self.channel.is_lost.is_set():
            _log.warning("the supervisor is gone", seconds=self._seconds)

    async def _drain(self, running: Running) -> None:
        """Finish what runs, unless there is no time for it."""
        async with asyncio.TaskGroup() as tasks:
            drain = tasks.create_task(running.drain(self._seconds))
            abort = tasks.create_task(self._is_aborted.wait())
            await asyncio.wait((drain, abort), return_when=asyncio.FIRST_COMPLETED)
            drain.cancel()
            abort.cancel()

    def _report(self, running: Running) -> Report:
        general = b"" if running.live is None else orjson.dumps(running.live.general())
        return Report(sums.values(running.metrics.registry), general)

    async def _report_often(self) -> None:
        assert self._running is not None
        while True:
            await asyncio.sleep(REPORT_INTERVAL)
            self.channel.tell(self._report(self._running))

    def _watch(self, *, is_on: bool) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        if is_on and self._running is not None and self._running.live is not None:
            self._watching = asyncio.get_running_loop().create_task(self._send_updates(), name="live picture")

    async def _send_updates(self) -> None:
        assert self._running is not None and self._running.live is not None
        live = self._running.live
        await live.prepare()
        with contextlib.suppress(ChannelLost), live.watch() as watcher:
            while (update := await watcher.next()) is not None:
                self.channel.tell(Update(update))
                await self.channel.drain()
