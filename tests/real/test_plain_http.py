"""Clients that stay with HTTP, or fall back to it, are given what the backend gives, and what it leaves out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2
import pytest
from openai import APIStatusError, AsyncOpenAI, NotFoundError
from openai.types.responses import Response

from tests import openresponses
from tests.rig.llama import AFTER_TOOL, MODEL, SHORT_ANSWER, Llama
from tests.rig.sdk import (
    WEATHER_TOOL,
    Http,
    async_client,
    check_frame,
    reasoning_dialogue,
    take_out_added,
    tool_dialogue,
)
from tests.rig.slipstream import Slipstream

pytestmark = pytest.mark.timeout(300)

_ASK: Final[Any] = {"model": MODEL, "temperature": 0, "input": "Hello."}


@pytest.fixture
async def through(proxy: Slipstream) -> AsyncIterator[AsyncOpenAI]:
    """The SDK, talking to Slipstream."""
    async with async_client(proxy.base_url) as client:
        yield client


@pytest.fixture
async def direct(llama: Llama) -> AsyncIterator[AsyncOpenAI]:
    """The SDK, talking to the backend."""
    async with async_client(llama.base_url) as client:
        yield client


async def test_http_client_gets_a_response_in_one_piece(through: AsyncOpenAI, direct: AsyncOpenAI) -> None:
    """`responses.create` without a stream: what the backend says, and what a strict client misses in it."""
    ours, theirs = [await client.responses.create(**_ASK) for client in (through, direct)]
    assert ours.output_text == theirs.output_text == SHORT_ANSWER
    _check_holds(_shape(ours.to_dict()), _shape(theirs.to_dict()))
    assert openresponses.response_problems(ours.to_dict()) == []


@pytest.mark.parametrize("dialogue", [tool_dialogue, reasoning_dialogue])
async def test_http_client_gets_streams(through: AsyncOpenAI, direct: AsyncOpenAI, dialogue: Any) -> None:
    """`responses.create` with a stream: every event of the backend, none without what strict clients need."""
    ours, theirs = [await Http(client).play(dialogue()) for client in (through, direct)]
    for turn in ours:
        take_out_added(turn)
    assert [turn.types for turn in ours] == [turn.types for turn in theirs]
    assert [turn.text for turn in ours] == [turn.text for turn in theirs]
    for our_turn, their_turn in zip(ours, theirs, strict=True):
        _check_holds(_shape(our_turn.events), _shape(their_turn.events))
        for frame in our_turn.frames:
            check_frame(frame)
        assert [problem for event in our_turn.events for problem in openresponses.problems(event)] == []


@pytest.mark.parametrize("is_stream", [False, True])
async def test_http_client_continues_by_id(through: AsyncOpenAI, *, is_stream: bool) -> None:
    """A tool's output and nothing else, over plain HTTP: the model answers it as if it had been sent everything."""
    with_tools: Any = {"model": MODEL, "temperature": 0, "tools": [WEATHER_TOOL], "instructions": "Be brief."}

    async def ask(**fields: Any) -> Response:
        if not is_stream:
            whole: Response = await through.responses.create(**with_tools, **fields)
            return whole
        events = [event async for event in await through.responses.create(**with_tools, **fields, stream=True)]
        assert events[-1].type == "response.completed"
        last: Response = events[-1].response
        return last

    first = await ask(input="What is the weather in Paris?")
    (call,) = [item for item in first.output if item.type == "function_call"]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    second = await ask(input=[output], previous_response_id=first.id)
    assert (second.output_text, second.previous_response_id) == (AFTER_TOOL, first.id)
    assert (await through.responses.retrieve(second.id)).output == second.output
    listed = [item.type async for item in through.responses.input_items.list(second.id, order="asc", limit=1)]
    assert listed == ["message", *(item.type for item in first.output), "function_call_output"]
    await through.responses.delete(second.id)
    with pytest.raises(NotFoundError):
        await through.responses.retrieve(second.id)


async def test_http_client_lists_the_models(through: AsyncOpenAI, direct: AsyncOpenAI) -> None:
    """`models.list`."""
    ours, theirs = [(await client.models.list()).data for client in (through, direct)]
    assert [model.id for model in ours] == [model.id for model in theirs] == [MODEL]


async def test_http_client_completes_a_chat(through: AsyncOpenAI, direct: AsyncOpenAI) -> None:
    """Chat completions, which Slipstream knows nothing of."""
    ours, theirs = [
        await client.chat.completions.create(
            model=MODEL, temperature=0, messages=[{"role": "user", "content": "Hello."}]
        )
        for client in (through, direct)
    ]
    assert ours.choices[0].message.content == theirs.choices[0].message.content == SHORT_ANSWER


async def test_http_client_streams_a_chat(through: AsyncOpenAI) -> None:
    """The same, streamed."""
    chunks = await through.chat.completions.create(
        model=MODEL, temperature=0, messages=[{"role": "user", "content": "Hello."}], stream=True
    )
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices]) == SHORT_ANSWER


async def test_http_client_sees_the_backends_own_errors(proxy: Slipstream, llama: Llama, through: AsyncOpenAI) -> None:
    """An error has the backend's status and its very bytes."""
    with pytest.raises(APIStatusError) as caught:
        await through.responses.create(**{**_ASK, "input": 5})
    assert caught.value.status_code == 400
    async with httpx2.AsyncClient(timeout=30) as client:
        ours, theirs = [
            await client.post(f"{base_url}/responses", json={**_ASK, "input": 5})
            for base_url in (proxy.base_url, llama.base_url)
        ]
    assert (ours.status_code, ours.content) == (theirs.status_code, theirs.content)


def _shape(value: Any) -> Any:
    """A JSON value with the types of its scalars instead of their values; texts stand where they are no ids."""
    if isinstance(value, dict):
        return {name: inner if name in ("type", "delta", "text") else _shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_shape(inner) for inner in value]
    return type(value).__name__


def _check_holds(ours: Any, theirs: Any) -> None:
    """Whether one shape has all that another has."""
    if isinstance(theirs, dict):
        assert not theirs.keys() - ours.keys()
        for name, inner in theirs.items():
            _check_holds(ours[name], inner)
    elif isinstance(theirs, list):
        for pair in zip(ours, theirs, strict=True):
            _check_holds(*pair)
    else:
        assert ours == theirs
