"""Made-up text has the length that it should, and is the same every time."""

from __future__ import annotations

import pytest

from proxy.rollout import text


@pytest.mark.parametrize("kind", ["source", "read_file", "search", "run_tests"])
@pytest.mark.parametrize("size", [0, 1, 80, 5_000])
def test_text_has_its_length(kind: str, size: int) -> None:
    """To the byte, in ASCII."""
    made = text.lines(kind, 3, size)
    assert len(made.encode()) == size
    assert made.isascii()
    assert made == text.lines(kind, 3, size)


def test_texts_differ() -> None:
    """Each number has another one."""
    assert len({text.lines("source", number, 200) for number in range(50)}) == 50
