"""The soak's clients: those that behave, and those that do not. Each is one visit, and says if it was not served rightly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp
from websockets.exceptions import ConnectionClosed

from proxy.config import Address
from tests.fakes import ENDS, TEXT, RawClient, ask, connect_to, create, receive

Visit = Callable[[Address, random.Random], Awaitable[None]]


class Unserved(Exception):
    """A client that behaved did not get what it should have got."""


def _expect(frame: dict[str, object], *types: str) -> None:
    if frame["type"] not in types:
        raise Unserved(f"expected {types}, got {json.dumps(frame)[:300]}")


async def agent(address: Address, chance: random.Random) -> None:
    """A rollout of some turns, each continuing the last; now and then it branches, or its messages are compressed."""
    compression = chance.choice(["deflate", None])
    async with connect_to(address, compression=compression) as client:
        ids: list[str | None] = [None]
        for turn in range(chance.randrange(2, 12)):
            previous = chance.choice(ids) if chance.random() < 0.1 else ids[-1]
            fields = {"store": False, "model": chance.choice(["quick", "drip"])}
            if previous is not None:
                fields["previous_response_id"] = previous
            end = (await ask(client, f"turn {turn} " + "x" * chance.randrange(20_000), **fields))[-1]
            _expect(end, "response.completed")
            ids.append(end["response"]["id"])


async def lanes(address: Address, chance: random.Random) -> None:
    """Several turns side by side."""
    async with connect_to(address) as client:
        count = chance.randrange(2, 6)
        for number in range(count):
            await client.send(create(stream_id=f"lane-{number}", model="drip", store=False))
        while count:
            frame = await receive(client)
            if frame["type"] in ENDS:
                _expect(frame, "response.completed")
                count -= 1


async def unlucky(address: Address, chance: random.Random) -> None:
    """Its backend fails, and the next turn on the same socket is served."""
    async with connect_to(address) as client:
        for _ in range(chance.randrange(1, 4)):
            _expect(
                (await ask(client, model=chance.choice(["fail", "cut"]), store=False))[-1], "error", "response.failed"
            )
            _expect((await ask(client, model="quick", store=False))[-1], "response.completed")


async def returner(address: Address, chance: random.Random) -> None:
    """It lets its response be stored, and continues it on another socket, at once."""
    owner = {"Authorization": f"Bearer {chance.getrandbits(64)}"}
    async with connect_to(address, additional_headers=owner) as client:
        end = (await ask(client, "y" * chance.randrange(50_000), model="quick"))[-1]
        _expect(end, "response.completed")
    async with connect_to(address, additional_headers=owner) as client:
        end = (await ask(client, model="quick", previous_response_id=end["response"]["id"], store=False))[-1]
        _expect(end, "response.completed")


async def plain(address: Address, chance: random.Random) -> None:
    """Plain HTTP; sometimes it leaves in the middle."""
    body = {"model": chance.choice(["quick", "drip"]), "input": "hi", "stream": True, "store": False}
    leaves = chance.random() < 0.3
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{address}/v1/responses", json=body) as answered,
    ):
        if answered.status != 200:
            raise Unserved(f"HTTP {answered.status}")
        if not leaves and b"response.completed" not in await answered.read():
            raise Unserved("a stream without an end")


async def leaver(address: Address, chance: random.Random) -> None:
    """It vanishes in the middle of a turn, with or without a word."""
    with contextlib.suppress(EOFError, OSError), await RawClient.upgrade(address) as client:
        model = chance.choice(["drip", "hang", "flood"])
        await client.send_frame(TEXT, create(model=model, store=False).encode())
        await asyncio.sleep(chance.random() * 0.2)
        match chance.randrange(3):
            case 0:
                client.reset()
            case 1:
                client.half_close()


async def staller(address: Address, chance: random.Random) -> None:
    """It asks for a lot and reads nothing for some seconds; then it reads all of it, or leaves."""
    with contextlib.suppress(EOFError, OSError), await RawClient.upgrade(address, receive_buffer=4096) as client:
        await client.send_frame(TEXT, create(model="flood", store=False).encode())
        await asyncio.sleep(chance.random() * 5)
        if chance.random() < 0.5:
            tail = b""
            while b"response.completed" not in tail:
                if not (data := await client.receive_some()):
                    return  # it has stalled for too long
                tail = tail[-5000:] + data


async def rude(address: Address, chance: random.Random) -> None:
    """What it sends is no protocol."""
    with contextlib.suppress(ConnectionClosed, OSError, EOFError):
        with await RawClient.open(address) as client:
            await client.send_bytes(chance.randbytes(chance.randrange(1, 2000)))
        async with connect_to(address) as socket:
            for text in (
                "{",
                "[]",
                '{"type":"nothing"}',
                '{"type":"response.create"}',
                "x" * chance.randrange(100_000),
            ):
                await socket.send(text)
            await receive(socket)


#: Who visits, and how often in a hundred visits.
VISITS: Final[dict[Visit, int]] = {
    agent: 40,
    lanes: 10,
    unlucky: 10,
    returner: 10,
    plain: 10,
    leaver: 10,
    staller: 5,
    rude: 5,
}
