"""The metrics of all workers as one.

Counters and histograms are summed over the workers that live and what those that died had counted when they last reported,
so that no sum goes back; gauges over those that live. An age is that of the worker where it is greatest. What cannot be
summed is the supervisor's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

_OWN: Final = frozenset({"slipstream_build_info", "slipstream_ready", "process_start_time_seconds"})
"""Gauges of which there is one, however many workers there are."""
_LEAST: Final = frozenset({"slipstream_backend_up"})
"""Gauges of which the worst that any worker sees counts."""

_AGES: Final = frozenset({"slipstream_usage_lag_seconds"})
"""Gauges of which the greatest counts."""


def series(registry: CollectorRegistry) -> list[str]:
    """The names of all figures of a registry, with their labels."""
    return [_name(sample) for sample in _samples(registry)]


def values(registry: CollectorRegistry) -> list[float]:
    """All figures of a registry, in the order of :func:`series`."""
    return [sample.value for sample in _samples(registry)]


class Sums(Collector):
    """What the operator's listener shows as metrics.

    Args:
        own: The supervisor's own metrics: the same table as the workers'.
    """

    def __init__(self, own: CollectorRegistry) -> None:
        self._own = own
        self._living: dict[int, dict[str, float]] = {}
        self._ended: dict[str, float] = {}

    def report(self, worker: int, names: list[str], figures: list[float]) -> None:
        """Take what a worker has counted so far.

        Args:
            worker: The worker; one that is started again is another.
            names: Of :func:`series`.
            figures: Of :func:`values`.
        """
        self._living[worker] = dict(zip(names, figures, strict=True))

    def end(self, worker: int) -> None:
        """A worker lives no more: its counts stay, its gauges go."""
        for name, value in self._living.pop(worker, {}).items():
            self._ended[name] = self._ended.get(name, 0.0) + value

    def collect(self) -> Iterator[Metric]:
        """The metrics, as prometheus_client wants them."""
        for family in self._own.collect():
            if family.name not in _OWN:
                parts = list(self._living.values())
                if family.type != "gauge":
                    parts.append(self._ended)
                put = _greatest if family.name in _AGES else _least if family.name in _LEAST else _sum
                family.samples = [put(sample, parts) for sample in family.samples]
            yield family


def _sum(sample: Sample, parts: list[dict[str, float]]) -> Sample:
    name = _name(sample)
    return sample._replace(value=sample.value + sum(part.get(name, 0.0) for part in parts))


def _greatest(sample: Sample, parts: list[dict[str, float]]) -> Sample:
    name = _name(sample)
    return sample._replace(value=max(sample.value, *(part.get(name, 0.0) for part in parts), 0.0))


def _least(sample: Sample, parts: list[dict[str, float]]) -> Sample:
    name = _name(sample)
    return sample._replace(value=min((part.get(name, 0.0) for part in parts), default=0.0))


def _samples(registry: CollectorRegistry) -> Iterator[Sample]:
    for family in registry.collect():
        yield from family.samples


def _name(sample: Sample) -> str:
    return f"{sample.name}{sorted(sample.labels.items())}"
