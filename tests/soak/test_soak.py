"""Some seconds of the soak: nobody who behaves is failed by those who do not, and nothing of any of them is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.clients import VISITS
from tests.soak.load import soak


@pytest.mark.load
@pytest.mark.parametrize("workers", [1, 2])
async def test_nothing_is_left_of_mixed_load(tmp_path: Path, workers: int) -> None:
    """No connection, turn or file; memory is for `make soak`, which has the time for it."""
    result = await soak(tmp_path, warm_up=3, seconds=6, clients=20, workers=workers)
    assert result.failures == []
    assert set(result.visits) <= {visit.__name__ for visit in VISITS}
    assert sum(result.visits.values()) > 50
    kept = ("store_entries", "store_bytes", "tasks")
    assert {name: value for name, value in result.after.gauges.items() if value and name not in kept} == {}
    assert result.after.gauges["tasks"] <= result.before.gauges["tasks"]
    assert result.after.files <= result.before.files
