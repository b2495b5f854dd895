"""The Open Responses schema (2026-04-24), as far as a stream needs it, in tables: a strict client to test against.

:func:`problems` lists what such a client would refuse in one event. Numbers are only told from integers where a counter or
an index needs one: transformers sends `created_at` with a fraction, and what a backend sends is not altered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _or_null(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(find: Callable[[Any], list[str]]) -> Check:
    return lambda value: isinstance(value, list) and not any(map(find, value))


def _members(value: Any, table: Mapping[str, Check]) -> list[str]:
    if not isinstance(value, dict):
        return ["not an object"]
    missing = [f"{name} is missing" for name in table if name not in value]
    return missing + [
        f"{name} is {value[name]!r}" for name, check in table.items() if name in value and not check(value[name])
    ]


_TEXT_PART: Final[Mapping[str, Check]] = {"text": _text, "annotations": lambda value: isinstance(value, list)}
_PARTS: Final[Mapping[str, Mapping[str, Check]]] = {
    "output_text": _TEXT_PART,
    "refusal": {"refusal": _text},
    "summary_text": {"text": _text},
    "reasoning_text": {"text": _text},
}


def part_problems(part: Any) -> list[str]:
    """What is wrong with a content part."""
    kind = str(part.get("type")) if isinstance(part, dict) else ""
    return _members(part, _PARTS[kind]) if kind in _PARTS else [f"part type {kind!r}"]


_STATUSES: Final = ("in_progress", "completed", "incomplete")
_ITEMS: Final[Mapping[str, Mapping[str, Check]]] = {
    "message": {
        "id": _text,
        "status": lambda value: value in _STATUSES,
        "role": _text,
        "content": _list_of(part_problems),
    },
    "function_call": {
        "id": _text,
        "call_id": _text,
        "name": _text,
        "arguments": _text,
        "status": lambda value: value in _STATUSES,
    },
    "reasoning": {"id": _text, "summary": _list_of(part_problems)},
}


def item_problems(item: Any) -> list[str]:
    """What is wrong with an output item."""
    kind = str(item.get("type")) if isinstance(item, dict) else ""
    return _members(item, _ITEMS[kind]) if kind in _ITEMS else [f"item type {kind!r}"]


def _tool_problems(tool: Any) -> list[str]:
    table = {
        "type": lambda value: value == "function",
        "name": _text,
        "description": _or_null(_text),
        "parameters": _or_null(_object),
        "strict": _or_null(_boolean),
    }
    return _members(tool, table)


def usage_problems(usage: Any) -> list[str]:
    """What is wrong with token counts."""
    table: Mapping[str, Check] = {
        "input_tokens": _integer,
        "output_tokens": _integer,
        "total_tokens": _integer,
        "input_tokens_details": lambda value: not _members(value, {"cached_tokens": _integer}),
        "output_tokens_details": lambda value: not _members(value, {"reasoning_tokens": _integer}),
    }
    return _members(usage, table)


_RESPONSE: Final[Mapping[str, Check]] = {
    "id": lambda value: isinstance(value, str) and bool(value),
    "object": lambda value: value == "response",
    "created_at": _number,
    "completed_at": _or_null(_number),
    "status": _text,
    "incomplete_details": _or_null(_object),
    "model": _text,
    "previous_response_id": _or_null(_text),
    "instructions": _or_null(lambda value: isinstance(value, (str, list))),
    "output": _list_of(item_problems),
    "error": _or_null(lambda value: not _members(value, {"code": _text, "message": _text})),
    "tools": _list_of(_tool_problems),
    "tool_choice": lambda value: isinstance(value, (str, dict)),
    "truncation": _text,
    "parallel_tool_calls": _boolean,
    "text": _object,
    "top_p": _number,
    "presence_penalty": _number,
    "frequency_penalty": _number,
    "top_logprobs": _integer,
    "temperature": _number,
    "reasoning": _or_null(_object),
    "user": _or_null(_text),
    "usage": _or_null(lambda value: not usage_problems(value)),
    "max_output_tokens": _or_null(_integer),
    "max_tool_calls": _or_null(_integer),
    "store": _boolean,
    "background": _boolean,
    "service_tier": _text,
    "metadata": _object,
    "safety_identifier": _or_null(_text),
    "prompt_cache_key": _or_null(_text),
}


def response_problems(response: Any) -> list[str]:
    """What is wrong with a Response object."""
    return _members(response, _RESPONSE)


_PART_PLACE: Final[Mapping[str, Check]] = {"item_id": _text, "output_index": _integer, "content_index": _integer}
_SUMMARY_PLACE: Final[Mapping[str, Check]] = {"item_id": _text, "output_index": _integer, "summary_index": _integer}
_CALL_PLACE: Final[Mapping[str, Check]] = {"item_id": _text, "output_index": _integer}
_LIFE: Final[Mapping[str, Check]] = {"response": lambda value: not response_problems(value)}
_ITEM: Final[Mapping[str, Check]] = {"output_index": _integer, "item": lambda value: not item_problems(value)}
_PART: Final[Mapping[str, Check]] = {**_PART_PLACE, "part": lambda value: not part_problems(value)}
_EVENTS: Final[Mapping[str, Mapping[str, Check]]] = {
    **dict.fromkeys((f"response.{kind}" for kind in ("created", "queued", "in_progress")), _LIFE),
    **dict.fromkeys((f"response.{kind}" for kind in ("completed", "incomplete", "failed")), _LIFE),
    "response.output_item.added": _ITEM,
    "response.output_item.done": _ITEM,
    "response.content_part.added": _PART,
    "response.content_part.done": _PART,
    "response.output_text.delta": {**_PART_PLACE, "delta": _text},
    "response.output_text.done": {**_PART_PLACE, "text": _text},
    "response.refusal.delta": {**_PART_PLACE, "delta": _text},
    "response.refusal.done": {**_PART_PLACE, "refusal": _text},
    "response.reasoning_text.delta": {**_PART_PLACE, "delta": _text},
    "response.reasoning_text.done": {**_PART_PLACE, "text": _text},
    "response.reasoning_summary_part.added": {**_SUMMARY_PLACE, "part": lambda value: not part_problems(value)},
    "response.reasoning_summary_part.done": {**_SUMMARY_PLACE, "part": lambda value: not part_problems(value)},
    "response.reasoning_summary_text.delta": {**_SUMMARY_PLACE, "delta": _text},
    "response.reasoning_summary_text.done": {**_SUMMARY_PLACE, "text": _text},
    "response.function_call_arguments.delta": {**_CALL_PLACE, "delta": _text},
    "response.function_call_arguments.done": {**_CALL_PLACE, "arguments": _text},
}


def problems(event: Mapping[str, Any]) -> list[str]:
    """What a strict client would refuse in one event; nothing for a good one."""
    kind = str(event.get("type"))
    if kind not in _EVENTS:
        return [f"event type {kind!r}"]
    found = _members(event, {"sequence_number": _integer, **_EVENTS[kind]})
    if "response" in event:
        found += response_problems(event["response"])
    return [f"{kind}: {problem}" for problem in found]
