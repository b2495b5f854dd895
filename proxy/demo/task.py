"""The task of the demo's rollout: instructions, tools, a question, and made-up tool results of realistic size.

All of it is fixed, so that two rollouts of the same length ask and get the same. No file of the machine is read.
"""

from __future__ import annotations

from typing import Final

from proxy.rollout import text
from proxy.rollout.dialogue import Object, Terms

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

_PATTERNS: Final = ("charge_order", "RetryPolicy", "idempotency_key", "on_timeout", "def submit")
_SUITES: Final = ("tests/payments", "tests/orders", "tests/payments/test_retry.py")

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


def _string(description: str, *examples: str) -> Object:
    return {"type": "string", "description": description, "examples": list(examples)}


TOOLS: Final[tuple[Object, ...]] = (
    _function(
        "read_file",
        "Read a part of a text file of the project. The result has a line number before each line.",
        path=_string("Path of the file, relative to the root of the project.", *text.PATHS),
        first_line={"type": "integer", "minimum": 1, "description": "The first line to read, counted from 1."},
        lines={"type": "integer", "minimum": 200, "description": "How many lines to read, at most 2000."},
    ),
    _function(
        "search",
        "Search all text files of the project for a regular expression. The result has path and line of each match.",
        pattern=_string("A regular expression, in the syntax of Python's re module.", *_PATTERNS),
        directory=_string("Where to search, relative to the root of the project.", "src", "tests"),
    ),
    _function(
        "run_tests",
        "Run tests of the project with pytest. The result is what pytest prints, at most the last 8000 characters.",
        target=_string("A directory, a file, or one test as pytest names it.", *_SUITES),
        stop_at_first={"type": "boolean", "description": "Stop at the first test that fails."},
    ),
)
"""Three functions; their schemas have examples, from which the simulated backend takes its arguments."""


def question() -> Object:
    """The first input item."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]}


def tool_result(name: str, number: int) -> str:
    """What a tool says; the same for the same arguments.

    Args:
        name: The tool.
        number: How many calls there were before.

    Returns:
        Text of 1,100 to 7,900 bytes.
    """
    return text.lines(name, number, _SIZES[number % len(_SIZES)])


def run(call: Object, number: int) -> Object:
    """Answer a tool call, without doing anything.

    Args:
        call: A `function_call` item.
        number: How many calls there were before it.

    Returns:
        A `function_call_output` item.
    """
    output = tool_result(call["name"], number)
    return {"type": "function_call_output", "call_id": call["call_id"], "output": output}


class Demo:
    """The demo's rollout; see :class:`~proxy.rollout.measure.Task`.

    Args:
        model: The model to ask.
    """

    def __init__(self, model: str) -> None:
        self.terms = Terms({"model": model, "store": False, "instructions": INSTRUCTIONS, "tools": TOOLS})
        self._calls = 0

    def opening(self) -> list[Object]:
        """The question."""
        return [question()]

    def after(self, output: list[Object], turn: int) -> list[Object]:
        """What the tools say to the calls; it is over when there are none."""
        calls = [item for item in output if item["type"] == "function_call"]
        before, self._calls = self._calls, self._calls + len(calls)
        return [run(call, number) for number, call in enumerate(calls, before)]
