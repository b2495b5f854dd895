"""A collector of traces: OTLP over HTTP, as OpenTelemetry's own takes it."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Takes spans; use it as an async context manager.

    Args:
        status: What it answers.

    Attributes:
        bodies: What came, byte for byte.
        url: What the product is told.
    """

    url: str

    def __init__(self, status: int = 200) -> None:
        self.bodies: list[bytes] = []
        self._status = status

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1/traces"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        return web.Response(status=self._status, content_type="application/x-protobuf")

    @property
    def spans(self) -> list[Span]:
        """All spans, in the order in which they began."""
        found = [span for _, span in self._resources()]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    @property
    def services(self) -> set[str]:
        """What they say they are from."""
        return {str(resource["service.name"]) for resource, _ in self._resources()}

    def named(self, name: str) -> list[Span]:
        """The spans of a name."""
        return [span for span in self.spans if span.name == name]

    def _resources(self) -> Iterator[tuple[dict[str, Any], Span]]:
        for body in self.bodies:
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in group.scope_spans:
                    for span in scope.spans:
                        yield {pair.key: value_of(pair.value) for pair in group.resource.attributes}, span


def attributes(span: Span) -> dict[str, Any]:
    """The attributes of a span."""
    return {pair.key: value_of(pair.value) for pair in span.attributes}


def value_of(value: AnyValue) -> Any:
    """A value as Python has it."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(inner) for inner in value.array_value.values]
    return getattr(value, kind) if kind is not None else None
