"""The dialogues of the other tests, in front of transformers and of vLLM."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.backends.conftest import ModelServer
from tests.clients.codex import weather_talk
from tests.rig.llama import AFTER_TOOL
from tests.rig.sdk import Http, Sockets, Turn, async_client, check_frame, tool_dialogue
from tests.rig.slipstream import slipstream

pytestmark = [pytest.mark.backends, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("profile", ["own", "generic"])
async def test_client_holds_a_dialogue_with_a_tool(server: ModelServer, tmp_path: Path, profile: str) -> None:
    """A call, its output, another question and so on, over WebSocket; and every frame is what the SDK's types say."""
    name = server.name if profile == "own" else profile
    with slipstream(tmp_path, server.base_url, "--profile", name) as proxy:
        async with async_client(proxy.base_url) as client, client.responses.connect() as connection:
            turns = await Sockets(connection, server.model).play(tool_dialogue())
        lines = proxy.turns(len(turns))
    assert [len(turn.calls) for turn in turns[:4]] == [1, 0, 1, 0]
    assert [turn.text for turn in turns[1:4:2]] == [AFTER_TOOL, AFTER_TOOL]
    assert [line["outcome"] for line in lines] == ["completed"] * len(turns)
    for frame in (frame for turn in turns for frame in turn.frames):
        check_frame(frame)


async def test_client_is_told_the_same_as_over_http(server: ModelServer, tmp_path: Path) -> None:
    """The events of the dialogue are those of whole requests over HTTP, and the model reads as many tokens."""
    with slipstream(tmp_path, server.base_url, "--profile", server.name) as proxy:
        async with async_client(proxy.base_url) as client, client.responses.connect() as connection:
            ours = await Sockets(connection, server.model).play(tool_dialogue())
    async with async_client(server.base_url) as client:
        theirs = await Http(client, server.model).play(tool_dialogue())
    assert [_kinds(turn) for turn in ours] == [_kinds(turn) for turn in theirs]
    assert [turn.text for turn in ours] == [turn.text for turn in theirs]
    for name in ("input_tokens", "output_tokens"):
        assert [turn.usage[name] for turn in ours] == [turn.usage[name] for turn in theirs]


@pytest.mark.parametrize("profile", ["own", "generic"])
def test_codex_talks_with_it(server: ModelServer, tmp_path: Path, profile: str) -> None:
    """Codex, the client with the most to say, gets its tool calls and its answers; only what is new is sent."""
    name = server.name if profile == "own" else profile
    with slipstream(tmp_path, server.base_url, "--profile", name) as proxy:
        answers, calls = weather_talk(tmp_path, proxy.base_url, server.model)
        lines = proxy.turns(5)
    assert answers == [AFTER_TOOL, AFTER_TOOL]
    assert calls == [{"get_weather": {"city": "Paris"}}] * 2
    assert [line["outcome"] for line in lines] == ["warmup", *["completed"] * 4]
    assert [line["new_items"] for line in lines] == [1] * 5


def _kinds(turn: Turn) -> list[str]:
    """The types of its events, a run of the same counted once: a busy vLLM puts several tokens into one delta."""
    return [kind for kind, _ in itertools.groupby(turn.types)]
