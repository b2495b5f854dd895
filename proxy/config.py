"""The configuration: frozen, complete, and strict in what it takes.

Every option has a default, so that ``slipstream serve --upstream URL`` needs no file. An unknown key is an error with
its path. Durations read like ``30s``, ``5m``, ``1h30m`` (or a number of seconds), sizes like ``64MiB`` (or a number of
bytes). How the values come together from defaults, file, environment and flags is in :mod:`proxy.configfile`.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field

from proxy.protocol.profiles import PROFILES
from proxy.sections import Many, Message, Section, Share, Wait, is_installed
from proxy.usageconfig import Usage
from proxy.values import (
    DURATION_SCHEMA,
    SIZE_SCHEMA,
    Address,
    BasePath,
    Count,
    Credential,
    Duration,
    HeaderNames,
    Headers,
    Listen,
    Names,
    ProfileName,
    Size,
    Url,
    Workers,
    address_of_url,
    reaches,
)

__all__ = [
    "Address",
    "Cache",
    "Config",
    "Live",
    "Log",
    "ResponseStore",
    "Timeouts",
    "Tracing",
    "Upstream",
    "Usage",
    "WebSocket",
    "json_schema",
    "option_paths",
]

_PRECONNECT: Final = 16
_NEVER_INHERITED: Final = frozenset(
    {"type", "input", "previous_response_id", "conversation", "stream", "stream_id", "generate", "background"}
)
"""Fields that say what one create is, and not how it is to be answered."""


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


class Upstream(Section):
    """The backend: anything that serves `POST /v1/responses` over HTTP."""

    url: Url
    """Its base URL, to which `/responses` is added."""
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

    @property
    def kept_alive(self) -> float:
        """Seconds for which an idle connection may be used again; 0 for no reuse."""
        profile = PROFILES[self.profile]
        if not profile.reuses_connections:
            return 0
        return profile.keepalive_timeout if self.keepalive is None else self.keepalive

    @property
    def opened_ahead(self) -> int:
        """Connections to open ahead of requests, at most."""
        if self.preconnect is not None:
            return self.preconnect
        return _PRECONNECT if self.url.startswith("https:") else 0

    @property
    def keeps_responses(self) -> bool:
        """Whether what the proxy does not know is to be asked of the backend."""
        return PROFILES[self.profile].keeps_responses if self.state is None else self.state == "upstream"


class WebSocket(Section):
    """The clients' side."""

    enabled: bool = True
    """Off answers upgrades with 426, on which Codex goes over to HTTP at once."""
    protocol: Literal["openai", "open-responses"] = "openai"
    """`openai` has lanes (`stream_id`) that run side by side; `open-responses` runs one response after the other."""
    rollout: Literal["auto", "always", "never"] = "auto"
    """The protocol's first generation, in which a response that waits for tools ends in `response.done`: for clients that
    ask for it with `OpenAI-Beta: responses_websockets=2026-02-04`; for all that do not ask for the second generation; or
    for none. `response.append` is taken from any client unless this is `never`."""
    steering: bool = True
    """Let clients steer a running response (`response.steer`)."""
    max_message: Message = 64 * 2**20
    """The largest message a client may send; larger ones close the connection with 1009."""
    max_items: Count = 100_000
    """Input items in one create."""
    lifetime: Duration = 3600
    """How old a connection may get; a running response is finished. 0 means no limit."""
    ping_interval: Duration = 20
    """Between pings to the client, so that middleboxes keep the connection; 0 means none."""
    keepalive_interval: Duration = 30
    """After how long a silence in a running turn a `keepalive` event is sent, for clients that count only those. 0: never."""
    write_timeout: Wait = 30
    """How long a client may leave its data unread before its connection is cut."""
    on_disconnect: Literal["cancel", "drain"] = "cancel"
    """What becomes of responses whose client leaves: they are stopped at once, or may end, so that their usage is known."""
    disconnect_timeout: Wait = 60
    """How long they may take for that."""
    compression: bool = True
    """Accept permessage-deflate from clients that offer it: a 32 KiB window for each. What is sent stays uncompressed."""
    max_lanes: Count = 32
    """Distinct `stream_id` values on one connection."""
    max_in_flight: Count = 16
    """Responses that one connection may have generated at once, over all lanes."""
    max_queued: Count = 64
    """Requests that may wait on one connection."""
    max_queued_bytes: Size = 64 * 2**20
    """Their bytes."""


class Cache(Section):
    """What is remembered of conversations, in memory, for the life of their connection."""

    max_responses: Count = 256
    """Responses of one connection that can be continued."""
    max_bytes: Size = 64 * 2**20
    """Bytes for one connection."""
    max_total_bytes: Size = 2**30
    """Bytes for all connections together; of several workers each has its share."""


class ResponseStore(Section):
    """Responses that may be stored (`store` not false) and so outlive their connection, in memory."""

    enabled: bool = True
    """Off keeps nothing beyond a connection, and leaves `previous_response_id` over HTTP to the backend."""
    max_bytes: Size = 256 * 2**20
    """Bytes for all of them together; of several workers each has its share."""
    max_age: Duration = 3600
    """How long one is kept after its last use; 0 means no limit."""


class Live(Section):
    """The live page, at `/` of the operator's listener, and in a terminal (`slipstream top`)."""

    enabled: bool = True
    """Off serves no page, and keeps nothing for one."""
    inspect: bool = False
    """Keep what the last turns said, in memory, and let whoever reaches the page look at it; masked until asked otherwise."""


class Log(Section):
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important lines to write; `info` has one line a turn and one a connection."""
    format: Literal["auto", "json", "console"] = "auto"
    """`auto` is `console` on a terminal, else `json`."""


class Tracing(Section):
    """Spans for OpenTelemetry; needs the extra `otel`."""

    enabled: bool = False
    """Off hands on the `traceparent` of a client's handshake, as it came."""
    endpoint: Url = "http://127.0.0.1:4318/v1/traces"
    """Where a collector takes OTLP over HTTP."""
    sample_ratio: Share = 1.0
    """The share of traces that is recorded; of those that a client began and does not record, none is."""
    service_name: Annotated[str, Field(min_length=1)] = "slipstream"
    """What the spans say they are from."""


class Config(Section):
    """Everything an operator can choose."""

    version: Literal[1] = 1
    """Of this file's format."""
    listen: Listen = Address("127.0.0.1", 8080)
    """Where clients connect."""
    admin: Listen = Address("127.0.0.1", 9100)
    """Where the live page, `/metrics`, `/livez` and `/readyz` are served."""
    workers: Workers = 1
    """Processes that serve clients, or `auto`: as many as there are processors to use."""
    base_path: BasePath = "/v1"
    """The path below which the API is served; it is served at the root as well."""
    inherit: Names = ()
    """Request fields that a create which continues a response may leave out: it then has them from that response. The API
    itself carries none over."""
    upstream: Upstream
    """The backend."""
    websocket: WebSocket = Field(default_factory=WebSocket)
    """The clients' side."""
    cache: Cache = Field(default_factory=Cache)
    """What is remembered."""
    response_store: ResponseStore = Field(default_factory=ResponseStore)
    """What outlives a connection."""
    live: Live = Field(default_factory=Live)
    """The live page."""
    log: Log = Field(default_factory=Log)
    """What is logged."""
    tracing: Tracing = Field(default_factory=Tracing)
    """What is traced."""
    usage: Usage = Field(default_factory=Usage)
    """Records of turns for sinks outside."""
    max_event: Message = 64 * 2**20
    """The largest single event a backend may send."""
    drain_timeout: Duration = 30
    """How long running responses may take to finish after SIGTERM."""

    def conflicts(self) -> list[tuple[str, str]]:
        """Values that are right alone and cannot work together.

        Only what must fail is here. A cache that is smaller than the largest message, say, merely makes clients send
        some conversations again.

        Returns:
            For each the path of an option, and what is wrong with it.
        """
        found = []
        if reaches(self.admin, self.listen):
            found.append(("admin", f"is the address where clients connect (listen: {self.listen})"))
        if reaches(address_of_url(self.upstream.url), self.listen):
            reason = f"leads to where clients connect (listen: {self.listen}), so that the proxy would call itself"
            found.append(("upstream.url", reason))
        if self.workers != 1 and not hasattr(socket, "SO_REUSEPORT"):
            found.append(("workers", "this system lets one process only listen at an address"))
        if never := sorted(_NEVER_INHERITED & set(self.inherit)):
            found.append(("inherit", f"cannot be carried over: {', '.join(never)}"))
        if self.tracing.enabled:
            found += self._tracing_conflicts()
        found += [(f"usage.{name}", reason) for name, reason in self.usage.conflicts()]
        if self.usage.webhook.url is not None and reaches(address_of_url(self.usage.webhook.url), self.listen):
            found.append(("usage.webhook.url", f"leads to where clients connect (listen: {self.listen})"))
        return found

    def _tracing_conflicts(self) -> Iterator[tuple[str, str]]:
        if not is_installed("opentelemetry.exporter.otlp.proto.http", "opentelemetry.sdk"):
            yield "tracing.enabled", "needs the extra `otel`: pip install 'slipstream-proxy[otel]'"
        if reaches(address_of_url(self.tracing.endpoint), self.listen):
            yield "tracing.endpoint", f"leads to where clients connect (listen: {self.listen}), which would be traced"


def option_paths(section: type[BaseModel] = Config, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all options, those of sections left out, in their order."""
    inner = dict(_sections(section))
    for name in section.model_fields:
        if name in inner:
            yield from option_paths(inner[name], (*prefix, name))
        else:
            yield (*prefix, name)


def defaults() -> dict[str, Any]:
    """All options that have a default, nested, each as one would write it."""
    options = Config(upstream=Upstream(url="http://localhost")).model_dump(mode="json")
    del options["upstream"]["url"]
    return options


def _sections(section: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield name, field.annotation


_SHARED_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "duration": DURATION_SCHEMA,
    "size": SIZE_SCHEMA,
    "reference": {"type": "string", "pattern": r"\$\{.+\}"},
}


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a configuration file, for editors: defaults as one writes them, references to variables."""
    document = Config.model_json_schema()
    _describe(Config, document, defaults(), document["$defs"])
    document["$defs"] |= _SHARED_SCHEMAS
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **document, "title": "Slipstream"}


def _describe(section: type[BaseModel], schema: dict[str, Any], written: Any, definitions: dict[str, Any]) -> None:
    schema.pop("title")
    schema["properties"] = {name: _property(value, written.get(name)) for name, value in schema["properties"].items()}
    for name, inner in _sections(section):
        _describe(inner, definitions[inner.__name__], written[name], definitions)


def _property(schema: dict[str, Any], default: Any) -> dict[str, Any]:
    about = {"description": schema["description"]} if "description" in schema else {}
    if "$ref" in schema:  # a section, which is null if all in it is commented out
        return {**about, "anyOf": [{"$ref": schema["$ref"]}, {"type": "null"}]}
    if default is not None:
        about["default"] = default
    kinds = schema.get("anyOf") or [
        {key: schema[key] for key in schema if key not in ("description", "default", "title")}
    ]
    for name in ("duration", "size"):
        own = _SHARED_SCHEMAS[name]["anyOf"]
        if all(kind in kinds for kind in own):
            kinds = [{"$ref": f"#/$defs/{name}"}, *(kind for kind in kinds if kind not in own)]
    if not any(_takes_references(kind) for kind in kinds):
        kinds = [*kinds, {"$ref": "#/$defs/reference"}]
    return {**about, "anyOf": kinds}


def _takes_references(schema: dict[str, Any]) -> bool:
    """Whether any text is right, or references stand further inside only."""
    kinds = schema.get("type", ())
    return ("string" in kinds or "object" in kinds) and not {"pattern", "enum"} & schema.keys()
