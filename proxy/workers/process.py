"""One worker, as the supervisor sees it: a process, and the way to it."""

from __future__ import annotations

import asyncio
import socket
import sys
from dataclasses import dataclass
from typing import Final, Protocol

from proxy.config import Address, Config
from proxy.usageconfig import LEAST_SPOOL
from proxy.values import REVEALED
from proxy.workers.channel import Channel
from proxy.workers.messages import Answer, Drain, Question, Refused, Report, Start, Started, Statement, Update

_LOOK: Final = 5.0
"""Seconds between two looks whether a worker has said anything; it reports once a second."""
_MAX_SILENT_LOOKS: Final = 6


@dataclass(frozen=True, slots=True)
class Template:
    """What every worker starts with.

    Attributes:
        config: The operator's choices, as JSON.
        owner_key: With which owners of responses are told apart.
    """

    config: bytes
    owner_key: bytes

    @classmethod
    def of(cls, config: Config, listen: Address, workers: int, owner_key: bytes) -> Template:
        """For so many workers at one address: what is allowed to all of them together is divided."""
        cache = config.cache.model_copy(update={"max_total_bytes": config.cache.max_total_bytes // workers})
        store = config.response_store.model_copy(update={"max_bytes": config.response_store.max_bytes // workers})
        spool = config.usage.spool.model_copy(
            update={"max_bytes": max(LEAST_SPOOL, config.usage.spool.max_bytes // workers)}
        )
        usage = config.usage.model_copy(update={"spool": spool})
        divided = {"cache": cache, "response_store": store, "usage": usage}
        own = config.model_copy(update={**divided, "listen": listen, "workers": 1})
        return cls(own.model_dump_json(context=REVEALED).encode(), owner_key)


class Overseer(Protocol):
    """Whom workers report to."""

    def started(self, worker: Worker) -> None:
        """It serves clients."""

    def reported(self, worker: Worker, report: Report) -> None:
        """What it has counted."""

    def updated(self, worker: Worker, update: Update) -> None:
        """What has changed in its picture."""

    async def answer(self, worker: Worker, question: Question) -> Answer:
        """It asks something about the others."""


class Worker:
    """One process.

    Args:
        number: Its own; one that is started again is another.
        overseer: Whom it reports to.

    Attributes:
        series: The names of the figures in its reports; None before it serves clients.
        refusal: Why it cannot listen; None if it can.
    """

    channel: Channel
    process: asyncio.subprocess.Process

    def __init__(self, number: int, overseer: Overseer) -> None:
        self.number = number
        self.series: list[str] | None = None
        self.refusal: str | None = None
        self._overseer = overseer
        self._heard = 0

    async def start(self, template: Template) -> None:
        """Start the process.

        Raises:
            OSError: the system does not let it.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            end = theirs.fileno()
            # A session of its own: Ctrl-C is for the supervisor. -P: a folder called proxy, where one happens to be, is not it.
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "proxy", "worker", str(end), pass_fds=(end,), start_new_session=True
            )
        self.channel = await Channel.open(ours, self)
        self.channel.tell(Start(self.number, template.config, template.owner_key))

    async def ended(self) -> int:
        """Wait until it has ended, and all that it had to say was heard; it is killed if it falls silent.

        Returns:
            Its exit code; below 0 the number of the signal that killed it.
        """
        waiting = asyncio.get_running_loop().create_task(self.process.wait(), name=f"worker {self.number}")
        try:
            silent = 0
            while not waiting.done():
                heard = self._heard
                await asyncio.wait((waiting,), timeout=_LOOK)
                # Looks are counted, not seconds: a supervisor that stood still itself has not heard anybody.
                silent = silent + 1 if self._heard == heard else 0
                if silent >= _MAX_SILENT_LOOKS:
                    self.kill()
            await self.channel.is_lost.wait()
        finally:
            waiting.cancel()
        return waiting.result()

    def drain(self, seconds: float) -> None:
        """Let it finish what runs, and end."""
        self.channel.tell(Drain(seconds))

    def kill(self) -> None:
        """End it at once, whatever it does."""
        if self.process.returncode is None:
            self.process.kill()

    # Listener

    def hear(self, statement: Statement) -> None:
        """Hand on what it says."""
        self._heard += 1
        match statement:
            case Started(series):
                self.series = series
                self._overseer.started(self)
            case Refused(reason):
                self.refusal = reason
            case Report():
                self._overseer.reported(self, statement)
            case Update():
                self._overseer.updated(self, statement)
            case _:
                raise AssertionError(statement)

    async def answer(self, question: Question) -> Answer:
        """Hand on what it asks."""
        return await self._overseer.answer(self, question)
