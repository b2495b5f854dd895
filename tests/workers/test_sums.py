"""The metrics of several workers as one (:mod:`proxy.workers.sums`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from proxy.workers import sums
from proxy.workers.sums import Sums


class Table:
    """A few metrics, as each process has them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.count = Counter("slipstream_things", "Things.", ("kind",), registry=self.registry)
        for kind in ("a", "b"):
            self.count.labels(kind)
        self.seconds = Histogram("slipstream_seconds", "Seconds.", registry=self.registry, buckets=(1.0, 2.0))
        self.now = Gauge("slipstream_now", "Now.", registry=self.registry)
        self.up = Gauge("slipstream_backend_up", "Up.", ("replica",), registry=self.registry)
        self.up.labels("r")
        self.ready = Gauge("slipstream_ready", "Ready.", registry=self.registry)
        self.lag = Gauge("slipstream_usage_lag_seconds", "Age.", ("sink",), registry=self.registry)
        self.lag.labels("sql")

    def report(self, to: Sums, worker: int) -> None:
        """Say what was counted."""
        to.report(worker, sums.series(self.registry), sums.values(self.registry))


@pytest.fixture
def own() -> Table:
    """The supervisor's."""
    return Table()


@pytest.fixture
def summed(own: Table) -> Sums:
    """What the operator sees."""
    return Sums(own.registry)


def shown(summed: Sums) -> dict[str, float]:
    """What the operator sees, by name."""

    def figures() -> Iterator[tuple[str, float]]:
        for family in summed.collect():
            for sample in family.samples:
                yield sample.name + "".join(sample.labels.values()), sample.value

    return dict(figures())


def test_counts_and_histograms_are_added(own: Table, summed: Sums) -> None:
    """Label by label and bucket by bucket, the supervisor's own included."""
    one, other = Table(), Table()
    one.count.labels("a").inc(2)
    other.count.labels("a").inc(3)
    other.count.labels("b").inc(1)
    own.count.labels("b").inc(10)
    one.seconds.observe(0.5)
    other.seconds.observe(1.5)
    for number, table in enumerate((one, other)):
        table.report(summed, number)
    seen = shown(summed)
    assert (seen["slipstream_things_totala"], seen["slipstream_things_totalb"]) == (5, 11)
    assert [seen[f"slipstream_seconds_bucket{le}"] for le in ("1.0", "2.0", "+Inf")] == [1, 2, 2]
    assert (seen["slipstream_seconds_count"], seen["slipstream_seconds_sum"]) == (2, 2.0)


def test_greatest_age_counts(summed: Sums) -> None:
    """Two workers whose sinks have been down for a minute are not two minutes late; one that lives no more is not late."""
    assert shown(summed)["slipstream_usage_lag_secondssql"] == 0
    for number, seconds in ((1, 60), (2, 61)):
        table = Table()
        table.lag.labels("sql").set(seconds)
        table.report(summed, number)
    assert shown(summed)["slipstream_usage_lag_secondssql"] == 61
    summed.end(2)
    assert shown(summed)["slipstream_usage_lag_secondssql"] == 60


def test_last_report_counts(summed: Sums) -> None:
    """A worker says all that it has counted each time."""
    table = Table()
    for _ in range(3):
        table.count.labels("a").inc()
        table.report(summed, 1)
    assert shown(summed)["slipstream_things_totala"] == 3


def test_dead_worker_leaves_its_counts(summed: Sums) -> None:
    """Sums never go back; of what is now it has nothing any more. The one in its place counts from 0."""
    for number in (1, 2):
        table = Table()
        table.count.labels("a").inc(5)
        table.seconds.observe(0.1)
        table.now.set(7)
        table.report(summed, number)
    before = shown(summed)
    assert (before["slipstream_now"], before["slipstream_things_totala"]) == (14, 10)
    summed.end(1)
    summed.end(99)  # one that never reported
    assert shown(summed) == {**before, "slipstream_now": 7}
    table = Table()
    table.count.labels("a").inc()
    table.now.set(1)
    table.report(summed, 3)
    after = shown(summed)
    assert (after["slipstream_now"], after["slipstream_things_totala"], after["slipstream_seconds_count"]) == (8, 11, 2)
    summed.end(2)
    summed.end(3)
    assert shown(summed)["slipstream_things_totala"] == 11


def test_some_gauges_are_no_sums(own: Table, summed: Sums) -> None:
    """Whether the whole is ready is for the supervisor to say."""
    own.ready.set(1)
    for number in range(3):
        table = Table()
        table.ready.set(1)
        table.report(summed, number)
    assert shown(summed)["slipstream_ready"] == 1


def test_series_are_named_apart() -> None:
    """No two figures have one name, and their order is that of the values."""
    table = Table()
    table.count.labels("b").inc(4)
    names, values = sums.series(table.registry), sums.values(table.registry)
    assert len(set(names)) == len(names) == len(values)
    assert values[names.index("slipstream_things_total[('kind', 'b')]")] == 4


def test_replica_is_up_if_all_workers_think_so(own: Table, summed: Sums) -> None:
    """The worst view counts; without a worker nobody has seen it."""
    assert shown(summed)["slipstream_backend_upr"] == 0
    one, other = Table(), Table()
    for table in (one, other):
        table.up.labels("r").set(1)
    one.report(summed, 1)
    other.report(summed, 2)
    assert shown(summed)["slipstream_backend_upr"] == 1
    other.up.labels("r").set(0)
    other.report(summed, 2)
    assert shown(summed)["slipstream_backend_upr"] == 0
    summed.end(2)
    assert shown(summed)["slipstream_backend_upr"] == 1
