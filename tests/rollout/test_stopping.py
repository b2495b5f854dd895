"""What runs ends at the first signal, and has closed what it had opened."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from proxy.rollout.stopping import until_stopped


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signal_ends_work(number: signal.Signals) -> None:
    """It is told from an end by itself; further signals while it closes change nothing."""
    events: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.05)
            events.append("closed")

    assert await until_stopped(work()) is False
    assert events == ["closed"]


async def test_work_ends_by_itself() -> None:
    """That is told, too, and an error of its own gets out."""
    assert await until_stopped(asyncio.sleep(0)) is True

    async def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - it is the one above
        await until_stopped(fail())


async def test_cancelling_is_not_stopping() -> None:
    """Whoever cancels the task around it sees that it was cancelled."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(until_stopped(asyncio.sleep(60)))
        await asyncio.sleep(0)
        task.cancel()
    assert task.cancelled()
