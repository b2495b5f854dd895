"""SDKs for JavaScript: openai-node's ResponsesWS, @openai/agents, and the AI SDK with a `fetch` that uses a WebSocket."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.clients.conftest import SetStage, Stage
from tests.clients.programs import HERE, Program, node, node_packages, talking
from tests.clients.scripted import Call, Refuse, Say, Step
from tests.clients.transcripts import check_deltas, check_growth, check_requests, check_whole

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

_PARIS: Final = Call([("get_weather", {"city": "Paris"})], thinking=True)
_BOTH: Final = Call([("get_weather", {"city": city}) for city in ("Paris", "Rome")], thinking=True)

_SAID: Final = ["user", "reasoning", "function_call", "function_call_output", "assistant", "user"]


@contextlib.contextmanager
def _script(name: str, playing: Stage, folder: Path, *arguments: str, packages: str = "node") -> Iterator[Program]:
    """Run a script beside the packages it imports."""
    for script in (HERE / "scripts").iterdir():
        shutil.copy(script, folder)
    (folder / "node_modules").symlink_to(node_packages(packages))
    with talking([node(), name, playing.base_url, *arguments], folder=folder) as program:
        yield program


def _roles(playing: Stage) -> list[list[str]]:
    """What each request consists of."""
    return [
        [item.get("role") or item["type"] for item in request.json["input"]] for request in playing.backend.requests
    ]


def test_openai_node_chains_turns_and_survives_an_error(stage: SetStage, tmp_path: Path) -> None:
    """A tool call and its output, a question that the backend refuses, and the same conversation again, on one socket."""
    playing = stage(_PARIS, Say("It rains in Paris."), Refuse(400, "invalid_prompt"), Say("I am."))
    with _script("openai_node.mjs", playing, tmp_path) as program:
        assert program.ask("What is the weather in Paris?") == {"text": "It rains in Paris.", "calls": ["Paris"]}
        assert "The script says so." in program.ask("And tomorrow?")["error"]
        assert program.ask("Are you there?") == {"text": "I am.", "calls": []}
    check_requests(playing.backend)
    (socket,) = playing.tap.websockets
    assert [bool(frame.get("previous_response_id")) for frame in socket.messages] == [False, True, True, False]
    assert socket.messages[0]["input"] == "What is the weather in Paris?"
    assert _roles(playing) == [_SAID[:1], _SAID[:4], _SAID, _SAID]
    check_growth(playing.backend.requests[:3])


def test_openai_node_reconnects_after_a_restart(stage: SetStage, tmp_path: Path) -> None:
    """It opens another socket by itself; a chain of the old one is unknown there, so the application says all of it."""
    playing = stage(_BOTH, Say("It rains."), Say("It will."), _PARIS, Say("It still does."))
    with _script("openai_node.mjs", playing, tmp_path) as program:
        assert program.ask("What is the weather?") == {"text": "It rains.", "calls": ["Paris", "Rome"]}
        playing.restart()
        assert program.hear() == {"reconnected": 1012}
        assert program.ask("And tomorrow?") == {"text": "It will.", "calls": []}
        assert program.ask("And in Paris?") == {"text": "It still does.", "calls": ["Paris"]}
    check_requests(playing.backend)
    check_growth(playing.backend.requests[:2])
    check_growth(playing.backend.requests[2:])
    before, after = playing.tap.websockets[0], playing.tap.websockets[-1]
    assert [bool(frame.get("previous_response_id")) for frame in before.messages] == [False, True]
    assert [bool(frame.get("previous_response_id")) for frame in after.messages] == [False, True, True]


def test_js_agent_chains_from_a_response(stage: SetStage, tmp_path: Path) -> None:
    """Runs that go on from a response send only what is new, also for two tools at once, and the backend sees all of it."""
    playing = stage(Say("Hello."), _BOTH, Say("It rains."), _PARIS, Say("It still does."))
    with _script("agents.mjs", playing, tmp_path) as program:
        answers = [program.ask(_run("Hello."))]
        answers += [program.ask(_run(text, "response")) for text in ("What is the weather?", "And in Paris?")]
    assert answers == [_said("Hello."), _said("It rains."), _said("It still does.")]
    check_requests(playing.backend)
    check_growth(playing.backend.requests)
    check_deltas(playing.tap, playing.backend)


def test_js_agent_sends_everything_each_time(stage: SetStage, tmp_path: Path) -> None:
    """Its default works too, on one socket; so does a second run that is given the history."""
    playing = stage(_BOTH, Say("It rains."), Say("It will."))
    with _script("agents.mjs", playing, tmp_path) as program:
        assert program.ask(_run("What is the weather?")) == _said("It rains.")
        assert program.ask(_run("And tomorrow?", "history")) == _said("It will.")
    check_requests(playing.backend)
    check_whole(playing.tap, playing.backend)
    assert len(playing.tap.websockets) == 1


def test_js_agent_hands_over_to_another(stage: SetStage, tmp_path: Path) -> None:
    """A handoff is a tool call, after which another agent, with other tools, goes on over the same socket."""
    playing = stage(Call([("transfer_to_Weather", {})]), _PARIS, Say("It rains."))
    with _script("agents.mjs", playing, tmp_path) as program:
        assert program.ask(_run("What is the weather?", agent="Desk")) == _said("It rains.")
    check_requests(playing.backend)
    check_whole(playing.tap, playing.backend)
    tools = [[tool["name"] for tool in request.json["tools"]] for request in playing.backend.requests]
    assert tools == [["transfer_to_Weather"], ["get_weather"], ["get_weather"]]
    assert len(playing.tap.websockets) == 1


def test_js_agent_sees_an_error(stage: SetStage, tmp_path: Path) -> None:
    """A turn that the backend refuses ends the run with an exception, and the next one works."""
    playing = stage(Refuse(400, "invalid_prompt"), _PARIS, Say("It rains."))
    with _script("agents.mjs", playing, tmp_path) as program:
        assert "error" in program.ask(_run("Hello."))["error"]
        assert program.ask(_run("What is the weather?")) == _said("It rains.")
    check_whole(playing.tap, playing.backend)


def test_js_agent_goes_on_after_a_restart(stage: SetStage, tmp_path: Path) -> None:
    """On another socket its last response is unknown, which it reports; with the history the run succeeds."""
    playing = stage(_PARIS, Say("It rains."), _PARIS, Say("It still does."))
    with _script("agents.mjs", playing, tmp_path) as program:
        assert program.ask(_run("What is the weather?")) == _said("It rains.")
        playing.restart()
        assert "error" in program.ask(_run("And now?", "response"))["error"]
        assert program.ask(_run("And now?", "history")) == _said("It still does.")
    check_requests(playing.backend)
    assert len(playing.backend.requests) == 4
    codes = [event["error"]["code"] for socket in playing.tap.websockets for event in socket.events if "error" in event]
    assert codes == ["previous_response_not_found"]


@pytest.mark.parametrize("store", ["true", "false"], ids=["references", "items"])
def test_ai_sdk_runs_tools_and_takes_up_the_conversation(stage: SetStage, tmp_path: Path, store: str) -> None:
    """Two turns over one socket, the first with two tools at once; what it only refers to is there for the backend."""
    playing = stage(_BOTH, Say("It rains."), _PARIS, Say("It still does."))
    with _script("ai_sdk.mjs", playing, tmp_path, store, packages="ai") as program:
        answers = [program.ask(text) for text in ("What is the weather?", "And in Paris?")]
    assert answers == [_told("It rains."), _told("It still does.")]
    check_requests(playing.backend)
    assert _roles(playing)[-1] == [
        *("user", "reasoning", "function_call", "function_call", "function_call_output", "function_call_output"),
        *("assistant", "user", "reasoning", "function_call", "function_call_output"),
    ]
    thoughts = [item for item in playing.backend.requests[-1].json["input"] if item.get("type") == "reasoning"]
    assert [item["id"] for item in thoughts] == [output[0]["id"] for output in playing.backend.outputs[::2]]
    (socket,) = playing.tap.websockets
    kinds = {item.get("type") for frame in socket.messages for item in frame["input"]}
    assert ("item_reference" in kinds) == (store == "true")


@pytest.mark.parametrize(
    ("fault", "errors"),
    [
        pytest.param(Refuse(400, "invalid_prompt"), ["The script says so."], id="refusal"),
        pytest.param(Refuse(500, "server_error"), [], id="server error"),
    ],
)
def test_ai_sdk_meets_an_error(stage: SetStage, tmp_path: Path, fault: Step, errors: list[str]) -> None:
    """What will not get better is reported, with the backend's words, what may is tried again; the socket stays in use."""
    playing = stage(_PARIS, Say("It rains."), fault, Say("I am."))
    with _script("ai_sdk.mjs", playing, tmp_path, "false", packages="ai") as program:
        assert program.ask("What is the weather?") == _told("It rains.")
        answers = [program.ask("Are you there?") for _ in range(1 + len(errors))]
    assert [answer["errors"] for answer in answers if answer["errors"]] == [[error] for error in errors]
    assert answers[-1] == _told("I am.")
    check_requests(playing.backend)
    assert len(playing.tap.websockets) == 1


def test_ai_sdk_goes_on_after_a_restart(stage: SetStage, tmp_path: Path) -> None:
    """It opens another socket, and says everything there as it always does."""
    playing = stage(_PARIS, Say("It rains."), _PARIS, Say("It still does."))
    with _script("ai_sdk.mjs", playing, tmp_path, "false", packages="ai") as program:
        assert program.ask("What is the weather?") == _told("It rains.")
        playing.restart()
        assert program.ask("And now?") == _told("It still does.")
    check_requests(playing.backend)
    check_whole(playing.tap, playing.backend)
    assert len(playing.tap.websockets) == 2


def _run(text: str, origin: str = "", agent: str = "Weather") -> dict[str, Any]:
    return {"agent": agent, "input": text, "from": origin}


def _said(text: str) -> dict[str, Any]:
    return {"answer": text, "agent": "Weather"}


def _told(text: str) -> dict[str, Any]:
    return {"text": text, "reason": "stop", "errors": []}
