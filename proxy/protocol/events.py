"""Facts, in the past tense: what a session is told.

Each has its counterpart among the orders in :mod:`proxy.protocol.effects`. A `turn` is the number that the session gave
the exchange in :class:`~proxy.protocol.effects.OpenUpstream`.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.protocol.errors import UpstreamError


@dataclass(frozen=True, slots=True)
class FrameReceived:
    """A text message came from the client.

    Attributes:
        data: Its payload, valid UTF-8.
        at: Wall-clock time, Unix seconds; responses that begin with it carry it as `created_at`.
        clock: The driver's own clock, in seconds; it comes back with the turn that the frame asks for.
    """

    data: bytes
    at: float
    clock: float = 0.0


@dataclass(frozen=True, slots=True)
class UpstreamOpened:
    """The backend answered with a stream; its bytes follow. (After `OpenUpstream`.)"""

    turn: int


@dataclass(slots=True)
class UpstreamBytes:
    """Bytes of the stream came. (Not frozen: one is made for each read, and a frozen one costs three times as much.)"""

    turn: int
    data: bytes


@dataclass(frozen=True, slots=True)
class UpstreamEnded:
    """The stream came to its end. One of three ways in which an exchange ends by itself."""

    turn: int


@dataclass(frozen=True, slots=True)
class UpstreamFailed:
    """The exchange failed, before or in its stream; a refusal by the backend is one of the errors. The other way."""

    turn: int
    error: UpstreamError


@dataclass(frozen=True, slots=True)
class SilenceReached:
    """Nothing was sent to the client for the keepalive time although this turn runs."""

    turn: int


@dataclass(frozen=True, slots=True)
class LifetimeReached:
    """The connection is as old as it may get."""


@dataclass(frozen=True, slots=True)
class DrainStarted:
    """The process wants to end: finish what runs, then leave."""


@dataclass(frozen=True, slots=True)
class ClientGone:
    """The client closed the connection, or it broke. Nothing can be sent any more."""


Event = (
    FrameReceived
    | UpstreamOpened
    | UpstreamBytes
    | UpstreamEnded
    | UpstreamFailed
    | SilenceReached
    | LifetimeReached
    | DrainStarted
    | ClientGone
)
