"""Server-sent events: where a block ends, and what stands in it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.sse import Splitter, parse_block


def split(data: bytes, *, size: int = 2**20, limit: int = 2**20) -> tuple[list[bytes], bytes]:
    """All blocks of a stream that comes in pieces, and what is left at its end."""
    splitter = Splitter(limit)
    blocks = [
        block for start in range(0, len(data), size) for block in splitter.feed(data[start : start + size]) if block
    ]
    return blocks, splitter.end()


@pytest.mark.parametrize(
    ("data", "blocks", "rest"),
    [
        (b"", [], b""),
        (b"data: 1\n\ndata: 2\n\n", [b"data: 1", b"data: 2"], b""),
        (b"data: 1\n\ndata: 2", [b"data: 1"], b"data: 2"),
        (b"data: 1\r\n\r\ndata: 2\r\n\r\n", [b"data: 1", b"data: 2"], b""),
        (b"data: 1\r\rdata: 2\r\r", [b"data: 1", b"data: 2"], b""),
        (b"a: 1\r\nb: 2\n\r\n", [b"a: 1\nb: 2"], b""),
        (b":\n\n: ping\n\ndata: 1\n\n", [b":", b": ping", b"data: 1"], b""),
        ("data: \u2028\u0085\n\n".encode(), ["data: \u2028\u0085".encode()], b""),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_blocks_end_at_blank_lines(data: bytes, blocks: list[bytes], rest: bytes, size: int) -> None:
    """Whatever ends the lines and wherever the reads are cut, the same blocks come out."""
    assert split(data, size=size) == (blocks, rest)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_block_above_the_limit_stops_everything(size: int) -> None:
    """An event that is too long is not given out, nor what comes behind it; what came before it is."""
    splitter = Splitter(20)
    data = b"data: 1\n\ndata: " + b"x" * 100 + b"\n\ndata: 3\n\n"
    blocks: list[bytes] = []
    for start in range(0, len(data), size):
        if not splitter.overflow:
            blocks += splitter.feed(data[start : start + size])
    assert [block for block in blocks if block] == [b"data: 1"]
    assert splitter.overflow


def test_long_read_of_short_blocks_is_no_overflow() -> None:
    """The limit is for one event, not for a read."""
    splitter = Splitter(20)
    assert len(splitter.feed(b"data: 1\n\n" * 100)) == 100
    assert not splitter.overflow


@pytest.mark.parametrize(
    ("block", "parsed"),
    [
        (b"", None),
        (b": comment", None),
        (b"event: x", None),
        (b"data: 1", (b"", b"1")),
        (b"data:1", (b"", b"1")),
        (b"data:  1", (b"", b" 1")),
        (b"data", (b"", b"")),
        (b"event: x\ndata: 1", (b"x", b"1")),
        (b"data: 1\nevent: x", (b"x", b"1")),
        (b"data: {\ndata: }", (b"", b"{\n}")),
        (b"id: 7\nretry: 5\nevent: x\n:c\ndata: 1", (b"x", b"1")),
        (b"\xef\xbb\xbfdata: 1", (b"", b"1")),
        (b"\ndata: 1", (b"", b"1")),
        (b"data: a: b", (b"", b"a: b")),
    ],
)
def test_block_is_read_by_the_rules(block: bytes, parsed: tuple[bytes, bytes] | None) -> None:
    """Fields, comments, several data lines, and a byte order mark (WHATWG, "Interpreting an event stream")."""
    assert parse_block(block) == parsed


@given(
    st.lists(
        st.sampled_from([b"data: 1", b"\n", b"\n\n", b"\r\n", b"\r", b": c", b"event: x\n", "é".encode()]), max_size=30
    ),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_cutting_makes_no_difference(pieces: list[bytes], cuts: list[int]) -> None:
    """Any bytes, cut anywhere, give what they give whole."""
    data = b"".join(pieces)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    splitter = Splitter(2**20)
    blocks = [
        block
        for start, end in itertools.pairwise(places)
        for block in splitter.feed(data[start:end])
        if block.strip(b"\n")
    ]
    whole = Splitter(2**20)
    assert blocks == [block for block in whole.feed(data) if block.strip(b"\n")]
    assert splitter.end() == whole.end()
