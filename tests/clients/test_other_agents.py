"""More agents, each in a conversation with tool calls: pydantic-ai, opencode and pi."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from tests.clients.conftest import SetStage, Stage
from tests.clients.programs import HERE, Finished, Program, environment, node, node_packages, run, talking
from tests.clients.scripted import Call, Refuse, Say
from tests.clients.transcripts import check_deltas, check_growth, check_requests, check_whole
from tests.rig import install
from tests.rig.processes import free_port, serving, wait_until

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

_PARIS: Final = Call([("get_weather", {"city": "Paris"})], thinking=True)
_BOTH: Final = Call([("get_weather", {"city": city}) for city in ("Paris", "Rome")], thinking=True)


def _bash(*texts: str) -> Call:
    return Call([("bash", {"command": f"echo {text}", "description": "Says it"}) for text in texts], thinking=True)


# pydantic-ai


@contextlib.contextmanager
def _pydantic(playing: Stage, folder: Path, store: str = "by default") -> Iterator[Program]:
    python = install.environment("pydantic-ai", HERE / "pypi/pydantic-ai.txt")
    with talking([python, HERE / "pydantic_agent.py", playing.base_url, store], folder=folder) as program:
        yield program


def test_pydantic_agent_sends_only_what_is_new(stage: SetStage, tmp_path: Path) -> None:
    """Two runs of an agent, the first with two tools at once, over one socket."""
    playing = stage(_BOTH, Say("It rains."), Say("It will."))
    with _pydantic(playing, tmp_path) as agent:
        assert agent.ask("What is the weather?") == {"text": "It rains."}
        assert agent.ask("And tomorrow?") == {"text": "It will."}
    check_requests(playing.backend)
    check_growth(playing.backend.requests)
    check_deltas(playing.tap, playing.backend)


def test_pydantic_agent_retries_after_a_rate_limit(stage: SetStage, tmp_path: Path) -> None:
    """It tries again on the same socket."""
    playing = stage(Refuse(429, "rate_limit_exceeded", {"retry-after": "1"}), _PARIS, Say("It rains."))
    with _pydantic(playing, tmp_path) as agent:
        assert agent.ask("What is the weather in Paris?") == {"text": "It rains."}
    assert playing.backend.left == 0
    assert len(playing.tap.websockets) == 1


def test_pydantic_agent_reports_a_refusal(stage: SetStage, tmp_path: Path) -> None:
    """A run that the backend refuses ends with its words, and the next one works on the same socket."""
    playing = stage(Refuse(400, "invalid_prompt"), _PARIS, Say("It rains."))
    with _pydantic(playing, tmp_path) as agent:
        assert "The script says so." in agent.ask("Hello.")["error"]
        assert agent.ask("What is the weather in Paris?") == {"text": "It rains."}
    check_requests(playing.backend)
    assert len(playing.tap.websockets) == 1


@pytest.mark.parametrize("store", ["by default", "stored", "unstored"])
def test_pydantic_agent_goes_on_after_a_restart(stage: SetStage, tmp_path: Path, store: str) -> None:
    """It says everything on another socket, whatever it believes to be stored."""
    playing = stage(_PARIS, Say("It rains."), _PARIS, Say("It still does."))
    with _pydantic(playing, tmp_path, store) as agent:
        assert agent.ask("What is the weather in Paris?") == {"text": "It rains."}
        playing.restart()
        assert agent.ask("And now?") == {"text": "It still does."}
    check_requests(playing.backend)
    check_deltas(playing.tap, playing.backend, sockets=2)


@pytest.mark.parametrize("store", ["by default", "stored"])
def test_pydantic_agent_continues_what_is_stored_on_another_socket(stage: SetStage, tmp_path: Path, store: str) -> None:
    """Where the first one got too old between two runs: the old id is known, so that only what is new is said."""
    playing = stage(_PARIS, Say("It rains."), _PARIS, Say("It still does."), websocket__lifetime="2s")
    playing.backend.says_stored = True  # or the agent would not rely on it
    with _pydantic(playing, tmp_path, store) as agent:
        assert agent.ask("What is the weather in Paris?") == {"text": "It rains."}
        assert wait_until(lambda: bool(playing.proxy.lines("connection")))
        assert agent.ask("And now?") == {"text": "It still does."}
    first, second = playing.tap.websockets
    created = second.messages[0]
    (*_, last) = [event for event in first.events if event["type"] == "response.completed"]
    assert created["previous_response_id"] == last["response"]["id"]
    assert [item["role"] for item in created["input"]] == ["user"]
    check_requests(playing.backend)
    check_growth(playing.backend.requests)
    assert [line["cache_reason"] for line in playing.proxy.turns(4)] == ["none", "tip", "stored", "tip"]


# opencode


class _Opencode:
    """A conversation with opencode's server.

    Args:
        url: The server's address.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._path = f"/session/{self._post('/session', {})['id']}/message"

    def ask(self, text: str) -> str:
        """Say something; what it says when it is done."""
        answer = self._post(self._path, {"parts": [{"type": "text", "text": text}]})
        return "".join(part["text"] for part in answer["parts"] if part["type"] == "text")

    def complaint(self, text: str) -> str:
        """Say something that goes wrong; what it makes of that."""
        return json.dumps(self._post(self._path, {"parts": [{"type": "text", "text": text}]})["info"]["error"])

    def _post(self, path: str, body: Any) -> Any:
        return httpx2.post(f"{self._url}{path}", json=body, timeout=240).raise_for_status().json()


@contextlib.contextmanager
def _opencode(playing: Stage, folder: Path) -> Iterator[_Opencode]:
    limit = {"context": 200_000, "output": 32_000}
    model = {"name": "scripted", "tool_call": True, "reasoning": True, "limit": limit}
    options = {"baseURL": playing.base_url, "apiKey": "unused"}
    config = {
        "model": "openai/scripted",
        "small_model": "openai/scripted",
        "autoupdate": False,
        "share": "disabled",
        "permission": {"*": "allow"},
        "enabled_providers": ["openai"],
        "provider": {"openai": {"options": options, "models": {"scripted": model}}},
    }
    (folder / "opencode.json").write_text(json.dumps(config))
    data = folder / ".local/share/opencode"
    data.mkdir(parents=True)
    (data / "auth.json").write_text(json.dumps({"openai": {"type": "api", "key": "unused"}}))
    switches = ("EXPERIMENTAL_WEBSOCKETS", "DISABLE_AUTOUPDATE", "DISABLE_MODELS_FETCH", "DISABLE_LSP_DOWNLOAD")
    environ = {f"OPENCODE_{switch}": "true" for switch in switches}
    program = node_packages("opencode") / "opencode-linux-x64/bin/opencode"
    with serving(
        [str(program), "serve", "--port", str(free_port())],
        log=folder / "opencode.log",
        ready=re.compile(r"listening on (http://\S+)"),
        environ=environment(folder, **environ),
        cwd=folder,
    ) as server:
        yield _Opencode(server.ready[1])


def test_opencode_runs_commands(stage: SetStage, tmp_path: Path) -> None:
    """Two turns with commands, over one socket; it sends everything each time, and a title is written beside it."""
    playing = stage(_bash("one", "two"), Say("Done."), _bash("three"), Say("That too."), needs_tool="bash")
    with _opencode(playing, tmp_path) as agent:
        assert agent.ask("Do it.") == "Done."
        assert agent.ask("And that.") == "That too."
    check_requests(playing.backend)
    check_whole(playing.tap, playing.backend)
    assert _outputs(playing.backend.requests[-1].json) == ["one\n", "two\n", "three\n"]
    assert len(playing.tap.websockets) == 1


def test_opencode_retries_after_a_server_error(stage: SetStage, tmp_path: Path) -> None:
    """It tries again, and the task is done."""
    playing = stage(_bash("one"), Refuse(500, "server_error"), Say("Done."), needs_tool="bash")
    with _opencode(playing, tmp_path) as agent:
        assert agent.ask("Do it.") == "Done."
    assert playing.backend.left == 0
    check_requests(playing.backend)
    check_whole(playing.tap, playing.backend)


def test_opencode_reports_a_refusal(stage: SetStage, tmp_path: Path) -> None:
    """What will not get better is reported with the backend's words, and the conversation goes on."""
    playing = stage(Refuse(400, "invalid_prompt"), _bash("one"), Say("Done."), needs_tool="bash")
    with _opencode(playing, tmp_path) as agent:
        assert "The script says so." in agent.complaint("Hello.")
        assert agent.ask("Do it.") == "Done."
    assert playing.backend.left == 0


def test_opencode_goes_on_after_a_restart(stage: SetStage, tmp_path: Path) -> None:
    """It opens another socket."""
    playing = stage(_bash("one"), Say("Done."), _bash("two"), Say("That too."), needs_tool="bash")
    with _opencode(playing, tmp_path) as agent:
        assert agent.ask("Do it.") == "Done."
        playing.restart()
        assert agent.ask("And that.") == "That too."
    check_requests(playing.backend)
    check_whole(playing.tap, playing.backend)
    assert _outputs(playing.backend.requests[-1].json) == ["one\n", "two\n"]
    assert len(playing.tap.websockets) == 2


# pi


class _Pi:
    """A conversation with pi.

    Args:
        program: Its process.
    """

    def __init__(self, program: Program) -> None:
        self._program = program

    def ask(self, text: str) -> str:
        """Say something; what it says when it is done."""
        return "".join(part["text"] for part in self._last(text)["content"] if part["type"] == "text")

    def complaint(self, text: str) -> str:
        """Say something that goes wrong; what it makes of that."""
        return str(self._last(text)["errorMessage"])

    def _last(self, text: str) -> Any:
        """Its last message about something."""
        self._program.say({"type": "prompt", "message": text})
        messages = []
        while (event := self._program.hear())["type"] != "agent_settled":
            if event["type"] == "message_end" and event["message"]["role"] == "assistant":
                messages.append(event["message"])
        return messages[-1]


@contextlib.contextmanager
def _pi(playing: Stage, folder: Path) -> Iterator[_Pi]:
    with talking([*_pi_command(playing, folder), "--mode", "rpc"], folder=folder, **_PI_ENVIRON) as program:
        yield _Pi(program)


_PI_ENVIRON: Final = {"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1"}


def _pi_command(playing: Stage, folder: Path) -> list[str | Path]:
    model = {
        "id": "gpt-5.5",
        "name": "scripted",
        "reasoning": True,
        "input": ["text"],
        "contextWindow": 200_000,
        "maxTokens": 32_000,
        "cost": dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0),
    }
    provider = {"baseUrl": playing.base_url, "apiKey": _token(), "api": "openai-codex-responses", "models": [model]}
    settings = folder / ".pi/agent"
    settings.mkdir(parents=True)
    (settings / "models.json").write_text(json.dumps({"providers": {"tests": provider}}))
    program = node_packages("pi") / "@earendil-works/pi-coding-agent/dist/bundle/cli.js"
    return [node(), program, "--provider", "tests", "--model", "gpt-5.5"]


def _pi_once(playing: Stage, folder: Path) -> Finished:
    return run([*_pi_command(playing, folder), "-p", "Do it."], folder=folder, **_PI_ENVIRON)


def _token() -> str:
    """What pi takes for the token of an account: it reads the account's name out of it."""
    claims = {"https://api.openai.com/auth": {"chatgpt_account_id": "nobody"}}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims)]
    return ".".join([*parts, "unsigned"])


def test_pi_sends_only_what_is_new(stage: SetStage, tmp_path: Path) -> None:
    """Two turns with commands, over one socket, on the path that pi asks for."""
    playing = stage(_bash("one", "two"), Say("Done."), _bash("three"), Say("That too."))
    with _pi(playing, tmp_path) as agent:
        assert agent.ask("Do it.") == "Done."
        assert agent.ask("And that.") == "That too."
    check_requests(playing.backend)
    check_growth(playing.backend.requests)
    check_deltas(playing.tap, playing.backend)
    assert _outputs(playing.backend.requests[-1].json) == ["one\n", "two\n", "three\n"]


def test_pi_retries_after_a_rate_limit(stage: SetStage, tmp_path: Path) -> None:
    """It tries again, and the task is done."""
    limit = Refuse(429, "rate_limit_exceeded", {"retry-after": "1"}, message="Rate limit reached")
    playing = stage(_bash("one"), limit, Say("Done."))
    with _pi(playing, tmp_path) as agent:
        assert agent.ask("Do it.") == "Done."
    assert playing.backend.left == 0
    check_requests(playing.backend)


def test_pi_reports_a_refusal(stage: SetStage, tmp_path: Path) -> None:
    """What will not get better is reported with the backend's words, and the conversation goes on."""
    playing = stage(Refuse(400, "invalid_prompt"), _bash("one"), Say("Done."))
    with _pi(playing, tmp_path) as agent:
        assert "The script says so." in agent.complaint("Hello.")
        assert agent.ask("Do it.") == "Done."
    assert playing.backend.left == 0


def test_pi_goes_on_after_a_restart(stage: SetStage, tmp_path: Path) -> None:
    """It opens another socket, and says everything there once."""
    playing = stage(_bash("one"), Say("Done."), _bash("two"), Say("That too."))
    with _pi(playing, tmp_path) as agent:
        assert agent.ask("Do it.") == "Done."
        playing.restart()
        assert agent.ask("And that.") == "That too."
    check_requests(playing.backend)
    check_deltas(playing.tap, playing.backend, sockets=2)
    assert _outputs(playing.backend.requests[-1].json) == ["one\n", "two\n"]


def test_pi_falls_back_to_compressed_http(stage: SetStage, tmp_path: Path) -> None:
    """Where WebSocket mode is off it sends zstd over HTTP, and a backend that knows no zstd can read it."""
    playing = stage(_bash("one"), Say("It is done."), websocket__enabled="false")
    finished = _pi_once(playing, tmp_path)
    assert finished.code == 0, finished
    assert "It is done." in finished.output
    assert "content-encoding: zstd" in playing.tap.requests[0].head.lower()
    for request in playing.backend.requests:
        assert "content-encoding" not in request.headers
        assert request.path.endswith("/v1/responses")
    assert _outputs(playing.backend.requests[-1].json) == ["one\n"]


def _outputs(body: dict[str, Any]) -> list[str]:
    """What the tools have said."""
    return [str(item["output"]) for item in body["input"] if item.get("type") == "function_call_output"]
