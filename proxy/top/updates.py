"""What the feed of the live page says, as types: who writes it is :mod:`proxy.live`.

Members that are not shown here are left out, and those that another version does not send have defaults. Times are Unix
seconds by the proxy's clock, durations seconds, sizes bytes.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Totals(msgspec.Struct, frozen=True):
    """Sums since the proxy's start (:class:`proxy.picture.Totals`)."""

    connections: int = 0
    turns: int = 0
    hits: int = 0
    misses: int = 0
    new: int = 0
    errors: int = 0
    asked: int = 0
    client_bytes: int = 0
    plain_bytes: int = 0
    replayed_bytes: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    own: float = 0.0
    refused: int = 0
    http_requests: int = 0


class Backend(msgspec.Struct, frozen=True):
    """One backend: how many of its last answers were good, and all of them by the class of their status."""

    name: str
    health: str = "unknown"
    good: int = 0
    recent: int = 0
    statuses: dict[str, int] = {}
    connect: float | None = None


class Running(msgspec.Struct, frozen=True):
    """A turn that the backend works on."""

    turn: int
    lane: str | None
    began: float
    started: float


class Connection(msgspec.Struct, frozen=True):
    """A connection, open (`closed` is None) or just ended."""

    id: str
    client: str | None
    opened: float
    closed: float | None = None
    cause: str | None = None
    lanes: int = 0
    running: tuple[Running, ...] = ()
    turns: int = 0
    hits: int = 0
    misses: int = 0
    errors: int = 0
    client_bytes: int = 0
    plain_bytes: int = 0


class Turn(msgspec.Struct, frozen=True):
    """A turn that has ended (:func:`proxy.explain.turn_row`); `own` and what stands with it is of one that went upstream."""

    number: int
    connection: str
    turn: int
    began: float
    total: float
    why: str
    word: str = ""
    kind: str = ""
    lane: str | None = None
    outcome: str = ""
    tools: str = "none"
    tools_changed_at: int | None = None
    response: str | None = None
    previous: str | None = None
    model: str | None = None
    depth: int = 0
    client_bytes: int = 0
    upstream_bytes: int = 0
    replayed_bytes: int = 0
    plain_bytes: int = 0
    replayed_items: int = 0
    new_items: int = 0
    events: int = 0
    relayed_bytes: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    queue: float = 0.0
    first: float | None = None
    own: float | None = None
    connect: float | None = None
    blocked: float = 0.0
    status: int | None = None
    reused: bool = False
    retries: int = 0
    error_code: str | None = None
    error_status: int | None = None
    error_source: str | None = None


class Update(msgspec.Struct, frozen=True):
    """One event of the feed: all there is, or what has changed since the one before."""

    kind: Literal["snapshot", "delta"]
    now: float
    open: int
    totals: Totals
    backends: tuple[Backend, ...]
    connections: tuple[Connection, ...]
    turns: tuple[Turn, ...]
    inspects: bool = False
    gone: tuple[str, ...] = ()


class Part(msgspec.Struct, frozen=True):
    """A field of a request, or an item of its input; its text is masked unless it was asked for."""

    kind: Literal["field", "item"]
    name: str
    role: str | None
    size: int
    text: str


class Side(msgspec.Struct, frozen=True):
    """What one side of a turn was told; `omitted` parts stood before the first."""

    parts: tuple[Part, ...]
    omitted: int = 0


class Said(msgspec.Struct, frozen=True):
    """What the client sent, beside what went upstream (None if nothing did)."""

    masked: bool
    sent: Side
    upstream: Side | None


_UPDATE = msgspec.json.Decoder(Update)
_SAID = msgspec.json.Decoder(Said)


def read_update(data: bytes) -> Update:
    """One event's data.

    Raises:
        msgspec.DecodeError: it is not what the live page's feed says.
    """
    return _UPDATE.decode(data)


def read_said(data: bytes) -> Said:
    """What one turn said.

    Raises:
        msgspec.DecodeError: it is not what the live page answers.
    """
    return _SAID.decode(data)
