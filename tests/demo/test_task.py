"""The rollout's tools are made up: of realistic size, and the same every time."""

from __future__ import annotations

import pytest

from proxy.demo import task

NUMBERS = range(40)
NAMES = [tool["name"] for tool in task.TOOLS]


def call(name: str) -> dict[str, str]:
    """A tool call."""
    return {"type": "function_call", "call_id": "call_1", "name": name, "arguments": "{}"}


@pytest.mark.parametrize("name", [*NAMES, "unknown"])
def test_tool_results_have_realistic_sizes(name: str) -> None:
    """Every result has 1 to 8 KB, of several lines, in ASCII."""
    results = [task.tool_result(name, number) for number in NUMBERS]
    assert all(1_000 <= len(result) <= 8_000 for result in results)
    assert all(result.isascii() and result.count("\n") > 5 for result in results)


@pytest.mark.parametrize("name", NAMES)
def test_tool_results_are_the_same_every_time(name: str) -> None:
    """The same call gives the same text, another call another one."""
    results = [task.tool_result(name, number) for number in NUMBERS]
    assert results == [task.tool_result(name, number) for number in NUMBERS]
    assert len(set(results)) == len(results)


def test_tool_answers_its_call() -> None:
    """An output names the call that it answers."""
    output = task.run(call("search"), 3)
    assert output == {"type": "function_call_output", "call_id": "call_1", "output": task.tool_result("search", 3)}


def test_rollout_ends_where_nothing_is_called() -> None:
    """Each call of an answer gets its output, numbered on from those before it."""
    rollout = task.Demo("m")
    assert rollout.opening() == [task.question()]
    first = rollout.after([call("search"), {"type": "message"}, call("read_file")], 1)
    assert first == [task.run(call("search"), 0), task.run(call("read_file"), 1)]
    assert rollout.after([call("search")], 2) == [task.run(call("search"), 2)]
    assert rollout.after([{"type": "message"}], 3) == []
