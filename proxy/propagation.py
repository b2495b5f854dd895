"""What of a trace travels: which one a client's request is part of, and what the backend is told of it.

W3C Trace Context, in two places: the headers of a handshake or of a plain request, and `client_metadata` of a create,
since a WebSocket has no headers after its first (Codex has a trace for each turn, and puts it there).

Who traces is behind :class:`Tracer`, so that nothing here, nor in what carries requests, needs OpenTelemetry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Protocol

from multidict import MultiMapping

from proxy.protocol import rawjson
from proxy.protocol.rawjson import InvalidJSON
from proxy.protocol.records import TurnEnded

HEADERS: Final = ("traceparent", "tracestate")

_METADATA: Final = (HEADERS, ("ws_request_header_traceparent", "ws_request_header_tracestate"))
"""Names in `client_metadata`: the headers' own, and what Codex calls them there."""

_FIELDS: Final = r"(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_PARENT: Final = re.compile(rf"00-{_FIELDS}|(?!00|ff)[0-9a-f]{{2}}-{_FIELDS}(-[\x21-\x7e]{{0,400}})?")
"""Later versions may have more fields; this one may not."""
_STATE: Final = re.compile(r"[\t\x20-\x7e]{1,512}")


class Trace(Protocol):
    """A turn, or a plain request, while it is traced."""

    def outgoing(self, server: str) -> Mapping[str, str]:
        """A request is about to be made to the server with this base URL: the headers that it is to have."""

    def failed(self, error: Exception) -> None:
        """The request to the backend that was made last has failed."""


class Tracer(Protocol):
    """Somebody who traces; that something is over comes to it as to any observer."""

    def turn(self, connection_id: str, facts: TurnEnded) -> Trace:
        """A turn needs the backend."""

    def request(self, method: str, path: str, parent: Mapping[str, str]) -> Trace:
        """A plain HTTP request came, with these headers of a trace."""


def from_headers(headers: MultiMapping[str]) -> dict[str, str]:
    """The headers that name a trace; none where they name no valid one."""
    return _checked(headers.get("traceparent", ""), ",".join(headers.getall("tracestate", ())))


def from_metadata(raw: bytes) -> dict[str, str]:
    """The same from a `client_metadata`, raw."""
    if b"traceparent" not in raw or raw[:1] != b"{":
        return {}
    try:
        members = dict(rawjson.split_object(raw))
    except InvalidJSON:
        return {}
    for parent, state in _METADATA:
        found = _checked(*(rawjson.string(members.get(name, b"")) or "" for name in (parent, state)))
        if found:
            return found
    return {}


def without(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers without those that name a trace."""
    return {name: value for name, value in headers.items() if name.lower() not in HEADERS}


def _checked(parent: str, state: str) -> dict[str, str]:
    if not _PARENT.fullmatch(parent):
        return {}
    return {"traceparent": parent, "tracestate": state} if _STATE.fullmatch(state) else {"traceparent": parent}
