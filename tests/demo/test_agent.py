"""The simulated agent calls the functions it is given, one after the other, until it has enough results."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proxy.demo import agent, task
from proxy.demo.agent import Call, Sentence, Thought
from proxy.demo.intake import Request
from proxy.demo.stream import ResponseStream


def request(outputs: int, **fields: Any) -> Request:
    """A request whose input holds so many tool outputs."""
    items = [{"type": "function_call_output", "call_id": str(number), "output": ""} for number in range(outputs)]
    return Request({"model": "m", **fields}, [task.question(), *items])


def test_agent_calls_each_function_in_turn() -> None:
    """The next call is of the next function, with a remark before it."""
    names = []
    for done in range(4):
        remark, call = agent.answer(request(done, tools=task.TOOLS), 20)
        assert isinstance(call, Call)
        assert isinstance(remark, Thought if done % 2 else Sentence)
        names.append(call.name)
    assert names == ["read_file", "search", "run_tests", "read_file"]


def test_agent_takes_arguments_from_the_examples() -> None:
    """A function that is called again gets the next example, and everything else its schema asks for."""
    calls = [agent.answer(request(done, tools=task.TOOLS), 20)[-1] for done in (0, 3)]
    arguments = [orjson.loads(call.arguments) for call in calls if isinstance(call, Call)]
    assert [value.pop("path") for value in arguments] == ["src/orders/checkout.py", "src/payments/client.py"]
    assert arguments == [{"first_line": 1, "lines": 200}] * 2


def test_agent_ends_with_a_message_when_it_has_enough() -> None:
    """With as many results as the script asks for, the answer is one message that says it is simulated."""
    (last,) = agent.answer(request(2, tools=task.TOOLS), 2)
    assert isinstance(last, Sentence)
    assert "2 calls" in last.text
    assert "simulation" in last.text


def test_agent_answers_at_once_without_functions() -> None:
    """Without functions there is nothing to call, and the answer says that it is simulated."""
    (only,) = agent.answer(request(0, tools=[{"type": "web_search"}]), 20)
    assert isinstance(only, Sentence)
    assert "simulated" in only.text
    assert "1 input item." in only.text


@pytest.mark.parametrize("tools", [task.TOOLS, []])
@pytest.mark.parametrize("done", [0, 1, 2])
def test_agent_says_as_much_as_it_is_told_to(done: int, tools: list[Any]) -> None:
    """An answer with a call, a thought, or neither has exactly so many tokens, unless it has more by itself."""
    asked = request(done, tools=tools)
    for wanted in (100, 1):
        answered = ResponseStream(asked, agent.answer(asked, 20, wanted), prompt_bytes=4, cached_bytes=0)
        assert list(answered.events())
        assert answered.output_tokens == wanted or answered.output_tokens > wanted == 1


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "demo"),
        ({"type": "string", "enum": ["a", "b"]}, "a"),
        ({"type": "string", "default": "c"}, "c"),
        ({"const": None}, None),
        ({"type": "integer", "minimum": 7}, 7),
        ({"type": "number"}, 1),
        ({"type": "boolean"}, False),
        ({"type": "null"}, None),
        ({"type": ["string", "null"]}, "demo"),
        ({"type": "array", "items": {"type": "string"}}, []),
        ({"type": "array", "items": {"type": "string"}, "minItems": 3}, ["demo"] * 3),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, False),
        ({"properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]}, {"a": "demo"}),
        ({"type": "object"}, {}),
        ({"type": "array", "minItems": "many"}, []),
        ({"type": "object", "required": "all", "properties": []}, {}),
        ({"$ref": "#/$defs/x"}, None),
        ("text", None),
    ],
)
def test_example_is_the_least_that_fits(schema: Any, value: Any) -> None:
    """A value is made of the schema alone, and names nothing that exists."""
    assert agent.example(schema, 0) == value


def test_example_ends_in_a_schema_without_end() -> None:
    """A schema that lies in itself is followed only so deep."""
    schema: dict[str, Any] = {"type": "object", "required": ["a"], "properties": {}}
    schema["properties"]["a"] = schema
    value, depth = agent.example(schema, 0), 0
    while value is not None:
        value, depth = value["a"], depth + 1
    assert depth == agent._MAX_DEPTH + 1


def test_agent_gives_an_object_whatever_the_schema_says() -> None:
    """Arguments are an object even where a function's parameters are nonsense."""
    call = agent.answer(request(0, tools=[{"type": "function", "name": "odd", "parameters": {"type": "string"}}]), 20)[
        -1
    ]
    assert call == Call("odd", "{}")
