"""Every expression of every file, worked out by a Prometheus that has watched a real run: each says something."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.grafana.boards import NAMES, load, rules, selectors, targets
from tests.grafana.run import FAULTY, JOB, Watched, watched_run
from tests.rig.prometheus import promtool
from tests.test_metrics import samples

pytestmark = pytest.mark.observability

#: Alerts that the run does not bring about, and why. Theirs are worked out with thresholds of 0.
QUIET = {
    "SlipstreamFirstEventSlow": "no backend takes 30 s here",
    "SlipstreamProxyOverheadHigh": "the proxy is faster than that",
    "SlipstreamSlowClients": "a client is cut after 30 s at the earliest",
    "SlipstreamEventLoopLag": "one client at a time does not fill a core",
    "SlipstreamWorkersEnd": "one process serves, and lives",
    "SlipstreamUsageSinkLags": "no usage is recorded",
    "SlipstreamUsageDropped": "no usage is recorded",
    "SlipstreamAbsent": "there are two",
}


#: Series that tell one thing from another, of those that the run makes rise.
RISEN = [
    *(f'slipstream_turns_total{{outcome="{outcome}"}}' for outcome in ("completed", "warmup", "refused", "error")),
    *(f'slipstream_turn_errors_total{{source="{source}"}}' for source in ("downstream", "upstream")),
    *(
        f'slipstream_cache_lookups_total{{reason="{reason}"}}'
        for reason in ("none", "tip", "branch", "stored", "warmup")
    ),
    *(
        f'slipstream_cache_lookups_total{{reason="{reason}"}}'
        for reason in ("unknown", "evicted_limit", "evicted_failed")
    ),
    *(f'slipstream_cache_lookups_total{{kind="tools", reason="{reason}"}}' for reason in ("none", "same", "changed")),
    *(f'slipstream_upstream_requests_total{{code_class="{code_class}"}}' for code_class in ("2xx", "4xx", "none")),
    *(f'slipstream_upstream_connections_total{{kind="{kind}"}}' for kind in ("new", "reused")),
    *(
        f'slipstream_http_requests_total{{source="upstream", code_class="{code_class}"}}'
        for code_class in ("2xx", "4xx")
    ),
    'slipstream_cache_evictions_total{reason="process_bytes"}',
    'slipstream_store_evictions_total{reason="bytes"}',
    'slipstream_load_shed_total{reason="queue_full"}',
    'slipstream_connection_closes_total{cause="client"}',
]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """The run, once for all."""
    with watched_run(tmp_path_factory.mktemp("watched")) as run:
        yield run


def substituted(expression: str) -> str:
    """What Grafana makes of an expression for all jobs and instances; the times hold the run on a slow machine too."""
    for name, value in {"job": ".+", "instance": ".+", "__rate_interval": "2m", "__range": "5m"}.items():
        expression = re.sub(rf"\${name}\b", value, expression)
    assert "$" not in expression
    return expression


def at_zero(expression: str) -> str:
    """An expression with its thresholds at 0."""
    return re.sub(r">=? [\d.]+( \* [\d.]+)?", ">= 0", expression)


def numbers(watched: Watched, expression: str) -> list[tuple[dict[str, str], float]]:
    """Labels and value of each sample that is a number."""
    found = [(sample["metric"], float(sample["value"][1])) for sample in watched.prometheus.query(expression)]
    return [(labels, value) for labels, value in found if not math.isnan(value)]


@pytest.mark.parametrize("name", NAMES)
def test_panels_show_something(watched: Watched, name: str) -> None:
    """No panel is empty, and no query of a panel."""
    queries = [(title, substituted(target["expr"])) for title, target in targets(load(name))]
    assert len(queries) >= 20
    assert [(title, query) for title, query in queries if not numbers(watched, query)] == []


@pytest.mark.parametrize("name", NAMES)
def test_annotations_find_something(watched: Watched, name: str) -> None:
    """The version that was not there before the run; nothing was restarted in it."""
    versions, restarts = (substituted(entry["expr"]) for entry in load(name)["annotations"]["list"])
    versions = versions.replace("offset 1m", "offset 5m")
    assert {labels["job"] for labels, _ in numbers(watched, versions)} == {JOB, FAULTY}
    assert numbers(watched, restarts) == []
    assert len(numbers(watched, at_zero(restarts))) == 2


def test_run_has_what_the_boards_tell_apart(watched: Watched) -> None:
    """What is watched is no run of zeros."""
    assert [series for series in RISEN if not numbers(watched, f"increase({series}[5m]) > 0")] == []


def test_variables_find_what_there_is(watched: Watched) -> None:
    """The jobs and the instances to choose from."""
    found: list[Any] = watched.prometheus.get("series?match[]=slipstream_build_info")
    assert {labels["job"] for labels in found} == {JOB, FAULTY}
    assert len({labels["instance"] for labels in found}) == 2


def test_recording_rules_record(watched: Watched) -> None:
    """Each gives something now, and has been recorded under its name."""
    for rule in rules("rules.yaml"):
        assert numbers(watched, rule["expr"]), rule["record"]
        assert numbers(watched, rule["record"]), rule["record"]


def test_alerts_fire_at_faults(watched: Watched) -> None:
    """Those that the faults of the run bring about do fire; the others would, were their thresholds 0."""
    for rule in rules("alerts.yaml"):
        if rule["alert"] not in QUIET:
            assert numbers(watched, rule["expr"]), rule
            continue
        assert numbers(watched, rule["expr"]) == [], rule
        if rule["alert"] == "SlipstreamAbsent":
            assert numbers(watched, 'absent(slipstream_build_info{job="nobody"})')
        else:
            assert numbers(watched, at_zero(rule["expr"])), rule


def test_alerts_name_who_is_at_fault(watched: Watched) -> None:
    """The faulty proxy rings, the other does not, but for its memory, which was made small."""
    found = watched.prometheus.get("alerts")["alerts"]
    by_job = {
        job: {alert["labels"]["alertname"] for alert in found if alert["labels"]["job"] == job} for job in (JOB, FAULTY)
    }
    assert by_job[JOB] == {"SlipstreamCacheNearLimit", "SlipstreamStoreNearLimit"}
    assert by_job[FAULTY] == {
        "SlipstreamErrorBudgetBurn",
        "SlipstreamBackendUnreachable",
        "SlipstreamLoadShedding",
        "SlipstreamTargetDown",
        "SlipstreamDrainStuck",
    }


def test_rules_are_evaluated_without_errors(watched: Watched) -> None:
    """As Prometheus itself sees it."""
    groups = watched.prometheus.get("rules")["groups"]
    found = [rule for group in groups for rule in group["rules"]]
    assert len(found) == len(rules("rules.yaml")) + len(rules("alerts.yaml"))
    assert {rule["health"] for rule in found} == {"ok"}


def test_savings_add_up(watched: Watched) -> None:
    """The board's first number is what the counters of the run say."""
    title, target = next(targets(load("savings")))
    assert title == "Not sent by clients"
    ((_, share),) = numbers(watched, substituted(target["expr"]))
    sent, plain = (
        sum(samples(proxy.metrics())[name] for proxy in (watched.proxy, watched.faulty))
        for name in ("client_bytes_total", "plain_http_bytes_total")
    )
    assert share == pytest.approx(1 - sent / plain, abs=0.02)
    assert share > 0.3


def test_metrics_are_named_as_they_should_be(watched: Watched) -> None:
    """Promtool's own opinion of a real scrape."""
    for proxy in (watched.proxy, watched.faulty):
        assert promtool("check", "metrics", given=proxy.metrics()) == ""


def test_alerts_rest_on_what_there_is(watched: Watched) -> None:
    """Every selector of every rule finds a series."""
    for rule in [*rules("rules.yaml"), *rules("alerts.yaml")]:
        for one in selectors(rule["expr"]):
            assert watched.prometheus.query(f"{one.name}{{{one.matchers}}}"), (rule, one)
