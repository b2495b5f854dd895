"""Conversations that get too long for the model: what the client is told, and how the proxy shortens them in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.rig.llama import MODEL, SHORT_ANSWER, Llama, llama_server
from tests.rig.sdk import Sockets, Turn, async_client, check_frame, user
from tests.rig.slipstream import Slipstream, slipstream

pytestmark = pytest.mark.timeout(300)

_CONTEXT: Final = 512
_FIELDS: Final[dict[str, Any]] = {"model": MODEL, "temperature": 0, "max_output_tokens": 64}
_THRESHOLD: Final = [{"type": "compaction", "compact_threshold": 1000}]


@pytest.fixture(scope="module")
def small_llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    """A llama-server with little context."""
    with llama_server(tmp_path_factory.mktemp("llama"), slots=1, context=_CONTEXT) as server:
        yield server


@pytest.mark.parametrize("profile", ["generic", "llamacpp"])
async def test_prompt_that_is_too_long_fails_with_the_apis_code(
    small_llama: Llama, tmp_path_factory: pytest.TempPathFactory, profile: str
) -> None:
    """As a response that failed, on which clients compact; the connection, and shorter prompts, go on."""
    with slipstream(tmp_path_factory.mktemp("proxy"), small_llama.base_url, "--profile", profile) as proxy:
        async with async_client(proxy.base_url) as client, client.responses.connect() as connection:
            sockets = Sockets(connection)
            first = await sockets.turn(**_FIELDS, input=[user("Hello.")])
            previous = first.response["id"]
            long = await sockets.turn(**_FIELDS, input=[user("word " * 3000)], previous_response_id=previous)
            assert long.types == ["response.created", "response.failed"]
            error = long.events[-1]["response"]["error"]
            assert error["code"] == "context_length_exceeded"
            assert str(_CONTEXT) in error["message"]
            again = await sockets.turn(**_FIELDS, input=[user("Hello.")])
            assert again.text == SHORT_ANSWER
        line = proxy.turns(2)[1]
        assert (line["outcome"], line["error_code"]) == ("failed", "context_length_exceeded")


async def test_conversation_is_compacted_within_its_chain(any_proxy: Slipstream, llama: Llama) -> None:
    """Above the threshold a turn begins with a summary; the chain then goes on from it, with far fewer tokens."""
    said = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant"}
    part = {"type": "output_text", "text": "It is 21 degrees. " * 200, "annotations": []}
    start = [user("What is the weather in Paris?"), {**said, "content": [part]}, user("Thank you.")]
    before = len(any_proxy.lines("turn"))
    turns: list[Turn] = []
    async with async_client(any_proxy.base_url) as client, client.responses.connect() as connection:
        sockets = Sockets(connection)
        for items in (start, [user("Hello.")], [user("And now?")]):
            chained = {"previous_response_id": turns[-1].response["id"]} if turns else {}
            managed: dict[str, Any] = {"context_management": _THRESHOLD} if len(turns) == 1 else {}
            turns.append(await sockets.turn(**_FIELDS, **managed, **chained, input=items))
    first, second, third = turns
    assert first.usage["total_tokens"] > 1000
    assert [item["type"] for item in second.response["output"]] == ["compaction", "message"]
    assert second.text == SHORT_ANSWER
    for frame in second.frames:
        check_frame(frame)
    assert [item["type"] for item in third.response["output"]] == ["message"]
    assert third.text == SHORT_ANSWER
    assert third.usage["input_tokens"] < first.usage["input_tokens"] / 2
    assert not llama.is_busy()
    lines = any_proxy.turns(before + 3)[before:]
    assert [line["outcome"] for line in lines] == ["completed"] * 3
    assert lines[2]["previous_response_id"] == second.response["id"]
