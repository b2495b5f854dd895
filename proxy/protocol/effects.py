"""Orders, in the imperative: what a session wants done.

They are to be carried out at once and in their order. The facts that answer them are in :mod:`proxy.protocol.events`.
"""

from __future__ import annotations

import msgspec

from proxy.protocol.chain import Entry
from proxy.protocol.records import Record, TurnEnded
from proxy.protocol.request import UpstreamRequest
from proxy.protocol.routes import Placement


class SendFrames(msgspec.Struct, gc=False):
    """Send text messages to the client, together.

    Attributes:
        frames: Payloads, in order; never empty.
    """

    frames: list[bytes]


class OpenUpstream(msgspec.Struct, frozen=True, gc=False):
    """Send a request to the backend.

    It is answered by `UpstreamOpened`, then any number of `UpstreamBytes`, then one `UpstreamEnded`; or by one
    `UpstreamFailed` at any point; or by nothing more once `CancelUpstream` was ordered.

    Attributes:
        turn: The turn's number. A turn may ask again once its exchange has ended or was cancelled.
        request: Its body.
        record: What will be said about the turn, as far as it is known by now.
        placement: Where it goes.
    """

    turn: int
    request: UpstreamRequest
    record: TurnEnded
    placement: Placement


class Recall(msgspec.Struct, frozen=True, gc=False):
    """Look into the store; answered by one `Recalled`, whatever is found.

    Attributes:
        turn: The turn that needs it.
        response_id: A response to continue; None for none.
        item_ids: Items that are referred to.
    """

    turn: int
    response_id: str | None
    item_ids: frozenset[str]


class StoreResponse(msgspec.Struct, frozen=True, gc=False):
    """Keep a response beyond the connection."""

    entry: Entry


class FinishUpstream(msgspec.Struct, frozen=True, gc=False):
    """The response is complete: read what little is left, so that the connection can serve again, but do not wait."""

    turn: int


class CancelUpstream(msgspec.Struct, frozen=True, gc=False):
    """Stop the exchange at once; no fact about it is wanted any more."""

    turn: int


class CloseConnection(msgspec.Struct, frozen=True, gc=False):
    """Close the client's connection; no order follows.

    Attributes:
        code: Close code (RFC 6455 section 7.4).
        reason: For people, at most 123 bytes of UTF-8.
    """

    code: int
    reason: str


class Observe(msgspec.Struct, frozen=True, gc=False):
    """Hand a record to whoever counts."""

    record: Record


Effect = (
    SendFrames | OpenUpstream | FinishUpstream | CancelUpstream | CloseConnection | Observe | Recall | StoreResponse
)
