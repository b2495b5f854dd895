"""Plain HTTP: what Open Responses asks of a server without WebSockets.

The behaviours are those that the specification's own acceptance tests name (openresponses/openresponses,
`compliance-tests.ts`). A code word stands for whatever a conversation holds: only who was told it can say it.
"""

from __future__ import annotations

import base64
import itertools
import json
import struct
import zlib
from typing import Any, Final

import pytest

from tests.acceptance.reader import seen
from tests.acceptance.stand import Stand, text_of
from tests.rig.sdk import WEATHER_TOOL

pytestmark = pytest.mark.timeout(300)  # llama-server may have to be fetched first

_QUESTION: Final = {"type": "message", "role": "user", "content": "What is the code word?"}
_WEATHER: Final = {"type": "message", "role": "user", "content": "What is the weather in Paris?"}

#: Without `strict`, which a request may leave out and a Response may not.
_TOOL: Final = {name: value for name, value in WEATHER_TOOL.items() if name != "strict"}


async def test_basic_response(stand: Stand) -> None:
    """A user's message is answered with a message."""
    message = {"type": "message", "role": "user", "content": "The code word is cobalt. Repeat it."}
    assert text_of(await stand.respond(input=[message])) == stand.answer("cobalt")


async def test_streaming_response(stand: Stand) -> None:
    """The same as a stream: the item comes step by step, its deltas are its text."""
    message = {"type": "message", "role": "user", "content": "The code word is cobalt. Repeat it."}
    turn = await stand.stream(input=[message])
    assert _kinds(turn.types) == [
        "created",
        "in_progress",
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done"),
        "completed",
    ]
    assert _deltas(turn.events) == text_of(turn.response) == stand.answer("cobalt")


async def test_system_prompt(stand: Stand) -> None:
    """A system message is heard."""
    system = {"type": "message", "role": "system", "content": "The code word is jade."}
    assert text_of(await stand.respond(input=[system, _QUESTION])) == stand.answer("jade")


async def test_tool_calling(stand: Stand) -> None:
    """A function that is offered is called, with arguments that fit it."""
    response = await stand.respond(input=[_WEATHER], tools=[_TOOL])
    (call,) = response["output"]
    assert call["type"] == "function_call"
    _check_call(call)


async def test_tool_calling_streaming(stand: Stand) -> None:
    """The same as a stream: the call is added, its arguments come in pieces, and it is done."""
    turn = await stand.stream(input=[_WEATHER], tools=[_TOOL])
    assert _kinds(turn.types) == [
        *("created", "in_progress", "output_item.added"),
        *("function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    added, done = [event["item"] for event in turn.events if "item" in event]
    assert (added["type"], added["status"], added["arguments"]) == ("function_call", "in_progress", "")
    assert done == {**added, "status": "completed", "arguments": _deltas(turn.events)}
    assert turn.response["output"] == [done]
    _check_call(done)


# The toy model has no eyes: there is no llama-server here.
@pytest.mark.parametrize("behind", ["reader"], indirect=True)
async def test_image_input(stand: Stand) -> None:
    """An image in a message is seen."""
    question = {"type": "input_text", "text": "What do you see?"}
    image = {"type": "input_image", "image_url": _png(3, 2)}
    response = await stand.respond(input=[{"type": "message", "role": "user", "content": [question, image]}])
    assert text_of(response) == seen((3, 2))


async def test_multi_turn(stand: Stand) -> None:
    """The client sends the history, and what was said in it is known."""
    history = [
        {"type": "message", "role": "user", "content": "The code word is amber."},
        {"type": "message", "role": "assistant", "content": "I will remember it."},
    ]
    assert text_of(await stand.respond(input=[*history, _QUESTION])) == stand.answer("amber")


async def test_assistant_phase(stand: Stand) -> None:
    """The assistant's messages in the history may say which phase they belong to."""
    history = [
        {"type": "message", "role": "assistant", "phase": "commentary", "content": "I look it up."},
        {"type": "message", "role": "assistant", "phase": "final_answer", "content": "The code word is topaz."},
    ]
    assert text_of(await stand.respond(input=[*history, _QUESTION])) == stand.answer("topaz")


def _kinds(types: list[str]) -> list[str]:
    """The types of events without their common beginning, a run of the same counted once."""
    return [kind.removeprefix("response.") for kind, _ in itertools.groupby(types)]


def _deltas(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"].endswith(".delta"))


def _check_call(call: Any) -> None:
    """It calls the tool that there is, with the arguments that it asks for."""
    assert (call["name"], call["status"]) == (_TOOL["name"], "completed")
    assert call["call_id"]
    arguments = json.loads(call["arguments"])
    assert list(arguments) == _TOOL["parameters"]["required"]
    assert all(isinstance(value, str) for value in arguments.values())


def _png(width: int, height: int) -> str:
    """A black image, as a data URL."""
    chunks = (
        (b"IHDR", struct.pack("!IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes((width + 1) * height))),
        (b"IEND", b""),
    )
    data = b"".join(
        struct.pack("!I", len(content)) + kind + content + struct.pack("!I", zlib.crc32(kind + content))
        for kind, content in chunks
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + data).decode()
