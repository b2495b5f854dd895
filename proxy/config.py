"""The configuration: frozen, complete, and strict in what it takes.

Every option has a default, so that ``slipstream serve --upstream URL`` needs no file. An unknown key is an error with
its path. Durations read like ``30s``, ``5m``, ``1h30m`` (or a number of seconds), sizes like ``64MiB`` (or a number of
bytes). How the values come together from defaults, file, environment and flags is in :mod:`proxy.configfile`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, WithJsonSchema

from proxy.protocol.profiles import PROFILES

_DURATION: Final = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?i?)B?")
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class Address(NamedTuple):
    """Where to listen.

    Attributes:
        host: Name or IP address.
        port: 0..65535; 0 lets the system choose.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(value: Any) -> Any:
    """``host:port``, ``[v6]:port`` or ``:port`` (all interfaces)."""
    if not isinstance(value, str):
        return value
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError("expected HOST:PORT, for example 127.0.0.1:8080")
    return Address(host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port))  # noqa: S104 - asked for by ":8080"


def parse_duration(value: Any) -> Any:
    """Seconds from ``30s``, ``5m``, ``1h30m``, ``250ms`` or a number."""
    if not isinstance(value, str):
        return value
    if re.fullmatch(r"\d+(\.\d+)?", value):
        return float(value)
    match = _DURATION.fullmatch(value)
    if not value or match is None:
        raise ValueError("expected a duration, for example 30s, 5m, 1h30m or 250ms")
    hours, minutes, seconds, millis = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds + millis / 1000


def parse_size(value: Any) -> Any:
    """Bytes from ``64MiB``, ``1GB`` or a number."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError("expected a size, for example 512KiB, 64MiB or 1GB")
    number, unit = match.groups()
    base = 1024 if unit.endswith("i") else 1000
    return int(float(number) * base ** _POWERS[unit.removesuffix("i").lower()])


def _parse_url(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected an http:// or https:// URL, for example http://127.0.0.1:8000/v1")
    if parts.username or parts.password:
        raise ValueError("credentials do not belong into the URL; use api_key")
    if parts.query or parts.fragment:
        raise ValueError("the URL may have neither a query nor a fragment")
    return value.rstrip("/")


def _check_profile(value: Any) -> Any:
    if isinstance(value, str) and value not in PROFILES:
        raise ValueError(f"unknown profile; one of {', '.join(PROFILES)}")
    return value


def _check_path(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)*/?", value):
        raise ValueError("expected a path, for example /v1")
    return value.rstrip("/") if isinstance(value, str) else value


_DURATION_SCHEMA: Final = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^(\d+(\.\d+)?(h|ms|m|s)?)+$|^\$\{.+\}$"},
    ]
}
_SIZE_SCHEMA: Final = {
    "anyOf": [
        {"type": "integer", "minimum": 0},
        {"type": "string", "pattern": r"^\d+(\.\d+)?\s*[kKMGT]?i?B?$|^\$\{.+\}$"},
    ]
}

Duration = Annotated[float, BeforeValidator(parse_duration), Field(ge=0), WithJsonSchema(_DURATION_SCHEMA)]
Size = Annotated[int, BeforeValidator(parse_size), Field(ge=0), WithJsonSchema(_SIZE_SCHEMA)]
Listen = Annotated[Address, BeforeValidator(parse_address), WithJsonSchema({"type": "string"})]
Url = Annotated[str, BeforeValidator(_parse_url)]
ProfileName = Annotated[str, BeforeValidator(_check_profile), WithJsonSchema({"enum": list(PROFILES)})]
BasePath = Annotated[str, BeforeValidator(_check_path)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Timeouts(_Section):
    """Limits for each phase of a request to the backend; 0 means none."""

    connect: Duration = 5
    """To open a connection."""
    first_event: Duration = 600
    """From the request to the first event of the stream; long prompts and full queues are silent for minutes."""
    idle: Duration = 300
    """Between two reads of the stream."""
    turn: Duration = 0
    """For the whole response."""


class Upstream(_Section):
    """The backend: anything that serves `POST /v1/responses` over HTTP."""

    url: Url
    """Its base URL, to which `/responses` is added."""
    profile: ProfileName = "generic"
    """What kind of backend it is; `generic` works in front of any."""
    api_key: SecretStr | None = None
    """Sent as `Authorization: Bearer`; without it the client's own `Authorization` is handed on."""
    forward_headers: tuple[str, ...] = (
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
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers to send with every request."""
    drop_fields: tuple[str, ...] = ()
    """Request fields to leave out, besides those that the profile drops."""
    keep_fields: tuple[str, ...] = ()
    """Request fields to send although the profile drops them, for example `client_metadata`."""
    timeouts: Timeouts = Field(default_factory=Timeouts)
    """Limits for each phase of a request."""
    keepalive: Duration | None = None
    """How long an idle connection may be used again; below the backend's own limit. Default: the profile's."""
    retry_stale: bool = True
    """Send a request once more when a kept connection turns out to be dead before any byte of an answer came."""


class WebSocket(_Section):
    """The clients' side."""

    enabled: bool = True
    """Off answers upgrades with 426, on which Codex goes over to HTTP at once."""
    max_message: Size = 64 * 2**20
    """The largest message a client may send; larger ones close the connection with 1009."""
    max_items: int = Field(default=100_000, ge=1)
    """Input items in one create."""
    lifetime: Duration = 3600
    """How old a connection may get; a running response is finished. 0 means no limit."""
    ping_interval: Duration = 20
    """Between pings to the client, so that middleboxes keep the connection; 0 means none."""
    keepalive_interval: Duration = 30
    """After how long a silence in a running turn a `keepalive` event is sent, for clients that count only those. 0: never."""
    write_timeout: Duration = 30
    """How long a client may leave its data unread before its connection is cut."""
    compression: bool = False
    """Accept permessage-deflate. What is sent stays uncompressed."""
    max_lanes: int = Field(default=32, ge=1)
    """Distinct `stream_id` values on one connection."""
    max_in_flight: int = Field(default=16, ge=1)
    """Responses that one connection may have generated at once, over all lanes."""
    max_queued: int = Field(default=64, ge=1)
    """Requests that may wait on one connection."""
    max_queued_bytes: Size = 64 * 2**20
    """Their bytes."""


class Cache(_Section):
    """What is remembered of conversations, in memory, for the life of their connection."""

    max_responses: int = Field(default=256, ge=1)
    """Responses of one connection that can be continued."""
    max_bytes: Size = 64 * 2**20
    """Bytes for one connection."""
    max_total_bytes: Size = 2**30
    """Bytes for all connections together."""


class Log(_Section):
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important lines to write; `info` has one line a turn and one a connection."""
    format: Literal["auto", "json", "console"] = "auto"
    """`auto` is `console` on a terminal, else `json`."""


class Config(_Section):
    """Everything an operator can choose."""

    version: Literal[1] = 1
    """Of this file's format."""
    listen: Listen = Address("127.0.0.1", 8080)
    """Where clients connect."""
    admin: Listen = Address("127.0.0.1", 9100)
    """Where `/metrics`, `/livez` and `/readyz` are served."""
    base_path: BasePath = "/v1"
    """The path below which the API is served; it is served at the root as well."""
    upstream: Upstream
    """The backend."""
    websocket: WebSocket = Field(default_factory=WebSocket)
    """The clients' side."""
    cache: Cache = Field(default_factory=Cache)
    """What is remembered."""
    log: Log = Field(default_factory=Log)
    """What is logged."""
    max_event: Size = 64 * 2**20
    """The largest single event a backend may send."""
    drain_timeout: Duration = 30
    """How long running responses may take to finish after SIGTERM."""
