r"""JSON taken apart one level at a time, its values kept as the bytes they came in.

msgspec finds the byte ranges of an object's or array's members in C, at about half a nanosecond a byte, without building
anything for what lies inside them. It refuses one thing that valid JSON may hold: a lone surrogate escape
(``"\ud83d"``, what JavaScript writes for an emoji cut in half). For such text there is a slower way through the
standard library's scanner, which gives the same ranges.

What is kept as it came: white space inside values, key order, numbers of any size, ``null``, and members that share a
name. What is not: white space between the members of the level that is taken apart.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import msgspec
import orjson

Pairs = list[tuple[str, bytes]]
"""The members of one object: (name, raw value), in the order in which they came; a name may occur twice."""

MAX_MEMBERS = 1_000_000
"""How many members one level may have.

A backstop against breadth: a member costs some 100 bytes here, while it costs its sender two or three. It is estimated
before anything is built, from characters that also occur in text, so only levels of more than a megabyte are looked at.
"""

_SHORT = 64
"""Names of fewer characters are remembered as JSON: the same few come again and again. Longer ones could take memory."""

_LONE_SURROGATE_POSSIBLE = re.compile(rb"\\u[dD][89a-fA-F]")
_BACKSLASH = 0x5C
_WHITESPACE = re.compile(r"[ \t\n\r]*")


class InvalidJSON(Exception):
    """Text that is not the JSON it should be; ``str()`` says why, in words for the sender."""


class _Name(str):
    """An object's member name that is equal to no other, so that a dict keeps members that share a name."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Head(NamedTuple):
    """What the proxy needs to know of an item: its `type`, its own `id`, the `call_id` that pairs calls and outputs.

    A member that is absent, or no string, is None.
    """

    type: str | None = None
    id: str | None = None
    call_id: str | None = None


class _Head(msgspec.Struct):
    type: str | None = None
    id: str | None = None
    call_id: str | None = None


class AnyObject(msgspec.Struct):
    """Any object; its members are skipped."""


# The hook is called with the type and the text, and makes the one from the other: no frame of ours for each member.
_object_decoder = msgspec.json.Decoder(dict[_Name, msgspec.Raw], dec_hook=operator.call)
_array_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_object_array_decoder = msgspec.json.Decoder(list[AnyObject])
_head_decoder = msgspec.json.Decoder(_Head)
_heads_decoder = msgspec.json.Decoder(list[_Head])


def split_object(data: bytes) -> Pairs:
    """Take an object apart.

    Args:
        data: UTF-8 text of one JSON value.

    Returns:
        Its members, values as raw bytes.

    Raises:
        InvalidJSON: it is no JSON, no object, nested too deeply, or has too many members.
    """
    if len(data) > MAX_MEMBERS and data.count(b'"') - data.count(b'\\"') > 2 * MAX_MEMBERS:
        raise InvalidJSON("the object has too many members")
    try:
        return [(str(name), bytes(value)) for name, value in _object_decoder.decode(data).items()]
    except msgspec.ValidationError:
        raise InvalidJSON("it is not a JSON object") from None
    except msgspec.DecodeError as exc:
        return _Scanner(data, str(exc)).object()
    except RecursionError:
        raise InvalidJSON("it is nested too deeply") from None


def split_items(data: bytes) -> tuple[list[bytes], list[Head]]:
    """Take an array of objects apart.

    Args:
        data: UTF-8 text of one JSON value.

    Returns:
        Its elements as raw bytes, and the head of each.

    Raises:
        InvalidJSON: it is no JSON, no array of objects, nested too deeply, or has too many elements.
    """
    if len(data) > MAX_MEMBERS and data.count(b"{") > 4 * MAX_MEMBERS:
        raise InvalidJSON("the array has too many elements")
    try:
        heads = [Head(found.type, found.id, found.call_id) for found in _heads_decoder.decode(data)]
        return [bytes(element) for element in _array_decoder.decode(data)], heads
    except msgspec.ValidationError:
        return _split_odd_items(data)
    except msgspec.DecodeError as exc:
        items = _Scanner(data, str(exc)).array()
        return items, [head(item) for item in items]
    except RecursionError:
        raise InvalidJSON("it is nested too deeply") from None


def _split_odd_items(data: bytes) -> tuple[list[bytes], list[Head]]:
    """Items of which one is no object, or has a head whose members are no strings."""
    try:
        _object_array_decoder.decode(data)
    except msgspec.ValidationError:
        raise InvalidJSON("it is not an array of JSON objects") from None
    items = [bytes(element) for element in _array_decoder.decode(data)]
    return items, [head(item) for item in items]


def head(item: bytes) -> Head:
    """Read the head of an item.

    Raises:
        InvalidJSON: it is not a JSON object.
    """
    try:
        found = _head_decoder.decode(item)
    except (msgspec.DecodeError, RecursionError):
        members = dict(split_object(item))
        return Head(*(string(members.get(name, b"")) for name in Head._fields))
    return Head(found.type, found.id, found.call_id)


def string(raw: bytes) -> str | None:
    """The value of a raw string, or None for any other kind of value."""
    if raw[:1] != b'"':
        return None
    if _BACKSLASH not in raw:
        return raw[1:-1].decode()
    value = json.loads(raw)
    assert isinstance(value, str)
    return value


def is_utf8(data: bytes) -> bool:
    """Whether bytes are text at all; `data.isascii() or …` in front of it saves the call for most."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def join_object(pairs: Iterable[tuple[str, bytes]]) -> bytes:
    """Put an object together again; the values go in as they are."""
    return (
        b"{"
        + b",".join([(_short_key(name) if len(name) < _SHORT else dumps(name) + b":") + value for name, value in pairs])
        + b"}"
    )


def dumps(value: Any) -> bytes:
    """JSON for what the proxy itself says; lone surrogates, which UTF-8 cannot hold, become escapes."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()


@lru_cache(maxsize=1024)
def _short_key(name: str) -> bytes:
    return dumps(name) + b":"


class _Scanner:
    """The slower way: for text that msgspec refuses although it may be JSON.

    Args:
        data: The text.
        reason: Why msgspec refused it.

    Raises:
        InvalidJSON: nothing in it could be a lone surrogate, so that msgspec was right.
    """

    def __init__(self, data: bytes, reason: str) -> None:
        if not _LONE_SURROGATE_POSSIBLE.search(data):
            raise InvalidJSON(reason.removeprefix("JSON is malformed: "))
        try:
            self._text = data.decode()
        except UnicodeDecodeError:
            raise InvalidJSON("it is not valid UTF-8") from None
        self._at = 0
        # Numbers are only stepped over: as text they have no limit of size.
        self._scan = json.JSONDecoder(
            parse_int=str, parse_float=str, parse_constant=_refuse_constant, object_pairs_hook=len
        ).raw_decode

    def object(self) -> Pairs:
        pairs: Pairs = []
        self._open("{", "object")
        if self._close("}"):
            return pairs
        while True:
            if self._skip() != '"':
                self._fail("a member needs a name")
            name = self._string()
            if self._skip() != ":":
                self._fail("expected ':'")
            self._at += 1
            pairs.append((name, self._value()))
            if self._close("}"):
                return pairs
            self._comma()

    def array(self) -> list[bytes]:
        elements: list[bytes] = []
        self._open("[", "array")
        if self._close("]"):
            return elements
        while len(elements) < MAX_MEMBERS:
            elements.append(self._value())
            if self._close("]"):
                return elements
            self._comma()
        raise InvalidJSON("the array has too many elements")

    def _open(self, bracket: str, kind: str) -> None:
        if self._skip() != bracket:
            raise InvalidJSON(f"it is not a JSON {kind}")
        self._at += 1

    def _close(self, bracket: str) -> bool:
        """Whether the level ends here; nothing may follow it."""
        if self._skip() != bracket:
            return False
        self._at += 1
        if self._skip():
            self._fail("trailing characters")
        return True

    def _comma(self) -> None:
        if self._skip() != ",":
            self._fail("expected ','")
        self._at += 1

    def _string(self) -> str:
        name = string(self._value())
        assert name is not None
        return name

    def _value(self) -> bytes:
        self._skip()
        start = self._at
        try:
            _, self._at = self._scan(self._text, start)
        except json.JSONDecodeError as exc:
            self._fail(exc.msg)
        except RecursionError:
            raise InvalidJSON("it is nested too deeply") from None
        return self._text[start : self._at].encode()

    def _skip(self) -> str:
        """Step over white space; the next character, or nothing at the end."""
        match = _WHITESPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return self._text[self._at : self._at + 1]

    def _fail(self, reason: str) -> NoReturn:
        raise InvalidJSON(f"{reason} (character {self._at})")


def _refuse_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is not JSON", name, 0)
