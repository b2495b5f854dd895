"""How metrics are made (:mod:`proxy.families`)."""

from __future__ import annotations

from typing import get_args

from prometheus_client import CollectorRegistry, disable_created_metrics

from proxy.families import LOOKUPS, ROUTES, TOOLS, Maker
from proxy.observe import Moved
from proxy.protocol.routes import RouteLookup


def test_children_are_there_from_the_start() -> None:
    """Each with 0, under the product's name, so that a rate over them has a beginning."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    make = Maker(registry)
    make.counter("things", "Things.")
    counters = make.counters("kinds", "Kinds.", "kind", ("a", "b"))
    table = make.table("rows", "Rows.", ("x", "y"), [("1", "2"), ("3", "4")])
    make.gauge("now", "Now.")
    make.gauges("ages", "Ages.", "kind", ("a",))["a"].set(4)
    make.histogram("seconds", "Seconds.", (1.0,))
    phases = make.histograms("phases", "Phases.", "phase", ("p",), (1.0,))
    counters["b"].inc(2)
    table["3", "4"].inc(3)
    phases["p"].observe(0.5)
    found = {
        sample.name.removeprefix("slipstream_") + "".join(sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
    }
    assert found == {
        "things_total": 0,
        "kinds_totala": 0,
        "kinds_totalb": 2,
        "rows_total12": 0,
        "rows_total34": 3,
        "now": 0,
        "agesa": 4,
        "seconds_bucket1.0": 0,
        "seconds_bucket+Inf": 0,
        "seconds_count": 0,
        "seconds_sum": 0,
        "phases_bucketp1.0": 1,
        "phases_bucketp+Inf": 1,
        "phases_countp": 1,
        "phases_sump": 0.5,
    }


def test_every_lookup_has_its_row() -> None:
    """Whatever a record says about tools and routes is a series that there is."""
    assert set(ROUTES) == {*get_args(RouteLookup), *get_args(Moved)}
    assert {("route", *row) for row in ROUTES.values()} | set(TOOLS.values()) <= set(LOOKUPS)
    assert len(set(LOOKUPS)) == len(LOOKUPS)
