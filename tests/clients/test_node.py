"""The official SDKs for JavaScript: openai-node's ResponsesWS, and @openai/agents."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from tests.clients.conftest import SetStage, Stage
from tests.clients.programs import HERE, Finished, node, node_packages, run
from tests.clients.scripted import Call, Refuse, Say
from tests.clients.transcripts import check_deltas, check_growth, check_requests, check_whole

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

_PARIS: Final = Call([("get_weather", {"city": "Paris"})], thinking=True)

_SAID: Final = ["user", "reasoning", "function_call", "function_call_output", "assistant", "user"]


def _run(name: str, playing: Stage, folder: Path, *arguments: str) -> tuple[list[dict[str, Any]], Finished]:
    """Run a script beside the packages it imports; the lines it wrote, and how it ended."""
    shutil.copy(HERE / "scripts" / name, folder)
    (folder / "node_modules").symlink_to(node_packages("node"))
    finished = run([node(), name, playing.base_url, *arguments], folder=folder)
    assert finished.code == 0, finished
    return [json.loads(line) for line in finished.output.splitlines()], finished


def test_openai_node_chains_turns_and_survives_an_error(stage: SetStage, tmp_path: Path) -> None:
    """A tool call and its output, a question that the backend refuses, and the next one, in a chain of its own, on the same socket."""
    playing = stage(_PARIS, Say("It rains in Paris."), Refuse(400, "invalid_prompt"), Say("I am."))
    lines, _ = _run("openai_node.mjs", playing, tmp_path)
    assert lines == [
        {"type": "completed", "text": "", "calls": ['{"city": "Paris"}']},
        {"type": "completed", "text": "It rains in Paris.", "calls": []},
        {"type": "error", "message": lines[2]["message"]},
        {"type": "completed", "text": "I am.", "calls": []},
        {"type": "close", "code": 1000},
    ]
    assert "The script says so." in lines[2]["message"]
    check_requests(playing.backend)
    (socket,) = playing.tap.websockets
    assert [bool(frame.get("previous_response_id")) for frame in socket.messages] == [False, True, True, False]
    assert socket.messages[0]["input"] == "What is the weather in Paris?"
    inputs = [
        [item.get("role", item["type"]) for item in request.json["input"]] for request in playing.backend.requests
    ]
    assert inputs == [_SAID[:1], _SAID[:4], _SAID, ["user"]]
    check_growth(playing.backend.requests[:3])


def test_js_agent_chains_from_a_response(stage: SetStage, tmp_path: Path) -> None:
    """Runs that go on from a response send only what is new, and the backend sees all of it."""
    playing = stage(Say("Hello."), _PARIS, Say("It rains."))
    lines, _ = _run("agents.mjs", playing, tmp_path, "chained")
    assert lines == [{"answers": ["Hello.", "It rains."]}]
    check_requests(playing.backend)
    check_growth(playing.backend.requests)
    check_deltas(playing.tap, playing.backend)


def test_js_agent_sends_everything_each_time(stage: SetStage, tmp_path: Path) -> None:
    """Its default works too, on one socket."""
    playing = stage(_PARIS, Say("It rains."))
    lines, _ = _run("agents.mjs", playing, tmp_path, "whole")
    assert lines == [{"answers": ["It rains."]}]
    check_requests(playing.backend)
    check_whole(playing.tap, playing.backend)
    assert len(playing.tap.websockets) == 1


def test_js_agent_sees_an_error(stage: SetStage, tmp_path: Path) -> None:
    """A turn that the backend refuses ends the run with an exception, and the program does not hang."""
    playing = stage(Refuse(400, "invalid_prompt"))
    (line,), _ = _run("agents.mjs", playing, tmp_path, "refused")
    assert "error" in line["error"]
