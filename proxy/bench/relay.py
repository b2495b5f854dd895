"""A TCP relay that delays what goes through it as :mod:`~proxy.bench.link` says: the simulated network of the bench."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from proxy.bench.link import Direction, Link
from proxy.config import Address

_READ: Final = 65536
_MAX_WAITING: Final = 4096
"""Pieces that may be on their way in one direction; more are not read from their sender before."""


@contextlib.asynccontextmanager
async def start(link: Link, target: Address) -> AsyncIterator[Address]:
    """Relay connections, for as long as the context lasts.

    Args:
        link: The path that is simulated.
        target: Where each connection leads.

    Yields:
        Where to connect, on the loopback interface.
    """
    running: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # it ends with the relay
                await _connect(link, target, reader, writer)
        finally:
            running.discard(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


async def _connect(link: Link, target: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry one connection until either side is gone."""
    with contextlib.closing(writer):
        try:
            server_reader, server_writer = await asyncio.open_connection(*target)
        except OSError:
            return
        with contextlib.closing(server_writer):
            try:
                async with asyncio.TaskGroup() as tasks:
                    for source, sink in ((reader, server_writer), (server_reader, writer)):
                        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_MAX_WAITING)
                        tasks.create_task(_take(source, Direction(link), waiting))
                        tasks.create_task(_deliver(waiting, sink))
            except* ConnectionError:
                pass


async def _take(
    source: asyncio.StreamReader, direction: Direction, waiting: asyncio.Queue[tuple[float, bytes]]
) -> None:
    """Read what a side sends, and say when it arrives; the last piece is empty."""
    loop = asyncio.get_running_loop()
    while data := await source.read(_READ):
        begin = 0
        for when, size in direction.send(loop.time(), len(data)):
            await waiting.put((when, data[begin : begin + size]))
            begin += size
    await waiting.put((direction.end(loop.time()), b""))


async def _deliver(waiting: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter) -> None:
    """Hand on each piece when it arrives."""
    loop = asyncio.get_running_loop()
    while True:
        when, data = await waiting.get()
        delay = when - loop.time()
        if delay > 0:
            await asyncio.sleep(delay)
        if not data:
            sink.write_eof()
            return
        sink.write(data)
        await sink.drain()
