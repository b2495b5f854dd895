"""Gaps: what an event lacks, what it would be, and that nothing else is touched."""

from __future__ import annotations

import json

import pytest

from proxy.protocol import gaps, shapes
from proxy.protocol.gaps import Counters

DELTA = b'{"type":"response.output_text.delta","item_id":"m","delta":"x"}'


def missing(data: bytes, *, numbered: bool = False) -> tuple[str, ...]:
    """What an event lacks."""
    shape = shapes.event(data)
    assert isinstance(shape.type, str)
    return gaps.missing_members(shape.type, shape, numbered=numbered)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (DELTA, ("sequence_number", "output_index", "content_index", "logprobs")),
        (b'{"type":"response.created","response":{}}', ("sequence_number",)),
        (b'{"type":"response.created","sequence_number":0,"response":{}}', ()),
        (
            b'{"type":"response.function_call_arguments.delta","item_id":"f","delta":"x"}',
            ("sequence_number", "output_index"),
        ),
        (
            b'{"type":"response.reasoning_summary_text.delta","output_index":0,"delta":"x"}',
            ("sequence_number", "item_id", "summary_index"),
        ),
        (b'{"type":"keepalive"}', ()),
        (b'{"type":"codex.rate_limits"}', ()),
    ],
)
def test_missing_members_are_those_that_clients_require(data: bytes, expected: tuple[str, ...]) -> None:
    """By the type's own table; an unknown type is complete as it is."""
    assert missing(data) == expected


def test_number_is_not_invented_in_a_numbered_stream() -> None:
    """Where the backend counts, an event without a number stays without."""
    assert "sequence_number" not in missing(DELTA, numbered=True)


def test_counters_know_where_an_item_stands() -> None:
    """Items are numbered as they begin; what ends later keeps its number (llama.cpp ends reasoning after a message began)."""
    counters = Counters()
    counters.item_seen("rs", None)
    counters.item_seen("msg", None)
    event = b'{"item_id":"%b"}'
    assert counters.prefix(("output_index",), event % b"rs") == b'"output_index":0,'
    assert counters.prefix(("output_index",), event % b"msg") == b'"output_index":1,'
    counters.item_seen("rs", None)
    assert counters.prefix(("output_index",), b"{}") == b'"output_index":0,'


def test_counters_follow_the_backends_own_indexes() -> None:
    """Transformers begins at 1: what it says counts, and what comes after is put behind it."""
    counters = Counters()
    counters.item_seen("a", b"1")
    counters.item_seen("b", None)
    assert counters.prefix(("output_index",), b'{"item_id":"a"}') == b'"output_index":1,'
    assert counters.prefix(("output_index",), b'{"item_id":"b"}') == b'"output_index":2,'
    counters.item_seen("c", b"9" * 5000)  # nonsense is no index
    assert counters.prefix(("output_index",), b'{"item_id":"c"}') == b'"output_index":3,'


def test_counters_number_parts_within_their_item() -> None:
    """The second part of an item has index 1, whatever other items do."""
    counters = Counters()
    assert counters.prefix(("content_index",), b'{"item_id":"a"}') == b'"content_index":0,'
    counters.part_added("a")
    counters.part_added("b")
    counters.part_added("a")
    assert counters.prefix(("content_index",), b'{"item_id":"a"}') == b'"content_index":1,'
    assert counters.prefix(("summary_index",), b'{"item_id":"b"}') == b'"summary_index":0,'


def test_item_id_of_a_delta_is_read_past_text_that_looks_like_one() -> None:
    """Text inside a delta has its quotes escaped, so it cannot be mistaken for a member."""
    counters = Counters()
    counters.item_seen("real", None)
    event = json.dumps({"delta": '"item_id":"fake"', "item_id": "real"}).encode()
    assert counters.prefix(("output_index",), event) == b'"output_index":0,'


def test_missing_item_id_is_that_of_the_current_item() -> None:
    """An event that names no item belongs to the one that began last."""
    counters = Counters()
    counters.item_seen("m", None)
    assert counters.prefix(("item_id",), b"{}") == b'"item_id":"m",'


MESSAGE = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": []}


@pytest.mark.parametrize(
    ("item", "added"),
    [
        (MESSAGE, {}),
        ({"type": "message", "id": "m"}, {"role": "assistant", "content": [], "status": "in_progress"}),
        ({**MESSAGE, "status": None}, {"status": "in_progress"}),
        (
            {**MESSAGE, "content": [{"type": "output_text", "text": "x"}, {"type": "refusal", "refusal": "no"}]},
            {
                "content": [
                    {"type": "output_text", "text": "x", "annotations": []},
                    {"type": "refusal", "refusal": "no"},
                ]
            },
        ),
        (
            {"type": "function_call", "id": "f", "call_id": "c", "name": "n"},
            {"arguments": "", "status": "in_progress"},
        ),
        ({"type": "reasoning", "id": "r", "content": []}, {"summary": []}),
        ({"type": "web_search_call", "id": "w"}, {}),
        ({"id": "untyped"}, {}),
    ],
)
def test_items_get_what_they_lack(item: dict[str, object], added: dict[str, object]) -> None:
    """Known kinds get their required members, unknown kinds are left alone, and a whole item is the same bytes."""
    raw = json.dumps(item).encode()
    filled = gaps.fill_item(raw, "in_progress")
    assert json.loads(filled) == {**item, **added}
    assert (filled is raw) is not bool(added) or not added


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "output_text"}, {"type": "output_text", "text": "", "annotations": []}),
        (
            {"type": "output_text", "text": "x", "annotations": []},
            {"type": "output_text", "text": "x", "annotations": []},
        ),
        ({"type": "reasoning_text", "text": "x"}, {"type": "reasoning_text", "text": "x"}),
    ],
)
def test_parts_get_what_they_lack(part: dict[str, object], expected: dict[str, object]) -> None:
    """An `output_text` has text and annotations."""
    assert json.loads(gaps.fill_part(json.dumps(part).encode())) == expected
