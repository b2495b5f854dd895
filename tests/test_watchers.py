"""Those who watch a picture: how often they are told, and what becomes of those that do not keep up."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from proxy.watchers import INTERVAL, MAX_WATCHERS, TooManyWatchers, Watchers

QUICK = 0.02


class Source:
    """Something to watch: it counts how often it is asked for what."""

    def __init__(self, interval: float = QUICK) -> None:
        self.snapshots = 0
        self.changes = 0
        self.watched: list[bool] = []
        self.watchers = Watchers(self._snapshot, self._change, self.watched.append, interval)

    def _snapshot(self) -> bytes:
        self.snapshots += 1
        return b"snapshot %d" % self.snapshots

    def _change(self) -> bytes:
        self.changes += 1
        return b"change %d" % self.changes


@pytest.fixture
def source() -> Source:
    """Something that tells quickly."""
    return Source()


async def test_watcher_gets_a_snapshot_then_changes(source: Source) -> None:
    """However often something changes meanwhile, it is one update."""
    with source.watchers.watch() as watcher:
        assert await watcher.next() == b"snapshot 1"
        for _ in range(10):
            source.watchers.changed()
        assert await watcher.next() == b"change 1"
        source.watchers.changed()
        assert await watcher.next() == b"change 2"


async def test_source_hears_of_the_first_and_the_last(source: Source) -> None:
    """Not of those between; and nothing is prepared while nobody watches."""
    source.watchers.changed()
    assert not source.watchers
    with source.watchers.watch():
        assert source.watchers
        with source.watchers.watch():
            assert source.watched == [True]
        source.watchers.changed()
    assert source.watched == [True, False]
    await asyncio.sleep(QUICK * 3)
    assert source.changes == source.snapshots == 0


async def test_no_more_than_four_updates_a_second() -> None:
    """As it is set up without another wish."""
    source = Source(INTERVAL)
    updates = 0

    async def work() -> None:
        while True:
            source.watchers.changed()
            await asyncio.sleep(0.002)

    with source.watchers.watch() as watcher:
        try:
            async with asyncio.timeout(1.1), asyncio.TaskGroup() as tasks:
                tasks.create_task(work())
                while True:
                    await watcher.next()
                    updates += 1
        except TimeoutError:
            pass
    assert 2 <= updates <= 5  # the snapshot is one of them; a busy machine may do fewer


async def test_slow_watcher_starts_anew(source: Source) -> None:
    """It has no backlog: what waits for it is bounded."""
    with source.watchers.watch() as slow, source.watchers.watch() as quick:
        assert await slow.next() == b"snapshot 1"
        await quick.next()
        for number in range(1, 21):
            source.watchers.changed()
            assert await quick.next() == b"change %d" % number
            assert len(slow._waiting) <= 8
        assert await slow.next() == b"snapshot 3"
        source.watchers.changed()
        assert await slow.next() == b"change 21"


async def test_all_start_anew_when_they_have_to(source: Source) -> None:
    """What waits for them is worth nothing then."""
    with source.watchers.watch() as watcher:
        await watcher.next()
        source.watchers.changed()
        await asyncio.sleep(QUICK * 2)
        source.watchers.restart()
        assert await watcher.next() == b"snapshot 2"
        source.watchers.changed()
        assert await watcher.next() == b"change 2"


async def test_watchers_are_bounded(source: Source) -> None:
    """One more is refused; all are let go in the end."""
    with ExitStack() as stack:
        entered = [stack.enter_context(source.watchers.watch()) for _ in range(MAX_WATCHERS)]
        with pytest.raises(TooManyWatchers), source.watchers.watch():
            pass
        source.watchers.close()
        assert [await watcher.next() for watcher in entered] == [None] * MAX_WATCHERS
    with source.watchers.watch():
        pass
