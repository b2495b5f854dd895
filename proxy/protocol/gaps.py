"""What a backend leaves out of its events, and how it is filled.

Strict clients (openai-python's types, Open Responses' schema) need members that some backends do not send: llama.cpp
numbers nothing, so that opencode and others lose its text; LiteLLM and smg hand that on. What is missing is found by
looking at the first event of each type in a stream, and filled by splicing bytes behind the opening brace. What a backend
does send stays as it is.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import UNSET

from proxy.protocol import rawjson, shapes
from proxy.protocol.shapes import EventShape

_SEQUENCE: Final = "sequence_number"
_OUTPUT: Final = "output_index"
_CONTENT: Final = "content_index"
_SUMMARY: Final = "summary_index"
_ITEM_ID: Final = "item_id"
_LOGPROBS: Final = "logprobs"

_ITEM: Final = (_SEQUENCE, _OUTPUT)
_DELTA: Final = (_SEQUENCE, _ITEM_ID, _OUTPUT)
_PART: Final = (_SEQUENCE, _ITEM_ID, _OUTPUT, _CONTENT)
_TEXT: Final = (_SEQUENCE, _ITEM_ID, _OUTPUT, _CONTENT, _LOGPROBS)
_SUMMARY_PART: Final = (_SEQUENCE, _ITEM_ID, _OUTPUT, _SUMMARY)

#: Members that clients require of each event, apart from those that carry its content. (openai-python 3.57
#: `response_*_event.py`, Open Responses `schema/events.tsp`.) A type that is not here is relayed as it is.
REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        (
            "response.created",
            "response.queued",
            "response.in_progress",
            "response.completed",
            "response.incomplete",
            "response.failed",
        ),
        (_SEQUENCE,),
    ),
    **dict.fromkeys(("response.output_item.added", "response.output_item.done"), _ITEM),
    **dict.fromkeys(
        (
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.custom_tool_call_input.delta",
            "response.custom_tool_call_input.done",
            "response.mcp_call_arguments.delta",
            "response.mcp_call_arguments.done",
        ),
        _DELTA,
    ),
    **dict.fromkeys(
        (
            "response.content_part.added",
            "response.content_part.done",
            "response.refusal.delta",
            "response.refusal.done",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
            "response.reasoning.delta",
            "response.reasoning.done",
            "response.output_text.annotation.added",
        ),
        _PART,
    ),
    **dict.fromkeys(("response.output_text.delta", "response.output_text.done"), _TEXT),
    **dict.fromkeys(
        (
            "response.reasoning_summary_part.added",
            "response.reasoning_summary_part.done",
            "response.reasoning_summary_text.delta",
            "response.reasoning_summary_text.done",
        ),
        _SUMMARY_PART,
    ),
}

_FIND_ITEM_ID = re.compile(rb'"item_id"\s*:\s*"((?:[^"\\]|\\.)*)"')
"""Inside a string value the quotes of such text would be escaped, so a match is a member."""

_ITEM_DEFAULTS: Final[dict[str, tuple[tuple[str, bytes], ...]]] = {
    "message": (("role", b'"assistant"'), ("content", b"[]")),
    "function_call": (("arguments", b'""'),),
    "reasoning": (("summary", b"[]"),),
}


class Counters:
    """Where a stream stands: what the numbers that a backend does not send would be.

    Attributes:
        sequence: Number of the next event.
    """

    def __init__(self) -> None:
        self.sequence = 0
        self._item_indexes: dict[str, int] = {}
        self._items = 0
        self._parts: dict[str, int] = {}
        self._current = ""

    def item_seen(self, item_id: str, index: bytes | None) -> int:
        """An item began or ended; `index` is the backend's own number for it, if it gave one.

        Returns:
            Its number.
        """
        self._current = item_id
        if index is not None and index.isdigit() and len(index) < 10:
            self._item_indexes[item_id] = int(index)
        elif item_id not in self._item_indexes:
            self._item_indexes[item_id] = self._items
        self._items = max(self._items, self._item_indexes[item_id] + 1)
        return self._item_indexes[item_id]

    def part_added(self, item_id: str) -> None:
        """A content or summary part of an item began."""
        self._parts[item_id] = self._parts.get(item_id, -1) + 1

    def prefix(self, missing: tuple[str, ...], event: bytes) -> bytes:
        """The members that an event lacks, each with a comma behind it."""
        match = _FIND_ITEM_ID.search(event)
        item_id = rawjson.string(b'"' + match[1] + b'"') if match else self._current
        item_id = item_id or ""
        out = b""
        for name in missing:
            if name == _SEQUENCE:
                out += b'"sequence_number":%d,' % self.sequence
            elif name == _OUTPUT:
                out += b'"output_index":%d,' % self._item_indexes.get(item_id, self._items)
            elif name == _ITEM_ID:
                out += b'"item_id":' + rawjson.dumps(item_id) + b","
            elif name == _LOGPROBS:
                out += b'"logprobs":[],'
            else:
                out += b'"%b":%d,' % (name.encode(), self._parts.get(item_id, 0))
        return out


def missing_members(event_type: str, event: EventShape, *, numbered: bool) -> tuple[str, ...]:
    """What an event lacks.

    Args:
        event_type: Its type.
        event: Its members.
        numbered: Whether the backend numbers its events; then a number is not invented for one that has none.
    """
    return tuple(
        [
            name
            for name in REQUIRED.get(event_type, ())
            if getattr(event, name) is UNSET and not (numbered and name == _SEQUENCE)
        ]
    )


def fill_item(item: bytes, status: str) -> bytes:
    """An output item with the members that clients require.

    Args:
        item: The item, raw.
        status: What its `status` is if it does not say: `in_progress` or `completed`.
    """
    if shapes.item(item) is not None:
        return item
    kind = rawjson.head(item).type or ""
    defaults = _ITEM_DEFAULTS.get(kind)
    if defaults is None:
        return item
    members = rawjson.split_object(item)
    values = dict(members)
    wanted = defaults if kind == "reasoning" else (*defaults, ("status", rawjson.dumps(status)))
    added = [pair for pair in wanted if values.get(pair[0], b"null") == b"null"]
    replaced = {name for name, _ in added}
    filled = [
        (name, _fill_parts(value) if name == "content" and kind == "message" else value)
        for name, value in members
        if name not in replaced
    ]
    return rawjson.join_object(filled + added) if added or filled != members else item


def fill_part(part: bytes) -> bytes:
    """A content part with the members that clients require: `text` and `annotations` of an `output_text`."""
    if shapes.is_full_text_part(part):
        return part
    members = rawjson.split_object(part)
    values = dict(members)
    if values.get("type") != b'"output_text"':
        return part
    added = [(name, value) for name, value in (("text", b'""'), ("annotations", b"[]")) if name not in values]
    return rawjson.join_object(members + added) if added else part


def _fill_parts(content: bytes) -> bytes:
    if content[:1] != b"[":
        return content
    parts, _ = rawjson.split_items(content)
    filled = [fill_part(part) for part in parts]
    return content if filled == parts else b"[" + b",".join(filled) + b"]"
