"""What a turn said, cut to a bearable size: what the client sent, beside what went upstream.

Only where an operator wants to look into turns (`live.inspect`); else nothing here is called. Each side is read from what
it really was, the create and the body of the request, so that it shows what happened and not what should have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from proxy.protocol import rawjson
from proxy.protocol.messages import Create
from proxy.protocol.rawjson import Head, InvalidJSON, Pairs
from proxy.protocol.request import UpstreamRequest

MAX_SIDE_BYTES: Final = 32 * 1024
"""Bytes of text that are kept of one side of a turn; the newest items come first."""
MAX_PART_BYTES: Final = 4 * 1024
MAX_PARTS: Final = 200


@dataclass(frozen=True, slots=True)
class Part:
    """One member of a request.

    Attributes:
        kind: A field of the body, or an item of its input.
        name: The field's name, or the item's type.
        role: Of an item that has one.
        size: Its bytes.
        text: Its JSON, or the beginning of it.
    """

    kind: Literal["field", "item"]
    name: str
    role: str | None
    size: int
    text: str


@dataclass(frozen=True, slots=True)
class Side:
    """What one side was told.

    Attributes:
        parts: Fields, then items in their order; the last ones if there are many.
        omitted: How many were left out in front of them.
    """

    parts: tuple[Part, ...] = ()
    omitted: int = 0


@dataclass(slots=True)
class Inspection:
    """Both sides of a turn.

    Attributes:
        sent: What the client sent.
        upstream: What the backend was sent; None if it was not asked.
    """

    sent: Side
    upstream: Side | None = None


def of_create(create: Create) -> Inspection:
    """A turn of which only the client's side is known yet."""
    fields = list(create.fields)
    if create.previous_response_id is not None:
        fields.insert(0, ("previous_response_id", rawjson.dumps(create.previous_response_id)))
    return Inspection(_side(fields, create.items, create.heads))


def of_request(request: UpstreamRequest) -> Side:
    """What a backend is sent."""
    try:
        members = rawjson.split_object(request.body())
        items, heads = rawjson.split_items(dict(members)["input"])
    except InvalidJSON:  # more items than can be looked at
        return Side(omitted=request.replayed_items + request.new_items)
    return _side([member for member in members if member[0] != "input"], items, heads)


def _side(fields: Pairs, items: Sequence[bytes], heads: Sequence[Head]) -> Side:
    room = MAX_SIDE_BYTES
    parts: list[Part] = []
    omitted = max(0, len(items) - MAX_PARTS)
    for item, head in zip(reversed(items[omitted:]), reversed(heads[omitted:]), strict=True):
        text = _beginning(item, room)
        room -= len(text.encode())
        parts.append(Part("item", (head.type or "message")[:100], _role(item), len(item), text))
    for name, value in reversed(fields[:MAX_PARTS]):
        text = _beginning(value, room)
        room -= len(text.encode())
        parts.append(Part("field", name[:100], None, len(value), text))
    parts.reverse()
    return Side(tuple(parts), omitted)


def _beginning(data: bytes, room: int) -> str:
    return data[: min(MAX_PART_BYTES, room)].decode(errors="ignore")


def _role(item: bytes) -> str | None:
    role = rawjson.string(dict(rawjson.split_object(item)).get("role", b""))
    return None if role is None else role[:40]
