"""Answers over HTTP: what is missing is there, what is whole keeps its bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.filling import StreamFiller, fill_object
from proxy.protocol.responses import RequestEcho, compose
from proxy.protocol.sse import Splitter, parse_block
from tests import openresponses

ECHO = RequestEcho({"model": b'"m"', "instructions": b'"i"'}, 1000, "resp_0")
USAGE = (
    b'{"input_tokens":1,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"output_tokens":1,'
    b'"output_tokens_details":{"reasoning_tokens":0},"total_tokens":2}'
)
WHOLE = compose(ECHO, "resp_1", "completed", usage=USAGE)
DELTA = (
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":1,"item_id":"m",'
    b'"output_index":0,"content_index":0,"delta":"x","logprobs":[]}\n\n'
)
CREATED = (
    b'event: response.created\ndata: {"type":"response.created","sequence_number":0,"response":'
    + compose(ECHO, "resp_1", "in_progress")
    + b"}\n\n"
)
COMPLETED = (
    b'event: response.completed\ndata: {"type":"response.completed","sequence_number":2,"response":' + WHOLE + b"}\n\n"
)
BARE = b'data: {"type":"response.output_text.delta","item_id":"m","delta":"x"}\n\n'
CAPTURES = sorted((Path(__file__).parent.parent / "captures").glob("*/*.sse"))


def filler(limit: int = 2**20) -> StreamFiller:
    """A fresh stream."""
    return StreamFiller(ECHO, lambda own: own or "resp_made", limit)


def filled(data: bytes, size: int = 2**20) -> bytes:
    """A whole stream that arrives in pieces of so many bytes."""
    stream = filler()
    pieces = [stream.feed(data[start : start + size]) for start in range(0, len(data), size)]
    return b"".join((*pieces, stream.end()))


def events(data: bytes) -> list[dict[str, Any]]:
    """The events in a stream."""
    splitter = Splitter(2**30)
    blocks = [*splitter.feed(data), splitter.end()]
    parsed = [found[1] for block in blocks if (found := parse_block(block)) is not None]
    return [json.loads(event) for event in parsed if event != b"[DONE]"]


NOISE = b": ping\n\nretry: 5\n\n\n\ndata: [DONE]\n\n"
MULTIPLE = DELTA.replace(b'","delta', b'",\ndata: "delta').replace(
    b'"content_index":0,"delta', b'"content_index":0,\ndata: "delta'
)
TRAILING = DELTA.replace(b"}\n\n", b"}  \nid: 5\n\n")


@pytest.mark.parametrize("size", [1, 7, 2**20])
@pytest.mark.parametrize(
    "data",
    [
        CREATED + DELTA * 3 + COMPLETED,
        CREATED + b": comment\n" + DELTA + NOISE + COMPLETED + NOISE,
        (CREATED + DELTA * 2 + COMPLETED).replace(b"\n", b"\r\n"),
        (CREATED + DELTA * 2 + COMPLETED).replace(b"\n", b"\r"),
        b"\xef\xbb\xbf" + CREATED.replace(b"data: ", b"data:") + DELTA.replace(b"data: ", b"data:   ") + COMPLETED[:-2],
        CREATED + MULTIPLE + TRAILING + TRAILING + COMPLETED,
        CREATED + b'event: error\ndata: {"type":"error","code":"x","message":"y"}\n\n' + DELTA + COMPLETED,
        b"data: {not json\n\n" + BARE,
        b'data: {"id":"chatcmpl-1","choices":[]}\n\ndata: [DONE]\n\n',
        b"no stream at all",
        b"",
    ],
    ids=["whole", "noise", "crlf", "cr", "bom", "lines", "error", "malformed", "other", "text", "empty"],
)
def test_whole_stream_keeps_its_bytes(data: bytes, size: int) -> None:
    """However it is cut; and so does whatever comes behind what cannot be read."""
    assert filled(data, size) == data


@given(st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b": c", b"data: x", b"data", DELTA, CREATED])), st.data())
def test_bytes_are_neither_lost_nor_made(pieces: list[bytes], draw: st.DataObject) -> None:
    """Whatever line ends stand in a stream, and wherever it is cut."""
    data = b"".join(pieces)
    stream = filler()
    out, at = b"", 0
    while at < len(data):
        size = draw.draw(st.integers(1, 200))
        out += stream.feed(data[at : at + size])
        at += size
    assert out + stream.end() == data


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_filled_event_keeps_its_other_lines(end: bytes) -> None:
    """Comments, names and ids stay, with the line ends that the backend uses."""
    block = b": c\nevent: response.output_text.delta\n" + BARE[:-1] + b"id: 7\n\n"
    out = filled((CREATED + block + COMPLETED).replace(b"\n", end), 5)
    expected = block.replace(
        b'{"type":"response.output_text.delta"',
        b'{"output_index":0,"content_index":0,"logprobs":[],"type":"response.output_text.delta"',
    )
    assert out == (CREATED + expected + COMPLETED).replace(b"\n", end)


def test_only_what_lacks_something_is_replaced() -> None:
    """The events beside it are those that came."""
    out = filled(CREATED + BARE + DELTA + COMPLETED)
    assert out.startswith(CREATED)
    assert out.endswith(DELTA + COMPLETED)


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: f"{path.parent.name}-{path.stem}")
@pytest.mark.parametrize("size", [3, 2**20])
def test_recorded_streams_become_complete(path: Path, size: int) -> None:
    """What real backends sent: a strict client refuses nothing, and no event is lost or changed but for additions."""
    data = path.read_bytes()
    out = filled(data, size)
    assert filled(data, 2**20) == out
    if any(word in path.stem for word in ("fault", "cutoff")):
        return
    before, after = events(data), events(out)
    added = "response.function_call_arguments.done"
    if all(event["type"] != added for event in before):  # llama.cpp, and who stands behind it
        after = [event for event in after if event["type"] != added]
    assert [event["type"] for event in after] == [event["type"] for event in before]
    for old, new in zip(before, after, strict=True):
        if new["type"] != "error":
            assert openresponses.problems(new) == []
        for name, value in old.items():
            assert name in ("response", "item", "part") or new[name] == value
    assert filled(out) == out


def test_client_sees_what_it_continued() -> None:
    """A backend that was sent the whole conversation says null."""
    bare = b'{"type":"response.created","sequence_number":0,"response":{"id":"resp_1","previous_response_id":null}}'
    (event,) = events(filled(b"data: " + bare + b"\n\n"))
    assert event["response"]["previous_response_id"] == "resp_0"


def test_ending_says_what_is_kept() -> None:
    """As soon as the block that says so is given out."""
    stream = filler()
    stream.feed(CREATED + DELTA + COMPLETED[:-1])
    assert stream.terminal is None
    stream.feed(COMPLETED[-1:])
    terminal = stream.terminal
    assert terminal is not None
    assert (terminal.kind, terminal.response_id, terminal.response) == ("completed", "resp_1", WHOLE)
    assert stream.feed(BARE) == BARE


def test_ending_may_lack_its_blank_line() -> None:
    """The end of the stream will do."""
    stream = filler()
    assert stream.feed(CREATED + COMPLETED[:-2]) == CREATED
    assert stream.end() == COMPLETED[:-2]
    assert stream.terminal is not None
    assert stream.end() == b""


def test_cut_stream_has_no_ending() -> None:
    """And what was left of it is given out."""
    stream = filler()
    assert stream.feed(CREATED + COMPLETED[:50]) == CREATED
    assert stream.end() == COMPLETED[:50]
    assert stream.terminal is None


@pytest.mark.parametrize("data", [b"data: " + b"x" * 5000, b": " + b"x" * 5000 + b"\n\n"])
def test_event_that_is_too_long_is_not_held_back(data: bytes) -> None:
    """It goes on, and so does all behind it, as it comes."""
    stream = filler(4000)
    out = b"".join(stream.feed(data[start : start + 100]) for start in range(0, len(data), 100))
    assert out == data
    assert stream.feed(BARE) == BARE
    assert stream.end() == b""
    assert filler(4000).feed(CREATED + data + BARE) + b"" == CREATED + data + BARE


# In one piece


@pytest.mark.parametrize(
    "body",
    [
        WHOLE,
        json.dumps(json.loads(WHOLE), indent=2).encode() + b"\r\n",
        b'{"error":{"message":"x"}}',
        b'{"object":"chat.completion","choices":[]}',
        b"[]",
        b"{",
        b"",
        b'{"object":"response","id":"\xff"}',
    ],
    ids=["whole", "pretty", "error", "other", "list", "malformed", "empty", "no utf-8"],
)
def test_object_that_lacks_nothing_keeps_its_bytes(body: bytes) -> None:
    """And so does what is no Response."""
    assert fill_object(body, ECHO, str)[0] == body


@pytest.mark.parametrize("kind", ["completed", "incomplete", "failed", "in_progress", "queued", "cancelled", None])
def test_object_is_filled(kind: str | None) -> None:
    """Whatever its status; only one that ended is kept."""
    said = {} if kind is None else {"status": kind}
    message = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "a\nb"}]}
    output = [] if kind in ("in_progress", "queued") else [message]
    body = json.dumps({**said, "object": "response", "output": output, "own": 1}, indent=1).encode()
    out, terminal = fill_object(body, ECHO, lambda own: own or "resp_made")
    shown = json.loads(out)
    assert openresponses.response_problems(shown) == []
    assert (shown["id"], shown["status"], shown["own"]) == ("resp_made", kind or "completed", 1)
    assert (shown["instructions"], shown["previous_response_id"]) == ("i", "resp_0")
    if not output:
        assert terminal is None
    else:
        assert terminal is not None
        assert terminal.response == out
        assert terminal.kind == {"cancelled": "failed", None: "completed"}.get(kind, kind)
        assert json.loads(terminal.items[0]) == message
