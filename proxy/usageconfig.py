"""The part of the configuration that is about usage: which sinks get a record of each turn, and what waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal, get_args

from pydantic import Field

from proxy.sections import Many, Section, Text, Wait, is_installed
from proxy.values import Count, Credential, Database, HeaderNames, Size, Url

SinkKind = Literal["file", "webhook", "sql"]
SINK_KINDS: Final[tuple[SinkKind, ...]] = get_args(SinkKind)

LEAST_SPOOL: Final = 2**20
"""Bytes of the smallest spool."""

_KEYS: Final = frozenset(
    {"authorization", "proxy-authorization", "cookie", "api-key", "x-api-key", "sec-websocket-protocol"}
)
"""Headers that clients put their keys into."""


class UsageSpool(Section):
    """Where records wait, on disk, until all sinks have taken them."""

    folder: Text = "slipstream-spool"
    """A folder, made if it is not there; a relative one is below the working directory."""
    max_bytes: Annotated[Size, Field(ge=LEAST_SPOOL)] = 256 * 2**20
    """Bytes that may wait; beyond that the oldest records are dropped. Of several workers each has its share."""


class UsageFile(Section):
    """A file with one record a line, as JSON."""

    path: Text | None = None
    """The file; none without it. Several workers may write one."""
    max_bytes: Annotated[Size, Field(ge=64 * 2**10)] = 64 * 2**20
    """It is moved out of the way (`.1`, `.2`, …) before it gets longer than this."""
    keep: Many = 10
    """Files to keep besides it, the newest."""


class UsageWebhook(Section):
    """An HTTP server that is sent records in batches."""

    url: Url | None = None
    """Where to POST them; nothing is sent without it. Any 2xx means that they are taken."""
    api_key: Credential | None = None
    """Sent as `Authorization: Bearer`."""
    timeout: Wait = 10
    """For one request."""
    batch: Count = 500
    """Records in one request, at most."""


class UsageSql(Section):
    """A table with one row a record."""

    url: Database | None = None
    """`sqlite:///PATH`, or `postgresql://USER:PASSWORD@HOST/DATABASE` with the extra `postgres`; no table without it."""
    table: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,62}$")] = "slipstream_turns"
    """Its name; it is made if it is not there."""

    @property
    def is_postgres(self) -> bool:
        """Whether it is a server's, and no file's."""
        return self.url is not None and self.url.get_secret_value().startswith("postgres")


class Usage(Section):
    """Records of turns for sinks outside: sizes, counts, times and ids; no content, no keys."""

    flush_interval: Wait = 1
    """How long a record stays in memory, at most, before it is on disk: what a process that is killed may lose."""
    labels: HeaderNames = ()
    """Headers of a client's WebSocket handshake to record, for example `x-team`; cut to 128 characters each."""
    spool: UsageSpool = Field(default_factory=UsageSpool)
    """What waits for the sinks."""
    file: UsageFile = Field(default_factory=UsageFile)
    """A file, as JSON Lines."""
    webhook: UsageWebhook = Field(default_factory=UsageWebhook)
    """An HTTP server."""
    sql: UsageSql = Field(default_factory=UsageSql)
    """SQLite or PostgreSQL."""

    @property
    def sinks(self) -> tuple[SinkKind, ...]:
        """Who gets records; nothing is recorded if nobody does."""
        wanted = {"file": self.file.path, "webhook": self.webhook.url, "sql": self.sql.url}
        return tuple(kind for kind in SINK_KINDS if wanted[kind] is not None)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Values that cannot work: the path of an option below this section, and what is wrong with it."""
        if keys := [name for name in self.labels if name.lower() in _KEYS]:
            yield "labels", f"{keys[0]!r} holds clients' keys, which must not be recorded"
        if self.sql.is_postgres and not is_installed("asyncpg"):
            yield "sql.url", "needs the extra `postgres`: pip install 'slipstream-proxy[postgres]'"
