"""Metrics of replicas: whether they are asked, what they work on, and what was done when one failed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import get_args

from proxy.families import Maker
from proxy.fleet import Fleet, Replica
from proxy.observe import RerouteReason


class ReplicaMetrics:
    """Part of :class:`proxy.metrics.Metrics`.

    Args:
        make: Makes them.
        replicas: Name of the backend and URL of each, from the configuration: the labels' values.
    """

    def __init__(self, make: Maker, replicas: Sequence[tuple[str, str]]) -> None:
        labels = ("backend", "replica")
        self.ejections = make.table(
            "backend_ejections_total", "Times a replica was left out for its failures.", labels, replicas
        )
        self.reroutes = make.counters(
            "upstream_reroutes_total",
            "Requests sent to another replica, by why the first did not answer; nothing had been executed.",
            "reason",
            get_args(RerouteReason),
        )
        self.exhausted = make.counter(
            "retry_budget_exhausted_total",
            "Requests that were not sent to another replica since too many had been (routing.retry_budget).",
        )
        up = make.gauge("backend_up", "1 while a replica is asked as usual; of several workers' the worst.", *labels)
        load = make.gauge("backend_in_flight", "Requests that a replica works on, or that wait for it.", *labels)
        self.up = {row: up.labels(*row) for row in replicas}
        self.load = {row: load.labels(*row) for row in replicas}

    def show(self, fleet: Fleet) -> None:
        """Show how the replicas of a backend do."""
        for replica in fleet.replicas:
            row = fleet.name, replica.url
            self.up[row].set_function(partial(_is_up, fleet, replica.index))
            self.load[row].set_function(partial(_load, replica))


def _is_up(fleet: Fleet, index: int) -> float:
    return float(fleet.is_up(index))


def _load(replica: Replica) -> float:
    return float(replica.gate.load)
