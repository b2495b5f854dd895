"""Metrics: one table, and the observer that fills it.

Labels take values from closed sets only, so that nothing a client sends can create a series. Nothing is done per streamed
event: the core counts those in plain integers, and they are added once a turn. A labelled metric with one label is made
with all its children, so that each is there from the start with 0, and is found with a look into a dict.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from proxy import __version__
from proxy.observe import CloseCause, ConnectionRecord, PassThroughRecord, RefusalReason, TurnRecord
from proxy.protocol.chain import CacheBudget, EvictionReason
from proxy.protocol.errors import Source
from proxy.protocol.records import Outcome, ResponseEvicted

_SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84)
"""OpenTelemetry's buckets for GenAI durations, one step longer."""
_OWN_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_LIFETIMES: Final = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200)
_REQUEST_BYTES: Final = tuple(4.0**n * 256 for n in range(9))
_CODE_CLASSES: Final = ("1xx", "2xx", "3xx", "4xx", "5xx", "none")


class Metrics:
    """All metrics of a process, and an :class:`~proxy.observe.Observer`.

    Args:
        registry: Where they are registered.
        budget: Whose use is shown.
        is_ready: Whether the process takes new connections.
    """

    def __init__(self, registry: CollectorRegistry, budget: CacheBudget, is_ready: Callable[[], bool]) -> None:
        self.registry = registry
        ProcessCollector(registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"slipstream_{name}", text, labels, registry=registry)

        def counters(name: str, text: str, label: str, values: Iterable[str]) -> dict[str, Counter]:
            family = counter(name, text, label)
            return {value: family.labels(value) for value in values}

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"slipstream_{name}", text, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"slipstream_{name}", text, registry=registry, buckets=buckets)

        # Connections
        self.connections = gauge("connections_open", "WebSocket connections that are open.")
        self.upgrades = counters(
            "connections_total",
            "Upgrade requests by what became of them: accepted, or why not.",
            "result",
            ("accepted", *get_args(RefusalReason)),
        )
        self.closes = counters(
            "connection_closes_total", "Connections that ended, by cause.", "cause", get_args(CloseCause)
        )
        self.connection_seconds = histogram(
            "connection_duration_seconds", "How long connections lasted.", tuple(map(float, _LIFETIMES))
        )
        # Turns
        self.turns_in_flight = gauge("turns_in_flight", "Turns that the backend works on.")
        self.turns = counters("turns_total", "Turns that ended, by outcome.", "outcome", get_args(Outcome))
        self.errors = counters(
            "turn_errors_total", "Turns that ended in an error, by the side to blame.", "source", get_args(Source)
        )
        self.turn_seconds = histogram(
            "turn_duration_seconds",
            "From the client's request to the last frame, for turns that reached the backend.",
            _SECONDS,
        )
        self.first_event_seconds = histogram(
            "turn_time_to_first_event_seconds", "From the client's request to the first frame relayed.", _SECONDS
        )
        self.queue_seconds = histogram(
            "turn_queue_seconds", "How long turns waited for others of their lane or for a place in flight.", _SECONDS
        )
        self.own_seconds = histogram(
            "turn_proxy_seconds",
            "The proxy's own share of a turn: parsing, splicing, relaying; no waiting.",
            _OWN_SECONDS,
        )
        self.events = counter("relayed_events_total", "Events relayed to clients.")
        self.relayed_bytes = counter("relayed_bytes_total", "Payload bytes of the events relayed to clients.")
        # What the client did not have to send
        self.client_bytes = counter("client_bytes_total", "Bytes of the requests that clients sent.")
        self.upstream_bytes = counter("upstream_bytes_total", "Body bytes of the requests sent to the backend.")
        self.request_bytes = histogram(
            "upstream_request_bytes", "Body bytes of one request to the backend.", _REQUEST_BYTES
        )
        self.saved_bytes = counter(
            "client_bytes_saved_total", "Bytes sent to the backend that clients did not have to send again."
        )
        self.replayed_items = counter("replayed_items_total", "Items sent to the backend from remembered transcripts.")
        self.input_tokens = counter("input_tokens_total", "Input tokens, as the backend reported them.")
        self.cached_tokens = counter(
            "cached_input_tokens_total",
            "Input tokens that the backend took from its prefix cache, as it reported them.",
        )
        self.output_tokens = counter("output_tokens_total", "Output tokens, as the backend reported them.")
        # Cache
        self.lookups = counter(
            "cache_lookups_total",
            "Lookups of what a turn continues, by result; the reason is what was hit, or why nothing was.",
            "kind",
            "result",
            "reason",
        )
        self.evictions = counters(
            "cache_evictions_total",
            "Responses that are no longer remembered, by reason.",
            "reason",
            get_args(EvictionReason),
        )
        gauge("cache_bytes", "Bytes of memory that remembered responses take, about.").set_function(lambda: budget.used)
        gauge("cache_entries", "Responses that are remembered.").set_function(lambda: budget.entries)
        gauge("cache_limit_bytes", "The bound of slipstream_cache_bytes.").set_function(lambda: budget.max_bytes)
        # Backend and plain HTTP
        self.upstream_requests = counters(
            "upstream_requests_total",
            "Requests for turns, by the class of the backend's status; none: no answer.",
            "code_class",
            _CODE_CLASSES,
        )
        self.upstream_connections = counters(
            "upstream_connections_total",
            "Connections that requests for turns went over: new, or used before.",
            "kind",
            ("new", "reused"),
        )
        self.upstream_retries = counters(
            "upstream_retries_total", "Requests sent once more, by reason.", "reason", ("stale_connection",)
        )
        self.snapshot_differs = counter(
            "upstream_snapshot_differs_total", "Turns whose final snapshot lacked items that the stream had finished."
        )
        self.http_requests = counter(
            "http_requests_total",
            "Plain HTTP requests, by who answered and the class of the status.",
            "source",
            "code_class",
        )
        # Process
        gauge("ready", "1 while new connections are taken.").set_function(lambda: float(is_ready()))
        build = Gauge("slipstream_build_info", "Version of proxy and Python.", ("version", "python"), registry=registry)
        build.labels(__version__, platform.python_version()).set(1)

    # Observer

    def connection_opened(self, record: ConnectionRecord) -> None:
        self.connections.inc()
        self.upgrades["accepted"].inc()

    def connection_refused(self, reason: RefusalReason) -> None:
        self.upgrades[reason].inc()

    def connection_closed(self, record: ConnectionRecord) -> None:
        self.connections.dec()
        self.closes[record.cause].inc()
        self.connection_seconds.observe(record.seconds)

    def turn_started(self) -> None:
        self.turns_in_flight.inc()

    def turn_ended(self, record: TurnRecord) -> None:
        facts = record.facts
        self.turns[facts.outcome].inc()
        if facts.error_source is not None:
            self.errors[facts.error_source].inc()
        if facts.lookup is not None:
            kind = "warmup" if facts.outcome == "warmup" else "response"
            self.lookups.labels(kind, facts.lookup, facts.reason).inc()
        self.client_bytes.inc(facts.frame_bytes)
        self.events.inc(facts.events)
        self.relayed_bytes.inc(facts.relayed_bytes)
        if facts.snapshot_differs:
            self.snapshot_differs.inc()
        if record.exchange is not None:
            self._observe_exchange(record)

    def response_evicted(self, record: ResponseEvicted) -> None:
        self.evictions[record.reason].inc()

    def passed_through(self, record: PassThroughRecord) -> None:
        self.http_requests.labels(record.source, _code_class(record.status)).inc()

    def _observe_exchange(self, record: TurnRecord) -> None:
        facts, exchange = record.facts, record.exchange
        assert exchange is not None
        self.turns_in_flight.dec()
        self.turn_seconds.observe(record.ended - facts.received)
        self.queue_seconds.observe(exchange.started - facts.received)
        self.own_seconds.observe(exchange.own)
        if exchange.first_bytes is not None:
            self.first_event_seconds.observe(exchange.first_bytes - facts.received)
        self.upstream_bytes.inc(facts.upstream_bytes)
        self.request_bytes.observe(facts.upstream_bytes)
        self.saved_bytes.inc(facts.replayed_bytes)
        self.replayed_items.inc(facts.replayed_items)
        self.input_tokens.inc(facts.usage.input_tokens)
        self.cached_tokens.inc(facts.usage.cached_tokens)
        self.output_tokens.inc(facts.usage.output_tokens)
        self.upstream_requests[_code_class(exchange.status)].inc()
        if exchange.status is not None:
            self.upstream_connections["reused" if exchange.reused else "new"].inc()
        if exchange.retries:
            self.upstream_retries["stale_connection"].inc(exchange.retries)


def _code_class(status: int | None) -> str:
    return f"{status // 100}xx" if status is not None and 100 <= status <= 599 else "none"
