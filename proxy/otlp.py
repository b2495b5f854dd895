"""How spans leave: in batches, over HTTP, from a thread of their own.

A collector that is down costs spans and nothing else: what waits is bounded, and what is said about it is one line a
minute, in place of whatever OpenTelemetry would log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from proxy import __version__
from proxy.config import Tracing

_log: Final = structlog.get_logger("slipstream")

MAX_TEXT: Final = 512
"""Characters of one attribute; clients and backends choose some of them."""
_MAX_QUEUED: Final = 4096
"""Spans that wait; more are dropped."""
_MAX_BATCH: Final = 512
_DELAY: Final = 2000
"""Milliseconds between two batches, unless there is a full one."""
_TIMEOUT: Final = 5.0
"""Seconds for one batch, its retries included."""
_SILENCE: Final = 60.0
"""Seconds between two lines about a collector that does not answer."""


class Reporting(SpanExporter):
    """An exporter that says seldom that it fails.

    Args:
        exporter: What exports.
        endpoint: Where to.
        clock: Seconds, from anywhere.
    """

    def __init__(self, exporter: SpanExporter, endpoint: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._clock = clock
        self._lost = 0
        self._said: float | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans; called in the thread of the batches."""
        try:
            result = self._exporter.export(spans)
        except Exception:  # noqa: BLE001 - whatever it runs into, it is no reason to end the thread
            result = SpanExportResult.FAILURE
        if result is not SpanExportResult.SUCCESS:
            self._lost += len(spans)
            now = self._clock()
            if self._said is None or now - self._said >= _SILENCE:
                self._said = now
                _log.warning("spans cannot be exported", endpoint=self._endpoint, lost=self._lost)
                self._lost = 0
        return result

    def shutdown(self) -> None:
        """Take no more."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing waits here."""
        return True


class Provider:
    """What makes spans, and sends them.

    Args:
        options: The operator's choices.
    """

    def __init__(self, options: Tracing) -> None:
        for name in ("opentelemetry", "urllib3"):  # they would say each batch that is lost
            logging.getLogger(name).setLevel(logging.CRITICAL)
        ratio = TraceIdRatioBased(options.sample_ratio)
        self._provider = TracerProvider(
            # A client may say that its trace is not recorded, but not that more is than the operator wants.
            sampler=ParentBased(root=ratio, remote_parent_sampled=ratio),
            resource=Resource.create({"service.name": options.service_name, "service.version": __version__}),
            shutdown_on_exit=False,  # which would wait for as long as it takes
            span_limits=SpanLimits(max_attribute_length=MAX_TEXT),
        )
        exporter = Reporting(OTLPSpanExporter(options.endpoint, timeout=_TIMEOUT), options.endpoint)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                exporter,
                max_queue_size=_MAX_QUEUED,
                schedule_delay_millis=_DELAY,
                max_export_batch_size=_MAX_BATCH,
            )
        )
        self.tracer = self._provider.get_tracer("slipstream", __version__)

    async def close(self, seconds: float) -> None:
        """Send what waits, for at most so long; what is left then is lost."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # nobody waits any more
                loop.call_soon_threadsafe(done.set)

        # A thread of the loop's own would be waited for at its end.
        threading.Thread(target=shut_down, name="slipstream-spans", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await done.wait()
