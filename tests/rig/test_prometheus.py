"""Prometheus is found, or missed aloud."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rig.prometheus import program


def test_program_is_taken_from_the_cache_if_the_path_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `.ci/run` unpacks it; the PATH comes first."""
    monkeypatch.setenv("SLIPSTREAM_TESTS_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    for folder in ("prometheus/usr/bin", "path"):
        unpacked = tmp_path / folder / "promtool"
        unpacked.parent.mkdir(parents=True)
        unpacked.touch(0o755)
        assert program("promtool") == str(unpacked)


def test_program_that_is_missing_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No skip, but words that say what to install."""
    monkeypatch.setenv("SLIPSTREAM_TESTS_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLIPSTREAM_TESTS_MAY_SKIP", raising=False)
    with pytest.raises(pytest.fail.Exception, match=r"promtool is needed for this.*package prometheus"):
        program("promtool")
