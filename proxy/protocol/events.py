"""Facts, in the past tense: what a session is told.

Each has its counterpart among the orders in :mod:`proxy.protocol.effects`. A `turn` is the number that the session gave
a turn in such an order.

(Facts and orders are msgspec structs: they are made once a read, and a struct is made in C.)
"""

from __future__ import annotations

import msgspec

from proxy.protocol.chain import Entry
from proxy.protocol.rawjson import Head
from proxy.protocol.upstream_errors import UpstreamError


class FrameReceived(msgspec.Struct, frozen=True, gc=False):
    """A text message came from the client.

    Attributes:
        data: Its payload, valid UTF-8.
        at: Wall-clock time, Unix seconds; responses that begin with it carry it as `created_at`.
        clock: The driver's own clock, in seconds; it comes back with the turn that the frame asks for.
    """

    data: bytes
    at: float
    clock: float = 0.0


class UpstreamOpened(msgspec.Struct, frozen=True, gc=False):
    """The backend answered with a stream, after `OpenUpstream`; its bytes follow.

    Attributes:
        turn: The turn.
        replica: The index of the one that answered.
    """

    turn: int
    replica: int = 0


class UpstreamBytes(msgspec.Struct, gc=False):
    """Bytes of the stream came; not frozen, so that a driver may use one again for each read."""

    turn: int
    data: bytes


class UpstreamEnded(msgspec.Struct, frozen=True, gc=False):
    """The stream came to its end. One of three ways in which an exchange ends by itself."""

    turn: int


class UpstreamFailed(msgspec.Struct, frozen=True, gc=False):
    """The exchange failed, before or in its stream; a refusal by the backend is one of the errors. The other way."""

    turn: int
    error: UpstreamError


class Recalled(msgspec.Struct, frozen=True, gc=False):
    """The store has answered a `Recall`.

    Attributes:
        turn: The turn that needs it.
        entry: The response; None if it is not there.
        items: Those of the items that are there.
    """

    turn: int
    entry: Entry | None
    items: dict[str, tuple[bytes, Head]]


class SilenceReached(msgspec.Struct, frozen=True, gc=False):
    """Nothing was sent to the client for the keepalive time although this turn runs."""

    turn: int


class LifetimeReached(msgspec.Struct, frozen=True, gc=False):
    """The connection is as old as it may get."""


class DrainStarted(msgspec.Struct, frozen=True, gc=False):
    """The process wants to end: finish what runs, then leave."""


class ClientGone(msgspec.Struct, frozen=True, gc=False):
    """The client closed the connection, or it broke. Nothing can be sent any more.

    Attributes:
        may_outlive: What the backend works on may end; it is said again, without this, when there is no more time.
    """

    may_outlive: bool = False


Event = (
    FrameReceived
    | UpstreamOpened
    | UpstreamBytes
    | UpstreamEnded
    | UpstreamFailed
    | Recalled
    | SilenceReached
    | LifetimeReached
    | DrainStarted
    | ClientGone
)
