"""Traces: a span for each turn and for each request to the backend, for OpenTelemetry.

Imported only where tracing is switched on. A turn's span begins with its create and ends with its last frame; below it is
one for each time that the backend was asked. Both are made of the records that logs and metrics get, so that nothing is
done for single events. They hold what the logs hold: sizes, ids, counts, and no content.

A connection is no parent: it may last an hour, and a trace is only shown once it has ended. It has a short span of its
own, to which its turns are linked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, Self

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from proxy import conventions as names
from proxy.config import Config
from proxy.observe import ConnectionRecord, Exchange, PassThroughRecord, RefusalReason, TurnRecord, TurnStarted
from proxy.otlp import MAX_TEXT, Provider
from proxy.propagation import from_metadata
from proxy.protocol.records import ResponseEvicted, TurnEnded
from proxy.protocol.upstream_errors import UpstreamRefused
from proxy.values import address_of_url

_PROPAGATOR: Final = TraceContextTextMapPropagator()
_METHODS: Final = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
_ENDED: Final = ("completed", "incomplete", "failed")
"""Outcomes that are a response's own status."""
_FAILED: Final = ("failed", "error", "refused")
_LEAST: Final = 0.5
"""Seconds to send what waits, whatever happens."""
_MOST: Final = 5.0
"""The same where there is time; a collector that is down is no reason to end late."""

Attributes = dict[str, AttributeValue]


class Tracing:
    """The observer that makes spans; a :class:`~proxy.propagation.Tracer` too.

    Args:
        config: The operator's choices.
        provider: What makes spans.

    Attributes:
        patience: Seconds for which :meth:`close` may send what waits.
    """

    def __init__(self, config: Config, provider: Provider) -> None:
        self.patience = _LEAST
        self._provider = provider
        self._tracer = provider.tracer
        self._connections: dict[str, tuple[Context, list[Link]]] = {}
        self._servers: dict[str, Attributes] = {
            url: {
                names.OPERATION: "chat",
                names.PROVIDER: one.profile,
                names.SERVER_ADDRESS: address_of_url(url).host,
                names.SERVER_PORT: address_of_url(url).port,
            }
            for one in config.served
            for url in one.replicas
        }

    @classmethod
    def of(cls, config: Config) -> Self:
        """Trace as the operator wants it."""
        return cls(config, Provider(config.tracing))

    async def close(self) -> None:
        """Send what waits, as long as there is time for it."""
        await self._provider.close(self.patience)

    def allow(self, seconds: float) -> None:
        """There is so much time for that."""
        self.patience = min(max(seconds, _LEAST), _MOST)

    # Who traces

    def turn(self, connection_id: str, facts: TurnEnded) -> TurnTrace:
        """Begin the span of a turn."""
        parent, links = self._connections.get(connection_id, (Context(), []))
        if own := from_metadata(facts.metadata):
            parent = _PROPAGATOR.extract(own, Context())
        began = time.time_ns() - _nanoseconds(time.perf_counter() - facts.received)
        span = self._tracer.start_span(
            "responses.create", context=parent, kind=SpanKind.SERVER, links=links, start_time=began
        )
        return TurnTrace(self._tracer, span, self._servers, facts.model, began)

    def request(self, method: str, path: str, parent: Mapping[str, str]) -> RequestTrace:
        """Begin the span of a plain request."""
        method = method if method in _METHODS else "_OTHER"
        span = self._tracer.start_span(
            "HTTP" if method == "_OTHER" else method,
            context=_PROPAGATOR.extract(parent, Context()),
            kind=SpanKind.SERVER,
            attributes={names.HTTP_METHOD: method, names.URL_PATH: _text(path)},
        )
        return RequestTrace(span)

    # Who observes

    def connection_opened(self, record: ConnectionRecord) -> None:
        parent = _PROPAGATOR.extract(record.trace, Context())
        attributes = {names.CONNECTION: record.connection_id, names.USER_AGENT: _text(record.client)}
        span = self._tracer.start_span("responses.connection", context=parent, attributes=attributes)
        span.end()
        context = span.get_span_context()
        self._connections[record.connection_id] = parent, [Link(context)] if context.trace_flags.sampled else []

    def connection_refused(self, reason: RefusalReason) -> None:
        pass

    def connection_closed(self, record: ConnectionRecord) -> None:
        self._connections.pop(record.connection_id, None)

    def turn_started(self, record: TurnStarted) -> None:
        pass

    def turn_ended(self, record: TurnRecord) -> None:
        trace = record.exchange.trace if record.exchange is not None else None
        if not isinstance(trace, TurnTrace):  # it did not need the backend
            trace = self.turn(record.connection_id, record.facts)
        trace.end(record)

    def response_evicted(self, record: ResponseEvicted) -> None:
        pass

    def passed_through(self, record: PassThroughRecord) -> None:
        if isinstance(record.trace, RequestTrace):
            record.trace.end(record)


class TurnTrace:
    """The spans of one turn.

    Args:
        tracer: Makes them.
        span: The turn's own.
        servers: What is known of each server that may be asked, by its base URL.
        model: The model that is asked for; None if that is not known.
        began: When the turn began, in nanoseconds.
    """

    def __init__(
        self, tracer: Tracer, span: Span, servers: Mapping[str, Attributes], model: str | None, began: int
    ) -> None:
        self._tracer = tracer
        self._span = span
        self._servers = servers
        self._model = None if model is None else _text(model)
        self._began = began
        self._attempt: Span | None = None
        self._attempt_began = 0

    def outgoing(self, server: str) -> Mapping[str, str]:
        """Begin the span of a request, in place of the one before."""
        if self._attempt is not None:
            self._attempt.end()
        self._attempt_began = time.time_ns()
        asked = dict(self._servers[server])
        if self._model is not None:
            asked[names.REQUEST_MODEL] = self._model
        self._attempt = self._tracer.start_span(
            f"chat {(self._model or '')[:100]}".rstrip(),
            context=set_span_in_context(self._span, Context()),
            kind=SpanKind.CLIENT,
            attributes=asked,
            start_time=self._attempt_began,
        )
        return _headers(self._attempt)

    def failed(self, error: Exception) -> None:
        """End the span of a request that failed."""
        if self._attempt is not None:
            if isinstance(error, UpstreamRefused):
                self._attempt.set_attribute(names.HTTP_STATUS, error.status)
                _fail(self._attempt, error.code or str(error.status))
            else:
                _fail(self._attempt, getattr(error, "code", None) or type(error).__name__)
            self._attempt.end()
            self._attempt = None

    def end(self, record: TurnRecord) -> None:
        """End all spans, as the record says."""
        facts, exchange = record.facts, record.exchange
        ended = self._began + _nanoseconds(record.ended - facts.received)
        if self._attempt is not None:
            attempt, self._attempt = self._attempt, None
            if attempt.is_recording():
                attempt.set_attributes(_answered(facts, exchange, self._attempt_began - self._began))
                if facts.outcome in _FAILED and facts.error_source == "upstream":
                    _fail(attempt, facts.error_code or facts.outcome)
            attempt.end(max(ended, self._attempt_began))
        if self._span.is_recording():
            self._span.set_attributes(_taken(record))
            if facts.outcome in _FAILED:
                # As for HTTP: what is the client's own fault is no error of the server's.
                _fail(self._span, facts.error_code or facts.outcome, is_ours=facts.error_source != "downstream")
        self._span.end(ended)


class RequestTrace:
    """The span of one plain request.

    Args:
        span: It.
    """

    def __init__(self, span: Span) -> None:
        self._span = span

    def outgoing(self, server: str) -> Mapping[str, str]:
        """Have the backend's spans below the request's own."""
        return _headers(self._span)

    def failed(self, error: Exception) -> None:
        """Nothing is to be said of it but the status that comes of it."""

    def end(self, record: PassThroughRecord) -> None:
        """End it, as the record says."""
        self._span.set_attributes({names.HTTP_STATUS: record.status, names.SOURCE: record.source})
        if record.status >= 500:
            _fail(self._span, str(record.status))
        self._span.end()


def _taken(record: TurnRecord) -> Attributes:
    """What is known of a turn."""
    facts, exchange = record.facts, record.exchange
    attributes: dict[str, AttributeValue | None] = {
        names.CONNECTION: record.connection_id,
        names.TURN: facts.turn,
        names.LANE: facts.lane,
        names.OUTCOME: facts.outcome,
        names.REQUEST_MODEL: facts.model,
        names.RESPONSE_ID: facts.response_id,
        names.PREVIOUS: facts.previous_response_id,
        names.CACHE: facts.lookup,
        names.CACHE_REASON: facts.reason,
        names.DEPTH: facts.depth,
        names.FRAME_BYTES: facts.frame_bytes,
        names.UPSTREAM_BYTES: facts.upstream_bytes,
        names.REPLAYED_BYTES: facts.replayed_bytes,
        names.REPLAYED_ITEMS: facts.replayed_items,
        names.NEW_ITEMS: facts.new_items,
        names.EVENTS: facts.events,
        names.SENT_BYTES: facts.relayed_bytes,
        names.ERROR_SOURCE: facts.error_source,
    }
    if exchange is not None:
        attributes[names.PROXY_SECONDS] = exchange.own
        attributes[names.QUEUE_SECONDS] = exchange.started - facts.received
    return _known(attributes)


def _answered(facts: TurnEnded, exchange: Exchange | None, delay: int) -> Attributes:
    """What is known of the backend's answer to a request that was made so long after the turn began."""
    attributes: dict[str, AttributeValue | None] = {
        names.RESPONSE_ID: facts.response_id,
        names.RESPONSE_MODEL: facts.answered_by,
    }
    if facts.outcome in _ENDED:
        attributes[names.FINISH_REASONS] = [facts.outcome]
        attributes[names.INPUT_TOKENS] = facts.usage.input_tokens
        attributes[names.OUTPUT_TOKENS] = facts.usage.output_tokens
        attributes[names.CACHED_TOKENS] = facts.usage.cached_tokens
    if exchange is not None:
        attributes[names.HTTP_STATUS] = exchange.status
        attributes[names.REUSED] = exchange.reused
        if exchange.first_bytes is not None and (waited := exchange.first_bytes - facts.received - delay / 1e9) > 0:
            attributes[names.FIRST_CHUNK] = waited  # else it was an earlier request that began the response
    return _known(attributes)


def _known(attributes: Mapping[str, AttributeValue | None]) -> Attributes:
    return {
        name: _text(value) if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None
    }


def _fail(span: Span, kind: str, *, is_ours: bool = True) -> None:
    span.set_attribute(names.ERROR_TYPE, _text(kind))
    if is_ours:
        span.set_status(Status(StatusCode.ERROR))


def _headers(span: Span) -> Mapping[str, str]:
    headers: dict[str, str] = {}
    _PROPAGATOR.inject(headers, set_span_in_context(span, Context()))
    return headers


def _text(text: str) -> str:
    """Text that somebody else chose, in a form that can be encoded: one that cannot would take its whole batch with it."""
    text = text[:MAX_TEXT]
    return text if text.isascii() else text.encode(errors="replace").decode()


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
