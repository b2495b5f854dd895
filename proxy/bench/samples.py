"""What can be told from repeated measurements: medians, their intervals, and whether a difference is more than noise.

Nothing is assumed of how times are distributed. The interval is the exact one of order statistics: that the median lies
between the k-th lowest and the k-th highest of n values has the probability that n tosses of a coin give neither fewer than
k heads nor fewer than k tails (Conover, Practical Nonparametric Statistics, section 3.2).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

CONFIDENCE: Final = 0.95
"""What is asked of an interval; of six values the lowest and the highest reach it."""

ENOUGH: Final = 6
"""So many values are needed before any interval reaches it."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A median, and between what it lies.

    Attributes:
        median: Of the values.
        low: Its lower bound.
        high: Its upper bound.
        confidence: How probable it is that it lies there, 0..1.
    """

    median: float
    low: float
    high: float
    confidence: float

    @property
    def is_told(self) -> bool:
        """Whether it can be told from 0: the interval is good enough, and 0 is not in it."""
        return self.confidence >= CONFIDENCE and (self.low > 0 or self.high < 0)


def interval(values: Sequence[float]) -> Interval:
    """The median of values with the narrowest interval that is good enough; with all of them if none is.

    Args:
        values: At least one.
    """
    ordered = sorted(values)
    depth = 1
    while depth + 1 <= len(ordered) // 2 and _coverage(len(ordered), depth + 1) >= CONFIDENCE:
        depth += 1
    return Interval(
        statistics.median(ordered), ordered[depth - 1], ordered[-depth], max(_coverage(len(ordered), depth), 0)
    )


def saving(before: Sequence[float], after: Sequence[float]) -> Interval:
    """By what share something became less, 0.4 for 40 %; negative where it became more.

    Args:
        before: At least one value, each above 0.
        after: As many; each is compared with the one of the same round, whose noise was the same.
    """
    return interval([1 - new / old for old, new in zip(before, after, strict=True)])


def _coverage(count: int, depth: int) -> float:
    """The probability that a median lies between the lowest and the highest value but `depth - 1` on each side."""
    return 1 - sum(math.comb(count, heads) for heads in range(depth)) / 2.0 ** (count - 1)
