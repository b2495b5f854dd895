"""The simulated prefix cache finds what a prompt has in common with earlier ones, and stays within its bounds."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.demo import prefix
from proxy.demo.prefix import PrefixCache


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=40))
def test_common_prefix_is_what_python_says(head: bytes, one: bytes, other: bytes) -> None:
    """Bisection finds the same length as comparing byte by byte."""
    texts = [head + one, head + other]
    expected = os.path.commonprefix(texts)  # noqa: RUF071 - of bytes, not of path components
    assert prefix.common_prefix(*texts) == len(expected)


def test_cache_knows_nothing_at_first() -> None:
    """The first prompt is all new, the same one again is all known."""
    cache = PrefixCache()
    assert [cache.take(b"hello"), cache.take(b"hello")] == [0, 5]


def test_cache_finds_the_longest_match() -> None:
    """Of several earlier prompts the one that fits best counts."""
    cache = PrefixCache()
    for prompt in (b"one and one", b"one and two", b"three"):
        cache.take(prompt)
    assert cache.take(b"one and two more") == 11


def test_cache_counts_a_conversation_once() -> None:
    """A prompt that goes on from an older one takes its place."""
    cache = PrefixCache()
    for end in range(1, 500):
        assert cache.take(b"x" * end) == end - 1
    assert len(cache._prompts) == 1
    assert cache._bytes == 499


def test_cache_forgets_the_oldest_of_too_many() -> None:
    """Beyond its number of prompts, the one that was not used for longest goes."""
    cache = PrefixCache()
    for number in range(prefix._MAX_PROMPTS):
        cache.take(b"%03d" % number)
    cache.take(b"000")
    cache.take(b"new")
    assert b"000" in cache._prompts
    assert b"001" not in cache._prompts
    assert cache._bytes == 3 * prefix._MAX_PROMPTS


def test_cache_stays_within_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large prompts push others out, yet the last one is always remembered."""
    monkeypatch.setattr(prefix, "_MAX_BYTES", 100)
    cache = PrefixCache()
    cache.take(b"a" * 60)
    cache.take(b"b" * 60)
    assert list(cache._prompts) == [b"b" * 60]
    cache.take(b"c" * 200)
    assert cache.take(b"c" * 200) == 200


def test_cache_forgets_everything_on_demand() -> None:
    """A cache that was emptied knows nothing."""
    cache = PrefixCache()
    cache.take(b"hello")
    cache.forget()
    assert cache.take(b"hello") == 0


@pytest.mark.parametrize(("length", "count"), [(0, 0), (1, 1), (4, 1), (5, 2)])
def test_tokens_are_rounded_up(length: int, count: int) -> None:
    """A piece of a token is a token."""
    assert prefix.tokens(length) == count
