"""Metrics of the records of turns: how many there are, where they are, and how old."""

from __future__ import annotations

from itertools import product

from proxy.families import Maker
from proxy.usageconfig import SINK_KINDS


class UsageMetrics:
    """Part of :class:`proxy.metrics.Metrics`; filled by :mod:`proxy.usage`.

    Args:
        make: Makes them.
    """

    def __init__(self, make: Maker) -> None:
        self.records = make.table(
            "usage_records_total",
            "Records of turns by sink: spooled (on disk), taken by the sink, or dropped since there was no room for them.",
            ("sink", "result"),
            product(SINK_KINDS, ("spooled", "taken", "dropped")),
        )
        self.failures = make.counters(
            "usage_failures_total",
            "Batches of records that a sink did not take; each is tried again.",
            "sink",
            SINK_KINDS,
        )
        self.lag = make.gauges(
            "usage_lag_seconds",
            "Age of the oldest record that a sink has not taken; 0 if it has all.",
            "sink",
            SINK_KINDS,
        )
        self.spool_bytes = make.gauge("usage_spool_bytes", "Bytes of the records that wait on disk.")
        self.spool_limit = make.gauge(
            "usage_spool_limit_bytes", "Limit of slipstream_usage_spool_bytes, from the configuration; 0 without sinks."
        )
