"""How records get to a sink (proxy.usage.delivery): a sink that a test tells what to do, in front of a real spool."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import structlog

from proxy.usage import delivery
from proxy.usage.delivery import Delivery
from proxy.usage.segment import Entry
from proxy.usage.shelf import Shelf
from proxy.usage.thread import Thread
from proxy.usageconfig import SinkKind
from tests.fakes import eventually


class Scripted:
    """A sink that fails as often as it is told.

    Attributes:
        failures: What to raise, in order, before it takes anything.
        taken: What it took.
        hangs: It answers nothing at all.
    """

    kind: SinkKind = "file"
    batch = 3

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.taken: list[bytes] = []
        self.hangs = False

    async def take(self, records: Sequence[bytes]) -> None:
        """Do as told."""
        if self.hangs:
            await asyncio.Event().wait()
        if self.failures:
            raise self.failures.pop(0)
        assert len(records) <= self.batch
        self.taken += records

    async def close(self) -> None:
        """Nothing is open."""


class Way:
    """A spool, a sink, and the way between them.

    Attributes:
        taken: How many records were counted as taken.
        failures: How many batches were counted as not taken.
    """

    def __init__(self, root: Path, sink: Scripted) -> None:
        self.taken = self.failures = 0
        self.thread = Thread("test")
        self.shelf = Shelf(root, ("file",), 2**20, max)
        self.delivery = Delivery(sink, self.shelf, self.thread, self._take, self._fail)

    def _take(self, count: int) -> None:
        self.taken += count

    def _fail(self) -> None:
        self.failures += 1

    async def spool(self, *numbers: int) -> None:
        """Put records there."""
        await self.thread.run(lambda: self.shelf.append([Entry(number, b"%d" % number) for number in numbers]))
        self.delivery.notify()


@contextlib.asynccontextmanager
async def way(root: Path, sink: Scripted, *numbers: int) -> AsyncIterator[Way]:
    """A delivery that runs; some records are there before it starts."""
    one = Way(root, sink)
    await one.thread.run(one.shelf.open)
    await one.spool(*numbers)
    running = asyncio.get_running_loop().create_task(one.delivery.run())
    try:
        yield one
        one.delivery.end()
        await asyncio.wait([running], timeout=0.01 if sink.hangs else 5)
    finally:
        running.cancel()
        await asyncio.wait([running])
        await one.thread.run(one.shelf.close)
        one.thread.close()


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other soon."""
    monkeypatch.setattr(delivery, "FIRST_PAUSE", 0.001)


async def test_records_are_handed_over_in_batches_as_they_come(tmp_path: Path) -> None:
    """Those that are there at the start, and later ones; then nothing is late."""
    sink = Scripted()
    async with way(tmp_path, sink, 1, 2, 3, 4) as one:
        await eventually(lambda: len(sink.taken) == 4)
        await one.spool(5)
        await eventually(lambda: one.delivery.oldest is None and len(sink.taken) == 5)
    assert sink.taken == [b"1", b"2", b"3", b"4", b"5"]
    assert (one.taken, one.failures) == (5, 0)


async def test_batch_is_tried_until_it_is_taken(tmp_path: Path, fast: None) -> None:
    """Whatever goes wrong; order is kept, and nothing is handed over twice by that."""
    sink = Scripted(OSError(28, "full"), TimeoutError(), ValueError("?"), delivery.NotTaken("HTTP status 500"))
    async with way(tmp_path, sink, 1, 2) as one:
        await eventually(lambda: one.taken == 2)
    assert sink.taken == [b"1", b"2"]
    assert one.failures == 4


async def test_age_is_known_while_a_sink_is_down(tmp_path: Path) -> None:
    """That of the oldest record that it has not taken."""
    sink = Scripted()
    sink.hangs = True
    async with way(tmp_path, sink, 5000, 6000) as one:
        await eventually(lambda: one.delivery.oldest is not None)
        assert one.delivery.oldest == 5.0
    assert one.taken == 0
    sink.hangs = False
    async with way(tmp_path, sink):
        pass
    assert sink.taken == [b"5000", b"6000"]


async def test_end_is_one_try_more(tmp_path: Path) -> None:
    """In the middle of a long pause: it is tried at once, and what is not taken stays."""
    sink = Scripted(OSError(), OSError())
    async with way(tmp_path, sink, 1, 2) as one:
        await eventually(lambda: one.failures == 1)
    assert (one.failures, sink.taken) == (2, [])
    async with way(tmp_path, sink) as one:
        pass
    assert sink.taken == [b"1", b"2"]


async def test_end_takes_what_is_left(tmp_path: Path) -> None:
    """All batches of it."""
    sink = Scripted()
    async with way(tmp_path, sink, *range(100)):
        pass
    assert sink.taken == [b"%d" % number for number in range(100)]


async def test_failures_are_said_seldom_and_without_secrets(tmp_path: Path, fast: None) -> None:
    """One line for many tries; an exception's text may hold a password."""
    sink = Scripted(*(ValueError("s3cret") for _ in range(5)))
    with structlog.testing.capture_logs() as logs:
        async with way(tmp_path, sink, 1) as one:
            await eventually(lambda: one.taken == 1)
    assert logs == [
        {"event": "usage records are not taken", "log_level": "warning", "sink": "file", "reason": "ValueError"}
    ]


async def test_spool_that_cannot_be_read_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the next records (the disk's failure is simulated)."""
    sink = Scripted()

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as disk:
        disk.setattr(Shelf, "read", fail)
        async with way(tmp_path, sink, 1) as one:
            await asyncio.sleep(0.01)
            assert sink.taken == []
            disk.undo()
            await one.spool(2)
            await eventually(lambda: sink.taken == [b"1", b"2"])
