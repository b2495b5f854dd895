"""Made-up text that looks like what tools print: paths, code, test results. No file of the machine is read."""

from __future__ import annotations

import zlib
from typing import Final

PATHS: Final = (
    "src/orders/checkout.py",
    "src/payments/client.py",
    "src/payments/retry.py",
    "src/orders/queue.py",
    "tests/payments/test_retry.py",
    "src/orders/models.py",
)
"""The files of the project that there is not."""

_WORDS: Final = (
    "order", "charge", "retry", "timeout", "attempt", "ledger", "amount", "customer", "token", "queue", "result",
    "policy", "request", "answer", "pending", "settled", "refund", "invoice", "session", "backoff", "deadline",
)  # fmt: skip


def lines(kind: str, number: int, size: int) -> str:
    """Some text of a tool; the same for the same arguments, in ASCII, so that its length is its size in bytes.

    Args:
        kind: `source`, or a tool: `read_file`, `search`, or any other for test results.
        number: Which text; another one for each.
        size: How many bytes, 0 or more.
    """
    made: list[str] = []
    length = 0
    while length <= size:  # the last line end is not there
        line = _line(kind, number, len(made) + 1)
        made.append(line)
        length += len(line) + 1
    return "\n".join(made)[:size]


def _line(name: str, number: int, line: int) -> str:
    """One line that looks like what such a tool prints."""
    first, second, third = (_word(number, line, place) for place in range(3))
    path = PATHS[(number + line) % len(PATHS)]
    match name:
        case "read_file":
            return f"{line:5}  " + "    " * (line % 3) + f"{first}_{second} = {third}.{second}({first}, {line * 7})"
        case "source":
            # As hard to compress as source code is, about three to one: names that come once among words that come often.
            name = f"{zlib.crc32(f'{number} {line}'.encode()):08x}"
            return "    " * (line % 3) + f"{first}_{name} = {second}.{third}({line * 7})"
        case "search":
            return f"{path}:{line * 13}: if {first}.{second} is not None and {third}_{second} > {line}:"
        case _:
            return f"{path}::test_{first}_{second}_{third} PASSED  [{line % 100:3}%]"


def _word(*place: int) -> str:
    """A word for a place: the same every time, and without a pattern that one would see."""
    return _WORDS[zlib.crc32(repr(place).encode()) % len(_WORDS)]
