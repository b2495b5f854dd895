"""The task of the demo's rollout: instructions, tools, a question, and made-up tool results of realistic size.

All of it is fixed, so that two rollouts of the same length ask and get the same. No file of the machine is read.
"""

from __future__ import annotations

import zlib
from typing import Final

from proxy.demo.intake import Object

INSTRUCTIONS: Final = """\
You are a coding agent. You work in a checkout of the user's project, through the tools you are given, until the task is
done; then you say in a few sentences what you found and what you changed.

How to work
- Read before you write. Find the code that the report is about, then what calls it, then the tests that cover it.
- One step at a time: call one tool, look at what it says, and decide again. Do not guess what a file contains.
- Keep changes small and in the style of what surrounds them. Do not touch what the task does not ask for.
- When a test fails, find out why before you change anything. A test that is wrong is reported, not deleted.
- Run the tests that cover a change before you call it done. If you cannot run them, say so.

What to write
- Say in one sentence what you are about to do, and why, before each tool call.
- Name files with their path and line, so that they can be opened.
- At the end: what was wrong, what you changed, how it was checked, and what is left open. No more than ten lines.

Limits
- Work inside the project only. No network, no package installation, no credentials.
- Ask before anything that cannot be undone: deleted files, rewritten history, changed data.
- If the task turns out to be another one than it seemed, stop and say so.
"""
"""The same in every request, as the API wants it: instructions are not carried over by `previous_response_id`."""

QUESTION: Final = (
    "Customers report that an order is sometimes charged twice when the payment service answers slowly. "
    "Find out why, fix it, and add a test that fails without the fix."
)

_PATHS: Final = (
    "src/orders/checkout.py",
    "src/payments/client.py",
    "src/payments/retry.py",
    "src/orders/queue.py",
    "tests/payments/test_retry.py",
    "src/orders/models.py",
)
_PATTERNS: Final = ("charge_order", "RetryPolicy", "idempotency_key", "on_timeout", "def submit")
_SUITES: Final = ("tests/payments", "tests/orders", "tests/payments/test_retry.py")

_WORDS: Final = (
    "order", "charge", "retry", "timeout", "attempt", "ledger", "amount", "customer", "token", "queue", "result",
    "policy", "request", "answer", "pending", "settled", "refund", "invoice", "session", "backoff", "deadline",
)  # fmt: skip

_SIZES: Final = (1_400, 5_200, 2_600, 7_900, 1_100, 3_800, 6_300, 2_100, 4_700, 1_800)
"""Sizes of tool results in bytes: what files, searches and test runs give an agent."""


def _function(name: str, description: str, **properties: Object) -> Object:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "name": name, "description": description, "parameters": parameters, "strict": True}


def _text(description: str, *examples: str) -> Object:
    return {"type": "string", "description": description, "examples": list(examples)}


TOOLS: Final[tuple[Object, ...]] = (
    _function(
        "read_file",
        "Read a part of a text file of the project. The result has a line number before each line.",
        path=_text("Path of the file, relative to the root of the project.", *_PATHS),
        first_line={"type": "integer", "minimum": 1, "description": "The first line to read, counted from 1."},
        lines={"type": "integer", "minimum": 200, "description": "How many lines to read, at most 2000."},
    ),
    _function(
        "search",
        "Search all text files of the project for a regular expression. The result has path and line of each match.",
        pattern=_text("A regular expression, in the syntax of Python's re module.", *_PATTERNS),
        directory=_text("Where to search, relative to the root of the project.", "src", "tests"),
    ),
    _function(
        "run_tests",
        "Run tests of the project with pytest. The result is what pytest prints, at most the last 8000 characters.",
        target=_text("A directory, a file, or one test as pytest names it.", *_SUITES),
        stop_at_first={"type": "boolean", "description": "Stop at the first test that fails."},
    ),
)
"""Three functions; their schemas have examples, from which the simulated backend takes its arguments."""


def question() -> Object:
    """The first input item."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]}


def run(call: Object, number: int) -> Object:
    """Answer a tool call, without doing anything.

    Args:
        call: A `function_call` item.
        number: How many calls there were before it.

    Returns:
        A `function_call_output` item, its text 1,100 to 7,900 bytes long.
    """
    text = tool_result(call["name"], number)
    return {"type": "function_call_output", "call_id": call["call_id"], "output": text}


def tool_result(name: str, number: int) -> str:
    """What a tool says; the same for the same arguments, in ASCII, so that its length is its size in bytes."""
    size = _SIZES[number % len(_SIZES)]
    lines: list[str] = []
    length = 0
    while length < size:
        line = _line(name, number, len(lines) + 1)
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines)[:size]


def _line(name: str, number: int, line: int) -> str:
    """One line that looks like what such a tool prints."""
    first, second, third = (_word(number, line, place) for place in range(3))
    path = _PATHS[(number + line) % len(_PATHS)]
    match name:
        case "read_file":
            return f"{line:5}  " + "    " * (line % 3) + f"{first}_{second} = {third}.{second}({first}, {line * 7})"
        case "search":
            return f"{path}:{line * 13}: if {first}.{second} is not None and {third}_{second} > {line}:"
        case _:
            return f"{path}::test_{first}_{second}_{third} PASSED  [{line % 100:3}%]"


def _word(*place: int) -> str:
    """A word for a place: the same every time, and without a pattern that one would see."""
    return _WORDS[zlib.crc32(repr(place).encode()) % len(_WORDS)]
