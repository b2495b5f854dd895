"""Slow clients slow their backend down, and cost no memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.fakes import (
    END,
    STREAM_HEAD,
    TEXT,
    Peer,
    RawClient,
    ScriptedUpstream,
    Step,
    answer,
    ask,
    chunk,
    completed,
    connect_to,
    create,
    created,
    delta,
    flood,
    read,
    running,
    send,
    text_of,
)

CLIENTS = 20
BLOCK = chunk(b"".join(delta("x" * 1000, number) for number in range(50)))
TIMES = 200 * 2**20 // len(BLOCK)
SIZE = len(BLOCK) * TIMES


async def settled(peers: list[Peer]) -> int:
    """Bytes that the backend could send, once it can send no more."""
    before, sent = -1, 0
    while sent != before:
        await asyncio.sleep(0.3)
        before, sent = sent, sum(peer.sent for peer in peers)
    return sent


@pytest.mark.load
async def test_stalled_clients_cost_no_memory(tmp_path: Path) -> None:
    """Twenty clients that do not read, 200 MB for each of them: the backend has to wait, and others are served.

    When one of them reads on it gets all of it.
    """
    large: list[Step] = [
        read,
        send(STREAM_HEAD + chunk(created())),
        flood(BLOCK, TIMES),
        send(chunk(completed()) + END),
    ]
    async with (
        ScriptedUpstream([read, send(answer("warm"))], then=large) as upstream,
        running(upstream, tmp_path, websocket__write_timeout=600, upstream__profile="llamacpp") as process,
    ):
        async with connect_to(process.address) as client:
            assert text_of(await ask(client)) == "warm"
        clients = [await RawClient.upgrade(process.address, receive_buffer=2**16) for _ in range(CLIENTS)]
        try:
            before = process.resident_bytes()
            for each in clients:
                await each.send_frame(TEXT, create().encode())
            peers = [await upstream.peer(number + 1) for number in range(CLIENTS)]
            assert await settled(peers) < CLIENTS * SIZE // 8
            assert process.resident_bytes() - before < 30 * 2**20
            reader = clients[0]
            received, tail = 0, b""
            while b"response.completed" not in tail:
                data = await reader.receive_some()
                assert data
                received += len(data)
                tail = tail[-100:] + data
            assert received > SIZE // 2
            assert process.resident_bytes() - before < 30 * 2**20
        finally:
            for each in clients:
                each.reset()
