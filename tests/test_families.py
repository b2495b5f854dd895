"""What metrics are made with."""

from __future__ import annotations

from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from proxy.families import LOOKUPS, ROUTES, TOOLS, Maker
from proxy.observe import Moved
from proxy.protocol.routes import RouteLookup


def test_families_have_all_their_children_from_the_start() -> None:
    """Each with 0, so that it can be seen to begin."""
    registry = CollectorRegistry()
    make = Maker(registry)
    make.counters("a", "A.", "kind", ("x", "y"))
    make.table("b", "B.", ("one", "two"), [("1", "2")])
    make.histograms("c", "C.", "phase", ("p",), (1.0,))
    text = generate_latest(registry).decode()
    for line in (
        'slipstream_a_total{kind="x"} 0.0',
        'slipstream_b_total{one="1",two="2"} 0.0',
        'slipstream_c_count{phase="p"} 0',
    ):
        assert line in text


def test_every_lookup_has_its_row() -> None:
    """Whatever a record says about tools and routes is a series that there is."""
    assert set(ROUTES) == {*get_args(RouteLookup), *get_args(Moved)}
    assert {("route", *row) for row in ROUTES.values()} | set(TOOLS.values()) <= set(LOOKUPS)
    assert len(set(LOOKUPS)) == len(LOOKUPS)
