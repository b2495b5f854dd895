"""How responses end: what is kept of a terminal event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from proxy.protocol import rawjson, shapes
from proxy.protocol.rawjson import Head

TerminalKind = Literal["completed", "incomplete", "failed"]

TERMINALS: Final[dict[str, TerminalKind]] = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
}
_MAX_COUNT: Final = 2**53


class Usage(msgspec.Struct, frozen=True):
    """Token counts of a response, as the backend reported them; 0 where it did not."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class Terminal(msgspec.Struct, frozen=True):
    """How a response ended.

    Attributes:
        kind: Which terminal event.
        response_id: The response's id as the client knows it.
        items: Its output items, raw, as the backend sent them, in the order in which they are replayed.
        heads: The head of each.
        response: The response object as the client gets it, raw.
        usage: Its token counts.
        raw_usage: The same as JSON; `null` where nothing is known.
        error_code: `response.error.code` of a failed one.
        snapshot_differs: The final snapshot lacked items that the stream had finished; those were taken.
        backend_id: The id under which the backend knows it; None if it is not the backend that ended it.
        tokens: Tokens of all that the backend saw and said in its last answer; 0 where nobody has counted.
        model: The model that answered, as the response names it; likewise.
    """

    kind: TerminalKind
    response_id: str
    items: Sequence[bytes]
    heads: Sequence[Head]
    response: bytes
    usage: Usage
    raw_usage: bytes = b"null"
    error_code: str | None = None
    snapshot_differs: bool = False
    backend_id: str | None = None
    tokens: int = 0
    model: str | None = None


def read_usage(raw: bytes) -> Usage:
    """Token counts of a filled `usage`; nothing where it is null."""
    shape = shapes.usage(raw)
    if shape is None:
        return Usage()
    return Usage(
        _count(shape.input_tokens), _count(shape.input_tokens_details.cached_tokens), _count(shape.output_tokens)
    )


def add_usage(one: bytes, other: bytes) -> bytes:
    """The token counts of two answers that make up one response, as JSON; where one says nothing, the other's."""
    first, second = shapes.usage(one), shapes.usage(other)
    if first is None or second is None:
        return other if first is None else one
    return rawjson.dumps(
        {
            "input_tokens": first.input_tokens + second.input_tokens,
            "input_tokens_details": {
                name: getattr(first.input_tokens_details, name) + getattr(second.input_tokens_details, name)
                for name in ("cached_tokens", "cache_write_tokens")
            },
            "output_tokens": first.output_tokens + second.output_tokens,
            "output_tokens_details": {
                "reasoning_tokens": first.output_tokens_details.reasoning_tokens
                + second.output_tokens_details.reasoning_tokens
            },
            "total_tokens": first.total_tokens + second.total_tokens,
        }
    )


def _count(value: int) -> int:
    """A count that can be added up; nonsense counts as nothing."""
    return value if 0 <= value <= _MAX_COUNT else 0
