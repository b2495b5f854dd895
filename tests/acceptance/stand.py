"""The product with a backend behind it, and clients that take nothing that the schema forbids."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2
from openai import AsyncOpenAI

from tests import openresponses
from tests.acceptance.reader import Reader, said
from tests.rig.llama import MODEL, SHORT_ANSWER
from tests.rig.sdk import Http, Sockets, Turn


class Client:
    """A client on a WebSocket, which keeps no response.

    Args:
        sockets: Its connection.
    """

    def __init__(self, sockets: Sockets) -> None:
        self._sockets = sockets

    async def respond(self, **fields: Any) -> Turn:
        """A turn that completes: every event is whole, they are numbered, and all speak of one response."""
        turn = await self._turn(fields)
        assert turn.types[0] == "response.created"
        assert [event["sequence_number"] for event in turn.events] == list(range(len(turn.events)))
        assert len({event["response"]["id"] for event in turn.events if "response" in event}) == 1
        assert turn.response["status"] == "completed"
        assert turn.response["store"] is False
        return turn

    async def fail(self, **fields: Any) -> Any:
        """A turn that is refused: its one event."""
        turn = await self._turn(fields)
        (event,) = turn.events
        assert event["type"] == "error"
        return event

    async def _turn(self, fields: dict[str, Any]) -> Turn:
        turn = await self._sockets.turn(model=MODEL, temperature=0, store=False, **fields)
        assert problems(turn) == []
        return turn


@dataclass(frozen=True)
class Stand:
    """The product, with a backend behind it.

    Attributes:
        base_url: What a client's base URL is.
        backend_url: What it would be without the product.
        reader: The backend, if it is the one that reads; None if it is a llama-server with the toy model.
        client: openai-python, talking to the product.
    """

    base_url: str
    backend_url: str
    reader: Reader | None
    client: AsyncOpenAI

    def answer(self, *words: str) -> str:
        """What the backend says in a conversation that holds these code words; the toy model has but one sentence."""
        return said(*words) if self.reader else SHORT_ANSWER

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[Client]:
        """A new connection."""
        async with self.client.responses.connect() as connection:
            yield Client(Sockets(connection))

    async def post(self, path: str, **fields: Any) -> tuple[int, Any]:
        """Status and body of the answer to a request over HTTP."""
        return await _post(f"{self.base_url}{path}", fields)

    async def respond(self, **fields: Any) -> Any:
        """A response over HTTP, in one piece; a strict client misses nothing."""
        status, response = await self.post("/responses", model=MODEL, temperature=0, **fields)
        assert status == 200, response
        assert openresponses.response_problems(response) == []
        assert response["status"] == "completed"
        return response

    async def stream(self, **fields: Any) -> Turn:
        """The same, streamed."""
        turn = await Http(self.client).turn(model=MODEL, temperature=0, **fields)
        assert problems(turn) == []
        return turn


def problems(turn: Turn) -> list[str]:
    """What a strict client would refuse of a turn's events."""
    return [problem for event in turn.events for problem in openresponses.problems(event)]


def text_of(response: Any) -> str:
    """What a response says in its one message."""
    (message,) = response["output"]
    (part,) = message["content"]
    assert (message["type"], message["role"], part["type"]) == ("message", "assistant", "output_text")
    text = part["text"]
    assert isinstance(text, str)
    return text


async def _post(url: str, body: Any) -> tuple[int, Any]:
    async with httpx2.AsyncClient(timeout=30) as client:
        answer = await client.post(url, json=body)
    return answer.status_code, answer.json()
