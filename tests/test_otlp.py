"""How spans leave (proxy.otlp)."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from structlog.testing import capture_logs

from proxy.config import Tracing
from proxy.otlp import Provider, Reporting
from tests.collector import Collector


class Failing(SpanExporter):
    """An exporter that does what it is told.

    Args:
        results: What comes of each batch; an exception is raised.
    """

    def __init__(self, *results: SpanExportResult | Exception) -> None:
        self._results = list(results)
        self.is_shut_down = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Fail, or not."""
        result = self._results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def shutdown(self) -> None:
        """Note it."""
        self.is_shut_down = True


SPANS = [ReadableSpan("a"), ReadableSpan("b")]


def test_failures_are_said_once_a_minute() -> None:
    """With how many spans were lost since the last time; what an exporter raises is a failure."""
    times = iter((0.0, 59.0, 60.0, 61.0))  # of the failures
    bad, good = SpanExportResult.FAILURE, SpanExportResult.SUCCESS
    exporter = Failing(bad, ValueError(), good, bad, bad)
    reporting = Reporting(exporter, "http://collector", lambda: next(times))
    with capture_logs() as lines:
        results = [reporting.export(SPANS) for _ in range(5)]
    assert results == [bad, bad, good, bad, bad]
    assert [(line["log_level"], line["lost"]) for line in lines] == [("warning", 2), ("warning", 4)]
    reporting.shutdown()
    assert exporter.is_shut_down
    assert reporting.force_flush()


async def test_close_sends_what_waits() -> None:
    """Without waiting for the time of the next batch."""
    async with Collector() as collector:
        provider = Provider(Tracing(enabled=True, endpoint=collector.url, service_name="front"))
        provider.tracer.start_span("a").end()
        await provider.close(10)
    assert [span.name for span in collector.spans] == ["a"]
    assert collector.services == {"front"}


async def test_close_waits_no_longer_than_it_may() -> None:
    """For a collector that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        provider = Provider(Tracing(enabled=True, endpoint=f"http://127.0.0.1:{held.getsockname()[1]}/v1/traces"))
        provider.tracer.start_span("a").end()
        began = time.monotonic()
        await provider.close(0.2)
        assert 0.1 < time.monotonic() - began < 1


async def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest spans are dropped, and nobody waits."""
    monkeypatch.setattr("proxy.otlp._MAX_QUEUED", 4)
    monkeypatch.setattr("proxy.otlp._MAX_BATCH", 4)
    with socket.create_server(("127.0.0.1", 0)) as held:
        provider = Provider(Tracing(enabled=True, endpoint=f"http://127.0.0.1:{held.getsockname()[1]}/v1/traces"))
        began = time.monotonic()
        for _ in range(1000):
            provider.tracer.start_span("a").end()
        assert time.monotonic() - began < 1
        [processor] = provider._provider._active_span_processor._span_processors
        assert len(vars(processor)["_batch_processor"]._queue) <= 4
        await provider.close(0)


async def test_collector_that_refuses_is_a_failure() -> None:
    """It is said, with where the spans were to go."""
    async with Collector(400) as collector:
        provider = Provider(Tracing(enabled=True, endpoint=collector.url))
        with capture_logs() as lines:
            provider.tracer.start_span("a").end()
            await provider.close(10)
    assert [(line["event"], line["endpoint"]) for line in lines] == [("spans cannot be exported", collector.url)]


async def test_share_of_traces_is_recorded() -> None:
    """About as many as the operator wants."""
    async with Collector() as collector:
        provider = Provider(Tracing(enabled=True, endpoint=collector.url, sample_ratio=0.5))
        for _ in range(400):
            provider.tracer.start_span("a").end()
        await provider.close(10)
    assert 120 < len(collector.spans) < 280
