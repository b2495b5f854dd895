"""All workers: as many as are wanted live at any time, and together they answer as one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import msgspec
import structlog

from proxy.workers import siblings
from proxy.workers.channel import ChannelLost
from proxy.workers.messages import (
    Abort,
    Answer,
    Collect,
    Delete,
    Find,
    Inspect,
    Inspected,
    Load,
    Question,
    Report,
    Update,
    Watch,
)
from proxy.workers.process import Template, Worker
from proxy.workers.siblings import StoreAnswer

_log: Final = structlog.get_logger("slipstream")

_ANSWER_TIMEOUT: Final = 1.0
"""Seconds that one worker has for a question."""
_ABORT_GRACE: Final = 2.0
FIRST_PAUSE: Final = 0.5
"""Seconds."""
LONGEST_PAUSE: Final = 30.0
STABLE: Final = 60.0
"""Seconds that a worker has to live for the next one to start without a pause."""

A = TypeVar("A", bound=msgspec.Struct)


class CannotStart(OSError):
    """A worker ended before all of them served clients for the first time."""


class Desk(Protocol):
    """Where what workers say is put together."""

    def is_watched(self) -> bool:
        """Whether somebody looks at their picture."""

    def counted(self, serving: int) -> None:
        """So many serve clients now."""

    def restarting(self) -> None:
        """One ended by itself, and another one takes its place."""

    def reported(self, worker: int, series: list[str], report: Report) -> None:
        """What one has counted."""

    def updated(self, worker: int, update: Update) -> None:
        """What has changed in the picture of one."""

    def ended(self, worker: int) -> None:
        """One lives no more."""


def pause_before_restart(exit_code: int, lived: float, last: float) -> float:
    """How long to wait before a worker is started again.

    Args:
        exit_code: How the last one ended; 0 if it was told to.
        lived: Seconds that it lived.
        last: The pause before that one, in seconds.
    """
    if exit_code == 0 or lived >= STABLE:
        return 0.0
    return min(max(FIRST_PAUSE, last * 2), LONGEST_PAUSE)


class Crew:
    """All workers.

    Args:
        template: What each starts with.
        size: How many there are to be.
        desk: Where to bring what they say.
    """

    def __init__(self, template: Template, size: int, desk: Desk) -> None:
        self._template = template
        self._size = size
        self._desk = desk
        self._living: dict[int, Worker] = {}
        self._number = 0
        self._drain_seconds: float | None = None
        self._is_ending = asyncio.Event()
        self._first_start: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keepers: list[asyncio.Task[None]] = []

    @property
    def serving(self) -> list[Worker]:
        """Those that serve clients."""
        return [worker for worker in self._living.values() if worker.series is not None]

    @property
    def is_ready(self) -> bool:
        """Whether new connections are taken."""
        return bool(self.serving) and not self._is_ending.is_set()

    async def start(self) -> None:
        """Start all, and wait until all serve clients; from then on whoever ends is started again.

        Raises:
            CannotStart: one has ended instead.
        """
        loop = asyncio.get_running_loop()
        self._keepers = [loop.create_task(self._keep(), name=f"keeper {at}") for at in range(self._size)]
        await self._first_start

    def drain(self, seconds: float) -> None:
        """Let all finish what runs, and end; none is started again."""
        self._drain_seconds = seconds
        self._is_ending.set()
        for worker in self._living.values():
            worker.drain(seconds)

    def abort(self) -> None:
        """Let all end at once; who does not is killed a moment later."""
        self._is_ending.set()
        for worker in self._living.values():
            worker.channel.tell(Abort())
            asyncio.get_running_loop().call_later(_ABORT_GRACE, worker.kill)

    async def ended(self) -> None:
        """Wait until all have ended."""
        if self._keepers:
            await asyncio.wait(self._keepers)

    async def close(self) -> None:
        """Kill those that still live, and wait until they have ended."""
        self._is_ending.set()
        for worker in self._living.values():
            worker.kill()
        await self.ended()

    # Together

    def watch(self, is_on: bool) -> None:  # noqa: FBT001 - it is a fact, not a switch
        """Have all send their pictures, or stop."""
        for worker in self.serving:
            worker.channel.tell(Watch(is_on))

    async def collect(self) -> None:
        """Have all report what they have counted until now; who does not answer has reported not long ago."""
        await self._ask_all(Collect(), Report, self.reported)

    async def inspect(self, connection_id: str, turn: int, shows_text: bool) -> bytes | None:  # noqa: FBT001
        """What one turn said, as JSON; None if no worker keeps it."""
        found: list[bytes] = []

        def take(_: Worker, answer: Inspected) -> None:
            if answer.data is not None:
                found.append(answer.data)

        await self._ask_all(Inspect(connection_id, turn, shows_text), Inspected, take)
        return found[0] if found else None

    # Overseer

    def started(self, worker: Worker) -> None:
        """One serves clients."""
        if self._desk.is_watched():
            worker.channel.tell(Watch(is_on=True))
        self._desk.counted(len(self.serving))
        if len(self.serving) == self._size and not self._first_start.done():
            self._first_start.set_result(None)

    def reported(self, worker: Worker, report: Report) -> None:
        """One says what it has counted."""
        if worker.series is not None:
            self._desk.reported(worker.number, worker.series, report)

    def updated(self, worker: Worker, update: Update) -> None:
        """One sends its picture."""
        self._desk.updated(worker.number, update)

    async def answer(self, worker: Worker, question: Question) -> Answer:
        """One asks what the others store.

        Raises:
            TimeoutError: one that had to forget something does not say whether it has.
        """
        assert isinstance(question, Load | Find | Delete)
        answers: list[StoreAnswer] = []
        await self._ask_all(
            question,
            siblings.answer_type(question),
            lambda _, answer: answers.append(answer),
            but=worker,
            is_vital=isinstance(question, Delete),
        )
        return siblings.combine(answers, question)

    # Inside

    async def _keep(self) -> None:
        """See to it that one worker lives, until the end."""
        loop = asyncio.get_running_loop()
        pause = 0.0
        while not self._is_ending.is_set():
            began = loop.time()
            exit_code, reason = await self._live_once()
            if self._is_ending.is_set():
                return
            if not self._first_start.done():
                self._first_start.set_exception(CannotStart(reason or f"a worker ended with exit code {exit_code}"))
            if self._first_start.exception() is not None:
                return
            pause = pause_before_restart(exit_code, loop.time() - began, pause)
            self._desk.restarting()
            _log.warning("worker ended", exit_code=exit_code, reason=reason, starts_again_in=pause)
            try:
                async with asyncio.timeout(pause):
                    await self._is_ending.wait()
            except TimeoutError:
                continue

    async def _live_once(self) -> tuple[int, str | None]:
        """Start one worker, and wait until it has ended: with which exit code, and why if it never served anybody."""
        try:
            worker = await self._start_one()
        except OSError as exc:  # too many processes, too little memory
            return 1, exc.strerror or str(exc)
        exit_code = await worker.ended()
        self._remove(worker)
        return exit_code, worker.refusal

    async def _start_one(self) -> Worker:
        self._number += 1
        worker = Worker(self._number, self)
        await worker.start(self._template)
        self._living[worker.number] = worker
        if self._drain_seconds is not None:  # since a moment ago
            worker.drain(self._drain_seconds)
        return worker

    def _remove(self, worker: Worker) -> None:
        del self._living[worker.number]
        self._desk.ended(worker.number)
        self._desk.counted(len(self.serving))

    async def _ask_all(
        self,
        question: Question,
        expected: type[A],
        take: Callable[[Worker, A], None],
        *,
        but: Worker | None = None,
        is_vital: bool = False,
    ) -> None:
        """Ask all that serve clients, side by side; who does not answer is left out.

        Raises:
            TimeoutError: somebody did not whose answer is vital.
        """
        missing = []

        async def ask(worker: Worker) -> None:
            try:
                answer = await worker.channel.ask(question, expected, seconds=_ANSWER_TIMEOUT)
            except ChannelLost:
                return  # with all that it stored
            except TimeoutError:
                missing.append(worker)
                return
            take(worker, answer)

        async with asyncio.TaskGroup() as tasks:
            for worker in self.serving:
                if worker is not but:
                    tasks.create_task(ask(worker), name=f"question to worker {worker.number}")
        if missing and is_vital:
            raise TimeoutError
