"""The ledger: the observer that records turns, and what owns their way out.

A turn costs its connection one record in memory. Everything else is done by tasks of the ledger's own: one that has
records on disk after the flush interval, one for each sink. None of them is waited for by a turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import structlog

from proxy.config import Config
from proxy.metrics import Metrics
from proxy.observe import ConnectionRecord, PassThroughRecord, RefusalReason, TurnRecord, TurnStarted
from proxy.protocol.records import ResponseEvicted
from proxy.usage import record as records
from proxy.usage.delivery import Delivery, Sink
from proxy.usage.jsonlines import JsonLines
from proxy.usage.segment import Entry
from proxy.usage.shelf import Shelf
from proxy.usage.sqlite import Sqlite
from proxy.usage.thread import Thread
from proxy.usage.webhook import Webhook
from proxy.usageconfig import SinkKind, Usage, UsageSql

_log: Final = structlog.get_logger("slipstream")

MAX_WAITING: Final = 8 * 2**20
"""Bytes of records in memory; there are so many only if the spool cannot be written."""
_CHUNK: Final = 256 * 2**10
"""Bytes that are written at once."""
ADOPT_INTERVAL: Final = 60.0
"""Seconds between two looks for spools that were left behind."""
_FLUSH_TIMEOUT: Final = 5.0
"""Seconds for the last flush: for a disk that hangs."""
_LEAST: Final = 0.5
"""Seconds for sinks at the end, whatever happens; what is not taken then is on disk."""
_MOST: Final = 5.0


class Ledger:
    """Records turns, for as long as it is entered.

    Args:
        config: The operator's choices; there is a sink.
        metrics: Where it counts.
        worker: Which of several workers the process is; None if it is alone.

    Attributes:
        patience: Seconds that sinks have at the end.
    """

    def __init__(self, config: Config, metrics: Metrics, worker: int | None = None) -> None:
        options = config.usage
        self.patience = _LEAST
        self._interval = options.flush_interval
        self._kinds = options.sinks
        self._metrics = metrics
        self._worker = worker
        self._labels: dict[str, Mapping[str, str]] = {}
        self._waiting: deque[Entry] = deque()
        self._waiting_bytes = 0
        self._has_records = asyncio.Event()
        self._is_ending = asyncio.Event()
        self._thread = Thread("slipstream-usage-spool")
        self._shelf = Shelf(Path(options.spool.folder), self._kinds, options.spool.max_bytes, self._count_dropped)
        self._sinks = [_sink(kind, options) for kind in self._kinds]
        self._deliveries = {sink.kind: self._delivery(sink) for sink in self._sinks}
        self._tasks: list[asyncio.Task[None]] = []
        self._flushing: asyncio.Task[None] | None = None
        self._said = float("-inf")

    def _delivery(self, sink: Sink) -> Delivery:
        taken = self._metrics.usage.records[sink.kind, "taken"].inc
        return Delivery(sink, self._shelf, self._thread, taken, self._metrics.usage.failures[sink.kind].inc)

    async def __aenter__(self) -> Self:
        """Claim the spool, and begin.

        Raises:
            OSError: it cannot be written.
        """
        try:
            await self._thread.run(self._shelf.open)
        except OSError as exc:
            self._thread.close()
            raise OSError(exc.errno, f"usage.spool.folder cannot be used: {exc.strerror}") from exc
        self._metrics.usage.spool_bytes.set_function(lambda: self._shelf.used)
        for kind, delivery in self._deliveries.items():
            self._metrics.usage.lag[kind].set_function(partial(self._lag, delivery))
        loop = asyncio.get_running_loop()
        self._flushing = loop.create_task(self._flush_often(), name="usage flush")
        self._tasks = [
            loop.create_task(delivery.run(), name=f"usage {kind}") for kind, delivery in self._deliveries.items()
        ]
        self._adopting = loop.create_task(self._adopt_often(), name="usage spools left behind")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Have all records on disk, hand over what sinks take, and end."""
        assert self._flushing is not None
        self._adopting.cancel()
        self._is_ending.set()
        self._has_records.set()
        await asyncio.wait([self._flushing], timeout=_FLUSH_TIMEOUT)
        for delivery in self._deliveries.values():
            delivery.end()
        await asyncio.wait(self._tasks, timeout=self.patience)
        everything = [self._flushing, self._adopting, *self._tasks]
        for task in everything:
            task.cancel()
        await asyncio.wait(everything)
        if self._waiting:
            _log.error("usage records are lost: the spool cannot be written", records=len(self._waiting))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAST):
                for sink in self._sinks:
                    await sink.close()
                await self._thread.run(self._shelf.close)
        self._thread.close()

    def allow(self, seconds: float) -> None:
        """There is so much time for sinks at the end."""
        self.patience = min(max(seconds, _LEAST), _MOST)

    # The observer

    def connection_opened(self, record: ConnectionRecord) -> None:
        if record.labels:
            self._labels[record.connection_id] = record.labels

    def connection_refused(self, reason: RefusalReason) -> None:
        pass

    def connection_closed(self, record: ConnectionRecord) -> None:
        self._labels.pop(record.connection_id, None)

    def turn_started(self, record: TurnStarted) -> None:
        pass

    def turn_ended(self, record: TurnRecord) -> None:
        labels = self._labels.get(record.connection_id, {})
        entry = records.entry(record, labels, self._worker, time.time())
        self._waiting.append(entry)
        self._waiting_bytes += entry.size
        while self._waiting_bytes > MAX_WAITING:
            self._waiting_bytes -= self._waiting.popleft().size
            for kind in self._kinds:
                self._count_dropped(kind, 1)
        self._has_records.set()

    def response_evicted(self, record: ResponseEvicted) -> None:
        pass

    def passed_through(self, record: PassThroughRecord) -> None:
        pass

    # Flushes

    async def _flush_often(self) -> None:
        while not self._is_ending.is_set():
            await self._has_records.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._is_ending.wait()
            self._has_records.clear()
            await self._flush()

    async def _flush(self) -> None:
        """Write what waits; what cannot be written waits on."""
        while chunk := self._take_chunk():
            try:
                await self._thread.run(partial(self._shelf.append, chunk))
            except OSError as exc:
                self._waiting.extendleft(reversed(chunk))
                self._waiting_bytes += sum(entry.size for entry in chunk)
                self._has_records.set()
                self._say_unwritten(exc)
                return
            for kind, delivery in self._deliveries.items():
                self._metrics.usage.records[kind, "spooled"].inc(len(chunk))
                delivery.notify()

    def _take_chunk(self) -> list[Entry]:
        chunk: list[Entry] = []
        size = 0
        while self._waiting and size < _CHUNK:
            entry = self._waiting.popleft()
            chunk.append(entry)
            size += entry.size
        self._waiting_bytes -= size
        return chunk

    def _say_unwritten(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._said >= ADOPT_INTERVAL:
            self._said = now
            _log.error("usage spool cannot be written", reason=error.strerror, records=len(self._waiting))

    async def _adopt_often(self) -> None:
        while True:
            await asyncio.sleep(ADOPT_INTERVAL)
            with contextlib.suppress(OSError):
                if await self._thread.run(self._shelf.adopt):
                    for delivery in self._deliveries.values():
                        delivery.notify()

    # What is counted

    def _count_dropped(self, kind: SinkKind, records: int) -> None:
        self._metrics.usage.records[kind, "dropped"].inc(records)

    def _lag(self, delivery: Delivery) -> float:
        """Seconds since the oldest record was made that a sink has not taken; 0 if it has all."""
        known = [delivery.oldest] if delivery.oldest is not None else []
        if self._waiting:
            known.append(self._waiting[0].milliseconds / 1000)
        return max(0.0, time.time() - min(known)) if known else 0.0


def _sink(kind: SinkKind, options: Usage) -> Sink:
    match kind:
        case "file":
            return JsonLines(options.file)
        case "webhook":
            return Webhook(options.webhook)
        case "sql":
            return _table(options.sql)


def _table(options: UsageSql) -> Sink:
    assert options.url is not None
    url = options.url.get_secret_value()
    if not options.is_postgres:
        return Sqlite(url.removeprefix("sqlite:///"), options.table)
    from proxy.usage.postgres import Postgres  # noqa: PLC0415 - its driver is an extra

    return Postgres(url, options.table)
