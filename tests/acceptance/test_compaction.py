"""Compaction: a conversation becomes an opaque item, and a new chain begins with that."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests import openresponses
from tests.acceptance.stand import Stand, text_of
from tests.rig.llama import MODEL

pytestmark = pytest.mark.timeout(300)  # llama-server may have to be fetched first

_CONVERSATION: Final = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "The code word is slate."}]},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "And mine: the code word is flint.", "annotations": []}],
    },
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Keep it for later."}]},
]


async def test_compaction_endpoint(stand: Stand) -> None:
    """A conversation is compacted: the answer is whole, and one item in it stands for what was left out."""
    compaction = await _compact(stand, input=_CONVERSATION, prompt_cache_key="acceptance")
    assert [item["type"] for item in compaction["output"]].count("compaction") == 1
    usage = compaction["usage"]
    assert usage["input_tokens"] > 0
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


async def test_compaction_without_a_model(stand: Stand) -> None:
    """A request that names no model is refused, and told so."""
    status, body = await stand.post("/responses/compact", input=_CONVERSATION)
    assert status == 400
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["param"] == "model"
    assert "model" in body["error"]["message"]


async def test_new_chain_after_compaction(stand: Stand) -> None:
    """The compacted window and a new message begin a chain, which knows what was compacted and can be continued."""
    window = (await _compact(stand, input=_CONVERSATION))["output"]
    question = {"type": "message", "role": "user", "content": "What is the code word?"}
    async with stand.connect() as client:
        first = await client.respond(input=[*window, question], previous_response_id=None, tools=[])
        second = await client.respond(input=[question], previous_response_id=first.response["id"])
    assert first.response["previous_response_id"] is None
    assert text_of(first.response) == text_of(second.response) == stand.answer("slate", "flint")


async def _compact(stand: Stand, **fields: Any) -> Any:
    status, compaction = await stand.post("/responses/compact", model=MODEL, temperature=0, **fields)
    assert status == 200, compaction
    assert openresponses.compaction_problems(compaction) == []
    return compaction
