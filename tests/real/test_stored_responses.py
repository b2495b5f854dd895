"""Responses that outlive their connection: from a socket to HTTP and back, in front of a backend that keeps nothing."""

from __future__ import annotations

from typing import Any, Final

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from tests.rig.llama import AFTER_TOOL, MODEL, SHORT_ANSWER
from tests.rig.sdk import WEATHER_TOOL, Sockets, Turn, async_client, user
from tests.rig.slipstream import Slipstream

pytestmark = pytest.mark.timeout(300)

_FIELDS: Final[dict[str, Any]] = {"model": MODEL, "temperature": 0}


async def _over_websocket(client: AsyncOpenAI, *items: Any, **fields: Any) -> Turn:
    """A turn on a socket of its own."""
    async with client.responses.connect() as connection:
        return await Sockets(connection).turn(**_FIELDS, **fields, input=list(items))


async def test_conversation_moves_between_connections(any_proxy: Slipstream) -> None:
    """A call on one socket, its output over HTTP, the next question in a stream, and the last one on another socket."""
    async with async_client(any_proxy.base_url) as client:
        tools: Any = {"tools": [WEATHER_TOOL]}
        first = await _over_websocket(client, user("What is the weather in Paris?"), **tools)
        outputs: Any = first.tool_outputs()
        second = await client.responses.create(
            **_FIELDS, **tools, input=outputs, previous_response_id=first.response["id"]
        )
        assert second.output_text == AFTER_TOOL
        question: Any = [user("Thank you.")]
        stream: Any = await client.responses.create(
            **_FIELDS, input=question, previous_response_id=second.id, stream=True
        )
        third = [event async for event in stream][-1].response
        assert third.previous_response_id == second.id
        fourth = await _over_websocket(client, user("Bye."), previous_response_id=third.id)
        assert fourth.text == SHORT_ANSWER
        items = [item async for item in client.responses.input_items.list(fourth.response["id"], order="asc")]
        kinds = ["message", "function_call", "function_call_output", "message", "message", "message", "message"]
        assert [item.type for item in items] == kinds


async def test_response_of_a_socket_is_shown_and_deleted(any_proxy: Slipstream) -> None:
    """To whoever has its credential; what was not to be stored, to nobody."""
    async with (
        async_client(any_proxy.base_url) as client,
        AsyncOpenAI(base_url=any_proxy.base_url, api_key="another", max_retries=0) as other,
    ):
        turn = await _over_websocket(client, user("Hello."))
        response_id = turn.response["id"]
        shown = await client.responses.retrieve(response_id)
        assert shown.output_text == turn.text
        with pytest.raises(NotFoundError):
            await other.responses.retrieve(response_id)
        with pytest.raises(BadRequestError, match="not found"):
            await other.responses.create(**_FIELDS, input="Hello.", previous_response_id=response_id)
        await client.responses.delete(response_id)
        unstored = (await _over_websocket(client, user("Hello."), store=False)).response["id"]
        for gone in (response_id, unstored):
            with pytest.raises(NotFoundError):
                await client.responses.retrieve(gone)
            with pytest.raises(BadRequestError, match="not found"):
                await client.responses.create(**_FIELDS, input="Hello.", previous_response_id=gone)
