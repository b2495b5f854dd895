"""Metrics of the records of turns (:mod:`proxy.usagemetrics`); what fills them is in tests/usage."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from proxy.families import Maker
from proxy.usageconfig import SINK_KINDS
from proxy.usagemetrics import UsageMetrics


def test_every_kind_of_sink_has_its_series() -> None:
    """From the start, so that nothing an operator configures makes another one."""
    registry = CollectorRegistry()
    metrics = UsageMetrics(Maker(registry))
    metrics.records["file", "taken"].inc(2)
    metrics.lag["sql"].set(3)
    found = {
        (sample.name.removeprefix("slipstream_usage_"), sample.labels.get("sink")): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.labels.get("result", "taken") == "taken" and not sample.name.endswith("_created")
    }
    assert {sink for _, sink in found if sink is not None} == set(SINK_KINDS)
    assert (found["records_total", "file"], found["lag_seconds", "sql"]) == (2, 3)
    assert found["spool_bytes", None] == found["spool_limit_bytes", None] == 0
