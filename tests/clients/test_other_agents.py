"""More agents, each with a task that takes a tool call: pydantic-ai, opencode and pi."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.clients.conftest import SetStage
from tests.clients.programs import HERE, Finished, node, node_packages, run
from tests.clients.scripted import Call, Refuse, Say
from tests.clients.transcripts import check_deltas, check_growth, check_requests, check_whole
from tests.rig import install

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

_HELLO: Final = Call([("bash", {"command": "echo hello", "description": "Says hello"})], thinking=True)


def test_pydantic_agent_sends_only_what_is_new(stage: SetStage, tmp_path: Path) -> None:
    """Two runs of an agent, with a tool call in the first, over one socket."""
    playing = stage(Call([("get_weather", {"city": "Paris"})], thinking=True), Say("It rains."), Say("It will."))
    python = install.environment("pydantic-ai", HERE / "pypi/pydantic-ai.txt")
    finished = run([python, HERE / "pydantic_agent.py", playing.base_url], folder=tmp_path)
    assert finished.code == 0, finished
    assert [json.loads(line) for line in finished.output.splitlines()] == ["It rains.", "It will."]
    check_requests(playing.backend)
    check_growth(playing.backend.requests)
    check_deltas(playing.tap, playing.backend)


def test_pydantic_agent_retries_after_a_rate_limit(stage: SetStage, tmp_path: Path) -> None:
    """It tries again on the same socket."""
    playing = stage(Refuse(429, "rate_limit_exceeded", {"retry-after": "1"}), Say("It rains."), Say("It will."))
    python = install.environment("pydantic-ai", HERE / "pypi/pydantic-ai.txt")
    finished = run([python, HERE / "pydantic_agent.py", playing.base_url], folder=tmp_path)
    assert finished.code == 0, finished
    assert playing.backend.left == 0
    assert len(playing.tap.websockets) == 1


def test_opencode_runs_a_command(stage: SetStage, tmp_path: Path) -> None:
    """A task with a command, over one socket; it sends everything each time, and a title is written beside it."""
    playing = stage(_HELLO, Say("It is done."), needs_tool="bash")
    finished = _opencode(tmp_path, playing.base_url)
    assert finished.code == 0, finished
    assert "It is done." in finished.output
    assert playing.backend.left == 0
    check_requests(playing.backend)
    check_whole(playing.tap, playing.backend)
    assert "hello" in _outputs(playing.backend.requests[-1].json)


def test_pi_sends_only_what_is_new(stage: SetStage, tmp_path: Path) -> None:
    """A task with a command, over one socket, on the path that pi asks for."""
    playing = stage(_HELLO, Say("It is done."))
    finished = _pi(tmp_path, playing.base_url)
    assert finished.code == 0, finished
    assert "It is done." in finished.output
    check_requests(playing.backend)
    check_growth(playing.backend.requests)
    check_deltas(playing.tap, playing.backend)
    assert "hello" in _outputs(playing.backend.requests[-1].json)


def test_pi_falls_back_to_compressed_http(stage: SetStage, tmp_path: Path) -> None:
    """Where WebSocket mode is off it sends zstd over HTTP, and a backend that knows no zstd can read it."""
    playing = stage(_HELLO, Say("It is done."), websocket__enabled="false")
    finished = _pi(tmp_path, playing.base_url)
    assert finished.code == 0, finished
    assert "It is done." in finished.output
    assert "content-encoding: zstd" in playing.tap.requests[0].head.lower()
    for request in playing.backend.requests:
        assert "content-encoding" not in request.headers
        assert request.path.endswith("/v1/responses")
    assert "hello" in _outputs(playing.backend.requests[-1].json)


def _opencode(folder: Path, base_url: str) -> Finished:
    limit = {"context": 200_000, "output": 32_000}
    model = {"name": "scripted", "tool_call": True, "reasoning": True, "limit": limit}
    options = {"baseURL": base_url, "apiKey": "unused"}
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
    return run(
        [node_packages("opencode") / "opencode-linux-x64/bin/opencode", "run", "Do it."], folder=folder, **environ
    )


def _pi(folder: Path, base_url: str) -> Finished:
    model = {
        "id": "gpt-5.5",
        "name": "scripted",
        "reasoning": True,
        "input": ["text"],
        "contextWindow": 200_000,
        "maxTokens": 32_000,
        "cost": dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0),
    }
    provider = {"baseUrl": base_url, "apiKey": _token(), "api": "openai-codex-responses", "models": [model]}
    settings = folder / ".pi/agent"
    settings.mkdir(parents=True)
    (settings / "models.json").write_text(json.dumps({"providers": {"tests": provider}}))
    program = node_packages("pi") / "@earendil-works/pi-coding-agent/dist/bundle/cli.js"
    options = ["--provider", "tests", "--model", "gpt-5.5", "-p", "Do it."]
    return run([node(), program, *options], folder=folder, PI_OFFLINE="1", PI_SKIP_VERSION_CHECK="1")


def _token() -> str:
    """What pi takes for the token of an account: it reads the account's name out of it."""
    claims = {"https://api.openai.com/auth": {"chatgpt_account_id": "nobody"}}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims)]
    return ".".join([*parts, "unsigned"])


def _outputs(body: dict[str, Any]) -> str:
    """What the tools have said."""
    return "".join(str(item["output"]) for item in body["input"] if item.get("type") == "function_call_output")
