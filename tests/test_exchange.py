"""The limits of one exchange, on a clock of the test's own."""

from __future__ import annotations

import asyncio

import pytest

from proxy.config import Timeouts
from proxy.exchange import Running, until_all_ended
from proxy.observe import Exchange
from proxy.protocol.events import UpstreamBytes

LIMITS = Timeouts(first_event=10, idle=5, turn=30)
NONE = Timeouts(first_event=0, idle=0, turn=0)


async def _sleep() -> None:
    await asyncio.sleep(60)


def running() -> Running:
    """An exchange that was ordered at 100."""
    return Running(1, Exchange(), 100.0, 100.0, LIMITS, UpstreamBytes(1, b""))


def expired(exchange: Running, now: float, timeouts: Timeouts = LIMITS, *, is_held_up: bool = False) -> str | None:
    """The phase that has taken too long, after a look at the clock."""
    exchange.timeouts = timeouts
    exchange.check_limits(now, is_held_up=is_held_up)
    return exchange.expired.phase if exchange.expired else None


def test_exchange_expires_without_a_first_event() -> None:
    """Before anything came only the first limit counts."""
    this = running()
    assert expired(this, 109.9) is None
    assert expired(this, 110.0) == "first_event"


def test_exchange_expires_in_silence() -> None:
    """The silence begins at the look that saw the last read."""
    this = running()
    this.reads = 1
    assert expired(this, 109.0) is None
    this.reads = 7
    assert expired(this, 113.0) is None
    assert expired(this, 117.9) is None
    assert expired(this, 118.0) == "idle"


def test_exchange_expires_as_a_whole() -> None:
    """However busy it is."""
    this = running()
    for now in range(101, 130):
        this.reads += 1
        assert expired(this, float(now)) is None
    this.reads += 1
    assert expired(this, 130.0) == "turn"


def test_exchange_without_limits_never_expires() -> None:
    """0 means none."""
    this = running()
    assert expired(this, 1e9, NONE) is None
    this.reads = 1
    assert expired(this, 2e9, NONE) is None
    assert expired(this, 3e9, NONE) is None


def test_exchange_is_not_silent_while_its_client_is_slow() -> None:
    """Nothing is read for a client that takes nothing: that is no fault of the backend's."""
    this = running()
    this.reads = 1
    assert expired(this, 101.0) is None
    assert expired(this, 115.0, is_held_up=True) is None
    assert expired(this, 119.9) is None
    assert expired(this, 120.0) == "idle"


def test_exchange_has_to_begin_although_its_client_is_slow() -> None:
    """Another lane's frames may hold the client up; this one's first event is late all the same."""
    assert expired(running(), 110.0, is_held_up=True) == "first_event"


def test_exchange_does_not_wait_long_behind_its_response() -> None:
    """What is left behind a complete response has a second, whatever the limits are."""
    this = running()
    this.reads = this.seen_reads = 3
    this.finish(120.0)
    assert expired(this, 120.9, NONE) is None
    assert expired(this, 121.0, NONE) == "idle"


async def test_exchange_is_cancelled_once() -> None:
    """The first limit that is reached stops the task; another that is reached while it stops changes nothing."""
    this = running()
    async with asyncio.TaskGroup() as tasks:
        this.task = tasks.create_task(_sleep())
        this.reads = 1
        assert expired(this, 105.0) is None
        assert expired(this, 110.0) == "idle"
        assert expired(this, 190.0) == "idle"
        assert this.task.cancelling() == 1
    assert this.task.cancelled()


# Waiting for all of them


async def test_wait_ends_with_the_last_or_in_time() -> None:
    """Whichever comes first; those that are left are not stopped by it."""
    open_ones: dict[int, Running] = {}
    gates = [asyncio.Event(), asyncio.Event()]

    async def run(number: int) -> None:
        await gates[number].wait()
        del open_ones[number]

    loop = asyncio.get_running_loop()
    for number in (0, 1):
        open_ones[number] = running()
        open_ones[number].task = loop.create_task(run(number))
    left = [one.task for one in open_ones.values() if one.task is not None]
    await until_all_ended(open_ones, 0.01)
    assert len(open_ones) == 2
    waiting = loop.create_task(until_all_ended(open_ones, 60))
    gates[0].set()
    await left[0]
    assert not waiting.done()
    gates[1].set()
    await waiting
    assert not open_ones


async def test_wait_is_cancelled_the_second_time() -> None:
    """The first time is aiohttp's, which says that the connection is lost."""
    this = running()
    loop = asyncio.get_running_loop()
    this.task = loop.create_task(_sleep())
    waiting = loop.create_task(until_all_ended({1: this}, 60))
    for _ in range(2):
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not this.task.done()
    this.task.cancel()
