"""Makes metrics: under the product's name, and with all their children from the start.

A labelled metric is made with every value that its labels can have, so that each child is there from the first scrape on
with 0, and is found with a look into a dict.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from proxy.observe import Moved
from proxy.protocol.errors import MissReason
from proxy.protocol.records import LookupReason, ToolsLookup
from proxy.protocol.routes import RouteLookup

_MISSES: Final = get_args(MissReason)
_HITS: Final = tuple(reason for reason in get_args(LookupReason) if reason not in ("none", *_MISSES))
LOOKUPS: Final = (
    ("response", "new", "none"),
    *product(["response"], ["hit"], [reason for reason in _HITS if reason != "warmup"]),
    *product(["response"], ["miss"], _MISSES),
    ("warmup", "hit", "warmup"),
    ("tools", "new", "none"),
    ("tools", "hit", "same"),
    ("tools", "miss", "changed"),
    ("route", "new", "none"),
    ("route", "hit", "same"),
    *product(["route"], ["miss"], ["model_changed", "unplaced", *get_args(Moved)]),
)
ROUTES: Final[dict[RouteLookup | Moved, tuple[str, str]]] = {
    "none": ("new", "none"),
    "new": ("new", "none"),
    "same": ("hit", "same"),
    "model_changed": ("miss", "model_changed"),
    "unplaced": ("miss", "unplaced"),
    "replica_failed": ("miss", "replica_failed"),
    "replica_full": ("miss", "replica_full"),
}
TOOLS: Final[dict[ToolsLookup, tuple[str, str, str]]] = {
    "new": ("tools", "new", "none"),
    "same": ("tools", "hit", "same"),
    "changed": ("tools", "miss", "changed"),
}

Table = dict[tuple[str, ...], Counter]


class Maker:
    """Makes metrics, with all their children.

    Args:
        registry: Where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """A counter; with labels it is one for each of their values."""
        return Counter(f"slipstream_{name}", text, labels, registry=self._registry)

    def counters(self, name: str, text: str, label: str, values: Iterable[str]) -> dict[str, Counter]:
        """A counter for each value of a label."""
        family = self.counter(name, text, label)
        return {value: family.labels(value) for value in values}

    def table(self, name: str, text: str, labels: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
        """A counter for each row of values of some labels."""
        family = self.counter(name, text, *labels)
        return {row: family.labels(*row) for row in rows}

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """A gauge."""
        return Gauge(f"slipstream_{name}", text, labels, registry=self._registry)

    def gauges(self, name: str, text: str, label: str, values: Iterable[str]) -> dict[str, Gauge]:
        """A gauge for each value of a label."""
        family = self.gauge(name, text, label)
        return {value: family.labels(value) for value in values}

    def histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        """A histogram with these upper bounds."""
        return Histogram(f"slipstream_{name}", text, registry=self._registry, buckets=buckets)

    def histograms(
        self, name: str, text: str, label: str, values: Iterable[str], buckets: tuple[float, ...]
    ) -> dict[str, Histogram]:
        """A histogram for each value of a label."""
        family = Histogram(f"slipstream_{name}", text, (label,), registry=self._registry, buckets=buckets)
        return {value: family.labels(value) for value in values}
