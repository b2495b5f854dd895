"""A remembered response as bytes: all of it comes back, and what follows from it is the same."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol import packed, rawjson
from proxy.protocol.chain import Entry, Settings
from proxy.protocol.transcript import Transcript, extend, items_of, walk

ids = st.text(max_size=20, alphabet=st.characters(exclude_categories=["Cs"]))
items = st.builds(
    lambda kind, item_id, text: rawjson.dumps({"type": kind, "id": item_id, "content": text}),
    st.sampled_from(["message", "function_call", "compaction"]),
    ids,
    ids,
)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    """Responses with any past."""
    transcript: Transcript = None
    for segment in draw(st.lists(st.lists(items, max_size=4), max_size=6)):
        transcript = extend(transcript, segment, [rawjson.head(item) for item in segment])
    fields = draw(st.lists(st.tuples(ids, st.binary(max_size=20)), max_size=4))
    return Entry(
        draw(ids),
        draw(st.none() | ids),
        transcript,
        Settings(fields),
        draw(st.integers(1, 1000)),
        draw(st.booleans()),
        draw(st.frozensets(ids, max_size=3)),
        draw(st.binary(max_size=100)),
        draw(st.integers(0, 10)),
        draw(st.integers(0, 2**40)),
        draw(st.booleans()),
        draw(st.none() | ids),
        draw(st.integers(0, 2**40)),
    )


def shape(entry: Entry) -> tuple[object, ...]:
    """All that an entry says, in values that can be compared."""
    segments = [
        (segment.data, segment.spans, segment.items, segment.size, segment.holds_compaction)
        for segment in walk(entry.transcript)
    ]
    names = [name for name in Entry.__slots__ if name not in ("transcript", "settings")]
    return segments, entry.settings.fields, [(name, getattr(entry, name)) for name in names]


@given(entries())
def test_entry_comes_back(entry: Entry) -> None:
    """Its transcript in the same segments, with what is known of each item."""
    again = packed.unpack(packed.pack(entry))
    assert shape(again) == shape(entry)
    assert items_of(again.transcript) == items_of(entry.transcript)


def test_long_past_is_no_deep_one() -> None:
    """A chain of ten thousand turns is a list here, and no recursion."""
    transcript: Transcript = None
    for turn in range(10_000):
        item = rawjson.dumps({"type": "message", "id": f"msg_{turn}"})
        transcript = extend(transcript, [item], [rawjson.head(item)])
    entry = Entry(
        "resp_1", None, transcript, Settings([]), 10_000, is_warmup=False, brought=frozenset(), response=b"{}"
    )
    again = packed.unpack(packed.pack(entry))
    assert again.transcript is not None
    assert again.transcript.items == 10_000


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x91\xa1x"])
def test_nothing_else_is_an_entry(data: bytes) -> None:
    """Bytes that `pack` did not make."""
    with pytest.raises(msgspec.DecodeError):
        packed.unpack(data)
