"""What a turn's record says (proxy.usage.record)."""

from __future__ import annotations

import time
import uuid
from typing import Any

import orjson
import pytest

from proxy.observe import Exchange, TurnRecord
from proxy.protocol.records import TurnEnded
from proxy.protocol.terminals import Usage
from proxy.usage import record
from proxy.usage.record import COLUMNS, MAX_LABEL, MAX_TEXT
from proxy.usage.segment import MAX_RECORD


def made(exchange: Exchange | None = None, labels: dict[str, str] | None = None, **facts: Any) -> dict[str, Any]:
    """The record of a turn that was received at 10.0 and ended at 12.0."""
    turn = TurnRecord("conn_1", TurnEnded(3, "lane", 100, 10.0, **facts), 12.0, exchange)
    entry = record.entry(turn, labels or {}, 2, 1_700_000_000.25)
    assert entry.milliseconds == 1_700_000_000_250
    assert entry.size < MAX_RECORD
    fields: dict[str, Any] = orjson.loads(entry.payload)
    assert list(fields) == list(COLUMNS)
    return fields


def test_record_has_everything() -> None:
    """Each field, of a turn that went well."""
    exchange = Exchange(10.5, 10.6, 11.25, own_dispatch=0.001, own_relay=0.002, status=200)
    fields = made(
        exchange,
        {"x-team": "blue"},
        outcome="completed",
        response_id="resp_2",
        previous_response_id="resp_1",
        model="asked",
        answered_by="answered",
        lookup="hit",
        reason="tip",
        depth=3,
        upstream_bytes=5000,
        plain_bytes=4900,
        replayed_bytes=4000,
        replayed_items=7,
        new_items=1,
        events=20,
        relayed_bytes=900,
        usage=Usage(300, 200, 50),
    )
    assert uuid.UUID(fields.pop("id")).version == 7
    assert fields == {
        "time": "2023-11-14T22:13:20.250Z",
        "worker": 2,
        "connection_id": "conn_1",
        "turn": 3,
        "lane": "lane",
        "labels": {"x-team": "blue"},
        "model": "asked",
        "answered_by": "answered",
        "outcome": "completed",
        "error_code": None,
        "error_status": None,
        "error_source": None,
        "response_id": "resp_2",
        "previous_response_id": "resp_1",
        "depth": 3,
        "cache": "hit",
        "cache_reason": "tip",
        "received_bytes": 100,
        "upstream_bytes": 5000,
        "plain_bytes": 4900,
        "saved_bytes": 4000,
        "sent_bytes": 900,
        "events": 20,
        "new_items": 1,
        "replayed_items": 7,
        "input_tokens": 300,
        "cached_tokens": 200,
        "output_tokens": 50,
        "queue_seconds": 0.5,
        "first_event_seconds": 1.25,
        "total_seconds": 2.0,
        "proxy_seconds": 0.003,
        "upstream_status": 200,
    }


def test_unknown_is_not_nothing() -> None:
    """A client that left before the end has used tokens that nobody told; a warm-up has used none."""
    gone = made(Exchange(10.5), outcome="client_gone")
    assert (gone["input_tokens"], gone["output_tokens"], gone["first_event_seconds"]) == (None, None, None)
    warmup = made(outcome="warmup")
    assert (warmup["input_tokens"], warmup["output_tokens"], warmup["upstream_status"]) == (0, 0, None)


def test_error_is_named() -> None:
    """With its code, status and side."""
    fields = made(outcome="error", error_code="server_error", error_status=500, error_source="upstream")
    assert [fields[f"error_{name}"] for name in ("code", "status", "source")] == ["server_error", 500, "upstream"]


@pytest.mark.parametrize("text", ["\x00", "a\udc80b", "\ud83d", "x" * 10_000, "\x00" * 10_000, "é" * 10_000])
def test_texts_of_others_do_no_harm(text: str) -> None:
    """Cut, and without what a database refuses: one record must not hold up all behind it."""
    fields = made(labels={"x-team": text}, model=text, response_id=text, error_code=text)
    for value, most in ((fields["model"], MAX_TEXT), (fields["labels"]["x-team"], MAX_LABEL)):
        assert len(value) <= most
        assert "\x00" not in value
        assert value.encode()


def test_no_content_is_recorded() -> None:
    """Neither what was said nor what clients say about themselves."""
    fields = made(metadata=b'{"secret":"s3cret"}')
    assert "s3cret" not in str(fields)


def test_ids_are_unique_and_in_order() -> None:
    """Of one millisecond too, of different ones in their order."""
    assert record.turn_id(0x0192_3456_789A, bytes(10)) == "01923456-789a-7000-8000-000000000000"
    assert record.turn_id(0x0192_3456_789A, b"\xff" * 10) == "01923456-789a-7fff-bfff-ffffffffffff"
    turn = TurnRecord("conn_1", TurnEnded(1, None, 0), 1.0, None)
    now = time.time()
    ids = [orjson.loads(record.entry(turn, {}, None, now + tick / 500).payload)["id"] for tick in range(100)]
    assert ids == sorted(set(ids))
    assert len({orjson.loads(record.entry(turn, {}, None, now).payload)["id"] for _ in range(100)}) == 100
