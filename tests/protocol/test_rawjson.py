"""JSON taken apart one level at a time: what comes out is what went in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol import rawjson
from proxy.protocol.rawjson import Head, InvalidJSON

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("data", "pairs"),
    [
        (b"{}", []),
        (b' \n{ "a" :\t[1 ,\n2 ] } \r\n', [("a", b"[1 ,\n2 ]")]),
        (b'{"a":1,"a":2}', [("a", b"1"), ("a", b"2")]),
        (b'{"\\u0061":null}', [("a", b"null")]),
        (b'{"n":123456789012345678901234567890}', [("n", b"123456789012345678901234567890")]),
        (b'{"x":"\\ud83d","y":{"z":"\\udc00"}}', [("x", b'"\\ud83d"'), ("y", b'{"z":"\\udc00"}')]),
        (b'{ "x" : "\\ud83d" , "x" : 1e999 }', [("x", b'"\\ud83d"'), ("x", b"1e999")]),
        (b'{"x":"\\ud83d","n":' + b"9" * 5000 + b"}", [("x", b'"\\ud83d"'), ("n", b"9" * 5000)]),
        ('{"x":"\u2028\U0001f600"}'.encode(), [("x", '"\u2028\U0001f600"'.encode())]),
    ],
)
def test_object_is_taken_apart(data: bytes, pairs: list[tuple[str, bytes]]) -> None:
    """Members come out in order, with their raw values, twins included."""
    assert rawjson.split_object(data) == pairs


def test_surrogate_in_a_name_is_kept() -> None:
    """A name may hold a lone surrogate; put together again it is an escape."""
    assert rawjson.split_object(b'{"\\ud83d":1}') == [("\ud83d", b"1")]
    assert rawjson.join_object([("\ud83d", b"1")]) == b'{"\\ud83d":1}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[1]",
        b'"a"',
        b"null",
        b'{"a":1} x',
        b'{"a":}',
        b'{"a":01}',
        b'{"a":NaN}',
        b'{"a":"\x01"}',
        b'{"a":"\\x"}',
        b'{"a":1,}',
        b'{"a" 1}',
        b'\xef\xbb\xbf{"a":1}',
        # The same kinds of mistake where the slower way has to find them.
        b'{"x":"\\ud83d"',
        b'{"x":"\\ud83d"} x',
        b'{"x":"\\ud83d",}',
        b'{"x":"\\ud83d","a":NaN}',
        b'{"x":"\\ud83d","a":-Infinity}',
        b'{"x":"\\ud83d" "a":1}',
        b'{"x":"\\ud83d","a"}',
        b'{"x":"\\ud83d","a":"\x01"}',
        b'{"x":"\\ud83d",1:2}',
        b'["\\ud83d"]',
        b'{"x":"\\ud83d","a":"\xff"}',
        b'{"x":"\\ud83d","a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_what_is_no_object_is_refused(data: bytes) -> None:
    """Malformed text, another kind of value and bottomless nesting are refused with a reason."""
    with pytest.raises(InvalidJSON) as caught:
        rawjson.split_object(data)
    assert str(caught.value)


def test_too_many_members_are_refused_before_they_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breadth is bounded, and quotes inside text do not count."""
    monkeypatch.setattr(rawjson, "MAX_MEMBERS", 100)
    wide = b"{" + b",".join(b'"%d":1' % number for number in range(300)) + b"}"
    with pytest.raises(InvalidJSON, match="too many members"):
        rawjson.split_object(wide)
    quotes = json.dumps({"text": '"' * 1000}).encode()
    assert len(rawjson.split_object(quotes)) == 1
    with pytest.raises(InvalidJSON, match="too many elements"):
        rawjson.split_items(b"[" + b",".join([b"{}"] * 500) + b"]")
    with pytest.raises(InvalidJSON, match="too many elements"):
        rawjson.split_items(b'[{"x":"\\ud83d"},' + b",".join([b"1"] * 200) + b"]")


@pytest.mark.parametrize(
    ("data", "items", "heads"),
    [
        (b"[]", [], []),
        (
            b'[ {"type":"message","id":"m"} , {"call_id":"c"}]',
            [b'{"type":"message","id":"m"}', b'{"call_id":"c"}'],
            [Head("message", "m", None), Head(None, None, "c")],
        ),
        (b'[{"type":5,"id":null,"call_id":"c"}]', [b'{"type":5,"id":null,"call_id":"c"}'], [Head(None, None, "c")]),
        (b'[{"type":"x","t":"\\ud83d"}]', [b'{"type":"x","t":"\\ud83d"}'], [Head("x", None, None)]),
        (b'[{"id":"\\ud83d"}]', [b'{"id":"\\ud83d"}'], [Head(None, "\ud83d", None)]),
        (b'[{"id":"a\\u0062"}]', [b'{"id":"a\\u0062"}'], [Head(None, "ab", None)]),
    ],
)
def test_items_are_taken_apart_with_their_heads(data: bytes, items: list[bytes], heads: list[Head]) -> None:
    """Each item comes out raw, and what is known of it beside it."""
    assert rawjson.split_items(data) == (items, heads)
    assert [rawjson.head(item) for item in items] == heads


@pytest.mark.parametrize(
    "data", [b"{}", b"[1]", b'[{},"x"]', b"[{}", b'["\\ud83d"]', b"[{}]]", b'[{"x":"\\ud83d"}', b"[" * 9999]
)
def test_what_is_no_list_of_objects_is_refused(data: bytes) -> None:
    """An array whose elements are not all objects is refused."""
    with pytest.raises(InvalidJSON) as caught:
        rawjson.split_items(data)
    assert str(caught.value)


@pytest.mark.parametrize(
    ("raw", "value"), [(b'"a"', "a"), (b'"\\u00e9\\n"', "é\n"), (b'"\\ud83d"', "\ud83d"), (b"5", None), (b"", None)]
)
def test_string_reads_strings_only(raw: bytes, value: str | None) -> None:
    """A raw string gives its value; anything else gives None."""
    assert rawjson.string(raw) == value


def test_dumps_writes_what_utf8_cannot_hold() -> None:
    """A lone surrogate in the proxy's own words becomes an escape."""
    assert rawjson.dumps({"a": "\ud83d"}) == b'{"a":"\\ud83d"}'


@given(st.dictionaries(st.text(), VALUES, max_size=6), st.sampled_from([None, 1]), st.booleans())
def test_object_survives_being_taken_apart(value: dict[str, Any], indent: int | None, ascii_only: bool) -> None:  # noqa: FBT001
    """Taken apart and put together, an object means the same, however it was written."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    try:
        data = text.encode()
    except UnicodeEncodeError:  # a lone surrogate that was not escaped: no client can send that
        return
    assert json.loads(rawjson.join_object(rawjson.split_object(data))) == value


@given(st.lists(st.dictionaries(st.text(), VALUES, max_size=3), max_size=5))
def test_items_survive_being_taken_apart(value: list[dict[str, Any]]) -> None:
    """Every item's bytes are a part of the array's bytes and mean the same."""
    data = json.dumps(value).encode()
    items, heads = rawjson.split_items(data)
    assert [json.loads(item) for item in items] == value
    assert len(heads) == len(items)
    assert all(item in data for item in items)
