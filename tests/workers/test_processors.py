"""How many processors there are to use (:mod:`proxy.workers.processors`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proxy.workers import processors


@pytest.fixture
def sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which this process may use sixteen processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)


def test_number_is_taken_as_it_is(tmp_path: Path) -> None:
    """Whoever says 40 on a small machine means it."""
    assert processors.count(40, tmp_path / "none") == 40


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        (None, 16),
        ("max 100000", 16),
        ("400000 100000", 4),
        ("150000 100000", 2),
        ("50000 100000", 1),
        ("9999999 100000", 16),
        ("0 100000", 1),
        ("not a quota", 16),
        ("1 0", 16),
    ],
)
def test_auto_is_what_may_be_used(sixteen: None, tmp_path: Path, quota: str | None, expected: int) -> None:
    """The processors that the process may run on, or what its container gives it, whichever is less."""
    file = tmp_path / "cpu.max"
    if quota is not None:
        file.write_text(quota + "\n", encoding="ascii")
    assert processors.count("auto", file) == expected
