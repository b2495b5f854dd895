"""The bench against a real model server: what an operator runs before deciding."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.rig.llama import MODEL, Llama
from tests.rig.slipstream import COMMAND

pytestmark = pytest.mark.timeout(300)

_SIZES = ("--preset", "small", "--turns", "4", "--output-tokens", "16")


def test_operator_measures_a_backend(llama: Llama, tmp_path: Path) -> None:
    """Each way takes its turns, is asked nearly the same, and finds its own history in the cache and nobody else's."""
    command = [
        str(COMMAND),
        "bench",
        "--upstream",
        llama.base_url,
        "--model",
        MODEL,
        "--rounds",
        "1",
        "--json",
        *_SIZES,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    (measured,) = json.loads(done.stdout)["rounds"]
    assert measured["websocket"]["connections"] == 1
    assert measured["fresh"]["connections"] == 4
    assert measured["websocket"]["bytes_sent"] < measured["fresh"]["bytes_sent"]
    tokens = [way["input_tokens"] for way in measured.values()]
    assert max(tokens) - min(tokens) < max(tokens) * 0.05  # the model may answer in other words each time
    for way in measured.values():
        assert way["input_tokens"] * 0.3 < way["cached_tokens"] < way["input_tokens"] * 0.9


def test_operator_is_told_what_the_backend_says(llama: Llama, tmp_path: Path) -> None:
    """A prompt that is too long for the model is the backend's own words."""
    command = [str(COMMAND), "bench", "--upstream", llama.base_url, "--model", MODEL, *_SIZES, "--history", "400000"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    assert "HTTP 400" in done.stderr
    assert "context" in done.stderr
