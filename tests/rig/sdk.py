"""openai-python: as a client, over WebSocket and over HTTP, and as a judge of what it is sent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, cast, get_args

from openai import AsyncOpenAI, OpenAI
from openai.resources.responses.responses import AsyncResponsesConnection, ResponsesConnection
from openai.types.responses import ResponseStreamEvent
from openai.types.responses.responses_server_event import ResponsesServerEvent
from pydantic import BaseModel, TypeAdapter

from tests.rig.llama import MODEL

Item = dict[str, Any]

TERMINALS: Final = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})

WEATHER_TOOL: Final[Item] = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


def user(text: str) -> Item:
    """A message of the user."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


@dataclass(frozen=True)
class Turn:
    """One response, as it came.

    Attributes:
        request: The fields that were sent.
        frames: Its events, raw.
        events: Its events.
    """

    request: dict[str, Any]
    frames: list[bytes]
    events: list[dict[str, Any]]

    @classmethod
    def of(cls, request: dict[str, Any], frames: list[bytes]) -> Turn:
        """Read frames."""
        return cls(request, frames, [json.loads(frame) for frame in frames])

    @property
    def types(self) -> list[str]:
        """The type of each event."""
        return [event["type"] for event in self.events]

    @property
    def response(self) -> dict[str, Any]:
        """The final response."""
        assert self.types[-1] == "response.completed", self.events[-1]
        return cast("dict[str, Any]", self.events[-1]["response"])

    @property
    def usage(self) -> dict[str, Any]:
        """Its token counts."""
        return cast("dict[str, Any]", self.response["usage"])

    @property
    def cached_tokens(self) -> int:
        """How much of its input the backend had in its cache."""
        return int(self.usage["input_tokens_details"]["cached_tokens"])

    @property
    def calls(self) -> list[Item]:
        """The function calls it asks for."""
        return [item for item in self.response["output"] if item["type"] == "function_call"]

    @property
    def text(self) -> str:
        """What it says."""
        messages = (item for item in self.response["output"] if item["type"] == "message")
        return "".join(part["text"] for message in messages for part in message["content"])

    @property
    def reasoning(self) -> str:
        """What it thought."""
        items = (item for item in self.response["output"] if item["type"] == "reasoning")
        return "".join(part["text"] for item in items for part in item.get("content") or ())

    def tool_outputs(self, output: str = '{"temperature":21}') -> list[Item]:
        """An answer to each of its calls."""
        return [{"type": "function_call_output", "call_id": call["call_id"], "output": output} for call in self.calls]


@dataclass(frozen=True)
class Ask:
    """What a client says in one turn.

    Attributes:
        items: What is new.
        fields: Other fields of the request.
    """

    items: list[Item]
    fields: dict[str, Any]

    def body(self) -> dict[str, Any]:
        """The fields of a request that holds no more than what is new."""
        return {"model": MODEL, "temperature": 0, "store": False, **self.fields, "input": self.items}


#: A dialogue: it is told what each turn brought and says what comes next.
Dialogue = Generator[Ask, Turn, None]


def tool_dialogue() -> Dialogue:
    """A user who asks for the weather, gets it by way of a tool, and does so once more; then the tool is gone."""
    with_tools = {"tools": [WEATHER_TOOL], "instructions": "Be brief."}
    turn = yield Ask([user("What is the weather in Paris?")], with_tools)
    yield Ask(turn.tool_outputs(), with_tools)
    turn = yield Ask([user("And how is it there now?")], with_tools)
    yield Ask(turn.tool_outputs("It rains."), with_tools)
    yield Ask([user("Thank you.")], {})


def reasoning_dialogue() -> Dialogue:
    """A user who wants some thinking, and then something else."""
    yield Ask([user("Please think about it.")], {})
    yield Ask([user("Thank you.")], {})


class Sockets:
    """Plays dialogues over a WebSocket, each turn with the id of the one before and only what is new.

    Args:
        connection: An open connection of openai-python.
        model: The model's name.
    """

    def __init__(self, connection: AsyncResponsesConnection, model: str = MODEL) -> None:
        self._connection = connection
        self._model = model

    async def turn(self, **fields: Any) -> Turn:
        """One turn, with just these fields."""
        await self._connection.send(cast("Any", {"type": "response.create", **fields}))
        return Turn.of(fields, [frame async for frame in self._frames()])

    async def play(self, dialogue: Dialogue) -> list[Turn]:
        """A whole dialogue."""
        turns: list[Turn] = []
        for ask in _asks(dialogue, turns):
            turns.append(await self.turn(**{**ask.body(), "model": self._model}, **_chained(turns)))
        return turns

    async def _frames(self) -> AsyncIterator[bytes]:
        while True:
            frame = await self._connection.recv_bytes()
            yield frame
            if json.loads(frame)["type"] in TERMINALS:
                return


class SyncSockets:
    """The same with the SDK's synchronous client.

    Args:
        connection: An open connection of openai-python.
    """

    def __init__(self, connection: ResponsesConnection) -> None:
        self._connection = connection

    def turn(self, **fields: Any) -> Turn:
        """One turn, with just these fields."""
        self._connection.send(cast("Any", {"type": "response.create", **fields}))
        return Turn.of(fields, list(self._frames()))

    def play(self, dialogue: Dialogue) -> list[Turn]:
        """A whole dialogue."""
        turns: list[Turn] = []
        for ask in _asks(dialogue, turns):
            turns.append(self.turn(**ask.body(), **_chained(turns)))
        return turns

    def _frames(self) -> Iterator[bytes]:
        while True:
            frame = self._connection.recv_bytes()
            yield frame
            if json.loads(frame)["type"] in TERMINALS:
                return


class Http:
    """Plays dialogues over HTTP, each turn with all that was said before.

    Args:
        client: openai-python's client.
        model: The model's name.
    """

    def __init__(self, client: AsyncOpenAI, model: str = MODEL) -> None:
        self._client = client
        self._model = model

    async def turn(self, **fields: Any) -> Turn:
        """One turn, with just these fields."""
        async with self._client.responses.with_streaming_response.create(**fields, stream=True) as answer:
            lines = [line async for line in answer.iter_lines()]
        return Turn.of(fields, [line.removeprefix("data: ").encode() for line in lines if line.startswith("data: ")])

    async def play(self, dialogue: Dialogue) -> list[Turn]:
        """A whole dialogue."""
        turns: list[Turn] = []
        history: list[Item] = []
        for ask in _asks(dialogue, turns):
            history += ask.items
            turn = await self.turn(**{**ask.body(), "model": self._model, "input": history})
            turns.append(turn)
            history += turn.response["output"]
        return turns


def take_out_added(turn: Turn) -> None:
    """llama.cpp sends arguments in pieces only; the event that says them as a whole is the proxy's, and right."""
    numbers = [event["sequence_number"] for event in turn.events]
    assert numbers == list(range(len(numbers)))
    added = [event for event in turn.events if event["type"] == "response.function_call_arguments.done"]
    assert [(event["item_id"], event["arguments"], event["name"]) for event in added] == [
        (call["id"], call["arguments"], call["name"]) for call in turn.calls
    ]
    turn.events[:] = [event for event in turn.events if event not in added]
    for number, event in enumerate(turn.events):
        event["sequence_number"] = number


def async_client(base_url: str) -> AsyncOpenAI:
    """openai-python's client, without retries: an error is to be seen."""
    return AsyncOpenAI(base_url=base_url, api_key="unused", max_retries=0)


def sync_client(base_url: str) -> OpenAI:
    """The same, synchronous."""
    return OpenAI(base_url=base_url, api_key="unused", max_retries=0)


def check_frame(frame: bytes) -> None:
    """Validate a frame against the SDK's own types, strictly; in its streaming form over HTTP as well.

    The SDK itself validates nothing: it builds objects of whatever it is sent, and the application meets what is missing.

    Raises:
        pydantic.ValidationError: something is missing or has another type.
        KeyError: the SDK does not know the event.
    """
    event_type = json.loads(frame)["type"]
    # An error has another form over HTTP, where nothing can be steered.
    is_of_sockets = event_type == "error" or event_type.startswith("response.steer.")
    for union in (ResponsesServerEvent, ResponseStreamEvent):
        if not is_of_sockets or union is ResponsesServerEvent:
            _adapters(union)[event_type].validate_json(frame, strict=True)


@cache
def _adapters(union: Any) -> dict[str, TypeAdapter[Any]]:
    """For each member of the union by its `type`: so that a failure speaks of one member, and not of sixty."""
    (members, *_) = get_args(union)
    models: tuple[type[BaseModel], ...] = get_args(members)
    return {name: TypeAdapter(model) for model in models for name in get_args(model.model_fields["type"].annotation)}


def _asks(dialogue: Dialogue, turns: list[Turn]) -> Iterator[Ask]:
    """What a dialogue says, as long as the turns grow by one each time."""
    try:
        yield next(dialogue)
        while True:
            yield dialogue.send(turns[-1])
    except StopIteration:
        return


def _chained(turns: list[Turn]) -> dict[str, str]:
    return {"previous_response_id": turns[-1].response["id"]} if turns else {}
