"""A well-formed backend that reads: what it answers, only its input can have told it.

It is the demo's simulated backend, as strict and as complete, but with answers of its own: the code words it was told, the
size of the images it was shown, or a call of the function it was offered. What the proxy loses on the way is missing from
the answer.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterator
from typing import Any, Final

from aiohttp import web

from proxy.demo import agent, intake
from proxy.demo.agent import Call, Sentence, Step
from proxy.demo.backend import Backend, Script
from proxy.demo.stream import ResponseStream

_TOLD: Final = re.compile(r"\bcode word is (\w+)", re.IGNORECASE)
_PNG: Final = "data:image/png;base64,"


class Reader(Backend):
    """A backend that says what it read.

    Attributes:
        bodies: The requests' bodies, as they came.
    """

    def __init__(self) -> None:
        super().__init__(Script(token_seconds=0))
        self.bodies: list[Any] = []

    async def _create(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.bodies.append(json.loads(body))
        asked = intake.read(body)
        stream = ResponseStream(asked, [_answer(asked)], prompt_bytes=len(asked.prompt()), cached_bytes=0)
        events = list(stream.events())
        if not asked.is_streamed:
            return web.json_response(stream.response)
        return web.Response(body=b"".join(event.sse() for event in events), content_type="text/event-stream")


def said(*words: str) -> str:
    """What it says when it was told these code words."""
    return " ".join(f"The code word is {word}." for word in words) or "Nobody told me a code word."


def seen(*sizes: tuple[int, int]) -> str:
    """What it says when it was shown PNG images of these sizes, in pixels."""
    return " ".join(f"I see {width} by {height} pixels." for width, height in sizes)


def _answer(asked: intake.Request) -> Step:
    functions = asked.functions()
    if functions and not asked.tool_outputs:
        return Call(functions[0]["name"], json.dumps(agent.example(functions[0].get("parameters"), 0)))
    parts = list(_parts(asked.items))
    images = [part["image_url"] for part in parts if part["type"] == "input_image"]
    if images:
        return Sentence(seen(*map(_size, images)))
    texts = [asked.fields.get("instructions") or "", *(part["text"] for part in parts if "text" in part)]
    words = [word for text in texts for word in _TOLD.findall(text)]
    return Sentence(said(*dict.fromkeys(words)))


def _parts(items: list[Any]) -> Iterator[Any]:
    """The content parts of all messages, in their order."""
    for item in items:
        content = item.get("content") or []
        yield from [{"type": "input_text", "text": content}] if isinstance(content, str) else content


def _size(url: str) -> tuple[int, int]:
    """Width and height of a PNG image, from the header behind its signature."""
    if not url.startswith(_PNG):
        raise intake.Refusal("Only PNG images in data URLs are read here.", param="input")
    width, height = struct.unpack_from("!II", base64.b64decode(url.removeprefix(_PNG)), 16)
    return width, height
