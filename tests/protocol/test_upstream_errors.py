"""The backend's branch of the tree of errors: what each says of itself (its words are in `test_errors.py`)."""

from __future__ import annotations

import pytest

from proxy.protocol.upstream_errors import (
    ContextOverflow,
    UpstreamDisconnected,
    UpstreamError,
    UpstreamForgot,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnreachable,
)


@pytest.mark.parametrize(
    ("error", "status", "code", "retryable"),
    [
        (UpstreamUnreachable(), 502, "upstream_unreachable", True),
        (UpstreamTimeout("idle", 5), 504, "upstream_timeout", True),
        (UpstreamDisconnected(), 502, "upstream_disconnected", True),
        (UpstreamProtocolError("x"), 502, "upstream_protocol_error", False),
        (UpstreamRefused("x", status=503, type="server_error", code="slow_down"), 503, "slow_down", True),
        (ContextOverflow("x", status=400, type="t"), 400, "context_length_exceeded", False),
        (UpstreamForgot("x", status=404, type="t"), 404, "previous_response_not_found", False),
    ],
)
def test_error_carries_what_the_wire_needs(error: UpstreamError, status: int, code: str, retryable: bool) -> None:  # noqa: FBT001
    """Status, code, and whether the same request may succeed another time."""
    assert (error.status, error.code, error.retryable) == (status, code, retryable)
    assert error.source == "upstream"
