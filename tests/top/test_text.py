"""Numbers with units, and texts that a terminal only shows."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.top import text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("codex_cli_rs/0.142.0 (Linux)", "codex_cli_rs/0.142.0 (Linux)"),
        ("\x1b[31mred\x1b]0;title\x07", "\ufffd[31mred\ufffd]0;title\ufffd"),
        ("a\r\nb\tc\x7f\x9b2J", "a  b c\ufffd\ufffd2J"),
        ("\u202egnp.exe\u2066\u200b", "\ufffdgnp.exe\ufffd\ufffd"),
        ("two\u2028lines\ud83d", "two lines\ufffd"),
        ("❤\ufe0f 世界 é", "❤ 世界 é"),
        ("[bold]not markup[/] :smile:", "[bold]not markup[/] :smile:"),
    ],
)
def test_text_is_only_shown(given: str, expected: str) -> None:
    """What moves a cursor, sets a title or turns the writing round is replaced."""
    assert text.clean(given) == expected


@given(st.text(max_size=40))
def test_nothing_that_a_terminal_obeys_is_left(given: str) -> None:
    """For whatever text there is; and cleaning twice is cleaning once."""
    cleaned = text.clean(given)
    assert all(unicodedata.category(character)[0] != "C" for character in cleaned if character != "\ufffd")
    assert not {"\n", "\r", "\u2028", "\u2029", "\x1b", "\x9b"} & set(cleaned)
    assert text.clean(cleaned) == cleaned


@given(st.text(max_size=30), st.integers(0, 20), st.booleans())
def test_text_fits_its_cells(given: str, cells: int, is_right: bool) -> None:  # noqa: FBT001
    """It takes exactly as many, wide characters and marks among them."""
    assert text.width(text.fit(text.clean(given), cells, is_right=is_right)) == cells


@pytest.mark.parametrize(
    ("given", "cells", "is_right", "expected"),
    [
        ("abc", 5, False, "abc  "),
        ("abc", 5, True, "  abc"),
        ("abcdef", 4, False, "abc…"),
        ("abcdef", 1, True, "…"),
        ("abc", 0, False, ""),
        ("世界", 4, False, "世界"),
        ("世界人", 5, False, "世界…"),
        ("世界人", 4, False, "世… "),
    ],
)
def test_text_is_cut_or_filled(given: str, cells: int, is_right: bool, expected: str) -> None:  # noqa: FBT001
    """With an ellipsis where something is missing."""
    assert text.fit(given, cells, is_right=is_right) == expected


def test_lines_stay_lines() -> None:
    """Each is cleaned for itself."""
    assert text.clean_lines("a\tb\r\nc\x1bd\n") == ["a    b", "c\ufffdd", ""]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_949, "99.9 kB"),
        (99_950, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (23_400_000, "23.4 MB"),
        (10**16, "10000 TB"),
    ],
)
def test_sizes(number: int, expected: str) -> None:
    """As the page writes them."""
    assert text.size(number) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "0"), (9999, "9,999"), (12_345, "12 k"), (999_600, "1.0 M"), (8_260_000, "8.3 M"), (123_456_789, "123 M")],
)
def test_counts(number: int, expected: str) -> None:
    """A few digits are enough."""
    assert text.large(number) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, "-"),
        (0.00052, "0.52 ms"),
        (0.0043, "4.3 ms"),
        (0.034, "34 ms"),
        (0.9996, "1.00 s"),
        (1.204, "1.20 s"),
        (12.34, "12.3 s"),
        (185, "3 m 05 s"),
        (7800, "2 h 10 m"),
    ],
)
def test_durations(seconds: float | None, expected: str) -> None:
    """From fractions of a millisecond to hours."""
    assert text.duration(seconds) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(-1, "< 1 s"), (0.4, "< 1 s"), (59.9, "59 s"), (60, "1 m 00 s")])
def test_ages(seconds: float, expected: str) -> None:
    """Whole seconds."""
    assert text.age(seconds) == expected


def test_shares_and_ratios() -> None:
    """A dash where there is nothing to divide by."""
    assert [text.percent(*pair) for pair in ((1, 3), (0, 5), (0, 0))] == ["33 %", "0 %", "-"]
    assert [text.ratio(*pair) for pair in ((34, 10), (199, 10), (10, 10), (5, 0))] == ["3.4x", "20x", "-", "-"]
    assert [text.plural(number, "turn") for number in (0, 1, 2345)] == ["0 turns", "1 turn", "2,345 turns"]
