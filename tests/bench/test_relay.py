"""The relay carries every byte, in order, not before its time, and to the end of each side's stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from proxy.bench import relay
from proxy.bench.link import Link
from proxy.config import Address

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

LINK = Link(0.02, 50_000_000)


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Address]:
    """A TCP server."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await handler(reader, writer)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield Address(*server.sockets[0].getsockname())
    finally:
        server.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All that came, once its sender has ended."""
    writer.write(await reader.read(-1))
    await writer.drain()


async def _hang_up(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


async def _wait(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read(-1)


@pytest.mark.parametrize("size", [1, 500_000])
async def test_relay_carries_every_byte(size: int) -> None:
    """Both ways, with the half-closed connection between, and not faster than the link is."""
    data = bytes(number % 251 for number in range(size))
    loop = asyncio.get_running_loop()
    async with serving(_answer) as target, relay.start(LINK, target) as address:
        began = loop.time()
        reader, writer = await asyncio.open_connection(*address)
        with contextlib.closing(writer):
            writer.write(data)
            writer.write_eof()
            assert await reader.read(-1) == data
        assert loop.time() - began >= LINK.rtt


async def test_relay_carries_connections_side_by_side() -> None:
    """Each has its own bytes."""

    async def ask(address: Address, word: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        with contextlib.closing(writer):
            writer.write(word)
            writer.write_eof()
            return await reader.read(-1)

    async with serving(_answer) as target, relay.start(LINK, target) as address, asyncio.TaskGroup() as tasks:
        asked = {word: tasks.create_task(ask(address, word)) for word in (b"one", b"two", b"three")}
    assert {word: task.result() for word, task in asked.items()} == {word: word for word in asked}


async def test_relay_ends_with_the_server() -> None:
    """A server that leaves, or is not there, ends the client's connection."""
    async with serving(_hang_up) as target, relay.start(LINK, target) as address:
        reader, writer = await asyncio.open_connection(*address)
        with contextlib.closing(writer):
            writer.write(b"x")
            assert await reader.read(-1) == b""
    async with relay.start(LINK, target) as address:
        reader, writer = await asyncio.open_connection(*address)
        with contextlib.closing(writer):
            assert await reader.read(-1) == b""


async def test_relay_ends_in_the_middle() -> None:
    """Its connections do not keep it from ending, and end with it."""
    async with serving(_wait) as target:
        async with relay.start(LINK, target) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"x")
            await asyncio.sleep(0.05)
        with contextlib.closing(writer):
            assert await reader.read(-1) == b""
