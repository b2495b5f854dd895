"""The tree of errors: every class has its words, its side and its advice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from proxy.protocol import errors
from proxy.protocol.errors import (
    BodyTooLarge,
    ClientError,
    ConnectionLimitReached,
    InjectRefused,
    InternalError,
    InvalidMessage,
    InvalidStreamId,
    ItemNotFound,
    PreviousResponseNotFound,
    ProxyError,
    QueueFull,
    ResponseNotFound,
    ResponseNotRunning,
    RolloutModeOff,
    RolloutNotStarted,
    ServiceRestarting,
    SteerRefused,
    ToolCallNotFound,
    TooManyLanes,
    UnknownEventType,
)
from proxy.protocol.upstream_errors import (
    BackendBusy,
    ContextOverflow,
    UpstreamDisconnected,
    UpstreamError,
    UpstreamForgot,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnreachable,
)

WORDS = [
    (InvalidMessage("The message is bad."), "The message is bad."),
    (
        UnknownEventType("x"),
        (
            "Unknown event type 'x'. Supported: 'response.create', 'response.append', 'response.cancel', "
            "'response.interrupt', 'response.steer', 'response.inject', 'response.processed'."
        ),
    ),
    (ResponseNotRunning("resp_x"), "Response with id 'resp_x' is not running on this connection."),
    (RolloutNotStarted(), "There is no response to append to: a rollout begins with 'response.create'."),
    (
        RolloutModeOff(),
        (
            "'response.append' belongs to the protocol's first generation, which is switched off on this server "
            "(websocket.rollout: never)."
        ),
    ),
    (SteerRefused("invalid_input", "Bad input."), "Bad input."),
    (InjectRefused("response_not_found", "Not there."), "Not there."),
    (
        InvalidStreamId(),
        (
            "Invalid 'stream_id': it must be a non-empty string of at most 256 characters, made of letters, numbers, "
            "underscores, hyphens and periods."
        ),
    ),
    (
        TooManyLanes(32),
        "A connection may use at most 32 distinct stream_id values. Use one of them again, or open another connection.",
    ),
    (
        QueueFull("64 requests"),
        "Too many requests are waiting on this connection (limit: 64 requests). Wait for a response to finish.",
    ),
    (PreviousResponseNotFound("resp_x", "unknown"), "Previous response with id 'resp_x' not found."),
    (ToolCallNotFound("c1"), "No tool call found for function call output with call_id c1."),
    (
        ItemNotFound("msg_1"),
        (
            "Item with id 'msg_1' not found. It may not be stored, or not any more; send the item itself instead of a "
            "reference to it."
        ),
    ),
    (ResponseNotFound("resp_x"), "Response with id 'resp_x' not found."),
    (BodyTooLarge(65536), "The body is larger than 65536 bytes."),
    (
        ConnectionLimitReached(60),
        "Responses websocket connection limit reached (60 minutes). Create a new websocket connection to continue.",
    ),
    (UpstreamRefused("as it was said", status=500, type="t"), "as it was said"),
    (ContextOverflow("too long, it said", status=400, type="t"), "too long, it said"),
    (UpstreamForgot("not there, it said", status=404, type="t"), "not there, it said"),
    (BackendBusy(), "The model servers are busy: too many requests wait for them. Try again later."),
    (UpstreamUnreachable(), "The model server could not be reached."),
    (UpstreamTimeout("connect", 5), "The model server could not be connected to within 5 s."),
    (UpstreamTimeout("first_event", 600), "The model server sent no event within 600 s."),
    (UpstreamTimeout("idle", 0.5), "The model server fell silent within 0.5 s."),
    (UpstreamTimeout("turn", 60), "The model server did not finish the response within 60 s."),
    (UpstreamDisconnected(), "The model server closed the stream before the response was complete."),
    (UpstreamProtocolError("no SSE"), "The model server's answer could not be understood: no SSE."),
    (ServiceRestarting(), "The proxy is about to restart. Connect again."),
    (InternalError(), "The proxy failed to handle this request."),
]


@pytest.mark.parametrize(("error", "words"), WORDS, ids=lambda value: type(value).__name__)
def test_error_says_what_it_means(error: ProxyError, words: str) -> None:
    """Messages are for the client's developer."""
    assert str(error) == words


def kinds(root: type[ProxyError]) -> Iterator[type[ProxyError]]:
    """All classes below one that are raised themselves: not the two that only say which side is to blame."""
    for below in root.__subclasses__():
        if below not in {ClientError, UpstreamError}:
            yield below
        yield from kinds(below)


def test_every_error_is_in_the_table_and_in_the_tree() -> None:
    """No class without words here, and none that the module's picture does not show."""
    assert {type(error) for error, _ in WORDS} == set(kinds(ProxyError))
    assert errors.__doc__ is not None
    for kind in kinds(ProxyError):
        assert f" {kind.__name__} " in errors.__doc__


@pytest.mark.parametrize(("error", "words"), WORDS, ids=lambda value: type(value).__name__)
def test_error_blames_the_right_side(error: ProxyError, words: str) -> None:
    """The client's faults are 4xx and the client's, the backend's are the backend's."""
    if isinstance(error, ClientError):
        assert error.source == "downstream"
        assert 400 <= error.status < 500
    elif isinstance(error, UpstreamError):
        assert error.source == "upstream"
    else:
        assert error.source == "internal"
        assert error.status >= 500


@pytest.mark.parametrize(("status", "retryable"), [(400, False), (401, False), (429, True), (500, True), (503, True)])
def test_refusal_may_be_tried_again_by_its_status(status: int, retryable: bool) -> None:  # noqa: FBT001
    """429 and 5xx may succeed another time."""
    assert UpstreamRefused("x", status=status, type="t").retryable is retryable


@pytest.mark.parametrize("kind", [ContextOverflow, UpstreamForgot])
def test_diagnosed_refusal_is_not_tried_again_as_it_is(kind: type[UpstreamRefused]) -> None:
    """Neither a prompt that is too long nor lost state gets better by waiting, even if the backend says 500."""
    assert not kind("x", status=500, type="t").retryable


def test_unknown_type_is_cut_in_the_message() -> None:
    """A client's text in a message has a bound."""
    assert len(str(UnknownEventType("x" * 10_000))) < 400
