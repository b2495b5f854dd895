"""What an operator can choose about backends: one in its short form, or several with their replicas.

:mod:`proxy.config` has all other sections, and what goes for all of them together.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from proxy.protocol.profiles import PROFILES, Compaction, RequestRules
from proxy.sections import Many, Section, Share, Wait
from proxy.values import (
    Aliases,
    Credential,
    Duration,
    HeaderNames,
    Headers,
    Name,
    Names,
    ProfileName,
    Url,
    Urls,
    check_number,
)

Positive = Annotated[int, BeforeValidator(check_number), Field(ge=1, le=100_000)]
"""A number of things, at least one."""

_PRECONNECT: Final = 16


class Timeouts(Section):
    """Limits for each phase of a request to the backend; 0 means none."""

    connect: Duration = 5
    """To open a connection."""
    first_event: Duration = 600
    """From the request to the first event of the stream; long prompts and full queues are silent for minutes."""
    idle: Duration = 300
    """Between two reads of the stream."""
    turn: Duration = 0
    """For the whole response."""


class _Place(Section):
    url: Url
    """Its base URL, to which `/responses` is added."""


class _Replicas(Section):
    name: Name
    """What it is called in logs and metrics."""
    replicas: Urls
    """The base URLs of servers that are alike: the same models under the same names."""
    models: Names = ()
    """The models that it serves: names, or patterns with `*`, `?` and `[…]`."""
    aliases: Aliases = Field(default_factory=dict)
    """Names by which clients may ask for a model, each with the name that the backend knows."""


class _Serving(Section):
    profile: ProfileName = "generic"
    """What kind of backend it is; `generic` works in front of any."""
    state: Literal["proxy", "upstream"] | None = None
    """Who is asked for a response that is not stored here: nobody (`proxy`) or the backend. Default: the profile's."""
    api_key: Credential | None = None
    """Sent as `Authorization: Bearer`; without it the client's own `Authorization` is handed on."""
    forward_headers: HeaderNames = (
        "openai-organization",
        "openai-project",
        "api-key",
        "chatgpt-account-id",
        "session-id",
        "thread-id",
        "x-session-id",
        "x-session-affinity",
        "x-client-request-id",
        "x-request-id",
        "traceparent",
        "tracestate",
    )
    """Other headers of a client's WebSocket handshake that go to the backend with each turn."""
    headers: Headers = Field(default_factory=dict, repr=False)
    """Headers to send with every request."""
    drop_fields: Names = ()
    """Request fields to leave out, besides those that the profile drops."""
    keep_fields: Names = ()
    """Request fields to send although the profile drops them, for example `client_metadata`."""
    compaction: Literal["backend", "proxy"] | None = None
    """Who compacts conversations: a backend that can, or the proxy, by asking the backend for a summary. Default: the profile's."""
    overflow_as_failed: bool = True
    """Answer a prompt that is too long for the model with `response.failed` and `context_length_exceeded`, on which Codex
    compacts the conversation; off hands on the backend's own error, on which it gives up."""
    timeouts: Timeouts = Field(default_factory=Timeouts)
    """Limits for each phase of a request."""
    keepalive: Duration | None = None
    """How long an idle connection may be used again; below the backend's own limit. Default: the profile's."""
    preconnect: Many | None = None
    """Connections to open, at most, for clients whose next turn is to be expected, so that it waits for none. Default: 16 for
    a backend that is reached over TLS, else 0."""
    retry_stale: bool = True
    """Send a request once more when a kept connection turns out to be dead before any byte of an answer came."""
    max_in_flight: Positive | None = None
    """Requests for turns that one replica may work on at once; more wait. Default: any number."""
    max_queued: Many = 64
    """Requests that may wait for one replica."""
    queue_timeout: Wait = 30
    """How long one may wait; then it is answered with an error."""

    @property
    def kept_alive(self) -> float:
        """Seconds for which an idle connection may be used again; 0 for no reuse."""
        profile = PROFILES[self.profile]
        if not profile.reuses_connections:
            return 0
        return profile.keepalive_timeout if self.keepalive is None else self.keepalive

    def opened_ahead(self, url: str) -> int:
        """Connections to a replica to open ahead of requests, at most."""
        if self.preconnect is not None:
            return self.preconnect
        return _PRECONNECT if url.startswith("https:") else 0

    @property
    def keeps_responses(self) -> bool:
        """Whether what the proxy does not know is to be asked of the backend."""
        return PROFILES[self.profile].keeps_responses if self.state is None else self.state == "upstream"

    def rules(self, inherits: frozenset[str]) -> RequestRules:
        """How it wants its requests, and what creates have from the response that they continue."""
        return RequestRules.of(
            PROFILES[self.profile],
            drop=frozenset(self.drop_fields),
            keep=frozenset(self.keep_fields),
            keeps_responses=self.keeps_responses,
            compaction=Compaction(self.compaction) if self.compaction is not None else None,
            inherits=inherits,
        )


class Upstream(_Serving, _Place):
    """The backend: anything that serves `POST /v1/responses` over HTTP."""


class Backend(_Serving, _Replicas):
    """One of several backends: servers that are alike."""

    @classmethod
    def of(cls, upstream: Upstream) -> Backend:
        """The backend that there is if there is one only."""
        options = {name: getattr(upstream, name) for name in _Serving.model_fields}
        return cls.model_construct(name="upstream", replicas=(upstream.url,), models=(), aliases={}, **options)


class Routing(Section):
    """How one of several backends, and of a backend's replicas, is chosen."""

    default: str | None = None
    """The backend for models that none names. Default: the first one."""
    balance: Literal["affinity", "least_in_flight", "round_robin"] = "affinity"
    """Which replica takes a new conversation: the one that knows its tools and instructions, as long as it is not loaded more
    than others; the one with the fewest requests; or each in turn. A conversation then stays where it is."""
    load_factor: Annotated[float, Field(ge=1, le=100)] = 1.25
    """How many times its share of the requests in flight a replica may have before new conversations go elsewhere."""
    retry_budget: Share = 0.2
    """The share of requests that may be sent once more to another replica, besides those that reached none. 0: none."""
    eject_after: Positive = 3
    """Failures in a row after which a replica is left out; the last one that is left never is."""
    eject_time: Wait = 10
    """For how long, the first time; twice as long the next."""
    max_eject_time: Wait = 300
    """For how long at most."""
    probe_interval: Duration = 10
    """How often each of several replicas is asked whether it is there (`/health`, else `/models`); 0 means never."""
    probe_timeout: Wait = 2
    """How long it may take to answer."""


def _none_is_empty(value: Any) -> Any:
    return () if value is None else value


Backends = Annotated[tuple[Backend, ...], BeforeValidator(_none_is_empty)]
"""Several of them; a list in which all is commented out is null in YAML."""
