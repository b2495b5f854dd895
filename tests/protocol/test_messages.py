"""A client's frames: what steers the turn, and what goes on as it came."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.protocol.errors import InvalidMessage, InvalidStreamId
from proxy.protocol.messages import Create, open_frame, read_append, read_create
from proxy.protocol.rawjson import Head


def read(max_items: int = 100, **fields: Any) -> Create:
    """A create of these fields."""
    return read_create(open_frame(json.dumps({"type": "response.create", **fields}).encode()), max_items=max_items)


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 256])
def test_lane_names_are_taken(name: str) -> None:
    """1 to 256 of letters, digits, underscore, hyphen and period."""
    assert read(stream_id=name).stream_id == name


@pytest.mark.parametrize("name", ["", "a b", "x" * 257, "é", "a/b", "a\n", 5, [], True])
def test_other_lane_names_are_refused(name: object) -> None:
    """Anything else is an error of its own."""
    with pytest.raises(InvalidStreamId):
        read(stream_id=name)


def test_null_lane_is_the_default_lane() -> None:
    """`stream_id: null` means that there is none."""
    assert read(stream_id=None).stream_id is None


@pytest.mark.parametrize(
    ("value", "items", "heads"),
    [
        ("hi", [b'{"type":"message","role":"user","content":"hi"}'], [Head("message")]),
        ([], [], []),
        (None, [], []),
        ([{"role": "user"}], [b'{"role": "user"}'], [Head()]),
    ],
)
def test_input_may_be_text_list_or_nothing(value: object, items: list[bytes], heads: list[Head]) -> None:
    """Text becomes one user message; items stay as they are."""
    create = read(input=value)
    assert create.items == items
    assert create.heads == heads


def test_input_may_be_left_out() -> None:
    """A create without input is one with an empty input."""
    assert read().items == []


def test_input_is_bounded_in_items() -> None:
    """More items than allowed are refused, with both numbers."""
    with pytest.raises(InvalidMessage, match="has 3 items; at most 2"):
        read(2, input=[{}, {}, {}])


@pytest.mark.parametrize(
    ("fields", "is_warmup"),
    [
        ({}, False),
        ({"generate": None}, False),
        ({"generate": True}, False),
        ({"generate": False}, True),
        ({"prompt_cache_options": {"prewarm": True}}, True),
        ({"prompt_cache_options": {"prewarm": False}}, False),
        ({"prompt_cache_options": {"mode": "x"}}, False),
        ({"prompt_cache_options": None}, False),
        ({"generate": True, "prompt_cache_options": {"prewarm": True}}, True),
    ],
)
def test_warmups_are_recognised(fields: dict[str, Any], is_warmup: bool) -> None:  # noqa: FBT001
    """`generate: false` and `prewarm: true` ask for a warm-up."""
    assert read(**fields).is_warmup is is_warmup


def test_prewarm_alone_is_taken_out_of_the_cache_options() -> None:
    """The other cache options go on byte for byte; where none is left, the field goes too."""
    assert dict(read(prompt_cache_options={"prewarm": True}).fields) == {}
    options = dict(read(prompt_cache_options={"mode": "x", "prewarm": False, "ttl": "30m"}).fields)
    assert json.loads(options["prompt_cache_options"]) == {"mode": "x", "ttl": "30m"}
    assert dict(read(prompt_cache_options={"ttl": "30m"}).fields) == {"prompt_cache_options": b'{"ttl": "30m"}'}


def test_transport_fields_are_not_handed_on() -> None:
    """What exists on the socket only never reaches a backend; the rest does, in the client's order."""
    create = read(
        zeta=1,
        stream=True,
        background=False,
        generate=True,
        stream_id="x",
        previous_response_id="resp_1",
        input=[],
        model="m",
        client_metadata={},
    )
    assert [name for name, _ in create.fields] == ["zeta", "model", "client_metadata"]
    assert create.previous_response_id == "resp_1"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"generate": 0}, "generate"),
        ({"background": "no"}, "background"),
        ({"prompt_cache_options": {"prewarm": 1}}, "prompt_cache_options.prewarm"),
        ({"previous_response_id": 7}, "previous_response_id"),
        ({"input": True}, "input"),
        ({"input": {"type": "message"}}, "input"),
        ({"input": ["text"]}, "input"),
    ],
)
def test_wrong_types_name_the_field(fields: dict[str, Any], param: str) -> None:
    """A field that steers the turn and has another type is refused by name."""
    with pytest.raises(InvalidMessage) as caught:
        read(**fields)
    assert caught.value.param == param
    assert caught.value.code == "invalid_type"


def test_metadata_of_the_client_is_at_hand() -> None:
    """Raw, of an append too; none is empty."""
    appended = open_frame(b'{"type":"response.append","input":[],"client_metadata": {"b": 2}}')
    assert read(client_metadata={"a": 1}).metadata == b'{"a": 1}'
    assert read_append(appended, max_items=1).metadata == b'{"b": 2}'
    assert read().metadata == b""


def test_size_is_that_of_the_frame() -> None:
    """White space counts: it is what the client sent."""
    data = b'{ "type" : "response.create" }'
    assert read_create(open_frame(data), max_items=1).size == len(data)
