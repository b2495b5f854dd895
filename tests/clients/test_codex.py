"""Codex CLI at work: what it asks for is done, it sends only what is new, and the backend sees everything."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import pytest

from tests.clients.codex import TASK, Codex, shell, weather_talk
from tests.clients.conftest import SetStage
from tests.clients.pause import Pause
from tests.clients.scripted import Cut, Fail, Refuse, Say, Step, Stop, Talk
from tests.clients.tap import tapped
from tests.clients.transcripts import check_deltas, check_growth, check_requests, identities
from tests.rig.llama import AFTER_TOOL, MODEL, llama_server
from tests.rig.slipstream import slipstream

OUTPUT = 4100
"""Bytes that a tool says: what Codex's do on average."""

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


def test_codex_completes_a_task_and_sends_only_what_is_new(stage: SetStage, tmp_path: Path) -> None:
    """A task with several tool calls over one socket: whole transcripts behind Slipstream, deltas in front of it."""
    playing = stage(*TASK)
    run = Codex.at(tmp_path, playing.base_url).exec("Do it.")
    assert run.finished.code == 0, run.finished
    assert run.answer == "It is done."
    assert sorted(run.commands[:3]) == ["one\n", "three\n", "two\n"]
    assert len(run.commands) == 5
    assert playing.backend.left == 0
    check_requests(playing.backend)
    check_growth(playing.backend.requests)
    check_deltas(playing.tap, playing.backend)
    first, *rest = playing.tap.websockets[0].messages
    assert first["generate"] is False  # Slipstream answered that itself
    assert all(frame["previous_response_id"] for frame in rest)
    assert not playing.tap.requests
    assert [line["outcome"] for line in playing.proxy.turns(5)] == ["warmup", *["completed"] * 4]


@pytest.mark.parametrize("model", ["gpt-5.5", "gpt-6.2-sol"])
def test_codex_works_in_the_form_of_each_model(stage: SetStage, tmp_path: Path, model: str) -> None:
    """Known models have their tools in other places, and other warm-ups; two tasks in a row come through all the same."""
    playing = stage(Say("One.", thinking=True), Say("Two."))
    codex = Codex.at(tmp_path, playing.base_url, model=model)
    with codex.app_server(lambda _name, _arguments: "") as server:
        answers = [server.turn(text)[-1]["text"] for text in ("First.", "Second.")]
    assert answers == ["One.", "Two."]
    check_requests(playing.backend)
    check_growth(playing.backend.requests)
    check_deltas(playing.tap, playing.backend)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Refuse(429, "rate_limit_exceeded", {"retry-after": "1"}), id="rate limit"),
        pytest.param(Refuse(500, "server_error"), id="server error"),
        pytest.param(Cut(), id="cut stream"),
        pytest.param(Fail("server_error"), id="failed response"),
    ],
)
def test_codex_retries_and_completes_its_task(stage: SetStage, tmp_path: Path, fault: Step) -> None:
    """A turn that fails in the middle of a task is tried again on a new socket, with the whole transcript, and succeeds."""
    playing = stage(*TASK[:1], fault, *TASK[1:])
    run = Codex.at(tmp_path, playing.base_url).exec("Do it.")
    assert run.finished.code == 0, run.finished
    assert run.answer == "It is done."
    assert playing.backend.left == 0
    check_requests(playing.backend)
    check_deltas(playing.tap, playing.backend, sockets=2)
    _, failed, again, *_ = playing.backend.requests
    assert identities(again.json["input"]) == identities(failed.json["input"])
    if isinstance(fault, Refuse) and fault.headers:
        assert again.time - failed.time >= int(fault.headers["retry-after"])
    assert not playing.tap.requests  # it did not fall back to HTTP


def test_codex_reports_an_incomplete_response(stage: SetStage, tmp_path: Path) -> None:
    """A response that ran into its limit ends the task with the reason, and is not tried again."""
    playing = stage(Stop())
    run = Codex.at(tmp_path, playing.base_url).exec("Do it.")
    assert run.finished.code == 1
    assert "max_output_tokens" in run.events[-1]["error"]["message"]
    assert len(playing.backend.requests) == 1


def test_codex_falls_back_to_http_at_once(stage: SetStage, tmp_path: Path) -> None:
    """Where WebSocket mode is off, one upgrade is answered with 426, and the task is done over HTTP."""
    playing = stage(*TASK, websocket__enabled="false")
    run = Codex.at(tmp_path, playing.base_url).exec("Do it.")
    assert run.finished.code == 0, run.finished
    assert run.answer == "It is done."
    assert not [item for item in run.items if "Reconnecting" in str(item) or "Falling back" in str(item)]
    assert [socket.messages for socket in playing.tap.websockets] == [[]]
    assert playing.tap.requests
    assert playing.backend.left == 0
    sizes = [len(request.body) for request in playing.backend.requests]
    assert sizes == sorted(sizes)


def test_codex_serves_two_user_turns_over_one_socket(stage: SetStage, tmp_path: Path) -> None:
    """The interactive form: the second turn of a conversation goes on where the first one ended."""
    playing = stage(*TASK, shell("echo four"), Say("That too."))
    with Codex.at(tmp_path, playing.base_url).app_server(lambda _name, _arguments: "") as server:
        first = server.turn("Do it.")
        second = server.turn("And that.")
    assert (first[-1]["text"], second[-1]["text"]) == ("It is done.", "That too.")
    assert playing.backend.left == 0
    check_requests(playing.backend)
    check_growth(playing.backend.requests)
    check_deltas(playing.tap, playing.backend)


def test_codex_goes_on_after_a_restart(stage: SetStage, tmp_path: Path) -> None:
    """The proxy is restarted while a command runs; its output comes on a new socket, with all that was said before."""
    pause = Pause(tmp_path)
    playing = stage(shell(pause.command), shell("echo four"), Say("It is done."))
    with pause.used_to(playing.restart):
        run = Codex.at(tmp_path, playing.base_url).exec("Do it.")
    assert run.finished.code == 0, run.finished
    assert run.answer == "It is done."
    assert run.commands == ["go on\n", "four\n"]
    check_requests(playing.backend)
    check_deltas(playing.tap, playing.backend, sockets=2)
    assert not playing.tap.requests


def test_codex_takes_up_a_conversation_after_a_restart(stage: SetStage, tmp_path: Path) -> None:
    """The proxy is restarted between two tasks; the second one begins on a new socket, with all that was said before."""
    playing = stage(shell("echo one"), Say("It is done."), shell("echo two"), Say("That too."))
    with Codex.at(tmp_path, playing.base_url).app_server(lambda _name, _arguments: "") as server:
        answers = [server.turn("Do it.")[-1]["text"]]
        playing.restart()
        answers += [server.turn("And that.")[-1]["text"]]
    assert answers == ["It is done.", "That too."]
    check_requests(playing.backend)
    check_deltas(playing.tap, playing.backend, sockets=2)
    assert not playing.tap.requests


def test_codex_that_is_interrupted_stops_the_backend(stage: SetStage, tmp_path: Path) -> None:
    """It drops its socket in the middle of an answer, the backend is left, and the next turn has the whole transcript."""
    playing = stage(Talk(), Say("Here I am."))
    with Codex.at(tmp_path, playing.base_url).app_server(lambda _name, _arguments: "") as server:
        assert server.interrupted_turn("Tell me everything.") == "interrupted"
        assert playing.backend.was_left.wait(60)
        assert server.turn("Are you there?")[-1]["text"] == "Here I am."
    check_requests(playing.backend)
    check_deltas(playing.tap, playing.backend, sockets=2)
    assert playing.proxy.turns(2)[1]["outcome"] == "client_gone"


def test_codex_compresses_what_it_sends(stage: SetStage, tmp_path: Path) -> None:
    """A task of twenty tool calls takes 55 KB from Codex to Slipstream, handshake and all; over plain HTTP two million."""
    source = Path(argparse.__file__)
    assert source.stat().st_size > 20 * OUTPUT
    steps = [shell(f"tail -c +{at * OUTPUT + 1} {source} | head -c {OUTPUT}", thinking=True) for at in range(20)]
    playing = stage(*steps, Say("It is done."))
    run = Codex.at(tmp_path, playing.base_url, model="gpt-5.5").exec("Do it.")
    assert run.finished.code == 0, run.finished
    assert run.answer == "It is done."
    assert playing.backend.left == 0
    check_requests(playing.backend)
    check_growth(playing.backend.requests)
    (socket,) = playing.tap.websockets
    assert not playing.tap.requests
    assert len(playing.backend.requests) == 21
    over_http = sum(len(request.body) for request in playing.backend.requests)
    assert over_http > 35 * len(socket.sent)
    assert len(socket.sent) <= 55_000


@pytest.mark.parametrize("profile", ["generic", "llamacpp"])
def test_codex_works_with_a_real_model(tmp_path: Path, profile: str) -> None:
    """Two user turns, each with a tool call, on a llama-server whose cache finds every earlier token."""
    with (
        llama_server(tmp_path, "--temp", "0", slots=1) as llama,
        slipstream(tmp_path, llama.base_url, "--profile", profile) as proxy,
        tapped(proxy.base_url) as tap,
    ):
        answers, calls = weather_talk(tmp_path, tap.base_url, MODEL)
        warmup, *lines = proxy.turns(5)
    assert answers == [AFTER_TOOL, AFTER_TOOL]
    assert calls == [{"get_weather": {"city": "Paris"}}] * 2
    assert warmup["outcome"] == "warmup"
    assert [line["outcome"] for line in lines] == ["completed"] * 4
    assert [line["new_items"] for line in lines] == [1] * 4
    for before, after in itertools.pairwise(lines):
        assert after["cached_tokens"] >= 0.95 * before["input_tokens"]
    assert len(tap.websockets) == 1
