"""What holds for all tests of the terminal."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def quick_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual's pilot looks every 20 ms whether a key has been worked off; it is, long before that."""
    monkeypatch.setattr("textual._wait.SLEEP_GRANULARITY", 0.002)
