"""What an event that lacks nothing looks like, as types that msgspec checks in C.

Decoding an event into one of these either succeeds, and then there is nothing to fill, or fails, and then the long way
(:mod:`~proxy.protocol.gaps`, :mod:`~proxy.protocol.responses`) finds out what is missing. Values that only have to be
there, and not null, are skipped over rather than built.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from proxy.protocol.rawjson import AnyObject, Head, split_object, string


class EventShape(msgspec.Struct):
    """The members of an event that the relay looks at; what is absent is UNSET."""

    type: str | UnsetType = UNSET
    response: Raw | UnsetType = UNSET
    item: Raw | UnsetType = UNSET
    part: Raw | UnsetType = UNSET
    item_id: Raw | UnsetType = UNSET
    sequence_number: Raw | UnsetType = UNSET
    output_index: Raw | UnsetType = UNSET
    content_index: Raw | UnsetType = UNSET
    summary_index: Raw | UnsetType = UNSET
    logprobs: Raw | UnsetType = UNSET


class ResponseShape(msgspec.Struct):
    """A Response: members that may be null are raw, the others have a type that null does not fit.

    A member that is absent is UNSET.
    """

    id: str | UnsetType = UNSET
    status: str | UnsetType = UNSET
    object: str | UnsetType = UNSET
    created_at: int | float | UnsetType = UNSET
    previous_response_id: Raw | UnsetType = UNSET
    completed_at: Raw | UnsetType = UNSET
    background: bool | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    incomplete_details: Raw | UnsetType = UNSET
    output: Raw | UnsetType = UNSET
    usage: Raw | UnsetType = UNSET
    instructions: Raw | UnsetType = UNSET
    max_output_tokens: Raw | UnsetType = UNSET
    max_tool_calls: Raw | UnsetType = UNSET
    metadata: AnyObject | UnsetType = UNSET
    model: str | UnsetType = UNSET
    parallel_tool_calls: bool | UnsetType = UNSET
    presence_penalty: float | UnsetType = UNSET
    frequency_penalty: float | UnsetType = UNSET
    prompt_cache_key: Raw | UnsetType = UNSET
    reasoning: Raw | UnsetType = UNSET
    safety_identifier: Raw | UnsetType = UNSET
    service_tier: str | UnsetType = UNSET
    store: bool | UnsetType = UNSET
    temperature: float | UnsetType = UNSET
    text: AnyObject | UnsetType = UNSET
    tool_choice: str | AnyObject | UnsetType = UNSET
    tools: list[AnyObject] | UnsetType = UNSET
    top_logprobs: int | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    truncation: str | UnsetType = UNSET
    user: Raw | UnsetType = UNSET


class _InputDetails(msgspec.Struct):
    cached_tokens: int
    cache_write_tokens: int


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int


class UsageShape(msgspec.Struct):
    """Token counts with all their details (openai-python `ResponseUsage`)."""

    input_tokens: int
    input_tokens_details: _InputDetails
    output_tokens: int
    output_tokens_details: _OutputDetails
    total_tokens: int


class _Text(msgspec.Struct, tag="output_text", tag_field="type"):
    text: str
    annotations: list[Raw]


class _Refusal(msgspec.Struct, tag="refusal", tag_field="type"):
    refusal: str


class _Reasoning(msgspec.Struct, tag="reasoning", tag_field="type"):
    id: str
    summary: list[Raw]
    call_id: None = None


class _Message(msgspec.Struct, tag="message", tag_field="type"):
    id: str
    role: str
    status: str
    content: list[_Text | _Refusal]
    call_id: None = None


class _FunctionCall(msgspec.Struct, tag="function_call", tag_field="type"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: str


ItemShape = _Message | _FunctionCall | _Reasoning

_event: Final = msgspec.json.Decoder(EventShape)
_response: Final = msgspec.json.Decoder(ResponseShape)
_usage: Final = msgspec.json.Decoder(UsageShape)
_item: Final = msgspec.json.Decoder(ItemShape)
_part: Final = msgspec.json.Decoder(_Text)


def event(data: bytes) -> EventShape:
    """The members of an event.

    Raises:
        InvalidJSON: it is not a JSON object.
    """
    try:
        return _event.decode(data)
    except (msgspec.DecodeError, RecursionError):
        members = {name: value for name, value in split_object(data) if name in EventShape.__struct_fields__}
        event_type = string(members.pop("type", b""))
        raw = {name: Raw(value) for name, value in members.items()}
        return EventShape(type=UNSET if event_type is None else event_type, **raw)


def response(raw: bytes) -> ResponseShape | None:
    """A Response whose members, as far as they are there, are of the right type; None if any is not."""
    try:
        return _response.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def usage(raw: bytes) -> UsageShape | None:
    """Token counts that lack nothing, or None."""
    try:
        return _usage.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def item(raw: bytes) -> Head | None:
    """The head of an output item that lacks nothing; None if it does, or is of a kind that is not known here."""
    try:
        shape = _item.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return Head(str(shape.__struct_config__.tag), shape.id, shape.call_id)


def is_full_text_part(raw: bytes) -> bool:
    """Whether a content part is an `output_text` that lacks nothing."""
    try:
        _part.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
