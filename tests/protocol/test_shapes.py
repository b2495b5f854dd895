"""Shapes: they take what lacks nothing, and only that."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import UNSET

from proxy.protocol import shapes
from proxy.protocol.rawjson import Head, InvalidJSON
from tests import openresponses


def raw(value: Any) -> bytes:
    """JSON as a backend writes it."""
    return json.dumps(value).encode()


def test_event_members_are_found_or_unset() -> None:
    """What the relay looks at comes out raw; what is absent is UNSET, and other members are skipped."""
    shape = shapes.event(b'{"x":[1],"type":"t","output_index":3,"delta":"d"}')
    assert shape.type == "t"
    assert bytes(shape.output_index) == b"3"  # type: ignore[arg-type]
    assert shape.item is UNSET


@pytest.mark.parametrize(
    "data", [b'{"type":"t","delta":"\\ud83d","item_id":"m"}', b'{"type":"t","item_id":"m","x":"\\ud83d"}']
)
def test_event_with_a_lone_surrogate_is_read_the_slower_way(data: bytes) -> None:
    """A cut emoji in a delta is no reason to lose it."""
    shape = shapes.event(data)
    assert shape.type == "t"
    assert bytes(shape.item_id) == b'"m"'  # type: ignore[arg-type]


def test_event_type_of_another_kind_is_none() -> None:
    """A `type` that is no string is as good as none."""
    assert shapes.event(b'{"type":5}').type is UNSET


@pytest.mark.parametrize("data", [b"[]", b"{", b"5", b'{"a":}'])
def test_what_is_no_object_is_no_event(data: bytes) -> None:
    """Anything but an object is refused."""
    with pytest.raises(InvalidJSON):
        shapes.event(data)


@pytest.mark.parametrize(
    "item",
    [
        {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": []},
        {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "x", "annotations": [], "more": 1}],
        },
        {"type": "function_call", "id": "f", "call_id": "c", "name": "n", "arguments": "", "status": "completed"},
        {"type": "reasoning", "id": "r", "summary": []},
    ],
)
def test_whole_items_are_taken_and_each_lack_is_noticed(item: dict[str, Any]) -> None:
    """A strict client would take it; without any one of its members neither the client nor the shape does."""
    assert openresponses.item_problems(item) == []
    assert shapes.item(raw(item)) == Head(item["type"], item["id"], item.get("call_id"))
    for name in item:
        lacking = {key: value for key, value in item.items() if key != name}
        assert openresponses.item_problems(lacking)
        assert shapes.item(raw(lacking)) is None


@pytest.mark.parametrize("item", [{"type": "web_search_call", "id": "w"}, {}, [], "x"])
def test_unknown_items_take_the_long_way(item: object) -> None:
    """A kind that is not known here is not called whole."""
    assert shapes.item(raw(item)) is None


def test_usage_with_all_details_is_taken() -> None:
    """Token counts are whole with their details, and not without."""
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 3,
    }
    assert shapes.usage(raw(usage)) is not None
    for name in usage:
        assert shapes.usage(raw({key: value for key, value in usage.items() if key != name})) is None


@pytest.mark.parametrize("value", [{"text": None}, {"tools": None}, {"temperature": "hot"}, [], "x"])
def test_response_with_null_where_there_may_be_none_takes_the_long_way(value: object) -> None:
    """Null in a member that cannot be null is a gap."""
    assert shapes.response(raw(value)) is None


def test_response_may_lack_anything() -> None:
    """What is there is of the right kind, what is not is UNSET."""
    shape = shapes.response(b'{"id":"r","error":null}')
    assert shape is not None
    assert shape.id == "r"
    assert shape.output is UNSET


def test_text_parts_are_told_from_others() -> None:
    """Only an `output_text` with text and annotations is whole."""
    assert shapes.is_full_text_part(b'{"type":"output_text","text":"","annotations":[]}')
    assert not shapes.is_full_text_part(b'{"type":"output_text","text":""}')
    assert not shapes.is_full_text_part(b'{"type":"refusal","refusal":""}')
