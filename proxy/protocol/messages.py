"""What a client says: one text frame, taken apart no deeper than needed.

A frame is an object with a `type`; `response.create` carries the body of ``POST /v1/responses`` on the same level
(WebSocket guide, "Send events"). :func:`open_frame` reads type and lane, so that even an error about the rest can name
its lane; :func:`read_create` then sorts the fields into what steers the turn and what goes to the backend as it came.
What a client says about a response that runs is read by :mod:`proxy.protocol.controls`.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from proxy.protocol import rawjson
from proxy.protocol.errors import InvalidMessage, InvalidStreamId
from proxy.protocol.rawjson import Head, InvalidJSON, Pairs

CREATE: Final = "response.create"
APPEND: Final = "response.append"
"""Of the first generation (rollout mode): goes on where the lane is, with all that its create had said."""

#: Fields that exist on the socket only, or that the proxy decides itself; a backend never sees them.
TRANSPORT_FIELDS: Final = frozenset(
    {"type", "stream", "background", "generate", "stream_id", "previous_response_id", "input", "prompt_cache_options"}
)
_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_NULL = b"null"


class Frame(msgspec.Struct, frozen=True):
    """A client event before its fields are looked at.

    Attributes:
        type: Its `type`.
        stream_id: The lane it belongs to; None for the default lane.
        pairs: All its members, raw.
        size: Bytes of the frame as it came.
    """

    type: str
    stream_id: str | None
    pairs: Pairs
    size: int


class Create(msgspec.Struct, frozen=True):
    """A `response.create`, sorted.

    Attributes:
        stream_id: The lane; None for the default lane.
        previous_response_id: The response to continue, or None for a new chain (absent and null mean the same).
        is_warmup: Prepare the state and answer at once, without the model (`generate: false`, or `prewarm: true`).
        items: The new input items, raw; a string has become one user message.
        heads: The head of each item, in the same order.
        fields: The body fields for the backend, raw, in the client's order, without input and transport fields.
        size: Bytes of the frame as it came.
        appends: It continues whatever is the lane's newest response when it starts, with that one's fields.
        metadata: Its `client_metadata`, raw; empty if it has none.
    """

    stream_id: str | None
    previous_response_id: str | None
    is_warmup: bool
    items: list[bytes]
    heads: list[Head]
    fields: Pairs
    size: int
    appends: bool = False
    metadata: bytes = b""


def open_frame(data: bytes) -> Frame:
    """Read the type and the lane of a client event.

    Args:
        data: One WebSocket message, UTF-8.

    Raises:
        InvalidMessage: not a JSON object, or without a string `type`.
        InvalidStreamId: `stream_id` is there and breaks the rules.
    """
    try:
        pairs = rawjson.split_object(data)
    except InvalidJSON as exc:
        raise InvalidMessage(f"The message is not a valid JSON object: {exc}.", code="invalid_json") from exc
    members = dict(pairs)
    event_type = rawjson.string(members.get("type", b""))
    if event_type is None:
        raise InvalidMessage("The message needs a 'type' that is a string.", param="type", code="invalid_type")
    return Frame(event_type, _stream_id(members.get("stream_id")), pairs, len(data))


def read_create(frame: Frame, *, max_items: int) -> Create:
    """Sort the fields of a `response.create`.

    Args:
        frame: The event.
        max_items: How many input items one create may hold.

    Raises:
        InvalidMessage: a field that steers the turn has a value that it cannot have.
    """
    members = dict(frame.pairs)
    _check_background(members.get("background", _NULL))
    generate = _boolean(members.get("generate", _NULL), "generate")
    cache_options, is_prewarm = _prompt_cache_options(members.get("prompt_cache_options"))
    items, heads = read_input(members.get("input", _NULL), max_items)
    fields = [(name, value) for name, value in frame.pairs if name not in TRANSPORT_FIELDS]
    if cache_options is not None:
        fields.append(("prompt_cache_options", cache_options))
    return Create(
        stream_id=frame.stream_id,
        previous_response_id=_previous_response_id(members.get("previous_response_id", _NULL)),
        is_warmup=generate is False or is_prewarm,
        items=items,
        heads=heads,
        fields=fields,
        size=frame.size,
        metadata=members.get("client_metadata", b""),
    )


def read_append(frame: Frame, *, max_items: int) -> Create:
    """Read a `response.append`.

    Args:
        frame: The event; members other than its input and `client_metadata` (Codex) say nothing that matters.
        max_items: How many input items it may hold.

    Raises:
        InvalidMessage: its input is no string and no list of items.
    """
    members = dict(frame.pairs)
    items, heads = read_input(members.get("input", _NULL), max_items)
    return Create(
        stream_id=frame.stream_id,
        previous_response_id=None,
        is_warmup=False,
        items=items,
        heads=heads,
        fields=[],
        size=frame.size,
        appends=True,
        metadata=members.get("client_metadata", b""),
    )


def _stream_id(raw: bytes | None) -> str | None:
    if raw is None or raw == _NULL:
        return None
    stream_id = rawjson.string(raw)
    if stream_id is None or not _STREAM_ID.fullmatch(stream_id):
        raise InvalidStreamId
    return stream_id


def _previous_response_id(raw: bytes) -> str | None:
    if raw == _NULL:
        return None
    response_id = rawjson.string(raw)
    if response_id is None:
        raise wrong_type("previous_response_id", "a string or null")
    return response_id


def _check_background(raw: bytes) -> None:
    if _boolean(raw, "background"):
        raise InvalidMessage("Background responses are not supported over a WebSocket.", param="background")


def _boolean(raw: bytes, name: str) -> bool | None:
    try:
        return {b"true": True, b"false": False, _NULL: None}[raw]
    except KeyError:
        raise wrong_type(name, "true, false or null") from None


def _prompt_cache_options(raw: bytes | None) -> tuple[bytes | None, bool]:
    """What is left of `prompt_cache_options` without `prewarm`, and what that said.

    `prewarm: true` means the same as `generate: false` (openai-python, `ResponseCreateEvent`), and only here.
    """
    if raw is None or raw[:1] != b"{":
        return raw, False
    pairs = rawjson.split_object(raw)
    prewarm = _boolean(dict(pairs).get("prewarm", _NULL), "prompt_cache_options.prewarm")
    rest = [pair for pair in pairs if pair[0] != "prewarm"]
    if len(rest) == len(pairs):
        return raw, False
    return (rawjson.join_object(rest) if rest else None), prewarm is True


def read_input(raw: bytes, max_items: int) -> tuple[list[bytes], list[Head]]:
    """The items of an `input`, raw, and the head of each; a string becomes one user message.

    Raises:
        InvalidMessage: it is something else, or has too many items.
    """
    if raw == _NULL:
        return [], []
    if raw[:1] == b'"':
        # As an item from the first turn on: a string here and a list in the next turn would break the common prefix.
        return [b'{"type":"message","role":"user","content":' + raw + b"}"], [Head("message")]
    if raw[:1] != b"[":
        raise wrong_type("input", "a string or a list of items")
    try:
        items, heads = rawjson.split_items(raw)
    except InvalidJSON as exc:
        raise InvalidMessage(f"'input' cannot be read: {exc}.", param="input", code="invalid_type") from exc
    if len(items) > max_items:
        raise InvalidMessage(f"'input' has {len(items)} items; at most {max_items} are allowed.", param="input")
    return items, heads


def wrong_type(param: str, expected: str) -> InvalidMessage:
    """The error for a member whose value is of the wrong kind."""
    return InvalidMessage(f"Invalid type for '{param}': expected {expected}.", param=param, code="invalid_type")
