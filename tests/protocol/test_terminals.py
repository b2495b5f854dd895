"""How responses end: token counts, read and added."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.protocol.terminals import Usage, add_usage, read_usage


def usage(input_tokens: int, cached: int, output_tokens: int) -> bytes:
    """Complete token counts."""
    return json.dumps(
        {
            "input_tokens": input_tokens,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 1},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": input_tokens + output_tokens,
        }
    ).encode()


def test_counts_add_up_in_every_member() -> None:
    """Two answers that make up one response cost what both cost."""
    assert json.loads(add_usage(usage(10, 4, 3), usage(20, 9, 5))) == {
        "input_tokens": 30,
        "input_tokens_details": {"cached_tokens": 13, "cache_write_tokens": 2},
        "output_tokens": 8,
        "output_tokens_details": {"reasoning_tokens": 4},
        "total_tokens": 38,
    }


def test_unknown_counts_leave_the_others() -> None:
    """Nothing is made up."""
    assert add_usage(b"null", usage(1, 0, 1)) == usage(1, 0, 1)
    assert add_usage(usage(1, 0, 1), b"null") == usage(1, 0, 1)
    assert add_usage(b"null", b"null") == b"null"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [(usage(10, 4, 3), Usage(10, 4, 3)), (b"null", Usage()), (usage(-1, 2**60, 3), Usage(0, 0, 3)), (b"{}", Usage())],
)
def test_counts_are_read_as_numbers_that_add_up(raw: bytes, expected: Any) -> None:
    """Nonsense counts as nothing."""
    assert read_usage(raw) == expected
