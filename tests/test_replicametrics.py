"""Metrics of replicas (:mod:`proxy.replicametrics`); what fills them is in test_backends.py."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from proxy.families import Maker
from proxy.replicametrics import ReplicaMetrics


def test_every_replica_has_its_series() -> None:
    """From the start, and nothing else makes one."""
    registry = CollectorRegistry()
    rows = [("main", "http://a/v1"), ("main", "http://b/v1"), ("other", "http://c/v1")]
    metrics = ReplicaMetrics(Maker(registry), rows)
    metrics.ejections["main", "http://b/v1"].inc()
    found = {
        (sample.name.removeprefix("slipstream_"), sample.labels.get("replica")): sample.value
        for family in registry.collect()
        for sample in family.samples
    }
    for name in ("backend_ejections_total", "backend_up", "backend_in_flight"):
        assert {replica for known, replica in found if known == name} == {url for _, url in rows}
    assert found["backend_ejections_total", "http://b/v1"] == 1
