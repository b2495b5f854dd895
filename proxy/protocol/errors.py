"""Every error the proxy knows, in one tree.

ProxyError
 ├─ ClientError                     the client asked for what cannot be done: 4xx
 │   ├─ InvalidMessage              a frame that is not a well-formed client event
 │   ├─ UnknownEventType            a well-formed event of a type this server does not know
 │   ├─ InvalidStreamId             `stream_id` breaks the rules for lane names
 │   ├─ TooManyLanes                one named lane too many on this connection
 │   ├─ QueueFull                   more creates waiting than the settings allow
 │   ├─ PreviousResponseNotFound    `previous_response_id` names nothing this connection remembers
 │   ├─ ToolCallNotFound            an output for a tool call that the transcript does not hold
 │   ├─ ItemNotFound                an `item_reference` to an item that no transcript holds
 │   ├─ ResponseNotRunning          a control event for a response that never was on this connection
 │   ├─ RolloutNotStarted           `response.append` with nothing to append to
 │   ├─ RolloutModeOff              `response.append` where rollout mode is switched off
 │   ├─ SteerRefused                input that cannot steer a response; said in `response.steer.failed`
 │   ├─ InjectRefused               input that cannot be injected; said in `response.inject.failed`
 │   ├─ ResponseNotFound            a request about a response that is not stored
 │   ├─ BodyTooLarge                an HTTP body with more bytes than a message may have
 │   └─ ConnectionLimitReached      the connection is as old as it may get
 ├─ UpstreamError                   the backend did not deliver
 │   ├─ UpstreamRefused             an HTTP error answer, or an `error` event inside a stream
 │   │   ├─ ContextOverflow         the prompt is longer than the model's context
 │   │   └─ UpstreamForgot          state that the request leaned on is not there any more
 │   ├─ UpstreamUnreachable         no connection could be made
 │   ├─ BackendBusy                 too many requests run and wait
 │   ├─ UpstreamTimeout             a phase of the exchange took too long
 │   ├─ UpstreamDisconnected        the stream ended before a terminal event
 │   └─ UpstreamProtocolError       an answer that is no Responses stream
 ├─ ServiceRestarting               the process is about to end
 └─ InternalError                   a bug of ours; its cause is logged, never sent

The branch of the backend's errors stands in :mod:`proxy.protocol.upstream_errors`. Each class says what the wire needs (`status`, `type`, `code`, `param`), which side is to blame (`source`) and whether the
same request may succeed if sent again (`retryable`). :mod:`proxy.protocol.rescue` is the only place that turns them into
bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

Source = Literal["downstream", "upstream", "internal"]
SteerFailure = Literal[
    "response_not_found",
    "invalid_input",
    "steering_not_supported",
    "too_many_pending_steers",
    "response_already_completed",
    "response_not_active",
    "successor_creation_failed",
]
"""`error.code` of a `response.steer.failed` (openai-python `ResponseSteerErrorCode`)."""
InjectFailure = Literal["response_already_completed", "response_not_found", "invalid_input"]
"""`error.code` of a `response.inject.failed` (openai-python `BetaResponseInjectFailedEvent`, and one of our own)."""
MissReason = Literal["unknown", "evicted_limit", "evicted_failed"]
"""Why a response is not remembered: it never was, a limit made it go, or a failed continuation did."""


def cut(text: str) -> str:
    """An id that somebody else chose, at a length that can be said in a message; LiteLLM's have some 400 characters."""
    return text if len(text) <= 512 else f"{text[:512]}…"


class ProxyError(Exception):
    """The root of the tree.

    Attributes:
        status: HTTP status of the error, 400..599; what an `error` frame carries as `status`.
        type: `error.type` of the Responses API.
        code: `error.code`, or None where the API has none for the case.
        param: The request field at fault, or None.
        source: Which side is to blame.
        retryable: Whether sending the same request again may succeed.
    """

    status: int = 500
    type: str = "server_error"
    code: str | None = None
    param: str | None = None
    source: ClassVar[Source] = "internal"
    retryable: bool = False

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers to hand on with the error (retry advice, rate limits); names in lower case."""
        return {}


class ClientError(ProxyError):
    """The client asked for what cannot be done; the connection stays usable."""

    status = 400
    type = "invalid_request_error"
    source = "downstream"


class InvalidMessage(ClientError):
    """A frame that is not a well-formed client event.

    Args:
        reason: What is wrong, in words for the client's developer.
        param: The field at fault, if one is.
        code: `invalid_json` for what cannot be read at all, else `invalid_value` or `invalid_type`.
    """

    def __init__(self, reason: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(reason)
        self.reason = reason
        self.param = param
        self.code = code

    def __str__(self) -> str:
        return self.reason


class UnknownEventType(ClientError):
    """A well-formed event of a type this server does not know (protocol guide: silence would hang the client)."""

    code = "unknown_event_type"
    param = "type"

    def __init__(self, event_type: str) -> None:
        super().__init__(event_type)
        self.event_type = event_type

    def __str__(self) -> str:
        return (
            f"Unknown event type '{self.event_type[:200]}'. Supported: 'response.create', 'response.append', "
            "'response.cancel', 'response.interrupt', 'response.steer', 'response.inject', 'response.processed'."
        )


class InvalidStreamId(ClientError):
    """`stream_id` breaks the rules for lane names."""

    code = "invalid_stream_id"
    param = "stream_id"

    def __str__(self) -> str:
        return (
            "Invalid 'stream_id': it must be a non-empty string of at most 256 characters, "
            "made of letters, numbers, underscores, hyphens and periods."
        )


class TooManyLanes(ClientError):
    """One named lane too many on this connection.

    Args:
        limit: How many distinct named lanes a connection may use.
    """

    code = "websocket_stream_limit_reached"
    param = "stream_id"

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"A connection may use at most {self.limit} distinct stream_id values. "
            "Use one of them again, or open another connection."
        )


class QueueFull(ClientError):
    """More creates waiting than the settings allow.

    Args:
        limit: The bound that was reached, with its unit, for example `32 requests`.
    """

    status = 429
    type = "rate_limit_error"
    code = "websocket_queue_full"
    retryable = True

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"Too many requests are waiting on this connection (limit: {self.limit}). Wait for a response to finish."

    @property
    def headers(self) -> Mapping[str, str]:
        return {"retry-after": "1"}


class PreviousResponseNotFound(ClientError):
    """`previous_response_id` names nothing this connection remembers.

    Clients recover by matching the code, so code, param and message are the API's own, to the letter.

    Args:
        response_id: The id that was asked for.
        reason: Why it is not there; for metrics and logs, not for the wire.
    """

    code = "previous_response_not_found"
    param = "previous_response_id"

    def __init__(self, response_id: str, reason: MissReason) -> None:
        super().__init__(response_id, reason)
        self.response_id = response_id
        self.reason = reason

    def __str__(self) -> str:
        return f"Previous response with id '{cut(self.response_id)}' not found."


class ToolCallNotFound(ClientError):
    """An output for a tool call that neither the transcript nor the input holds.

    Lenient backends accept it and answer nonsense, so the proxy checks it itself (Open Responses acceptance behaviour
    "failed continuation evicts cache").
    """

    code = "tool_call_not_found"
    param = "input"

    def __init__(self, call_id: str) -> None:
        super().__init__(call_id)
        self.call_id = call_id

    def __str__(self) -> str:
        return f"No tool call found for function call output with call_id {cut(self.call_id)}."


class ItemNotFound(ClientError):
    """An `item_reference` to an item that no transcript of this connection holds."""

    status = 404
    code = "item_not_found"
    param = "input"

    def __init__(self, item_id: str) -> None:
        super().__init__(item_id)
        self.item_id = item_id

    def __str__(self) -> str:
        return (
            f"Item with id '{cut(self.item_id)}' not found. It may not be stored, or not any more; "
            "send the item itself instead of a reference to it."
        )


class ResponseNotRunning(ClientError):
    """A control event for a response that never was on this connection.

    Args:
        response_id: The id that it names.
    """

    code = "response_not_found"
    param = "response_id"

    def __init__(self, response_id: str) -> None:
        super().__init__(response_id)
        self.response_id = response_id

    def __str__(self) -> str:
        return f"Response with id '{cut(self.response_id)}' is not running on this connection."


class RolloutNotStarted(ClientError):
    """`response.append` where nothing has been created yet."""

    code = "rollout_not_started"
    param = "type"

    def __str__(self) -> str:
        return "There is no response to append to: a rollout begins with 'response.create'."


class RolloutModeOff(ClientError):
    """`response.append` where the operator has switched rollout mode off."""

    code = "rollout_mode_off"
    param = "type"

    def __str__(self) -> str:
        return (
            "'response.append' belongs to the protocol's first generation, which is switched off on this server "
            "(websocket.rollout: never)."
        )


class SteerRefused(ClientError):
    """Input that cannot steer a response (Responses API reference, `response.steer.failed`).

    Args:
        code: Why, for programs.
        reason: Why, for people.
    """

    def __init__(self, code: SteerFailure, reason: str) -> None:
        super().__init__(code, reason)
        self.code: SteerFailure = code
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class InjectRefused(ClientError):
    """Input that cannot be injected into a response (Responses API reference, `response.inject.failed`).

    Args:
        code: Why, for programs.
        reason: Why, for people.
    """

    def __init__(self, code: InjectFailure, reason: str) -> None:
        super().__init__(code, reason)
        self.code: InjectFailure = code
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class ResponseNotFound(ClientError):
    """A request about a response, given by its id, that is not stored or is another one's; the words are the API's."""

    status = 404

    def __str__(self) -> str:
        return f"Response with id '{cut(self.args[0])}' not found."


class BodyTooLarge(ClientError):
    """An HTTP body with more than the given number of bytes."""

    status = 413

    def __str__(self) -> str:
        return f"The body is larger than {self.args[0]} bytes."


class ConnectionLimitReached(ClientError):
    """The connection is as old as it may get.

    Args:
        minutes: The limit, in minutes.
    """

    code = "websocket_connection_limit_reached"
    retryable = True

    def __init__(self, minutes: float) -> None:
        super().__init__(minutes)
        self.minutes = minutes

    def __str__(self) -> str:
        return (
            f"Responses websocket connection limit reached ({self.minutes:g} minutes). "
            "Create a new websocket connection to continue."
        )


class ServiceRestarting(ProxyError):
    """The process is about to end: it finishes what runs and takes nothing new."""

    status = 503
    code = "server_restarting"
    retryable = True

    def __str__(self) -> str:
        return "The proxy is about to restart. Connect again."

    @property
    def headers(self) -> Mapping[str, str]:
        return {"retry-after": "1"}


class InternalError(ProxyError):
    """A bug of ours; its cause is logged, never sent."""

    code = "internal_error"

    def __str__(self) -> str:
        return "The proxy failed to handle this request."
