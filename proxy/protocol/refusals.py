"""A backend's own errors, read into our tree: the inverse of :mod:`proxy.protocol.rescue`.

They come as JSON in OpenAI's form (code a string, a number or missing), as FastAPI's ``detail``, as plain text or as
nothing at all (``tests/captures/*/errors.json``), and inside a stream as a flat `error` event. What the backend said is kept:
status, type, code, message, param.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from proxy.protocol import rawjson
from proxy.protocol.upstream_errors import UpstreamRefused

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_HEADERS: Final = ("retry-after", "retry-after-ms", "x-should-retry", "x-request-id")
_HEADER_PREFIXES: Final = ("x-ratelimit-", "x-codex-")
_MAX_TEXT: Final = 2000

#: What an error inside a 200 stream stands for where the event names no status.
_EVENT_STATUS: Final = {
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "invalid_prompt": 400,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "server_is_overloaded": 503,
    "slow_down": 503,
}


def from_answer(status: int, headers: Mapping[str, str], body: bytes) -> UpstreamRefused:
    """Read an HTTP error answer.

    Args:
        status: Its status. 413 becomes 400: Codex answers a 413 with five more tries and then leaves WebSocket mode for
            good, and none of that makes the request smaller. What is no error (a redirect, say) becomes 502.
        headers: All its headers.
        body: Its body, possibly cut off.
    """
    error = _error_object(body)
    message = _message(error, body) or f"The model server answered with status {status}."
    if status == 413:
        status = 400
    elif status < 400:
        status = 502
    return UpstreamRefused(
        message,
        status=status,
        type=_text(error.get("type")) or _type_of(status),
        code=_text(error.get("code")),
        param=_text(error.get("param")),
        headers=_worth_handing_on(headers),
    )


def from_event(data: bytes) -> UpstreamRefused:
    """Read an `error` event: flat, as SSE has it, or nested, as a WebSocket frame has it."""
    event = _load(data)
    nested = event.get("error")
    error: dict[str, Any] = nested if isinstance(nested, dict) else event
    code = _text(error.get("code"))
    kind = _text(error.get("type")) if error is not event else None
    status = _status(event.get("status"), event.get("status_code"), error.get("code"))
    if status is None:
        status = _EVENT_STATUS.get(code or "", _EVENT_STATUS.get(kind or "", 500))
    return UpstreamRefused(
        _text(error.get("message")) or "The model server reported an error without saying which.",
        status=status,
        type=kind or _type_of(status),
        code=code,
        param=_text(error.get("param")),
    )


def _type_of(status: int) -> str:
    return _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def _error_object(body: bytes) -> dict[str, Any]:
    answer = _load(body)
    error = answer.get("error", answer)
    if isinstance(error, str):
        return {"message": error}
    return error if isinstance(error, dict) else {}


def _message(error: dict[str, Any], body: bytes) -> str | None:
    for name in ("message", "detail"):
        if error.get(name):
            return _text(error[name]) or rawjson.dumps(error[name]).decode()[:_MAX_TEXT]
    if error:
        return None
    return body.decode(errors="replace").strip()[:_MAX_TEXT] or None


def _load(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    """A string as it is, a number as its digits; anything else is no text."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _status(*candidates: Any) -> int | None:
    for value in candidates:
        if isinstance(value, str) and value.isdecimal() and len(value) == 3:
            value = int(value)
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    return None


def _worth_handing_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name.lower(): value
        for name, value in headers.items()
        if name.lower() in _HEADERS or name.lower().startswith(_HEADER_PREFIXES)
    }
