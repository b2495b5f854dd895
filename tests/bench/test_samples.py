"""A difference is told where it is one, and only there."""

from __future__ import annotations

import random

import pytest

from proxy.bench import samples
from proxy.bench.samples import CONFIDENCE, ENOUGH


@pytest.mark.parametrize(
    ("count", "low", "high", "confidence"),
    # Of n values 0..n-1; the table of the sign test in any textbook.
    [
        (1, 0, 0, 0),
        (2, 0, 1, 0.5),
        (5, 0, 4, 0.9375),
        (6, 0, 5, 0.96875),
        (9, 1, 7, 0.9609375),
        (12, 2, 9, 0.96142578125),
    ],
)
def test_interval_is_the_exact_one(count: int, low: float, high: float, confidence: float) -> None:
    """The narrowest that is good enough; all of the values if none is."""
    found = samples.interval([float(value) for value in reversed(range(count))])
    assert (found.median, found.low, found.high) == ((count - 1) / 2, low, high)
    assert found.confidence == pytest.approx(confidence)


def test_enough_is_enough() -> None:
    """With so many values an interval is good enough, with one less it is not."""
    assert samples.interval([1.0] * ENOUGH).confidence >= CONFIDENCE > samples.interval([1.0] * (ENOUGH - 1)).confidence


@pytest.mark.parametrize(
    ("before", "after", "median", "is_told"),
    [
        ([2.0] * 6, [1.0] * 6, 0.5, True),
        ([1.0] * 6, [2.0] * 6, -1.0, True),
        ([2.0] * 5, [1.0] * 5, 0.5, False),  # too few
        ([2.0] * 6, [1.0] * 5 + [2.5], 0.5, False),  # once it was the other way round
        ([1.0, 2, 3, 4, 5, 6], [0.5, 1, 1.5, 2, 2.5, 3], 0.5, True),  # a drift that both had
    ],
)
def test_saving_compares_within_a_round(
    before: list[float],
    after: list[float],
    median: float,
    is_told: bool,  # noqa: FBT001 - a parameter of a test
) -> None:
    """Each value is compared with that of its own round."""
    found = samples.saving(before, after)
    assert found.median == pytest.approx(median)
    assert found.is_told is is_told


def test_noise_is_seldom_taken_for_a_difference() -> None:
    """Of rollouts that differ by chance alone no more than one in twenty seem to differ, as the confidence says."""
    chance = random.Random(5)  # noqa: S311 - for a test

    def seems_different(count: int) -> bool:
        before, after = ([chance.lognormvariate(0, 0.3) for _ in range(count)] for _ in range(2))
        return samples.saving(before, after).is_told

    for count in (6, 11, 20):
        assert sum(seems_different(count) for _ in range(2_000)) <= 2_000 * 0.06
