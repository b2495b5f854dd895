"""What a newcomer does first: the installed command, a backend's address, and nothing else."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.rig.llama import MODEL, SHORT_ANSWER, Llama
from tests.rig.slipstream import COMMAND, slipstream

pytestmark = pytest.mark.timeout(300)


def test_newcomer_starts_it_with_a_url_alone(llama: Llama, tmp_path: Path) -> None:
    """`slipstream serve --upstream URL` serves, answers a turn, counts it, and ends with 0 when it is told to."""
    with slipstream(tmp_path, llama.base_url) as running:
        with connect(f"{running.base_url.replace('http', 'ws')}/responses") as socket:
            socket.send(json.dumps({"type": "response.create", "model": MODEL, "input": "Hello.", "temperature": 0}))
            event: dict[str, Any] = {"type": ""}
            while event["type"] != "response.completed":
                event = json.loads(socket.recv(timeout=60))
        assert event["response"]["output"][0]["content"][0]["text"] == SHORT_ANSWER
        assert "slipstream_" in running.metrics()
        assert running.server.end() == 0


def test_newcomer_who_forgets_the_url_is_told(tmp_path: Path) -> None:
    """Without a backend the command says what is missing, and how to give it."""
    done = subprocess.run([COMMAND, "serve"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "--upstream" in done.stderr
