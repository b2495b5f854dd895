"""A backend's errors, in all the forms they come in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.protocol import refusals


@pytest.mark.parametrize(
    ("body", "message", "kind", "code", "param"),
    [
        ({"error": {"message": "m", "type": "t", "code": "c", "param": "p"}}, "m", "t", "c", "p"),
        ({"error": {"message": "m", "type": "t", "code": 400}}, "m", "t", "400", None),
        ({"error": {"message": "m"}}, "m", "invalid_request_error", None, None),
        ({"error": "m"}, "m", "invalid_request_error", None, None),
        ({"message": "m", "code": "c"}, "m", "invalid_request_error", "c", None),
        ({"detail": "m"}, "m", "invalid_request_error", None, None),
        ({"detail": [{"loc": ["x"]}]}, '[{"loc":["x"]}]', "invalid_request_error", None, None),
        ({"error": {}}, '{"error": {}}', "invalid_request_error", None, None),
        ({"error": {"hint": 1}}, "The model server answered with status 400.", "invalid_request_error", None, None),
        ({"error": {"message": "m", "code": True}}, "m", "invalid_request_error", None, None),
        ([], "[]", "invalid_request_error", None, None),
        ({}, "{}", "invalid_request_error", None, None),
    ],
)
def test_json_bodies_are_read(body: Any, message: str, kind: str, code: str | None, param: str | None) -> None:
    """OpenAI's form, numbers for codes, FastAPI's detail, bare strings, and nothing useful."""
    error = refusals.from_answer(400, {}, json.dumps(body).encode())
    assert (str(error), error.type, error.code, error.param) == (message, kind, code, param)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The model server answered with status 500."),
        (b"Internal Server Error", "Internal Server Error"),
        (b"<html>\xff</html>", "<html>\ufffd</html>"),
        (b"x" * 5000, "x" * 2000),
    ],
)
def test_other_bodies_are_read(body: bytes, message: str) -> None:
    """Text is the message, within bounds; no body is said to be none."""
    error = refusals.from_answer(500, {}, body)
    assert str(error) == message
    assert error.type == "server_error"


@pytest.mark.parametrize(
    ("status", "shown", "kind"),
    [
        (400, 400, "invalid_request_error"),
        (401, 401, "authentication_error"),
        (403, 403, "permission_error"),
        (404, 404, "not_found_error"),
        (413, 400, "invalid_request_error"),
        (429, 429, "rate_limit_error"),
        (500, 500, "server_error"),
        (503, 503, "server_error"),
    ],
)
def test_status_is_kept_and_stands_for_a_type(status: int, shown: int, kind: str) -> None:
    """Only 413 is shown as another: Codex would leave WebSocket mode for good on it."""
    error = refusals.from_answer(status, {}, b"")
    assert (error.status, error.type) == (shown, kind)


@pytest.mark.parametrize("status", [301, 302, 307, 204])
def test_answer_that_is_no_error_is_the_backends_fault(status: int) -> None:
    """A redirect or an empty success is no answer to a request for a stream."""
    error = refusals.from_answer(status, {}, b"")
    assert error.status == 502
    assert error.type == "server_error"


def test_headers_worth_handing_on_are_kept() -> None:
    """Retry advice, rate limits and Codex's own; nothing else of the backend's headers."""
    headers = {"Retry-After": "3", "X-RateLimit-Limit-Requests": "5", "x-codex-primary": "1", "Set-Cookie": "a=b"}
    error = refusals.from_answer(429, headers, b"")
    assert error.headers == {"retry-after": "3", "x-ratelimit-limit-requests": "5", "x-codex-primary": "1"}


@pytest.mark.parametrize(
    ("event", "status", "kind", "code"),
    [
        ({"code": "rate_limit_exceeded", "message": "m"}, 429, "rate_limit_error", "rate_limit_exceeded"),
        ({"code": "context_length_exceeded", "message": "m"}, 400, "invalid_request_error", "context_length_exceeded"),
        ({"code": None, "message": "m"}, 500, "server_error", None),
        ({"code": "odd", "message": "m", "status": 418}, 418, "invalid_request_error", "odd"),
        ({"message": "m", "status_code": "503"}, 503, "server_error", None),
        ({"error": {"message": "m", "type": "t", "code": "c"}, "status": 404}, 404, "t", "c"),
        ({"error": {"message": "m", "code": 429}}, 429, "rate_limit_error", "429"),
        ({"error": {"message": "m", "type": "invalid_request_error"}}, 400, "invalid_request_error", None),
        ({"message": "m", "status": 200}, 500, "server_error", None),
    ],
)
def test_error_events_are_read_flat_and_nested(event: dict[str, Any], status: int, kind: str, code: str | None) -> None:
    """The status is the event's own, or what its code stands for, or 500."""
    error = refusals.from_event(json.dumps({"type": "error", **event}).encode())
    assert (error.status, error.type, error.code, str(error)) == (status, kind, code, "m")


def test_error_event_without_words_gets_some() -> None:
    """Clients show the message, so there is one."""
    assert "without saying which" in str(refusals.from_event(b'{"type":"error"}'))
