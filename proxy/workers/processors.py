"""How many processors there are to use, for `workers: auto`."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

from proxy.values import MAX_WORKERS

_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
"""In a container: microseconds of processor time in a period, or `max`, and the period (the kernel's cgroup-v2.rst)."""


def count(workers: int | str, quota: Path = _QUOTA) -> int:
    """The number of workers that an operator has asked for.

    Args:
        workers: A number, or `auto`.
        quota: Where a limit is written.

    Returns:
        At least 1. For `auto` the processors that this process may run on, or fewer where a container gives it the time of
        fewer only; a part of one counts as one.
    """
    if isinstance(workers, int):
        return workers
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable, _granted(quota), MAX_WORKERS))


def _granted(quota: Path) -> int:
    try:
        time, period = quota.read_text(encoding="ascii").split()
        return math.ceil(int(time) / int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no such file; "max"; nonsense
        return MAX_WORKERS
