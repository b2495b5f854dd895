"""Metrics: which there are, what they count, and that nothing from outside can make a new series."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from typing import Any, get_args

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from proxy import app
from proxy.config import Config
from proxy.metrics import Metrics
from proxy.observe import (
    CloseCause,
    ConnectionRecord,
    Exchange,
    HttpSource,
    Observer,
    PassThroughRecord,
    RefusalReason,
    TurnRecord,
    TurnStarted,
)
from proxy.protocol.chain import CacheBudget, EvictionReason
from proxy.protocol.errors import MissReason, Source
from proxy.protocol.records import LookupReason, LookupResult, Outcome, Prefix, ResponseEvicted, TurnEnded
from proxy.protocol.terminals import Usage
from tests.dialogue import Backend, Client, compact, hold, message

Samples = dict[str, float]

REPLICAS = [("upstream", "http://backend/v1")]

#: Every metric with its type and its labels.
FAMILIES = {
    "connections_open": ("gauge", ()),
    "connections": ("counter", ("result",)),
    "connection_closes": ("counter", ("cause",)),
    "connection_duration_seconds": ("histogram", ()),
    "turns_in_flight": ("gauge", ()),
    "turns": ("counter", ("outcome",)),
    "turn_errors": ("counter", ("source",)),
    "turn_duration_seconds": ("histogram", ()),
    "turn_time_to_first_event_seconds": ("histogram", ()),
    "turn_queue_seconds": ("histogram", ()),
    "turn_proxy_seconds": ("histogram", ("phase",)),
    "send_blocked_seconds": ("counter", ()),
    "load_shed": ("counter", ("reason",)),
    "plain_http_bytes": ("counter", ()),
    "handshakes_avoided": ("counter", ()),
    "store_evictions": ("counter", ("reason",)),
    "store_bytes": ("gauge", ()),
    "store_entries": ("gauge", ()),
    "store_limit_bytes": ("gauge", ()),
    "upstream_connect_seconds": ("histogram", ()),
    "event_loop_lag_seconds": ("histogram", ()),
    "relayed_events": ("counter", ()),
    "relayed_bytes": ("counter", ()),
    "client_bytes": ("counter", ()),
    "client_wire_bytes": ("counter", ()),
    "upstream_bytes": ("counter", ()),
    "upstream_request_bytes": ("histogram", ()),
    "client_bytes_saved": ("counter", ()),
    "replayed_items": ("counter", ()),
    "input_tokens": ("counter", ()),
    "cached_input_tokens": ("counter", ()),
    "output_tokens": ("counter", ()),
    "cache_lookups": ("counter", ("kind", "reason", "result")),
    "prefix_broken": ("counter", ("reason",)),
    "cache_evictions": ("counter", ("reason",)),
    "cache_bytes": ("gauge", ()),
    "cache_entries": ("gauge", ()),
    "cache_limit_bytes": ("gauge", ()),
    "upstream_requests": ("counter", ("code_class",)),
    "upstream_preconnections": ("counter", ("result",)),
    "upstream_connections": ("counter", ("kind",)),
    "upstream_retries": ("counter", ("reason",)),
    "upstream_snapshot_differs": ("counter", ()),
    "usage_records": ("counter", ("result", "sink")),
    "usage_failures": ("counter", ("sink",)),
    "usage_lag_seconds": ("gauge", ("sink",)),
    "usage_spool_bytes": ("gauge", ()),
    "usage_spool_limit_bytes": ("gauge", ()),
    "upstream_reroutes": ("counter", ("reason",)),
    "retry_budget_exhausted": ("counter", ()),
    "backend_ejections": ("counter", ("backend", "replica")),
    "backend_up": ("gauge", ("backend", "replica")),
    "backend_in_flight": ("gauge", ("backend", "replica")),
    "http_requests": ("counter", ("code_class", "source")),
    "ready": ("gauge", ()),
    "tasks": ("gauge", ()),
    "workers": ("gauge", ()),
    "worker_restarts": ("counter", ()),
    "build_info": ("gauge", ("python", "version")),
}


@pytest.fixture
def metrics() -> Metrics:
    """Metrics of a process that is ready."""
    return Metrics(CollectorRegistry(), CacheBudget(1000), lambda: True, replicas=REPLICAS)


def samples(text: str) -> Samples:
    """All of our samples by `name{label="value"}`, without the prefix, labels in order."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("slipstream_"):
                labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
                name = sample.name.removeprefix("slipstream_")
                assert f"{name}{{{labels}}}" not in found
                found[f"{name}{{{labels}}}" if labels else name] = sample.value
    return found


def scrape(metrics: Metrics) -> Samples:
    """What Prometheus would see now."""
    return samples(generate_latest(metrics.registry).decode())


def turn(exchange: Exchange | None = None, *, ended: float = 20.0, **facts: Any) -> TurnRecord:
    """The record of one turn that was received at 10.0 on its clock."""
    return TurnRecord("conn_1", TurnEnded(1, None, 100, 10.0, **facts), ended, exchange)


def changed(metrics: Metrics, act: Callable[[], object]) -> Samples:
    """What something adds to the metrics."""
    before = scrape(metrics)
    act()
    after = scrape(metrics)
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}


# Which there are


def test_metrics_has_every_family(metrics: Metrics) -> None:
    """Names, types and labels are an interface: dashboards and alerts are built on them."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        if family.name.startswith("slipstream_"):
            labels = {name for sample in family.samples for name in sample.labels if name != "le"}
            found[family.name.removeprefix("slipstream_")] = (family.type, tuple(sorted(labels)))
    assert found == FAMILIES


def test_metrics_explains_every_family(metrics: Metrics) -> None:
    """A help text is a sentence of its own, and no two are alike."""
    texts = [family.documentation for family in metrics.registry.collect()]
    assert all(len(text) > 20 and text.endswith(".") for text in texts)
    assert len(set(texts)) == len(texts)


def test_metrics_starts_with_every_series(metrics: Metrics) -> None:
    """A counter that is not there cannot be seen to begin: each label value is there with 0 from the start."""
    found = scrape(metrics)
    for outcome in get_args(Outcome):
        assert found[f'turns_total{{outcome="{outcome}"}}'] == 0
    for reason in get_args(EvictionReason):
        assert found[f'cache_evictions_total{{reason="{reason}"}}'] == 0
    for cause in get_args(CloseCause):
        assert found[f'connection_closes_total{{cause="{cause}"}}'] == 0
    for result in ("accepted", *get_args(RefusalReason)):
        assert found[f'connections_total{{result="{result}"}}'] == 0
    for source in get_args(Source):
        assert found[f'turn_errors_total{{source="{source}"}}'] == 0
    lookups = {name for name in found if name.startswith("cache_lookups_total")}
    assert len(lookups) == len(get_args(LookupReason)) + 3 + 6  # those of the tools, and of routes
    assert 'cache_lookups_total{kind="response",reason="none",result="new"}' in lookups


def test_metrics_is_the_observer_that_the_product_wants(metrics: Metrics) -> None:
    """It has every method of the protocol."""
    observer: Observer = metrics
    assert observer is metrics


# What they count


def test_metrics_counts_connections(metrics: Metrics) -> None:
    """Opened, refused, closed, and how long it lasted."""
    record = ConnectionRecord("conn_1", "client", 0.0)
    metrics.connection_opened(record)
    assert scrape(metrics)["connections_open"] == 1
    metrics.connection_refused("draining")
    assert scrape(metrics)['load_shed_total{reason="draining"}'] == 1
    record.seconds, record.cause = 42.0, "slow_client"
    metrics.connection_closed(record)
    found = scrape(metrics)
    assert found["connections_open"] == 0
    assert found['connections_total{result="accepted"}'] == found['connections_total{result="draining"}'] == 1
    assert found['connection_closes_total{cause="slow_client"}'] == 1
    assert found["connection_duration_seconds_sum"] == 42
    assert found['connection_duration_seconds_bucket{le="60.0"}'] == 1
    assert found['connection_duration_seconds_bucket{le="15.0"}'] == 0


def test_metrics_counts_a_turn(metrics: Metrics) -> None:
    """Every number of a record has its place."""
    exchange = Exchange(
        started=10.5,
        first_bytes=12.0,
        own_dispatch=0.002,
        own_relay=0.003,
        connect=0.5,
        blocked=1.5,
        status=200,
        reused=True,
        retries=1,
    )
    record = turn(
        exchange,
        outcome="completed",
        lookup="hit",
        reason="tip",
        upstream_bytes=5000,
        plain_bytes=5200,
        replayed_bytes=4800,
        tools="same",
        replayed_items=7,
        events=30,
        relayed_bytes=9000,
        usage=Usage(1000, 900, 50),
        snapshot_differs=True,
    )
    metrics.turn_started(TurnStarted("conn_1", 1, None, 0.0, 0.0))
    assert scrape(metrics)["turns_in_flight"] == 1
    found = changed(metrics, lambda: metrics.turn_ended(record))
    assert {name: value for name, value in found.items() if "_bucket" not in name} == {
        "turns_in_flight": -1,
        'turns_total{outcome="completed"}': 1,
        "turn_duration_seconds_count": 1,
        "turn_duration_seconds_sum": 10,
        "turn_time_to_first_event_seconds_count": 1,
        "turn_time_to_first_event_seconds_sum": 2,
        "turn_queue_seconds_count": 1,
        "turn_queue_seconds_sum": 0.5,
        'turn_proxy_seconds_count{phase="dispatch"}': 1,
        'turn_proxy_seconds_sum{phase="dispatch"}': 0.002,
        'turn_proxy_seconds_count{phase="relay"}': 1,
        'turn_proxy_seconds_sum{phase="relay"}': 0.003,
        "upstream_connect_seconds_count": 1,
        "upstream_connect_seconds_sum": 0.5,
        "send_blocked_seconds_total": 1.5,
        "plain_http_bytes_total": 5200,
        "relayed_events_total": 30,
        "relayed_bytes_total": 9000,
        "client_bytes_total": 100,
        "upstream_bytes_total": 5000,
        "upstream_request_bytes_count": 1,
        "upstream_request_bytes_sum": 5000,
        "client_bytes_saved_total": 4800,
        "replayed_items_total": 7,
        "input_tokens_total": 1000,
        "cached_input_tokens_total": 900,
        "output_tokens_total": 50,
        'cache_lookups_total{kind="response",reason="tip",result="hit"}': 1,
        'cache_lookups_total{kind="tools",reason="same",result="hit"}': 1,
        'upstream_requests_total{code_class="2xx"}': 1,
        'upstream_connections_total{kind="reused"}': 1,
        'upstream_retries_total{reason="stale_connection"}': 1,
        "upstream_snapshot_differs_total": 1,
    }


def test_metrics_counts_a_turn_that_never_left(metrics: Metrics) -> None:
    """A refusal is a turn and an error, and nothing about the backend."""
    record = turn(outcome="refused", lookup="miss", reason="evicted_limit", error_source="downstream")
    assert changed(metrics, lambda: metrics.turn_ended(record)) == {
        'turns_total{outcome="refused"}': 1,
        'turn_errors_total{source="downstream"}': 1,
        'cache_lookups_total{kind="response",reason="evicted_limit",result="miss"}': 1,
        "client_bytes_total": 100,
    }


@pytest.mark.parametrize("prefix", get_args(Prefix))
def test_metrics_counts_broken_prefixes(metrics: Metrics, prefix: Prefix) -> None:
    """By what broke it; a prefix that is kept, or that nothing was before, is none."""
    found = changed(metrics, lambda: metrics.turn_ended(turn(None, prefix=prefix)))
    broken = {name: value for name, value in found.items() if name.startswith("prefix_broken")}
    assert broken == ({} if prefix in ("none", "kept") else {f'prefix_broken_total{{reason="{prefix}"}}': 1})


def test_metrics_counts_a_turn_without_an_answer(metrics: Metrics) -> None:
    """No status, no connection, no first event: only what happened is counted."""
    metrics.turn_started(TurnStarted("conn_1", 1, None, 0.0, 0.0))
    record = turn(Exchange(started=10.0), outcome="client_gone")
    found = changed(metrics, lambda: metrics.turn_ended(record))
    assert found['upstream_requests_total{code_class="none"}'] == 1
    assert not any(name.startswith(("upstream_connections", "turn_time_to_first", "cache_lookups")) for name in found)


@pytest.mark.parametrize(
    ("status", "code_class"), [(100, "1xx"), (204, "2xx"), (302, "3xx"), (499, "4xx"), (599, "5xx"), (600, "none")]
)
def test_metrics_counts_plain_requests(metrics: Metrics, status: int, code_class: str) -> None:
    """By who answered, and by the class of the status, whatever number it is."""
    record = PassThroughRecord("GET", "/v1/models", status, "upstream", 0.1)
    assert changed(metrics, lambda: metrics.passed_through(record)) == {
        f'http_requests_total{{code_class="{code_class}",source="upstream"}}': 1
    }


def test_metrics_shows_the_cache_and_the_state() -> None:
    """What is remembered, its limit, and whether new connections are taken, as they are at the moment of the scrape."""
    budget, is_ready = CacheBudget(1000), [True]
    metrics = Metrics(CollectorRegistry(), budget, lambda: is_ready[0])
    budget.used, budget.entries, is_ready[0] = 700, 3, False
    metrics.response_evicted(ResponseEvicted("process_bytes"))
    found = scrape(metrics)
    assert (found["cache_bytes"], found["cache_limit_bytes"], found["cache_entries"]) == (700, 1000, 3)
    assert found["ready"] == 0
    assert found['cache_evictions_total{reason="process_bytes"}'] == 1


# No series from outside


def test_metrics_has_the_same_series_after_2000_turns(metrics: Metrics) -> None:
    """Models, ids, lanes, paths, clients and statuses of any kind leave the number of series as it was."""
    before = scrape(metrics).keys()
    lottery = random.Random(7)  # noqa: S311 - no secret

    def text() -> str:
        return "".join(lottery.choices(string.printable + "\ud83d\u2028é", k=lottery.randint(0, 40)))

    def pick(literal: Any) -> Any:
        return lottery.choice(get_args(literal))

    for number in range(2000):
        connection = ConnectionRecord(text(), text(), 0.0, lottery.expovariate(0.001), cause=pick(CloseCause))
        metrics.connection_opened(connection)
        metrics.connection_refused(pick(RefusalReason))
        result: LookupResult = pick(LookupResult)
        misses = get_args(MissReason)
        hits = [reason for reason in get_args(LookupReason) if reason not in ("none", *misses)]
        facts = TurnEnded(
            number,
            text(),
            lottery.randrange(10**6),
            outcome=pick(Outcome),
            response_id=text(),
            previous_response_id=text(),
            model=text(),
            lookup=result,
            reason=lottery.choice({"new": ["none"], "hit": hits, "miss": misses}[result]),
            upstream_bytes=lottery.randrange(10**9),
            error_code=text(),
            error_source=lottery.choice([None, *get_args(Source)]),
        )
        exchange = Exchange(status=lottery.choice([None, lottery.randrange(1000)]), retries=lottery.randrange(2))
        metrics.turn_started(TurnStarted("conn_1", 1, None, 0.0, 0.0))
        metrics.turn_ended(TurnRecord(text(), facts, lottery.uniform(0, 1000), exchange))
        metrics.response_evicted(ResponseEvicted(pick(EvictionReason)))
        metrics.passed_through(PassThroughRecord(text(), text(), lottery.randrange(1000), pick(HttpSource), 1.0))
        metrics.connection_closed(connection)
    after = scrape(metrics)
    assert after.keys() == before
    assert sum(value for name, value in after.items() if name.startswith("turns_total")) == 2000
    assert len(before) < 300


# The whole product


def input_of(body: bytes) -> bytes:
    """The raw input items of a request body, in which they stand last."""
    return body[body.index(b'"input":[') + len(b'"input":[') : -len(b"]}")]


def saved_by(body: bytes, *texts: str) -> int:
    """How many bytes of a body's input a client did not send that sent only these messages."""
    sent = b",".join(compact(message(text)) for text in texts)
    whole = input_of(body)
    assert whole.endswith(b"," + sent)
    return len(whole) - len(b"," + sent)


def check_bytes(found: Samples, backend: Backend, client: Client) -> None:
    """What is counted in bytes is what either side counted for itself."""
    events = [frame for frame in client.received if b'"type":"error"' not in frame]
    saved = [saved_by(backend.bodies[n], text) for n, text in ((1, "Hi again"), (2, "Hi otherwise"), (3, "Hi at last"))]
    assert found["client_bytes_total"] == sum(map(len, client.sent))
    # A frame's head has 4 bytes and a mask of 4 for these sizes, 2 and 4 for the smallest (RFC 6455 section 5.2).
    heads = sum(8 if len(message) > 125 else 6 for message in client.sent)
    assert found["client_wire_bytes_total"] == found["client_bytes_total"] + heads
    assert found["upstream_bytes_total"] == found["upstream_request_bytes_sum"] == sum(map(len, backend.bodies))
    assert found["plain_http_bytes_total"] == found["upstream_bytes_total"]  # the backend was sent everything each time
    assert found["client_bytes_saved_total"] == sum(saved)
    assert found["replayed_items_total"] == 2 + 2 + 1
    assert found["relayed_events_total"] == len(events) == 4 * 5 + 2
    assert found["relayed_bytes_total"] == sum(map(len, events))


def check_counts(found: Samples) -> None:
    """Turns, lookups and requests of the known dialogue."""
    expected = {
        'connections_total{result="accepted"}': 1,
        "connections_open": 1,
        'turns_total{outcome="completed"}': 4,
        'turns_total{outcome="warmup"}': 1,
        'turns_total{outcome="refused"}': 2,
        'turn_errors_total{source="downstream"}': 2,
        'cache_lookups_total{kind="response",reason="none",result="new"}': 2,
        'cache_lookups_total{kind="route",reason="none",result="new"}': 1,
        'cache_lookups_total{kind="route",reason="same",result="hit"}': 3,
        'cache_lookups_total{kind="response",reason="tip",result="hit"}': 1,
        'cache_lookups_total{kind="response",reason="branch",result="hit"}': 1,
        'cache_lookups_total{kind="warmup",reason="warmup",result="hit"}': 1,
        'cache_lookups_total{kind="response",reason="unknown",result="miss"}': 1,
        "cache_entries": 5,
        "cache_limit_bytes": 2**30,
        'upstream_requests_total{code_class="2xx"}': 4,
        "input_tokens_total": 40,
        "cached_input_tokens_total": 16,
        "output_tokens_total": 8,
        "turn_duration_seconds_count": 4,
        "turn_time_to_first_event_seconds_count": 4,
        "turn_queue_seconds_count": 4,
        'turn_proxy_seconds_count{phase="dispatch"}': 4,
        'turn_proxy_seconds_count{phase="relay"}': 4,
        "handshakes_avoided_total": 6,
        "upstream_connect_seconds_count": found['upstream_connections_total{kind="new"}'],
        "store_entries": 5,
        "store_limit_bytes": 2**28,
        "upstream_request_bytes_count": 4,
        "ready": 1,
        "workers": 1,
    }
    shared = (
        *(
            "relayed",
            "client_bytes",
            "client_wire",
            "upstream_bytes",
            "upstream_connections",
            "replayed",
            "cache_bytes",
            "build",
        ),
        *("plain_http_bytes", "store_bytes", "event_loop_lag", "tasks"),
    )
    counted = {
        name: value
        for name, value in found.items()
        if value and not name.startswith(shared) and not name.partition("{")[0].endswith(("_bucket", "_sum"))
    }
    (up,) = [counted.pop(name) for name in list(counted) if name.startswith("backend_up")]
    assert up == 1
    assert counted == expected
    connections = ("new", "reused")
    assert sum(found[f'upstream_connections_total{{kind="{kind}"}}'] for kind in connections) == 4
    for phase in ("dispatch", "relay"):
        assert 0 < found[f'turn_proxy_seconds_sum{{phase="{phase}"}}'] < found["turn_duration_seconds_sum"]
    assert 0 < found["turn_time_to_first_event_seconds_sum"] <= found["turn_duration_seconds_sum"]
    assert found["cache_bytes"] > 0
    assert found["store_bytes"] > 0


async def test_product_reports_a_known_dialogue() -> None:
    """Scraped over HTTP: the numbers of a dialogue that both of its sides have counted for themselves."""
    async with Backend() as backend, aiohttp.ClientSession() as session:
        config = Config.model_validate(
            {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "upstream": {"url": backend.url}}
        )
        async with app.start(config) as running:
            operator, base = f"http://{running.admin}", f"http://{running.listen}/v1"

            async def ask(path: str) -> tuple[int, str]:
                async with session.get(f"{operator}{path}") as answer:
                    return answer.status, await answer.text()

            client = await hold(session, base, "Hi", {})
            found = samples((await ask("/metrics"))[1])
            check_counts(found)
            check_bytes(found, backend, client)

            for path, status in (("/models", 200), ("/nothing", 404)):
                async with session.get(f"{base}{path}") as answer:
                    assert answer.status == status
            with pytest.raises(aiohttp.WSServerHandshakeError):
                await session.ws_connect(f"{base}/elsewhere")
            assert await ask("/readyz") == (200, "ok\n")
            assert await ask("/livez") == (200, "ok\n")

            await client.socket.close()
            await running.drain(5)
            assert await ask("/readyz") == (503, "draining\n")
            assert await ask("/livez") == (200, "ok\n")
            found = samples((await ask("/metrics"))[1])
            assert found["connections_open"] == found["cache_entries"] == found["cache_bytes"] == found["ready"] == 0
            assert found['connections_total{result="not_found"}'] == 1
            assert found['connection_closes_total{cause="client"}'] == found["connection_duration_seconds_count"] == 1
            assert found['http_requests_total{code_class="2xx",source="upstream"}'] == 1
            assert found['http_requests_total{code_class="4xx",source="upstream"}'] == 1
