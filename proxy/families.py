"""Makes metrics: under the product's name, and with all their children from the start.

A labelled metric is made with every value that its labels can have, so that each child is there from the first scrape on
with 0, and is found with a look into a dict.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

Table = dict[tuple[str, ...], Counter]
"""A labelled counter's children, by the values of its labels."""


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
