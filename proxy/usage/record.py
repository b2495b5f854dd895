"""What a turn's record says.

:data:`COLUMNS` is the one list of its fields, for the documents, the tables and the record itself. Texts that clients and
backends choose are cut, and hold nothing that a database refuses.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import orjson

from proxy.observe import TurnRecord
from proxy.protocol.terminals import Usage
from proxy.usage.segment import Entry

Kind = Literal["id", "time", "text", "integer", "real", "json"]

COLUMNS: Final[dict[str, Kind]] = {
    "id": "id",
    "time": "time",
    "worker": "integer",
    "connection_id": "text",
    "turn": "integer",
    "lane": "text",
    "labels": "json",
    "model": "text",
    "answered_by": "text",
    "outcome": "text",
    "error_code": "text",
    "error_status": "integer",
    "error_source": "text",
    "response_id": "text",
    "previous_response_id": "text",
    "depth": "integer",
    "cache": "text",
    "cache_reason": "text",
    "received_bytes": "integer",
    "upstream_bytes": "integer",
    "plain_bytes": "integer",
    "saved_bytes": "integer",
    "sent_bytes": "integer",
    "events": "integer",
    "new_items": "integer",
    "replayed_items": "integer",
    "input_tokens": "integer",
    "cached_tokens": "integer",
    "output_tokens": "integer",
    "queue_seconds": "real",
    "first_event_seconds": "real",
    "total_seconds": "real",
    "proxy_seconds": "real",
    "upstream_status": "integer",
}
"""Field and kind. `id` is a UUID of version 7; `time` is when the turn ended, in UTC (RFC 3339)."""

MAX_TEXT: Final = 512
"""Characters of one text; LiteLLM's ids have some 400."""
MAX_LABEL: Final = 128
"""Characters of one label."""
_REFUSED: Final = re.compile("[\x00\ud800-\udfff]")
"""What PostgreSQL and UTF-8 cannot hold."""


def entry(record: TurnRecord, labels: Mapping[str, str], worker: int | None, now: float) -> Entry:
    """A turn's record as it is written.

    Args:
        record: The turn.
        labels: What its client's handshake said.
        worker: Which of several workers served it; None if there is one process.
        now: When it ended, in seconds since 1970.
    """
    milliseconds = int(now * 1000)
    fields: dict[str, Any] = {
        "id": turn_id(milliseconds, os.urandom(10)),
        "time": _time(milliseconds),
        "worker": worker,
    }
    fields |= _facts(record)
    fields["labels"] = {name: clean(value, MAX_LABEL) for name, value in labels.items()} or None
    return Entry(milliseconds, orjson.dumps({name: fields.get(name) for name in COLUMNS}))


def turn_id(milliseconds: int, random: bytes) -> str:
    """A UUID of version 7 (RFC 9562 section 5.7): in the order of time, and never the same again.

    Args:
        milliseconds: Since 1970.
        random: 10 bytes.
    """
    digits = bytearray(milliseconds.to_bytes(6, "big") + random)
    digits[6] = digits[6] & 0x0F | 0x70
    digits[8] = digits[8] & 0x3F | 0x80
    text = digits.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def clean(text: str | None, most: int = MAX_TEXT) -> str | None:
    """A text that somebody else chose, in a form that every sink takes."""
    return None if text is None else _REFUSED.sub("\ufffd", text[:most])


def _facts(record: TurnRecord) -> dict[str, Any]:
    facts, exchange = record.facts, record.exchange
    fields: dict[str, Any] = {
        "connection_id": record.connection_id,
        "turn": facts.turn,
        "lane": clean(facts.lane),
        "model": clean(facts.model),
        "answered_by": clean(facts.answered_by),
        "outcome": facts.outcome,
        "error_code": clean(facts.error_code),
        "error_status": facts.error_status,
        "error_source": facts.error_source,
        "response_id": clean(facts.response_id),
        "previous_response_id": clean(facts.previous_response_id),
        "depth": facts.depth,
        "cache": facts.lookup,
        "cache_reason": facts.reason,
        "received_bytes": facts.frame_bytes,
        "upstream_bytes": facts.upstream_bytes,
        "plain_bytes": facts.plain_bytes,
        "saved_bytes": facts.replayed_bytes,
        "sent_bytes": facts.relayed_bytes,
        "events": facts.events,
        "new_items": facts.new_items,
        "replayed_items": facts.replayed_items,
        "total_seconds": round(record.ended - facts.received, 4),
    }
    # A backend that was asked and counted nothing, as when the client left before the end, has not used nothing.
    if exchange is None or facts.usage != Usage():
        fields["input_tokens"] = facts.usage.input_tokens
        fields["cached_tokens"] = facts.usage.cached_tokens
        fields["output_tokens"] = facts.usage.output_tokens
    if exchange is not None:
        first = exchange.first_bytes
        fields["queue_seconds"] = round(exchange.started - facts.received, 4)
        fields["first_event_seconds"] = None if first is None else round(first - facts.received, 4)
        fields["proxy_seconds"] = round(exchange.own, 5)
        fields["upstream_status"] = exchange.status
    return fields


def _time(milliseconds: int) -> str:
    moment = dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
