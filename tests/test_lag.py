"""How late the loop is, seen by its own timers."""

from __future__ import annotations

import asyncio
import time

from proxy import lag
from tests.fakes import eventually


async def test_blocked_loop_is_noticed() -> None:
    """What keeps the loop from its timers is seen, at its length; nothing is looked at afterwards."""
    seen: list[float] = []
    with lag.LoopLag(seen.append):
        await eventually(lambda: seen)
        count = len(seen)
        time.sleep(lag._INTERVAL + 0.3)  # noqa: ASYNC251 - it is to block
        await eventually(lambda: len(seen) > count)
    assert seen[count] >= 0.25
    assert all(value >= 0 for value in seen)
    count = len(seen)
    await asyncio.sleep(lag._INTERVAL * 1.5)
    assert len(seen) == count
