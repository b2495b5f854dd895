"""A conversation that got long: it is compacted, and goes on from what is left of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from openai import AsyncOpenAI, BadRequestError

from tests.rig.llama import MODEL, SHORT_ANSWER, Llama
from tests.rig.sdk import WEATHER_TOOL, Sockets, async_client
from tests.rig.sdk import user as message_of
from tests.rig.slipstream import Slipstream

pytestmark = pytest.mark.timeout(300)


def user(text: str) -> Any:
    """A message of the user."""
    return message_of(text)


_CONVERSATION: Final[Any] = [
    user("What is the weather in Paris?"),
    {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city":"Paris"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": '{"temperature":21}'},
    {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "It is 21 degrees. " * 50, "annotations": []}],
    },
    user("Thank you."),
]


@pytest.fixture
async def client(any_proxy: Slipstream) -> AsyncIterator[AsyncOpenAI]:
    """The SDK, talking to Slipstream."""
    async with async_client(any_proxy.base_url) as client:
        yield client


async def compacted(client: AsyncOpenAI, items: Any) -> list[Any]:
    """The window that is left of some items."""
    answer = await client.responses.compact(model=MODEL, input=items)
    assert answer.object == "response.compaction"
    assert answer.usage.input_tokens > 0
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    window = [item.to_dict(warnings=False) for item in answer.output]  # the SDK takes every message for the assistant's
    assert [item["type"] for item in window] == ["message", "message", "compaction"]
    assert [item["content"] for item in window[:2]] == [items[0]["content"], _CONVERSATION[-1]["content"]]
    return window


async def test_backend_does_not_know_compaction(client: AsyncOpenAI, llama: Llama) -> None:
    """Whatever goes on below goes on because the backend sees none of it: it would refuse an item of this type."""
    window: Any = await compacted(client, _CONVERSATION)
    async with async_client(llama.base_url) as direct:
        with pytest.raises(BadRequestError, match="type"):
            await direct.responses.create(model=MODEL, input=[*window, user("Hello.")])


async def test_conversation_goes_on_over_http_from_its_window(client: AsyncOpenAI) -> None:
    """With fewer tokens than it had, in one piece and as a stream."""
    window: Any = await compacted(client, _CONVERSATION)
    fields: Any = {"model": MODEL, "temperature": 0, "tools": [WEATHER_TOOL], "tool_choice": "none"}
    before = await client.responses.create(**fields, input=[*_CONVERSATION, user("Hello.")])
    after = await client.responses.create(**fields, input=[*window, user("Hello.")])
    assert after.status == "completed"
    assert after.output_text
    assert before.usage is not None
    assert after.usage is not None
    assert after.usage.input_tokens < before.usage.input_tokens
    stream: Any = await client.responses.create(**fields, input=[*window, user("Hello.")], stream=True)
    assert [event.type async for event in stream][-1] == "response.completed"


async def test_window_is_compacted_again(client: AsyncOpenAI) -> None:
    """It does not grow: the second window has one item, too."""
    window = await compacted(client, _CONVERSATION)
    again = await compacted(client, [*window, *_CONVERSATION[1:4]])
    assert again[:2] == window[:2]


async def test_conversation_goes_on_over_websocket_from_its_window(client: AsyncOpenAI) -> None:
    """A new chain, which then continues by id."""
    window = await compacted(client, _CONVERSATION)
    fields = {"model": MODEL, "temperature": 0}
    async with client.responses.connect() as connection:
        sockets = Sockets(connection)
        first = await sockets.turn(**fields, input=[*window, user("Hello.")])
        second = await sockets.turn(**fields, input=[user("Bye.")], previous_response_id=first.response["id"])
    assert first.text == SHORT_ANSWER
    assert second.text == SHORT_ANSWER
    assert second.usage["input_tokens"] > first.usage["input_tokens"]
    assert second.cached_tokens >= first.usage["input_tokens"] * 0.9
