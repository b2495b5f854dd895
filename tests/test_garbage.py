"""When garbage is collected (:mod:`proxy.garbage`), and that a connection's is."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from proxy import garbage
from proxy.connection import Connection
from proxy.garbage import Sweeper
from tests.fakes import ScriptedUpstream, ask, eventually, serving


@pytest.fixture
def patient_collector() -> Iterator[None]:
    """The collector looks for nothing by itself."""
    gc.disable()
    yield
    gc.enable()


class Looks:
    """Counts how often garbage is looked for."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        """Count one."""
        self.count += 1


@pytest.mark.parametrize(
    ("ended", "still_open", "looks"),
    [
        (31, 0, 0),
        (32, 0, 1),
        (63, 0, 1),
        (64, 0, 2),
        (32, 128, 1),
        (32, 132, 0),
        (33, 132, 1),
        (499, 2000, 0),
        (500, 2000, 1),
    ],
)
async def test_garbage_is_looked_for_in_proportion(ended: int, still_open: int, looks: int) -> None:
    """Each few dozen connections, or as many as are a quarter of those that are open."""
    counted = Looks()
    sweeper = Sweeper(counted, delay=0)
    for _ in range(ended):
        sweeper.connection_ended(still_open)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert counted.count == looks


async def test_many_that_end_at_once_are_one_look() -> None:
    """It is taken when they have let go; and none once the process ends."""
    counted = Looks()
    sweeper = Sweeper(counted, delay=0.01)
    for _ in range(500):
        sweeper.connection_ended(0)
    await eventually(lambda: counted.count == 1)
    await asyncio.sleep(0.03)
    assert counted.count == 1
    for _ in range(32):
        sweeper.connection_ended(0)
    sweeper.close()
    await asyncio.sleep(0.03)
    assert counted.count == 1


async def test_connections_leave_nothing(monkeypatch: pytest.MonkeyPatch, patient_collector: None) -> None:
    """Of those that have ended, although nothing else would have had them collected."""
    monkeypatch.setattr(garbage, "_FEW", 4)
    ended: list[weakref.ref[Connection]] = []
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        product.running.door._sweeper._delay = 0.01
        for number in range(12):
            async with product.connect() as client:
                await ask(client)
                (connection,) = product.running.door._connections
                ended.append(weakref.ref(connection.downstream))  # type: ignore[arg-type]
                del connection
                if number % 2:
                    client.transport.abort()
            await eventually(lambda: not product.running.door._connections)
        await eventually(lambda: sum(one() is not None for one in ended) < 4)
