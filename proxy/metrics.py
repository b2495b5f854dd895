"""Metrics: one table, and the observer that fills it.

Labels take values from closed sets only, so that nothing a client sends can create a series. Nothing is done per streamed
event: the core counts those in plain integers, and they are added once a turn. A labelled metric is made with all its
children, so that each is there from the start with 0, and is found with a look into a dict.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Sequence
from itertools import product
from typing import Final, get_args

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics

from proxy import __version__
from proxy.families import LOOKUPS, ROUTES, TOOLS, Maker
from proxy.observe import (
    CloseCause,
    ConnectionRecord,
    HttpSource,
    PassThroughRecord,
    RefusalReason,
    TurnRecord,
    TurnStarted,
)
from proxy.pool import Preconnection
from proxy.protocol.chain import CacheBudget, EvictionReason
from proxy.protocol.errors import QueueFull, Source
from proxy.protocol.records import Outcome, Prefix, ResponseEvicted
from proxy.protocol.store import MemoryStore, StoreEviction
from proxy.protocol.upstream_errors import BackendBusy
from proxy.replicametrics import ReplicaMetrics
from proxy.usagemetrics import UsageMetrics

_SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84)
"""OpenTelemetry's buckets for GenAI durations, one step longer."""
_OWN_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_LIFETIMES: Final = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200)
_REQUEST_BYTES: Final = tuple(4.0**n * 256 for n in range(9))
_CODE_CLASSES: Final = ("1xx", "2xx", "3xx", "4xx", "5xx", "none")
_BROKEN: Final = tuple(reason for reason in get_args(Prefix) if reason not in ("none", "kept"))
_SHED: Final = ("draining", "queue_full", "backend_busy")
_LAGS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Metrics:
    """All metrics of a process, and an :class:`~proxy.observe.Observer`.

    Args:
        registry: Where they are registered.
        budget: Whose use is shown.
        store: Whose use is shown, too; None for none.
        is_ready: Whether the process takes new connections.
        replicas: All servers, each as the name of its backend and its URL.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        budget: CacheBudget,
        is_ready: Callable[[], bool],
        store: MemoryStore | None = None,
        *,
        replicas: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.registry = registry
        ProcessCollector(registry=registry)
        # The library's `_created` series would double ours, and say what process_start_time_seconds says.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        make = Maker(registry)
        self._define_connections(make)
        self._define_turns(make)
        self._define_bytes(make)
        self._define_cache(make, budget)
        self._define_store(make, store)
        self._define_requests(make)
        self.usage = UsageMetrics(make)
        self.replicas = ReplicaMetrics(make, replicas)
        self._define_process(make, is_ready)

    # Definitions

    def _define_connections(self, make: Maker) -> None:
        self.connections = make.gauge("connections_open", "WebSocket connections that are open now.")
        self.upgrades = make.counters(
            "connections_total",
            "WebSocket upgrade requests by result: accepted, or why they were refused.",
            "result",
            ("accepted", *get_args(RefusalReason)),
        )
        self.closes = make.counters(
            "connection_closes_total", "WebSocket connections that ended, by cause.", "cause", get_args(CloseCause)
        )
        self.connection_seconds = make.histogram(
            "connection_duration_seconds", "How long WebSocket connections lasted.", tuple(map(float, _LIFETIMES))
        )

    def _define_turns(self, make: Maker) -> None:
        self.turns_in_flight = make.gauge("turns_in_flight", "Turns that the backend works on now.")
        self.turns = make.counters(
            "turns_total",
            "Turns that ended, by outcome; refused: an error for what the client asked; warmup: answered without the backend.",
            "outcome",
            get_args(Outcome),
        )
        self.errors = make.counters(
            "turn_errors_total",
            "Turns that ended in an error, by the side to blame: downstream is the client, internal is the proxy.",
            "source",
            get_args(Source),
        )
        self.turn_seconds = make.histogram(
            "turn_duration_seconds",
            "From the arrival of the client's request to its last frame, for turns that went to the backend.",
            _SECONDS,
        )
        self.first_event_seconds = make.histogram(
            "turn_time_to_first_event_seconds",
            "From the arrival of the client's request to the first event relayed to it.",
            _SECONDS,
        )
        self.queue_seconds = make.histogram(
            "turn_queue_seconds", "How long turns waited for others of their lane or for a place in flight.", _SECONDS
        )
        self.own_seconds = make.histograms(
            "turn_proxy_seconds",
            "The proxy's own share of a turn by phase, no waiting in it: dispatch is from the arrival of the request until "
            "the backend's is ready; relay is all that was spent on the answer.",
            "phase",
            ("dispatch", "relay"),
            _OWN_SECONDS,
        )
        self.blocked_seconds = make.counter(
            "send_blocked_seconds_total", "How long backends were not read because a client took no more."
        )
        self.shed = make.counters(
            "load_shed_total",
            "What was refused to keep the rest going: upgrades while draining, requests over the limits of a connection's "
            "queue, or of that before a backend.",
            "reason",
            _SHED,
        )
        self.events = make.counter("relayed_events_total", "Events relayed to clients.")
        self.relayed_bytes = make.counter("relayed_bytes_total", "Payload bytes of the events relayed to clients.")

    def _define_bytes(self, make: Maker) -> None:
        self.client_bytes = make.counter("client_bytes_total", "Bytes of the requests for turns that clients sent.")
        self.arrived_bytes = make.counter(
            "client_wire_bytes_total",
            "What came over the network for slipstream_client_bytes_total, frames and pongs included: less where clients "
            "compress.",
        )
        self.upstream_bytes = make.counter(
            "upstream_bytes_total", "Body bytes of the requests that turns made to the backend."
        )
        self.request_bytes = make.histogram(
            "upstream_request_bytes", "Body bytes of one request to the backend.", _REQUEST_BYTES
        )
        self.saved_bytes = make.counter(
            "client_bytes_saved_total",
            "Those bytes of slipstream_upstream_bytes_total that were remembered, so that clients did not send them again.",
        )
        self.plain_bytes = make.counter(
            "plain_http_bytes_total",
            "What the same turns would have had clients send over plain HTTP: for each turn that was asked of the backend, "
            "the body of a request that holds the whole conversation. Compare with slipstream_client_bytes_total.",
        )
        self.handshakes = make.counter(
            "handshakes_avoided_total",
            "Turns after the first on their WebSocket, each of which could have been a connection of its own.",
        )
        self.replayed_items = make.counter(
            "replayed_items_total",
            "Input items in requests to the backend that were remembered, so that clients did not send them again.",
        )
        self.input_tokens = make.counter("input_tokens_total", "Input tokens, as the backend reported them.")
        self.cached_tokens = make.counter(
            "cached_input_tokens_total",
            "Input tokens that the backend took from its prefix cache, as it reported them.",
        )
        self.output_tokens = make.counter("output_tokens_total", "Output tokens, as the backend reported them.")

    def _define_cache(self, make: Maker, budget: CacheBudget) -> None:
        self.lookups = make.table(
            "cache_lookups_total",
            "Lookups by kind, result and reason. response: what a turn continues, nothing (new), what was found, or why "
            "nothing was; warmup: it continues a warm-up; tools: whether its tools are those of the turn before; route: whether "
            "the way to a replica is that of the turn before.",
            ("kind", "result", "reason"),
            LOOKUPS,
        )
        self.prefix_broken = make.counters(
            "prefix_broken_total",
            "Turns that continue a response with a request that does not begin with the bytes of the one before, so that the "
            "backend's prefix cache ends there: by the first field that differs, or compaction.",
            "reason",
            _BROKEN,
        )
        self.evictions = make.counters(
            "cache_evictions_total",
            "Responses that were forgotten while their connection lives on, by reason.",
            "reason",
            get_args(EvictionReason),
        )
        make.gauge("cache_bytes", "Memory that remembered responses take, estimated.").set_function(lambda: budget.used)
        make.gauge("cache_entries", "Responses that are remembered now.").set_function(lambda: budget.entries)
        make.gauge("cache_limit_bytes", "Limit of slipstream_cache_bytes, from the configuration.").set_function(
            lambda: budget.max_bytes
        )

    def _define_store(self, make: Maker, store: MemoryStore | None) -> None:
        self.store_evictions = make.counters(
            "store_evictions_total",
            "Stored responses that were forgotten, by reason.",
            "reason",
            get_args(StoreEviction),
        )
        used = make.gauge("store_bytes", "Memory that stored responses take, estimated.")
        entries = make.gauge("store_entries", "Responses that are stored now.")
        limit = make.gauge("store_limit_bytes", "Limit of slipstream_store_bytes, from the configuration.")
        if store is not None:
            used.set_function(lambda: store.used)
            entries.set_function(lambda: len(store))
            limit.set_function(lambda: store.max_bytes)

    def _define_requests(self, make: Maker) -> None:
        self.upstream_requests = make.counters(
            "upstream_requests_total",
            "Requests for turns by the class of the backend's HTTP status; none: no answer came.",
            "code_class",
            _CODE_CLASSES,
        )
        self.upstream_connections = make.counters(
            "upstream_connections_total",
            "Answered requests for turns by the connection they went over: new, opened ahead of them, or used before.",
            "kind",
            ("new", "ahead", "reused"),
        )
        self.preconnections = make.counters(
            "upstream_preconnections_total",
            "Connections that were opened ahead of a request (upstream.preconnect), by what became of them.",
            "result",
            get_args(Preconnection),
        )
        self.connect_seconds = make.histogram(
            "upstream_connect_seconds", "How long opening a connection to the backend took.", _SECONDS
        )
        self.upstream_retries = make.counters(
            "upstream_retries_total", "Requests sent once more, by reason.", "reason", ("stale_connection",)
        )
        self.snapshot_differs = make.counter(
            "upstream_snapshot_differs_total",
            "Turns in which the backend's final response lacked items that its stream had finished.",
        )
        self.http_requests = make.table(
            "http_requests_total",
            "Plain HTTP requests by who answered (the backend, or the proxy in its place) and class of the status.",
            ("source", "code_class"),
            product(get_args(HttpSource), _CODE_CLASSES),
        )

    def _define_process(self, make: Maker, is_ready: Callable[[], bool]) -> None:
        self.lag_seconds = make.histogram(
            "event_loop_lag_seconds", "How late the event loop ran a timer, looked at twice a second.", _LAGS
        )
        make.gauge(
            "tasks", "Tasks of the event loop: a few for each connection, and none is left of one that has ended."
        ).set_function(_tasks)
        make.gauge("ready", "1 while new connections are taken.").set_function(lambda: float(is_ready()))
        self.workers = make.gauge("workers", "Processes that serve clients now.")
        self.worker_restarts = make.counter(
            "worker_restarts_total", "Workers that ended by themselves, and were started again."
        )
        build = make.gauge("build_info", "Versions of the proxy and of Python, as labels.", "version", "python")
        build.labels(__version__, platform.python_version()).set(1)

    # Observer

    def connection_opened(self, record: ConnectionRecord) -> None:
        self.connections.inc()
        self.upgrades["accepted"].inc()

    def connection_refused(self, reason: RefusalReason) -> None:
        self.upgrades[reason].inc()
        if reason in self.shed:
            self.shed[reason].inc()

    def connection_closed(self, record: ConnectionRecord) -> None:
        self.connections.dec()
        self.closes[record.cause].inc()
        self.connection_seconds.observe(record.seconds)

    def turn_started(self, record: TurnStarted) -> None:
        self.turns_in_flight.inc()

    def turn_ended(self, record: TurnRecord) -> None:
        facts = record.facts
        self.turns[facts.outcome].inc()
        if facts.error_source is not None:
            self.errors[facts.error_source].inc()
        if facts.lookup is not None:
            kind = "warmup" if facts.reason == "warmup" else "response"
            self.lookups[kind, facts.lookup, facts.reason].inc()
        if facts.tools != "none":
            self.lookups[TOOLS[facts.tools]].inc()
        if facts.prefix in self.prefix_broken:
            self.prefix_broken[facts.prefix].inc()
        if facts.turn > 1:
            self.handshakes.inc()
        if facts.error_code == QueueFull.code:
            self.shed["queue_full"].inc()
        elif facts.error_code == BackendBusy.code and facts.error_source == "upstream":
            self.shed["backend_busy"].inc()
        self.client_bytes.inc(facts.frame_bytes)
        self.arrived_bytes.inc(record.arrived)
        self.events.inc(facts.events)
        self.relayed_bytes.inc(facts.relayed_bytes)
        if facts.snapshot_differs:
            self.snapshot_differs.inc()
        if record.exchange is not None:
            self._observe_exchange(record)

    def response_evicted(self, record: ResponseEvicted) -> None:
        self.evictions[record.reason].inc()

    def passed_through(self, record: PassThroughRecord) -> None:
        self.http_requests[record.source, _code_class(record.status)].inc()

    def _observe_exchange(self, record: TurnRecord) -> None:
        facts, exchange = record.facts, record.exchange
        assert exchange is not None
        self.turns_in_flight.dec()
        self.turn_seconds.observe(record.ended - facts.received)
        self.queue_seconds.observe(exchange.started - facts.received)
        self.own_seconds["dispatch"].observe(exchange.own_dispatch)
        self.own_seconds["relay"].observe(exchange.own_relay)
        self.blocked_seconds.inc(exchange.blocked)
        if exchange.connect is not None:
            self.connect_seconds.observe(exchange.connect)
        if exchange.first_bytes is not None:
            self.first_event_seconds.observe(exchange.first_bytes - facts.received)
        self.upstream_bytes.inc(facts.upstream_bytes)
        if facts.upstream_bytes:
            self.request_bytes.observe(facts.upstream_bytes)
        self.plain_bytes.inc(facts.plain_bytes)
        self.saved_bytes.inc(facts.replayed_bytes)
        self.replayed_items.inc(facts.replayed_items)
        self.input_tokens.inc(facts.usage.input_tokens)
        self.cached_tokens.inc(facts.usage.cached_tokens)
        self.output_tokens.inc(facts.usage.output_tokens)
        self.upstream_requests[_code_class(exchange.status)].inc()
        if exchange.status is not None:
            kind = "reused" if exchange.reused else "ahead" if exchange.ahead else "new"
            self.upstream_connections[kind].inc()
        if exchange.backend is not None:
            result, reason = ROUTES[exchange.moved or facts.route]
            self.lookups["route", result, reason].inc()
        for _, why in exchange.reroutes:
            self.replicas.reroutes[why].inc()
        if exchange.retries:
            self.upstream_retries["stale_connection"].inc(exchange.retries)


def _tasks() -> float:
    try:
        return float(len(asyncio.all_tasks()))
    except RuntimeError:  # no loop runs here
        return 0.0


def _code_class(status: int | None) -> str:
    return f"{status // 100}xx" if status is not None and 100 <= status <= 599 else "none"
