"""What a connection remembers: sharing, bounds, and what is given back."""

from __future__ import annotations

import tracemalloc

import pytest

from proxy.protocol.chain import CacheBudget, ChainCache, Entry, Settings, settings_like
from proxy.protocol.errors import PreviousResponseNotFound
from proxy.protocol.rawjson import Head
from proxy.protocol.transcript import Transcript, extend, items_of


def cache(*, entries: int = 100, size: int = 2**20, budget: CacheBudget | None = None) -> ChainCache:
    """A cache with these bounds."""
    return ChainCache(budget or CacheBudget(2**30), max_entries=entries, max_bytes=size)


def entry(response_id: str, transcript: Transcript = None, settings: Settings | None = None) -> Entry:
    """A remembered response."""
    return Entry(
        response_id, None, transcript, settings or Settings([]), 1, is_warmup=False, brought=frozenset(), response=b"{}"
    )


def grow(transcript: Transcript, *texts: bytes) -> Transcript:
    """A transcript with some more items."""
    return extend(transcript, texts, [Head("message", text.decode()) for text in texts])


def test_resolve_finds_what_was_committed() -> None:
    """What was committed is found by its id, and replaced by what comes with the same id."""
    remembered = cache()
    remembered.commit(entry("a"))
    newer = entry("a", grow(None, b"x"))
    remembered.commit(newer)
    assert remembered.resolve("a") is newer
    assert len(remembered) == 1
    assert "a" in remembered
    assert "b" not in remembered


def test_resolve_says_why_something_is_not_there() -> None:
    """Never there, gone for a limit, gone for a failure: an operator wants to know which."""
    remembered = cache(entries=2)
    for name in "abc":
        remembered.commit(entry(name))
    remembered.evict("b", "failed_continuation")
    reasons = []
    for name in ("x", "a", "b"):
        with pytest.raises(PreviousResponseNotFound) as caught:
            remembered.resolve(name)
        reasons.append(caught.value.reason)
    assert reasons == ["unknown", "evicted_limit", "evicted_failed"]


def test_oldest_use_goes_first() -> None:
    """Resolving a response is a use: another one goes for the limit."""
    remembered = cache(entries=2)
    remembered.commit(entry("a"))
    remembered.commit(entry("b"))
    remembered.resolve("a")
    (eviction,) = remembered.commit(entry("c"))
    assert eviction.reason == "connection_entries"
    assert "a" in remembered
    assert "b" not in remembered


def test_bytes_are_bounded() -> None:
    """What does not fit makes the oldest go, and goes itself if it cannot fit at all."""
    remembered = cache(size=20_000)
    for name in "abc":
        remembered.commit(entry(name, grow(None, b"x" * 8000)))
        assert remembered.used <= 20_000
    assert "a" not in remembered
    assert "c" in remembered
    (*_, last) = remembered.commit(entry("d", grow(None, b"x" * 30_000)))
    assert last.reason == "connection_bytes"
    assert len(remembered) == 0
    assert remembered.used == 0


def test_shared_segments_are_counted_once_and_kept_while_needed() -> None:
    """Two responses that branch from one parent share it; it is given back with the last of them."""
    remembered = cache()
    parent = grow(None, b"p" * 1000)
    remembered.commit(entry("parent", parent))
    alone = remembered.used
    remembered.commit(entry("left", grow(parent, b"l" * 10)))
    remembered.commit(entry("right", grow(parent, b"r" * 10)))
    assert remembered.used < alone + 1000 + 4000
    assert remembered.evict("parent", "failed_continuation") is not None
    assert remembered.used > 1000
    assert [item for item, _ in items_of(remembered.resolve("left").transcript)] == [b"p" * 1000, b"l" * 10]
    remembered.evict("left", "failed_continuation")
    remembered.evict("right", "failed_continuation")
    assert remembered.used == 0


def test_evicting_what_is_not_there_does_nothing() -> None:
    """A failed continuation may have lost its parent to a limit already."""
    assert cache().evict("x", "failed_continuation") is None


def test_equal_settings_are_shared() -> None:
    """Tools that come again with every turn are kept once."""
    first = settings_like([("tools", b"[1]"), ("model", b'"m"')], None)
    assert settings_like([("tools", b"[1]"), ("model", b'"m"')], first) is first
    other = settings_like([("tools", bytes(bytearray(b"[1]"))), ("model", b'"n"')], first)
    assert other is not first
    assert dict(other.fields)["tools"] is dict(first.fields)["tools"]


def test_process_budget_evicts_from_the_connection_used_longest_ago() -> None:
    """The bound of the process is kept at the cost of whoever was idle longest."""
    budget = CacheBudget(60_000)
    idle, busy = cache(budget=budget), cache(budget=budget)
    idle.commit(entry("a", grow(None, b"x" * 25_000)))
    busy.commit(entry("b", grow(None, b"x" * 25_000)))
    idle.resolve("a")
    (eviction,) = idle.commit(entry("c", grow(None, b"x" * 25_000)))
    assert eviction.reason == "process_bytes"
    assert eviction.freed > 25_000
    assert "b" not in busy
    assert "a" in idle
    assert budget.used <= 60_000


def test_process_budget_smaller_than_anything_keeps_nothing() -> None:
    """A budget that nothing fits in is kept all the same."""
    budget = CacheBudget(10)
    remembered = cache(budget=budget)
    remembered.commit(entry("a"))
    assert len(remembered) == 0
    assert budget.used == 0


def test_closing_gives_everything_back() -> None:
    """A connection that ends leaves nothing in the process's account."""
    budget = CacheBudget(2**30)
    one, other = cache(budget=budget), cache(budget=budget)
    for name in "abc":
        one.commit(entry(name, grow(None, b"x")))
    other.commit(entry("d"))
    one.close()
    assert budget.entries == 1
    assert budget.used == other.used
    other.close()
    assert budget.used == 0


def test_items_are_found_by_their_ids() -> None:
    """Any transcript may hold a referenced item; the newest response's own version wins."""
    remembered = cache()
    parent = grow(None, b"m1", b"m2")
    remembered.commit(entry("a", parent))
    remembered.commit(entry("b", grow(parent, b"m3")))
    found = remembered.find_items({"m1", "m3", "m9"})
    assert {item_id: item for item_id, (item, _) in found.items()} == {"m1": b"m1", "m3": b"m3"}


def test_memory_grows_with_what_was_said() -> None:
    """200 turns of 5 KB: what is accounted for is near what Python really holds, and far from turns squared."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        remembered = cache(entries=1000, size=2**30)
        transcript: Transcript = None
        settings = Settings([("tools", b"x" * 10_000)])
        for turn in range(200):
            items = [b"%05d" % turn + b"i" * 2500, b"%05d" % turn + b"o" * 2500]
            heads = [Head("function_call_output", f"fco_{turn}", f"call_{turn}"), Head("message", f"msg_{turn}", None)]
            transcript = extend(transcript, items, heads)
            del items
            remembered.commit(entry(f"resp_{turn:048d}", transcript, settings))
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    said = 200 * 5000
    assert held < said * 1.3
    assert 0.8 * held < remembered.used < 1.5 * held
