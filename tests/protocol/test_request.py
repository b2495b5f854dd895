"""The upstream request: one order of fields, raw bytes, and what a backend does not take."""

from __future__ import annotations

import json

import pytest

from proxy.protocol import rawjson, request
from proxy.protocol.profiles import PROFILES, RequestRules
from proxy.protocol.rawjson import Pairs
from proxy.protocol.transcript import Transcript, extend


def test_fields_stand_in_one_order() -> None:
    """Tools and instructions first, the others by name, input last: however the client orders them."""
    fields = [("temperature", b"0"), ("instructions", b'"i"'), ("model", b'"m"'), ("tools", b"[]"), ("a", b"1")]
    expected = b'{"tools":[],"instructions":"i","a":1,"model":"m","temperature":0,"stream":true,"input":[]}'
    assert request.build(fields, None, []).body() == expected
    assert request.build(list(reversed(fields)), None, []).body() == expected


@pytest.mark.parametrize(
    ("turns", "items", "expected"),
    [
        ([], [], b"[]"),
        ([], [b"1", b"2"], b"[1,2]"),
        ([[b"1", b"2"]], [], b"[1,2]"),
        ([[b"1"], [b"2", b"3"]], [b"4"], b"[1,2,3,4]"),
    ],
)
def test_input_is_the_transcript_and_the_new_items(
    turns: list[list[bytes]], items: list[bytes], expected: bytes
) -> None:
    """What came before, then what is new, with a comma between any two items."""
    transcript: Transcript = None
    for turn in turns:
        transcript = extend(transcript, turn, [rawjson.Head()] * len(turn))
    built = request.build([], transcript, items)
    assert built.body() == b'{"stream":true,"input":' + expected + b"}"
    assert built.size == len(built.body())
    assert built.replayed_items == sum(map(len, turns))
    assert built.replayed_bytes == len(b",".join(b",".join(turn) for turn in turns))
    assert built.new_items == len(items)


@pytest.mark.parametrize(("stream", "expected"), [(b"false", b'"stream":false,'), (None, b"")])
def test_stream_is_what_the_client_said(stream: bytes | None, expected: bytes) -> None:
    """Over HTTP it may want one piece, or say nothing."""
    assert request.build([("a", b"1")], None, [], stream).body() == b'{"a":1,' + expected + b'"input":[]}'


def test_names_are_written_as_json() -> None:
    """A field's name may need escapes."""
    body = request.build([('a"b', b"1")], None, []).body()
    assert json.loads(body) == {'a"b': 1, "stream": True, "input": []}


@pytest.mark.parametrize(
    ("profile", "drop", "keep", "left"),
    [
        ("generic", (), (), ["model", "other"]),
        ("openai", (), (), ["model", "client_metadata", "other"]),
        ("generic", ("other",), (), ["model"]),
        ("generic", ("other",), ("client_metadata",), ["model", "client_metadata"]),
        ("generic", ("other",), ("other",), ["model", "other"]),
    ],
)
def test_fields_a_backend_refuses_are_left_out(
    profile: str, drop: tuple[str, ...], keep: tuple[str, ...], left: list[str]
) -> None:
    """The profile drops, the operator adds to that and takes away from it."""
    fields: Pairs = [("model", b'"m"'), ("client_metadata", b"{}"), ("other", b"1")]
    rules = RequestRules.of(PROFILES[profile], drop=frozenset(drop), keep=frozenset(keep))
    assert [name for name, _ in request.admit_fields(fields, rules)] == left


WITH_TEXT = b'{"type":"reasoning","content":[{"type":"reasoning_text","text":"t"}],"encrypted_content":"x"}'
WITHOUT_TEXT = b'{"type":"reasoning","summary":[],"content":null,"encrypted_content":"x"}'


@pytest.mark.parametrize(
    ("profile", "item", "admitted"),
    [
        ("generic", WITHOUT_TEXT, WITHOUT_TEXT),
        ("generic", b'{"type":"reasoning","summary":[ ],"content":null,"encrypted_content":""}', None),
        ("generic", b'{"type":"reasoning","summary":[{}]}', b'{"type":"reasoning","summary":[{}]}'),
        ("openai", b'{"type":"reasoning"}', b'{"type":"reasoning"}'),
        ("llamacpp", WITH_TEXT, WITH_TEXT),
        ("llamacpp", WITHOUT_TEXT, None),
        ("llamacpp", b'{"type":"reasoning","content":[ ]}', None),
        ("llamacpp", b'{"type":"reasoning"}', None),
        ("vllm", WITHOUT_TEXT, b'{"type":"reasoning","summary":[],"content":null}'),
        ("vllm", b'{"type":"reasoning","encrypted_content":null}', b'{"type":"reasoning","encrypted_content":null}'),
        ("vllm", b'{"type":"message"}', b'{"type":"message"}'),
    ],
)
def test_reasoning_is_put_into_the_form_a_backend_takes(profile: str, item: bytes, admitted: bytes | None) -> None:
    """llama.cpp wants text in `content`, vLLM no `encrypted_content`; nobody needs an item that holds nothing."""
    rules = RequestRules.of(PROFILES[profile])
    items, heads = request.admit_items([item, b'{"role":"user"}'], [rawjson.head(item), rawjson.Head()], rules)
    assert items == ([admitted] if admitted is not None else []) + [b'{"role":"user"}']
    assert len(heads) == len(items)


@pytest.mark.parametrize("before", [[], [b"{}"], [b'{"a":1}', b'{"b":2}']])
@pytest.mark.parametrize("items", [[], [b'{"c":3}']])
def test_size_is_that_of_the_body(before: list[bytes], items: list[bytes]) -> None:
    """Known without splicing what came before."""
    fields = [("model", b'"m"')]
    transcript = extend(None, before, [rawjson.Head()] * len(before))
    assert request.size(fields, transcript, items) == request.build(fields, transcript, items).size
