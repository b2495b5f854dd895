"""Records as bytes (proxy.usage.segment)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.usage.segment import MAX_RECORD, Entry, pack, unpack

ENTRIES = st.lists(st.builds(Entry, st.integers(0, 2**63), st.binary(max_size=60)), max_size=8)


@given(ENTRIES)
def test_what_is_packed_is_unpacked(entries: list[Entry]) -> None:
    """Whatever is in it; and an entry knows its size."""
    data = pack(entries)
    assert list(unpack(data)) == entries
    assert len(data) == sum(entry.size for entry in entries)


@given(ENTRIES, st.data())
def test_cut_anywhere_whole_records_are_left(entries: list[Entry], data: st.DataObject) -> None:
    """A torn tail: every record before the cut is there, and nothing else."""
    packed = pack(entries)
    cut = data.draw(st.integers(0, len(packed)))
    ends = [sum(entry.size for entry in entries[: count + 1]) for count in range(len(entries))]
    assert list(unpack(packed[:cut])) == entries[: sum(end <= cut for end in ends)]


@given(ENTRIES.filter(bool), st.data())
def test_changed_byte_is_found(entries: list[Entry], data: st.DataObject) -> None:
    """Nothing is read that was not written, and what is before it is."""
    packed = bytearray(pack(entries))
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] ^= data.draw(st.integers(1, 255))
    whole = 0
    while sum(entry.size for entry in entries[: whole + 1]) <= place:
        whole += 1
    assert list(unpack(bytes(packed))) == entries[:whole]


@pytest.mark.parametrize("junk", [bytes(100), b"\xff" * 100, b"\n" * 100])
def test_what_a_disk_puts_there_is_no_record(junk: bytes) -> None:
    """Zeros, say, after a power failure."""
    entry = Entry(1, b"{}")
    assert list(unpack(pack([entry]) + junk)) == [entry]


def test_length_has_a_bound() -> None:
    """What cannot be a record is not read on for."""
    assert list(unpack(pack([Entry(1, bytes(MAX_RECORD))]))) == [Entry(1, bytes(MAX_RECORD))]
    assert list(unpack(pack([Entry(1, bytes(MAX_RECORD + 1))]))) == []
