"""How long to wait for the next worker (:mod:`proxy.workers.crew`); what a crew does is in test_supervisor.py."""

from __future__ import annotations

import pytest

from proxy.workers.crew import LONGEST_PAUSE, STABLE, pause_before_restart


@pytest.mark.parametrize(
    ("exit_code", "lived", "last", "expected"),
    [
        (0, 0.0, 0.0, 0.0),  # it was told to end
        (0, 0.0, 30.0, 0.0),
        (1, STABLE, 30.0, 0.0),  # it had worked
        (-9, STABLE + 1000, 0.0, 0.0),
        (1, 0.0, 0.0, 0.5),
        (-9, STABLE - 1, 0.0, 0.5),
        (1, 1.0, 0.5, 1.0),
        (1, 1.0, 16.0, LONGEST_PAUSE),
        (1, 1.0, LONGEST_PAUSE, LONGEST_PAUSE),
    ],
)
def test_pause_grows_while_workers_fail(exit_code: int, lived: float, last: float, expected: float) -> None:
    """And is none after one that did well."""
    assert pause_before_restart(exit_code, lived, last) == expected
