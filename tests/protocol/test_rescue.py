"""Errors on the wire: one form, with all that every client needs."""

from __future__ import annotations

import json

import pytest

from proxy.protocol import rescue
from proxy.protocol.errors import (
    ConnectionLimitReached,
    InternalError,
    InvalidMessage,
    InvalidStreamId,
    ItemNotFound,
    PreviousResponseNotFound,
    ProxyError,
    QueueFull,
    ServiceRestarting,
    ToolCallNotFound,
    TooManyLanes,
    UnknownEventType,
)
from proxy.protocol.upstream_errors import (
    ContextOverflow,
    UpstreamDisconnected,
    UpstreamForgot,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnreachable,
)

INVALID = "invalid_request_error"


@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "param"),
    [
        (InvalidMessage("x", param="input"), 400, INVALID, "invalid_value", "input"),
        (InvalidMessage("x", code="invalid_json"), 400, INVALID, "invalid_json", None),
        (UnknownEventType("x"), 400, INVALID, "unknown_event_type", "type"),
        (InvalidStreamId(), 400, INVALID, "invalid_stream_id", "stream_id"),
        (TooManyLanes(32), 400, INVALID, "websocket_stream_limit_reached", "stream_id"),
        (QueueFull("64 requests"), 429, "rate_limit_error", "websocket_queue_full", None),
        (
            PreviousResponseNotFound("resp_x", "unknown"),
            400,
            INVALID,
            "previous_response_not_found",
            "previous_response_id",
        ),
        (ToolCallNotFound("c1"), 400, INVALID, "tool_call_not_found", "input"),
        (ItemNotFound("msg_1"), 404, INVALID, "item_not_found", "input"),
        (ConnectionLimitReached(60), 400, INVALID, "websocket_connection_limit_reached", None),
        (UpstreamRefused("m", status=418, type="t", code="c", param="p"), 418, "t", "c", "p"),
        (ContextOverflow("m", status=400, type="t"), 400, "t", "context_length_exceeded", None),
        (UpstreamForgot("m", status=404, type="t"), 404, "t", "previous_response_not_found", "previous_response_id"),
        (UpstreamUnreachable(), 502, "server_error", "upstream_unreachable", None),
        (UpstreamTimeout("idle", 300), 504, "server_error", "upstream_timeout", None),
        (UpstreamDisconnected(), 502, "server_error", "upstream_disconnected", None),
        (UpstreamProtocolError("x"), 502, "server_error", "upstream_protocol_error", None),
        (ServiceRestarting(), 503, "server_error", "server_restarting", None),
        (InternalError(), 500, "server_error", "internal_error", None),
    ],
)
def test_every_error_has_the_one_form(error: ProxyError, status: int, kind: str, code: str, param: str | None) -> None:
    """Numeric status, sequence number, and a nested error with all four members; the same words over HTTP."""
    frame = json.loads(rescue.error_frame(error))
    assert frame["type"] == "error"
    assert frame["status"] == status
    assert frame["sequence_number"] == 0
    shown = {name: frame["error"][name] for name in ("type", "code", "message", "param")}
    assert shown == {"type": kind, "code": code, "message": str(error), "param": param}
    assert "stream_id" not in frame
    assert json.loads(rescue.error_body(error)) == {"error": shown}


def test_lane_number_and_headers_are_carried() -> None:
    """The lane is echoed, the number continues the turn, and retry advice stands where either SDK looks."""
    error = UpstreamRefused("slow", status=429, type="rate_limit_error", headers={"retry-after": "3"})
    frame = json.loads(rescue.error_frame(error, stream_id="a", sequence_number=7))
    assert frame["stream_id"] == "a"
    assert frame["sequence_number"] == 7
    assert frame["headers"] == frame["error"]["headers"] == {"retry-after": "3"}


def test_surrogates_in_an_id_do_no_harm() -> None:
    """A client may name an id that UTF-8 cannot hold: the error can still be said."""
    frame = rescue.error_frame(PreviousResponseNotFound("\ud83d", "unknown"))
    assert b"\\ud83d" in frame
