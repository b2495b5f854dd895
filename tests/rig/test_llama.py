"""Which build of llama-server is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rig import llama
from tests.rig.processes import DidNotStart

pytestmark = pytest.mark.timeout(300)


def _script(folder: Path, name: str, line: str) -> Path:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)
    return program


def test_rig_takes_the_other_build_on_a_processor_that_the_first_was_not_made_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that ends with SIGILL is passed over."""
    preferred, other = llama._BUILDS
    programs = {
        preferred: _script(tmp_path, "first", "kill -ILL $$"),
        other: _script(tmp_path, "second", "echo listening on http://127.0.0.1:1; exec sleep 600"),
    }
    monkeypatch.setattr(llama, "_program", programs.__getitem__)
    with llama.llama_server(tmp_path) as server:
        assert server.url == "http://127.0.0.1:1"


def test_rig_shows_what_a_server_said_that_did_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other end is an error, with the server's own words."""
    program = _script(tmp_path, "broken", "echo no such model; exit 3")
    monkeypatch.setattr(llama, "_program", lambda _version: program)
    with pytest.raises(DidNotStart, match="no such model"), llama.llama_server(tmp_path):
        pass
