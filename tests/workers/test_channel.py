"""What two processes say to each other over :mod:`proxy.workers.channel`, here both ends in one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from proxy.workers.channel import Channel, ChannelLost
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
    Report,
    Statement,
    Update,
)


class End:
    """One end: remembers what it hears, and answers as it is told to."""

    channel: Channel

    def __init__(self) -> None:
        self.heard: list[Statement] = []
        self.news = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def hear(self, statement: Statement) -> None:
        """Remember it."""
        self.heard.append(statement)
        self.news.set()

    async def answer(self, question: Question) -> Answer:
        """Answer one kind of question rightly, one late, one wrongly, and one not at all."""
        await self.may_answer.wait()
        match question:
            case Load(_, response_id):
                return Loaded(1, response_id.encode())
            case Inspect():
                return Report([], b"")
            case _:
                raise LookupError("no such answer")


@contextlib.asynccontextmanager
async def ends() -> AsyncIterator[tuple[End, End]]:
    """Both ends of a channel."""
    one, other = End(), End()
    for end, sock in zip((one, other), socket.socketpair(), strict=True):
        end.channel = await Channel.open(sock, end)
    try:
        yield one, other
    finally:
        for end in (one, other):
            end.channel.close()
            await end.channel.is_lost.wait()


async def heard(end: End, count: int) -> list[Statement]:
    """What an end hears, once it is so much."""
    async with asyncio.timeout(5):
        while len(end.heard) < count:
            end.news.clear()
            await end.news.wait()
    return end.heard


async def test_statements_come_in_order() -> None:
    """Small ones in one read, large ones over many."""
    large = Update(bytes(2_000_000))
    async with ends() as (one, other):
        said: list[Statement] = [Drain(1.5), large, Abort(), Report([1.0, float("inf")], b"{}")]
        for statement in said:
            one.channel.tell(statement)
        assert await heard(other, 4) == said


async def test_answers_find_their_questions() -> None:
    """Whatever their order; both ends may ask."""
    async with ends() as (one, other), asyncio.TaskGroup() as tasks:
        other.may_answer.clear()
        asked = [
            tasks.create_task(one.channel.ask(Load(b"o", f"resp_{number}"), Loaded, seconds=5)) for number in range(20)
        ]
        assert (await other.channel.ask(Load(b"o", "x"), Loaded, seconds=5)).entry == b"x"
        other.may_answer.set()
        assert [(await answer).entry for answer in asked] == [b"resp_%d" % number for number in range(20)]


async def test_question_has_a_limit() -> None:
    """An answer that comes later is for nobody, and harms nobody."""
    async with ends() as (one, other):
        other.may_answer.clear()
        with pytest.raises(TimeoutError):
            await one.channel.ask(Load(b"o", "x"), Loaded, seconds=0.01)
        other.may_answer.set()
        assert (await one.channel.ask(Load(b"o", "y"), Loaded, seconds=5)).entry == b"y"


async def test_wrong_answer_is_none() -> None:
    """Of another kind than was asked for."""
    async with ends() as (one, _):
        with pytest.raises(ChannelLost):
            await one.channel.ask(Inspect("c", 1, shows_text=False), Inspected, seconds=5)


async def test_answer_that_fails_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    """And whoever asked runs into the limit, no more."""
    async with ends() as (one, _):
        with pytest.raises(TimeoutError):
            await one.channel.ask(Collect(), Report, seconds=0.05)
        assert (await one.channel.ask(Load(b"o", "y"), Loaded, seconds=5)).entry == b"y"


async def test_other_side_is_gone() -> None:
    """What is asked then is answered at once: by nobody."""
    async with ends() as (one, other):
        other.may_answer.clear()
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(_lost(one))
            await asyncio.sleep(0.01)
            other.channel.close()
            await asked
        assert one.channel.is_lost.is_set()
        one.channel.tell(Abort())
        with pytest.raises(ChannelLost):
            await one.channel.ask(Load(b"o", "x"), Loaded, seconds=5)


async def _lost(end: End) -> None:
    with pytest.raises(ChannelLost):
        await end.channel.ask(Load(b"o", "x"), Loaded, seconds=5)


async def test_pictures_wait_for_a_slow_reader() -> None:
    """Whoever sends what can wait does so until most of it is taken."""
    ours, theirs = socket.socketpair()
    end = End()
    channel = await Channel.open(ours, end)
    with theirs:
        channel.tell(Update(bytes(8 * 2**20)))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await channel.drain()
        theirs.setblocking(False)
        taken = 0
        async with asyncio.timeout(5):
            while taken < 8 * 2**20:
                taken += len(await asyncio.get_running_loop().sock_recv(theirs, 2**20))
            await channel.drain()
    await channel.is_lost.wait()
