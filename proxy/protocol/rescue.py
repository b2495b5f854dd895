"""The only place where an error becomes bytes.

The `error` frame has the one form that every known client handles (tried on nine of them): numeric `status` (Codex
ignores an error without it and waits for its idle timeout), `sequence_number` (the AI SDK's types require it), a nested
`error` with all four members, `headers` on top (Codex reads `retry-after` there) and the lane echoed.
"""

from __future__ import annotations

from typing import Any

from proxy.protocol import rawjson
from proxy.protocol.errors import ProxyError


def error_frame(error: ProxyError, *, stream_id: str | None = None, sequence_number: int = 0) -> bytes:
    """An `error` event for the socket.

    Args:
        error: What went wrong.
        stream_id: The lane it belongs to; None for the default lane.
        sequence_number: Its place in the turn; 0 where nothing came before it.
    """
    frame: dict[str, Any] = {
        "type": "error",
        "status": error.status,
        "sequence_number": sequence_number,
        "error": _error_object(error),
    }
    if error.headers:
        frame["headers"] = dict(error.headers)
        frame["error"]["headers"] = dict(error.headers)
    if stream_id is not None:
        frame["stream_id"] = stream_id
    return rawjson.dumps(frame)


def error_body(error: ProxyError) -> bytes:
    """A body for an HTTP error answer with `error.status`."""
    return rawjson.dumps({"error": _error_object(error)})


def _error_object(error: ProxyError) -> dict[str, Any]:
    return {"type": error.type, "code": error.code, "message": str(error), "param": error.param}
