"""What is kept of a turn for whoever looks into it: both sides, and no more than is bearable."""

from __future__ import annotations

import json
from typing import Any

from proxy.protocol import inspection, request
from proxy.protocol.inspection import MAX_PART_BYTES, MAX_PARTS, MAX_SIDE_BYTES, Part
from proxy.protocol.messages import Create, open_frame, read_create
from proxy.protocol.rawjson import Head
from proxy.protocol.transcript import extend


def create(**members: Any) -> Create:
    """A create with these members."""
    return read_create(open_frame(json.dumps({"type": "response.create", **members}).encode()), max_items=10_000)


def test_client_side_is_what_the_client_sent() -> None:
    """Its fields and its items, each with its size; what it continues is one of them."""
    asked = create(model="m", previous_response_id="resp_1", input=[{"role": "user", "content": "hé"}, {"type": "x"}])
    side = inspection.of_create(asked).sent
    assert side.parts == (
        Part("field", "previous_response_id", None, 8, '"resp_1"'),
        Part("field", "model", None, 3, '"m"'),
        Part("item", "message", "user", len(asked.items[0]), '{"role": "user", "content": "h\\u00e9"}'),
        Part("item", "x", None, 13, '{"type": "x"}'),
    )
    assert side.omitted == 0
    assert inspection.of_create(asked).upstream is None


def test_other_side_is_what_went_upstream() -> None:
    """It is read from the request's own bytes: what was remembered is in it, in its place."""
    base = extend(None, [b'{"type":"old","role":"user"}'], [Head("old")])
    body = request.build([("model", b'"m"')], base, [b'{"type":"new"}'])
    side = inspection.of_request(body)
    assert [(part.kind, part.name, part.role) for part in side.parts] == [
        ("field", "model", None),
        ("field", "stream", None),
        ("item", "old", "user"),
        ("item", "new", None),
    ]


def test_what_is_kept_is_bounded() -> None:
    """Long parts lose their ends, many parts their first ones, and the newest have their text before all others."""
    items = [{"type": f"t{number}", "text": "é" * 3000} for number in range(MAX_PARTS + 7)]
    side = inspection.of_create(create(instructions="x" * 100_000, input=items)).sent
    assert side.omitted == 7
    assert len(side.parts) == MAX_PARTS + 1
    assert sum(len(part.text.encode()) for part in side.parts) <= MAX_SIDE_BYTES
    assert all(len(part.text.encode()) <= MAX_PART_BYTES for part in side.parts)
    assert side.parts[-1].text.startswith('{"type": "t206"')
    assert side.parts[0].text == ""
    assert side.parts[0].size == 100_002


def test_text_is_cut_between_characters() -> None:
    """Half a character is none."""
    item = b'{"x":"' + "é".encode() * 5000 + b'"}'
    body = request.build([], None, [item])
    (_, part) = inspection.of_request(body).parts
    assert part.text == '{"x":"' + "é" * ((MAX_PART_BYTES - 6) // 2)


def test_body_that_cannot_be_read_is_none_of_its_business() -> None:
    """A turn does not fail for what somebody wants to see of it."""
    body = request.build([], None, [b"no json"])
    assert inspection.of_request(body) == inspection.Side(omitted=1)
