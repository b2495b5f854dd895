"""A bounded number of requests, and a bounded queue."""

from __future__ import annotations

import asyncio

import pytest

from proxy.gate import Gate
from proxy.protocol.upstream_errors import BackendBusy
from tests.fakes import eventually


async def test_gate_without_a_limit_lets_everybody_in() -> None:
    """Nobody waits, and all are counted."""
    gate = Gate(None, 0, 1)
    for _ in range(100):
        await gate.enter()
    assert (gate.inside, gate.load, gate.has_room) == (100, 100, True)


async def test_gate_lets_in_who_has_waited_longest() -> None:
    """First come, first served, and no more inside than may be."""
    gate = Gate(1, 8, 60)
    order: list[int] = []

    async def visit(number: int) -> None:
        await gate.enter()
        assert gate.inside == 1
        order.append(number)
        await asyncio.sleep(0)
        gate.leave()

    async with asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(visit(number))
    assert order == [0, 1, 2, 3, 4]
    assert gate.load == 0


async def test_queue_is_bounded() -> None:
    """Who finds it full is told so at once."""
    gate = Gate(1, 1, 60)
    await gate.enter()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(gate.enter())
        await eventually(lambda: gate.load == 2)
        assert not gate.may_wait
        with pytest.raises(BackendBusy):
            await gate.enter()
        gate.leave()
        await waiting
    assert gate.inside == 1


async def test_waiting_has_an_end() -> None:
    """Whoever waited in vain has left the queue."""
    gate = Gate(1, 8, 0.01)
    await gate.enter()
    with pytest.raises(BackendBusy):
        await gate.enter()
    assert gate.load == 1


async def test_who_goes_away_leaves_no_gap() -> None:
    """A client that left while it waited, or in the moment in which it was let in, takes no place."""
    gate = Gate(1, 8, 60)
    await gate.enter()
    async with asyncio.TaskGroup() as tasks:
        first, second = tasks.create_task(gate.enter()), tasks.create_task(gate.enter())
        await eventually(lambda: gate.load == 3)
        first.cancel()
        await asyncio.sleep(0)
        gate.leave()
        await second
        third = tasks.create_task(gate.enter())
        await eventually(lambda: gate.load == 2)
        gate.leave()
        third.cancel()
    assert gate.load == 0
    await gate.enter()
