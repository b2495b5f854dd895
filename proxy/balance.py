"""Which replica takes a new chain: pure functions over loads, so that each rule can be tried on tables.

Chains that begin with the same tools and instructions go to the same replica, which then has them in its prefix cache:
each replica gets a score from a hash of its name and of that prefix, and the highest one wins (rendezvous hashing, Thaler
and Ravishankar 1998). If a replica goes, only what was on it moves. No replica may have more than its share of what is in
flight, times a factor; what is beyond goes to the next one (bounded loads, Mirrokni, Thorup and Zadimoghaddam 2018).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Final, Literal

Strategy = Literal["affinity", "least_in_flight", "round_robin"]

FLOOR: Final = 4
"""Requests in flight up to which no replica counts as loaded: below that a share says little, and a warm cache much."""


def bound(total: int, count: int, factor: float) -> int:
    """Requests that one of so many replicas may have in flight, the new one included.

    Args:
        total: Requests in flight on all of them.
        count: How many there are, at least 1.
        factor: How much more than the mean is allowed, at least 1.
    """
    return max(FLOOR, math.ceil(factor * (total + 1) / count))


def rank(prefix: bytes, names: Sequence[str]) -> list[int]:
    """The indexes of replicas, best first, for a prefix."""
    scores = [hashlib.blake2b(name.encode(), key=prefix[:64], digest_size=8).digest() for name in names]
    return sorted(range(len(names)), key=lambda index: scores[index], reverse=True)


def order(
    strategy: Strategy, names: Sequence[str], loads: Sequence[int], *, prefix: bytes, count: int, factor: float
) -> list[int]:
    """The indexes of replicas, best first, for a new chain.

    Args:
        strategy: How to choose.
        names: Of the replicas; each has one of its own.
        loads: Requests in flight on each.
        prefix: What stands for the prompt's beginning; empty if that says nothing.
        count: How many chains were placed before.
        factor: See :func:`bound`.
    """
    turned = [(index + count) % len(names) for index in range(len(names))]
    if strategy == "round_robin":
        return turned
    by_load = sorted(turned, key=lambda index: loads[index])
    if strategy == "least_in_flight" or not prefix:
        return by_load
    limit = bound(sum(loads), len(names), factor)
    ranked = rank(prefix, names)
    fitting = [index for index in ranked if loads[index] < limit]
    return fitting + [index for index in by_load if index not in fitting]
