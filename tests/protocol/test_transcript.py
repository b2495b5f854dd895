"""Transcripts: their items in order, their size, and the calls that stand in them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from proxy.protocol.rawjson import Head
from proxy.protocol.transcript import (
    Transcript,
    buffers_of,
    extend,
    has_call,
    items_of,
    last_compaction,
    unanswered,
    walk,
)


def grow(transcript: Transcript, *texts: bytes) -> Transcript:
    """A transcript with some more items."""
    return extend(transcript, texts, [Head("message", text.decode()) for text in texts])


def test_transcript_is_walked_from_its_end() -> None:
    """Turn by turn, back from the newest."""
    transcript = grow(grow(grow(None, b"a", b"b"), b"c"))
    assert [segment.data for segment in walk(transcript)] == [b"c", b"a,b"]
    assert [segment.data for segment in walk(grow(transcript, b"d"))] == [b"d", b"c", b"a,b"]
    assert list(walk(None)) == []


def test_forks_share_what_came_before() -> None:
    """The newest segment has the way back at hand; who goes on from an older one finds it again; no bytes are copied."""
    trunk = grow(grow(None, b"a"), b"b")
    assert trunk is not None
    assert buffers_of(trunk) == [b"a", b",", b"b", b","]
    for name in (b"left", b"right"):
        branch = grow(trunk, name)
        assert branch is not None
        assert buffers_of(branch) == [b"a", b",", b"b", b",", name, b","]
        assert all(buffers_of(branch)[at] is segment.data for at, segment in zip((2, 0), walk(trunk), strict=True))
    assert buffers_of(trunk) == [b"a", b",", b"b", b","]


def test_turn_costs_what_is_new() -> None:
    """A long chain is not walked again for the turn behind it."""
    tip = grow(None, b"first")
    assert tip is not None
    buffers = buffers_of(tip)
    for number in range(200):
        tip = grow(tip, b"%d" % number)
        assert tip is not None
        assert buffers_of(tip) is buffers
    assert b"".join(buffers) == b"first," + b"".join(b"%d," % number for number in range(200))


def test_transcript_knows_its_size_and_length() -> None:
    """Bytes count as they stand in a request: with the commas between the items."""
    transcript = grow(grow(None, b"aa", b"bb"), b"cc")
    assert transcript is not None
    assert transcript.size == len(b"aa,bb,cc")
    assert transcript.items == 3


def test_extending_by_nothing_is_the_same_transcript() -> None:
    """A turn that says nothing adds no segment."""
    transcript = grow(None, b"a")
    assert grow(transcript) is transcript


@pytest.mark.parametrize(
    ("heads", "found"),
    [
        ([Head("function_call", None, "c1")], True),
        ([Head("custom_tool_call", None, "c1")], True),
        ([Head("function_call_output", None, "c1")], False),
        ([Head("function_call", None, "c2")], False),
        ([Head()], False),
    ],
)
def test_calls_are_found_and_outputs_are_not_calls(heads: Sequence[Head], found: bool) -> None:  # noqa: FBT001
    """A call is any item with the call's id that is not itself an output."""
    old = extend(None, [b"x"] * len(heads), heads)
    assert has_call(grow(old, b"later"), "c1") is found


def test_items_come_out_one_by_one() -> None:
    """Items can be had singly, oldest first, with their heads."""
    transcript = grow(grow(None, b"a", b"b"), b"c")
    assert [(item, head.id) for item, head in items_of(transcript)] == [(b"a", "a"), (b"b", "b"), (b"c", "c")]
    assert items_of(None) == []


def test_unanswered_calls_are_those_a_client_owes() -> None:
    """A call without an output among the same items; what the server runs itself has no `call_id`."""
    heads = [
        Head("function_call", "fc_1", "c1"),
        Head("custom_tool_call", "ct_2", "c2"),
        Head("web_search_call", "ws_1"),
        Head("function_call_output", None, "c1"),
        Head("message", "m"),
    ]
    assert unanswered(heads) == [heads[1]]
    assert unanswered([]) == []


@pytest.mark.parametrize(
    ("types", "found"), [(["message", "compaction", "compaction", "message"], 2), (["message"], None), ([], None)]
)
def test_last_compaction_counts(types: list[str], found: int | None) -> None:
    """Of several compaction items the last one stands for all before it."""
    assert last_compaction([Head(kind) for kind in types]) == found
