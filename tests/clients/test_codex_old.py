"""Codex CLI of earlier generations: 0.114 with today's protocol in its first form, 0.101 and 0.98 with `response.append`.

All of them have WebSocket mode behind a switch of their own. The two that append open a socket for each task of the user's;
0.101 says in its handshake that it does, appends only after `response.done`, and puts nothing in front of a tool's output.
0.98 says nothing, appends after `response.completed` too, and repeats what the server has said. It does not know `error`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.clients.codex import TASK, Codex, shell
from tests.clients.conftest import SetStage, Stage
from tests.clients.pause import Pause
from tests.clients.scripted import Cut, Fail, Refuse, Say, Step
from tests.clients.transcripts import check_appends, check_deltas, check_growth, check_requests

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

_SWITCH: Final = """\
suppress_unstable_features_warning = true
[features]
{} = true
"""

_APPENDING: Final = _SWITCH.format("responses_websockets")
_CREATING: Final = _SWITCH.format("responses_websockets_v2")

#: 0.98 asks its maker for a list of models, whatever its provider.
_ASKS_NOBODY: Final = "remote_models = false\n"

#: How the turns of :data:`TASK` end for a client that appends.
_ENDS: Final = ["response.done"] * 3 + ["response.completed"]


def _codex_114(folder: Path, playing: Stage) -> Codex:
    return Codex.at(folder, playing.base_url, more=_CREATING, release="codex-0.114")


def _codex_101(folder: Path, playing: Stage) -> Codex:
    return Codex.at(folder, playing.base_url, more=_APPENDING, release="codex-0.101")


def _codex_98(folder: Path, playing: Stage, *, patience: float = 300) -> Codex:
    more = _APPENDING + _ASKS_NOBODY
    return Codex.at(folder, playing.base_url, more=more, release="codex-0.98", patience=patience)


def _do_task(codex: Codex) -> None:
    run = codex.exec("Do it.")
    assert run.finished.code == 0, run.finished
    assert run.answer == "It is done."
    assert sorted(run.commands[:3]) == ["one\n", "three\n", "two\n"]
    assert len(run.commands) == 5


def test_codex_114_completes_a_task_and_sends_only_what_is_new(stage: SetStage, tmp_path: Path) -> None:
    """Its warm-up is empty, and has the instructions beside it."""
    playing = stage(*TASK)
    _do_task(_codex_114(tmp_path, playing))
    check_requests(playing.backend)
    check_growth(playing.backend.requests)
    check_deltas(playing.tap, playing.backend)
    warmup = playing.tap.websockets[0].messages[0]
    assert (warmup["generate"], warmup["input"]) == (False, [])
    assert not playing.tap.requests


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Refuse(500, "server_error"), id="server error"),
        pytest.param(Cut(), id="cut stream"),
        pytest.param(Fail("server_error"), id="failed response"),
    ],
)
def test_codex_114_retries_and_completes_its_task(stage: SetStage, tmp_path: Path, fault: Step) -> None:
    """A turn that fails is tried again on a new socket, with the whole transcript."""
    playing = stage(*TASK[:1], fault, *TASK[1:])
    _do_task(_codex_114(tmp_path, playing))
    check_requests(playing.backend)
    check_deltas(playing.tap, playing.backend, sockets=2)
    assert not playing.tap.requests


def test_codex_114_goes_on_after_a_restart(stage: SetStage, tmp_path: Path) -> None:
    """Two tasks over one socket; then, after a restart, a third over another one, with all that was said before."""
    playing = stage(shell("echo one"), Say("First."), Say("Second."), shell("echo three"), Say("Third."))
    with _codex_114(tmp_path, playing).app_server(lambda _name, _arguments: "") as server:
        answers = [server.turn(text)[-1]["text"] for text in ("Do it.", "And that.")]
        playing.restart()
        answers += [server.turn("Go on.")[-1]["text"]]
    assert answers == ["First.", "Second.", "Third."]
    check_requests(playing.backend)
    check_deltas(playing.tap, playing.backend, sockets=2)


def test_codex_101_appends_to_its_responses(stage: SetStage, tmp_path: Path) -> None:
    """It is recognised by its handshake; after its first request it sends nothing but what its tools have said."""
    playing = stage(*TASK)
    _do_task(_codex_101(tmp_path, playing))
    check_requests(playing.backend)
    check_growth(playing.backend.requests)
    check_appends(playing.tap, playing.backend, repeats=False)
    (socket,) = playing.tap.websockets
    assert "openai-beta: responses_websockets=2026-02-04" in socket.head.lower()
    assert socket.terminals == _ENDS


def test_codex_101_retries_and_goes_on_after_a_restart(stage: SetStage, tmp_path: Path) -> None:
    """After an error, and after a restart while a command runs, it says everything on a new socket and appends to that."""
    pause = Pause(tmp_path)
    playing = stage(
        shell("echo one"), Refuse(500, "server_error"), shell(pause.command), shell("echo two"), Say("Done.")
    )
    with pause.used_to(playing.restart):
        run = _codex_101(tmp_path, playing).exec("Do it.")
    assert run.finished.code == 0, run.finished
    assert run.answer == "Done."
    assert run.commands == ["one\n", "go on\n", "two\n"]
    check_requests(playing.backend)
    check_appends(playing.tap, playing.backend, repeats=False)
    assert len(playing.tap.websockets) == 3


def test_codex_98_appends_to_its_responses(stage: SetStage, tmp_path: Path) -> None:
    """It repeats the server's own items, which the backend sees once; two tasks of the user's take two sockets."""
    playing = stage(*TASK, shell("echo four"), Say("That too."), websocket__rollout="always")
    with _codex_98(tmp_path, playing).app_server(lambda _name, _arguments: "") as server:
        items = server.turn("Do it.")
        answers = [items[-1]["text"], server.turn("And that.")[-1]["text"]]
    assert answers == ["It is done.", "That too."]
    outputs = [item["aggregatedOutput"] for item in items if item["type"] == "commandExecution"]
    assert sorted(outputs[:3]) == ["one\n", "three\n", "two\n"]
    assert len(outputs) == 5
    check_requests(playing.backend)
    check_growth(playing.backend.requests[:4])
    check_growth(playing.backend.requests[4:])
    check_appends(playing.tap, playing.backend, repeats=True)
    first, second = playing.tap.websockets
    assert "openai-beta" not in first.head.lower()
    assert first.terminals == _ENDS
    assert second.terminals == ["response.done", "response.completed"]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Refuse(500, "server_error"), id="server error"),
        pytest.param(Fail("server_error"), id="failed response"),
    ],
)
def test_codex_98_retries_and_completes_its_task(stage: SetStage, tmp_path: Path, fault: Step) -> None:
    """It tries again on a new socket: at once if a response has failed, after a silence if all it got was an error."""
    playing = stage(*TASK[:1], fault, *TASK[1:], websocket__rollout="always")
    _do_task(_codex_98(tmp_path, playing, patience=3))
    check_requests(playing.backend)
    check_appends(playing.tap, playing.backend, repeats=True)
    assert len(playing.tap.websockets) == 2


def test_codex_98_goes_on_after_a_restart(stage: SetStage, tmp_path: Path) -> None:
    """The proxy is restarted while a command runs; its output comes on a new socket, with all that was said before."""
    pause = Pause(tmp_path)
    playing = stage(shell(pause.command), shell("echo four"), Say("It is done."), websocket__rollout="always")
    with pause.used_to(playing.restart):
        run = _codex_98(tmp_path, playing).exec("Do it.")
    assert run.finished.code == 0, run.finished
    assert run.answer == "It is done."
    assert run.commands == ["go on\n", "four\n"]
    check_requests(playing.backend)
    check_appends(playing.tap, playing.backend, repeats=True)
    assert len(playing.tap.websockets) == 2
