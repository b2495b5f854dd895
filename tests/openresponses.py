"""The Open Responses schema (2026-04-24), as far as a client meets it, in tables: a strict client to test against.

:func:`problems` lists what such a client would refuse in one event, each problem with the path to it. Members that the
schema does not know are nobody's problem. In a few places it is milder than the schema, since backends are and what they
send is not altered: times may have a fraction (transformers), members that need not be there may be null (vLLM), and the
events of reasoning may have OpenAI's names. In one it is stricter: `user` was required by the schema's first edition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

Check = Callable[[Any], list[str]]
"""Finds what is wrong with a value; each problem begins with the path to it, seen from the value."""

Table = Mapping[str, Check]
"""Members of an object by name."""


def _one(is_right: Callable[[Any], bool]) -> Check:
    return lambda value: [] if is_right(value) else [f" is {value!r}"]


def _in(*values: str) -> Check:
    return _one(lambda value: isinstance(value, str) and value in values)


def _or_null(check: Check) -> Check:
    return lambda value: [] if value is None else check(value)


def _list(check: Check) -> Check:
    def find(value: Any) -> list[str]:
        if not isinstance(value, list):
            return [f" is {value!r}"]
        return [f"[{index}]{problem}" for index, element in enumerate(value) for problem in check(element)]

    return find


def _object(required: Table, optional: Table | None = None) -> Check:
    known = {**required, **{name: _or_null(check) for name, check in (optional or {}).items()}}

    def find(value: Any) -> list[str]:
        if not isinstance(value, dict):
            return [f" is {value!r}"]
        found = [f".{name} is missing" for name in required if name not in value]
        for name, check in known.items():
            if name in value:
                found += [f".{name}{problem}" for problem in check(value[name])]
        return found

    return find


def _by_type(kinds: Mapping[str, Check]) -> Check:
    """One of several kinds of object, told apart by their `type`."""

    def find(value: Any) -> list[str]:
        kind = value.get("type") if isinstance(value, dict) else None
        return kinds[kind](value) if isinstance(kind, str) and kind in kinds else [f".type is {kind!r}"]

    return find


_TEXT: Final = _one(lambda value: isinstance(value, str))
_NAME: Final = _one(lambda value: isinstance(value, str) and bool(value))
_NUMBER: Final = _one(lambda value: isinstance(value, (int, float)) and not isinstance(value, bool))
_INTEGER: Final = _one(lambda value: isinstance(value, int) and not isinstance(value, bool))
_BOOLEAN: Final = _one(lambda value: isinstance(value, bool))
_ANY_OBJECT: Final = _object({})

# Content

_TOP_LOGPROB: Final[Table] = {"token": _TEXT, "logprob": _NUMBER, "bytes": _list(_INTEGER)}
_LOGPROBS: Final[Table] = {"logprobs": _list(_object({**_TOP_LOGPROB, "top_logprobs": _list(_object(_TOP_LOGPROB))}))}
_ANNOTATION: Final = _by_type(
    {"url_citation": _object({"url": _TEXT, "start_index": _INTEGER, "end_index": _INTEGER, "title": _TEXT})}
)
_PART: Final = _by_type(
    {
        "output_text": _object({"text": _TEXT, "annotations": _list(_ANNOTATION)}, _LOGPROBS),
        "refusal": _object({"refusal": _TEXT}),
        **dict.fromkeys(("summary_text", "reasoning_text", "text", "input_text"), _object({"text": _TEXT})),
        "input_image": _object({"image_url": _or_null(_TEXT), "detail": _in("low", "high", "auto")}),
        "input_file": _object({}, {"filename": _TEXT, "file_url": _TEXT}),
    }
)

# Items

_STATUS: Final = _in("in_progress", "completed", "incomplete")
_ITEM: Final = _by_type(
    {
        "message": _object(
            {
                "id": _TEXT,
                "status": _STATUS,
                "role": _in("user", "assistant", "system", "developer"),
                "content": _list(_PART),
            },
            {"phase": _in("commentary", "final_answer")},
        ),
        "function_call": _object({"id": _TEXT, "call_id": _TEXT, "name": _TEXT, "arguments": _TEXT, "status": _STATUS}),
        "function_call_output": _object(
            {
                "id": _TEXT,
                "call_id": _TEXT,
                "output": lambda value: [] if isinstance(value, str) else _list(_PART)(value),
                "status": _STATUS,
            }
        ),
        "reasoning": _object(
            {"id": _TEXT, "summary": _list(_PART)},
            {"content": _list(_PART), "encrypted_content": _TEXT},
        ),
        "compaction": _object({"id": _NAME, "encrypted_content": _NAME}, {"created_by": _TEXT}),
    }
)

# Responses

_USAGE: Final = _object(
    {
        "input_tokens": _INTEGER,
        "output_tokens": _INTEGER,
        "total_tokens": _INTEGER,
        "input_tokens_details": _object({"cached_tokens": _INTEGER}),
        "output_tokens_details": _object({"reasoning_tokens": _INTEGER}),
    }
)
_TOOL: Final = _by_type(
    {
        "function": _object(
            {
                "name": _TEXT,
                "description": _or_null(_TEXT),
                "parameters": _or_null(_ANY_OBJECT),
                "strict": _or_null(_BOOLEAN),
            }
        )
    }
)
_CHOICES: Final = ("none", "auto", "required")
_CHOICE: Final = _by_type(
    {
        "function": _object({}, {"name": _TEXT}),
        "allowed_tools": _object(
            {"tools": _list(_by_type({"function": _object({}, {"name": _TEXT})})), "mode": _in(*_CHOICES)}
        ),
    }
)
_FORMAT: Final = _by_type(
    {
        **dict.fromkeys(("text", "json_object"), _ANY_OBJECT),
        "json_schema": _object(
            {"name": _TEXT, "description": _or_null(_TEXT), "schema": _or_null(_ANY_OBJECT), "strict": _BOOLEAN}
        ),
    }
)
_RESPONSE: Final = _object(
    {
        "id": _NAME,
        "object": _in("response"),
        "created_at": _NUMBER,
        "completed_at": _or_null(_NUMBER),
        "status": _in("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"),
        "incomplete_details": _or_null(_object({"reason": _TEXT})),
        "model": _TEXT,
        "previous_response_id": _or_null(_TEXT),
        "instructions": lambda value: _or_null(_list(_ANY_OBJECT) if isinstance(value, list) else _TEXT)(value),
        "output": _list(_ITEM),
        "error": _or_null(_object({"code": _TEXT, "message": _TEXT})),
        "tools": _list(_TOOL),
        "tool_choice": lambda value: (_in(*_CHOICES) if isinstance(value, str) else _CHOICE)(value),
        "truncation": _in("auto", "disabled"),
        "parallel_tool_calls": _BOOLEAN,
        "text": _object({"format": _FORMAT}, {"verbosity": _in("low", "medium", "high")}),
        "top_p": _NUMBER,
        "presence_penalty": _NUMBER,
        "frequency_penalty": _NUMBER,
        "top_logprobs": _INTEGER,
        "temperature": _NUMBER,
        "reasoning": _or_null(_object({"effort": _or_null(_TEXT), "summary": _or_null(_TEXT)})),
        "user": _or_null(_TEXT),
        "usage": _or_null(_USAGE),
        "max_output_tokens": _or_null(_INTEGER),
        "max_tool_calls": _or_null(_INTEGER),
        "store": _BOOLEAN,
        "background": _BOOLEAN,
        "service_tier": _TEXT,
        "metadata": _ANY_OBJECT,
        "safety_identifier": _or_null(_TEXT),
        "prompt_cache_key": _or_null(_TEXT),
    }
)
_COMPACTION: Final = _object(
    {
        "id": _NAME,
        "object": _in("response.compaction"),
        "created_at": _INTEGER,
        "output": _list(_ITEM),
        "usage": _USAGE,
    }
)

# Events


def _event(required: Table, optional: Table | None = None) -> Check:
    return _object({"sequence_number": _INTEGER, **required}, optional)


_CALL_PLACE: Final[Table] = {"item_id": _TEXT, "output_index": _INTEGER}
_PLACE: Final[Table] = {**_CALL_PLACE, "content_index": _INTEGER}
_SUMMARY_PLACE: Final[Table] = {**_CALL_PLACE, "summary_index": _INTEGER}
_PADDING: Final[Table] = {"obfuscation": _TEXT}
_STATES: Final = ("created", "queued", "in_progress", "completed", "incomplete", "failed")
_EVENT: Final = _by_type(
    {
        **dict.fromkeys((f"response.{state}" for state in _STATES), _event({"response": _RESPONSE})),
        **dict.fromkeys(
            (f"response.output_item.{end}" for end in ("added", "done")),
            _event({"output_index": _INTEGER, "item": _ITEM}),
        ),
        **dict.fromkeys(
            (f"response.content_part.{end}" for end in ("added", "done")), _event({**_PLACE, "part": _PART})
        ),
        "response.output_text.delta": _event({**_PLACE, "delta": _TEXT}, {**_LOGPROBS, **_PADDING}),
        "response.output_text.done": _event({**_PLACE, "text": _TEXT}, _LOGPROBS),
        "response.output_text.annotation.added": _event(
            {**_PLACE, "annotation_index": _INTEGER, "annotation": _or_null(_ANNOTATION)}
        ),
        "response.refusal.delta": _event({**_PLACE, "delta": _TEXT}, _PADDING),
        "response.refusal.done": _event({**_PLACE, "refusal": _TEXT}),
        **dict.fromkeys(
            (f"response.{name}.delta" for name in ("reasoning", "reasoning_text")),
            _event({**_PLACE, "delta": _TEXT}, _PADDING),
        ),
        **dict.fromkeys(
            (f"response.{name}.done" for name in ("reasoning", "reasoning_text")), _event({**_PLACE, "text": _TEXT})
        ),
        **dict.fromkeys(
            (f"response.reasoning_summary_part.{end}" for end in ("added", "done")),
            _event({**_SUMMARY_PLACE, "part": _PART}),
        ),
        "response.reasoning_summary_text.delta": _event({**_SUMMARY_PLACE, "delta": _TEXT}, _PADDING),
        "response.reasoning_summary_text.done": _event({**_SUMMARY_PLACE, "text": _TEXT}),
        "response.function_call_arguments.delta": _event({**_CALL_PLACE, "delta": _TEXT}, _PADDING),
        "response.function_call_arguments.done": _event({**_CALL_PLACE, "arguments": _TEXT}),
        # The form that errors have on a WebSocket, with all that either form of the schema asks of the error in it.
        "error": _object(
            {
                "status": _INTEGER,
                "error": _object({"type": _TEXT, "code": _TEXT, "message": _TEXT, "param": _or_null(_TEXT)}),
            },
            {"sequence_number": _INTEGER},
        ),
    }
)


def item_problems(item: Any) -> list[str]:
    """What is wrong with an item."""
    return _ITEM(item)


def usage_problems(usage: Any) -> list[str]:
    """What is wrong with token counts."""
    return _USAGE(usage)


def response_problems(response: Any) -> list[str]:
    """What is wrong with a Response object."""
    return _RESPONSE(response)


def compaction_problems(compaction: Any) -> list[str]:
    """What is wrong with what `/responses/compact` answers."""
    return _COMPACTION(compaction)


def problems(event: Mapping[str, Any]) -> list[str]:
    """What a strict client would refuse in one event; nothing for a good one."""
    return [f"{event.get('type')}{problem}" for problem in _EVENT(event)]
