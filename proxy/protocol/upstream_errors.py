"""The backend's branch of the tree of errors (:mod:`proxy.protocol.errors`): it did not deliver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from proxy.protocol.errors import PreviousResponseNotFound, ProxyError

Phase = Literal["connect", "first_event", "idle", "turn"]


class UpstreamError(ProxyError):
    """The backend did not deliver."""

    status = 502
    source = "upstream"


class UpstreamRefused(UpstreamError):
    """The backend's own error, in its own words: an HTTP error answer, or an `error` event inside a stream.

    Args:
        message: The backend's message.
        status: Its HTTP status; for an event, the one it names or the one its code stands for.
        type: Its `error.type`, or the one its status stands for.
        code: Its `error.code` as a string; None leaves it to the class.
        param: Its `error.param`; likewise.
        headers: Those of its headers that are worth handing on.
    """

    retryable = True  # if the status is one that passes

    def __init__(
        self,
        message: str,
        *,
        status: int,
        type: str,  # noqa: A002 - the wire's own name
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type
        self.code = code or self.code
        self.param = param or self.param
        self.retryable = self.retryable and (status == 429 or status >= 500)
        self._headers = dict(headers or {})

    def __str__(self) -> str:
        return self.message

    @property
    def headers(self) -> Mapping[str, str]:
        return self._headers


class ContextOverflow(UpstreamRefused):
    """The prompt is longer than the model's context, in the backend's own words.

    The code is the API's own: clients that see it compact their history. The same request never succeeds.
    """

    code = "context_length_exceeded"
    retryable = False


class UpstreamForgot(UpstreamRefused):
    """The backend has no longer what the request leaned on: an earlier response, or an item of one.

    A request that holds the whole transcript leans on nothing and may succeed; the same one does not.
    """

    code = PreviousResponseNotFound.code
    param = PreviousResponseNotFound.param
    retryable = False


class UpstreamUnreachable(UpstreamError):
    """No connection to the backend could be made, so nothing ran."""

    code = "upstream_unreachable"
    retryable = True

    def __str__(self) -> str:
        return "The model server could not be reached."


class BackendBusy(UpstreamError):
    """All replicas have as many requests as they may have, and as many wait as may; nothing was asked."""

    status = 429
    type = "rate_limit_error"
    code = "backend_busy"
    retryable = True

    def __str__(self) -> str:
        return "The model servers are busy: too many requests wait for them. Try again later."

    @property
    def headers(self) -> Mapping[str, str]:
        return {"retry-after": "1"}


class UpstreamTimeout(UpstreamError):
    """A phase of the exchange took too long.

    Args:
        phase: Which one.
        seconds: The limit that was reached.
    """

    status = 504
    code = "upstream_timeout"
    retryable = True

    def __init__(self, phase: Phase, seconds: float) -> None:
        super().__init__(phase, seconds)
        self.phase = phase
        self.seconds = seconds

    def __str__(self) -> str:
        what = {
            "connect": "could not be connected to",
            "first_event": "sent no event",
            "idle": "fell silent",
            "turn": "did not finish the response",
        }[self.phase]
        return f"The model server {what} within {self.seconds:g} s."


class UpstreamDisconnected(UpstreamError):
    """The stream ended before a terminal event: never a clean end.

    Args:
        has_begun: Whether anything of an answer had come.
    """

    code = "upstream_disconnected"
    retryable = True

    def __init__(self, *, has_begun: bool = True) -> None:
        super().__init__()
        self.has_begun = has_begun

    def __str__(self) -> str:
        return "The model server closed the stream before the response was complete."


class UpstreamProtocolError(UpstreamError):
    """An answer that is no Responses stream.

    Args:
        reason: What was wrong with it.
    """

    code = "upstream_protocol_error"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"The model server's answer could not be understood: {self.reason}."
