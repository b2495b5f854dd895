"""Events and Response objects of the simulated backend: complete, in order, numbered.

One delta is one token. Names and order of the events are those of the Responses API's streaming reference; a reasoning
item carries `reasoning_text` parts, as servers of open models send them.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from proxy.demo.agent import FRAGMENT, Call, Sentence, Step, Thought
from proxy.demo.intake import Object, Request
from proxy.demo.prefix import BYTES_PER_TOKEN, tokens

_ECHOED: Final[Object] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""What a Response repeats of its request, with the API's default for what the request left out."""

_WORDS: Final = re.compile(r"\s*\S+|\s+")
_FRAGMENTS: Final = re.compile(f".{{1,{FRAGMENT}}}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream.

    Attributes:
        data: The whole event, `type` and `sequence_number` included.
        is_token: It stands for a token, for which a model would have taken time.
    """

    data: Object
    is_token: bool = False

    def sse(self) -> bytes:
        """The event as it goes over HTTP."""
        return b"event: %s\ndata: %s\n\n" % (self.data["type"].encode(), orjson.dumps(self.data))


class ResponseStream:
    """One response while it comes into being.

    Args:
        request: What was asked.
        steps: What is answered.
        prompt_bytes: Size of the prompt.
        cached_bytes: How much of that, from its beginning, the prefix cache held; at most `prompt_bytes`.

    Attributes:
        response: The Response object as it stands; final once :meth:`events` is exhausted.
        output_tokens: How many tokens there were so far.
    """

    def __init__(self, request: Request, steps: list[Step], *, prompt_bytes: int, cached_bytes: int) -> None:
        self.output_tokens = 0
        self._reasoning_tokens = 0
        self._input_tokens = tokens(prompt_bytes)
        self._cached_tokens = cached_bytes // BYTES_PER_TOKEN
        self._limit = request.max_output_tokens
        self._is_cut = False
        self._steps = steps
        self._number = 0
        self._output: list[Object] = []
        self.response: Object = {
            "id": _new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "completed_at": None,
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": request.fields["model"],
            "output": [],
            "previous_response_id": None,
            "store": False,  # whatever was wished: nothing is kept
            "usage": None,
            **{name: _echoed(name, request.fields.get(name)) for name in _ECHOED},
        }

    def events(self) -> Iterator[Event]:
        """All events, once."""
        yield self._event("response.created", response=dict(self.response))
        yield self._event("response.in_progress", response=dict(self.response))
        for step in self._steps:
            if self._is_at_limit():
                self._is_cut = True
            if self._is_cut:
                break
            yield from self._item(step)
        yield self._finish()

    def _item(self, step: Step) -> Iterator[Event]:
        match step:
            case Call():
                yield from self._call(step)
            case Sentence(text):
                item = {
                    "id": _new_id("msg"),
                    "type": "message",
                    "status": "in_progress",
                    "role": "assistant",
                    "content": [],
                }
                yield from self._text(item, text, "output_text", annotations=[], logprobs=[])
            case Thought(text):
                item = {"id": _new_id("rs"), "type": "reasoning", "status": "in_progress", "summary": [], "content": []}
                before = self.output_tokens
                yield from self._text(item, text, "reasoning_text")
                self._reasoning_tokens += self.output_tokens - before

    def _text(self, item: Object, text: str, kind: str, **members: list[Any]) -> Iterator[Event]:
        """An item with one part of text.

        Args:
            item: The item, without the part.
            text: The text.
            kind: Type of the part, and name of its events.
            members: What else the part has; `logprobs` stand in its events as well.
        """
        at = {"item_id": item["id"], "output_index": len(self._output), "content_index": 0}
        marks = {name: members[name] for name in ("logprobs",) if name in members}
        yield self._event("response.output_item.added", output_index=len(self._output), item=item)
        yield self._event("response.content_part.added", **at, part={"type": kind, "text": "", **members})
        said = ""
        for piece in self._pieces(_WORDS.findall(text)):
            said += piece
            yield self._token(f"response.{kind}.delta", **at, delta=piece, **marks)
        part = {"type": kind, "text": said, **members}
        yield self._event(f"response.{kind}.done", **at, text=said, **marks)
        yield self._event("response.content_part.done", **at, part=part)
        yield self._done({**item, "content": [part]})

    def _call(self, call: Call) -> Iterator[Event]:
        item = {
            "id": _new_id("fc"),
            "type": "function_call",
            "status": "in_progress",
            "call_id": _new_id("call"),
            "name": call.name,
            "arguments": "",
        }
        at = {"item_id": item["id"], "output_index": len(self._output)}
        yield self._event("response.output_item.added", output_index=len(self._output), item=item)
        said = ""
        for piece in self._pieces(_FRAGMENTS.findall(call.arguments)):
            said += piece
            yield self._token("response.function_call_arguments.delta", **at, delta=piece)
        yield self._event("response.function_call_arguments.done", **at, name=call.name, arguments=said)
        yield self._done({**item, "arguments": said})

    def _pieces(self, pieces: list[str]) -> Iterator[str]:
        """Tokens, until there are no more or no more may be."""
        for piece in pieces:
            if self._is_at_limit():
                self._is_cut = True
                return
            self.output_tokens += 1
            yield piece

    def _is_at_limit(self) -> bool:
        return self._limit is not None and self.output_tokens >= self._limit

    def _done(self, item: Object) -> Event:
        item["status"] = "incomplete" if self._is_cut else "completed"
        index = len(self._output)
        self._output.append(item)
        return self._event("response.output_item.done", output_index=index, item=item)

    def _finish(self) -> Event:
        status = "incomplete" if self._is_cut else "completed"
        self.response |= {
            "status": status,
            "completed_at": None if self._is_cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if self._is_cut else None,
            "output": self._output,
            "usage": {
                "input_tokens": self._input_tokens,
                "input_tokens_details": {"cached_tokens": self._cached_tokens, "cache_write_tokens": 0},
                "output_tokens": self.output_tokens,
                "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
                "total_tokens": self._input_tokens + self.output_tokens,
            },
        }
        return self._event(f"response.{status}", response=self.response)

    def _token(self, kind: str, **members: Any) -> Event:
        return replace(self._event(kind, **members), is_token=True)

    def _event(self, kind: str, **members: Any) -> Event:
        event = Event({"type": kind, "sequence_number": self._number, **members})
        self._number += 1
        return event


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"


def _echoed(name: str, value: Any) -> Any:
    """What a response says of a field of its request: with the members that a response must have."""
    if value is None:
        return _ECHOED[name]
    if name == "tools":
        return [{"description": None, "parameters": None, "strict": None, **tool} for tool in value]
    return {"effort": None, "summary": None, **value} if name == "reasoning" else value
