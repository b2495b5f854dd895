"""Clients that stay with HTTP, or fall back to it, are given what the backend gives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2
import pytest
from openai import APIStatusError, AsyncOpenAI

from tests.rig.llama import MODEL, SHORT_ANSWER, Llama
from tests.rig.sdk import Http, async_client, reasoning_dialogue, tool_dialogue
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
    """`responses.create` without a stream."""
    ours, theirs = [await client.responses.create(**_ASK) for client in (through, direct)]
    assert ours.output_text == theirs.output_text == SHORT_ANSWER
    assert _shape(ours.to_dict()) == _shape(theirs.to_dict())


@pytest.mark.parametrize("dialogue", [tool_dialogue, reasoning_dialogue])
async def test_http_client_gets_streams(through: AsyncOpenAI, direct: AsyncOpenAI, dialogue: Any) -> None:
    """`responses.create` with a stream: every event as the backend wrote it, none filled in."""
    ours, theirs = [await Http(client).play(dialogue()) for client in (through, direct)]
    assert [turn.types for turn in ours] == [turn.types for turn in theirs]
    assert [turn.text for turn in ours] == [turn.text for turn in theirs]
    assert [_shape(turn.events) for turn in ours] == [_shape(turn.events) for turn in theirs]


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
        await through.responses.create(**_ASK, previous_response_id="resp_1")
    assert caught.value.status_code == 400
    async with httpx2.AsyncClient(timeout=30) as client:
        ours, theirs = [
            await client.post(f"{base_url}/responses", json={**_ASK, "previous_response_id": "resp_1"})
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
