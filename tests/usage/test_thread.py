"""Threads for what blocks (proxy.usage.thread)."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from proxy.usage.thread import Thread
from tests.fakes import eventually


async def test_calls_are_made_in_order_in_one_other_thread() -> None:
    """Whatever is asked for at once."""
    thread = Thread("test")
    made: list[tuple[int, int]] = []
    async with asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(thread.run(partial(lambda n: made.append((n, threading.get_ident())), number)))
    assert [number for number, _ in made] == list(range(20))
    assert len({ident for _, ident in made} | {threading.get_ident()}) == 2
    thread.close()


async def test_what_a_call_raises_reaches_who_asked() -> None:
    """And the thread goes on."""
    thread = Thread("test")
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 // 0)
    assert await thread.run(lambda: 7) == 7
    thread.close()


async def test_who_left_is_not_told() -> None:
    """A call whose asker was cancelled is made all the same, and those behind it too."""
    thread = Thread("test")
    go = threading.Event()
    asking = asyncio.get_running_loop().create_task(thread.run(go.wait))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    go.set()
    assert await thread.run(lambda: 7) == 7
    thread.close()


async def test_thread_ends_with_its_last_call() -> None:
    """And none is started for nobody."""
    idle, thread = Thread("for nobody"), Thread("for its calls")

    def names() -> set[str]:
        return {one.name for one in threading.enumerate()} & {"for nobody", "for its calls"}

    await thread.run(lambda: None)
    assert names() == {"for its calls"}
    thread.close()
    idle.close()
    await eventually(lambda: not names())
