"""The simulated backend takes what a stateless server can serve, and refuses the rest in OpenAI's words."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proxy.demo import intake
from proxy.demo.intake import Refusal, Request

CALL = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}", "id": "fc_1"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "seen"}
TOOLS = [{"type": "function", "name": "look"}, {"type": "web_search"}, {"type": "function", "name": "touch"}]


def read(**fields: Any) -> Request:
    """Read a request that is good but for the fields given."""
    return intake.read(orjson.dumps({"model": "m", "input": "hi", **fields}))


def test_intake_makes_a_message_of_a_string() -> None:
    """A string is a user's message."""
    assert read().items == [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}]


def test_intake_keeps_items_as_they_are() -> None:
    """Items, easy messages without a type among them, stay what they are."""
    items = [{"role": "user", "content": "hi"}, CALL, OUTPUT]
    assert read(input=items).items == items


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"type": "response.create"}, "type", "unknown_parameter"),
        ({"generate": None}, "generate", "unknown_parameter"),
        ({"stream_id": "lane"}, "stream_id", "unknown_parameter"),
        ({"model": None}, "model", "missing_required_parameter"),
        ({"model": ""}, "model", "missing_required_parameter"),
        ({"model": 1}, "model", "invalid_type"),
        ({"stream": 1}, "stream", "invalid_type"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"instructions": ["be kind"]}, "instructions", "invalid_type"),
        ({"max_output_tokens": 0}, "max_output_tokens", "integer_below_min_value"),
        ({"tools": ["look"]}, "tools[0]", "invalid_type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "missing_required_parameter"),
        ({"input": 1}, "input", "invalid_type"),
        ({"input": ["hi"]}, "input[0]", "invalid_type"),
        ({"input": [{"content": "hi"}]}, "input[0]", "invalid_type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]", "invalid_value"),
        ({"input": [{**CALL, "call_id": None}]}, "input[0].call_id", "missing_required_parameter"),
        ({"input": [OUTPUT]}, "input", "invalid_value"),
        ({"input": [OUTPUT, CALL]}, "input", "invalid_value"),
        ({"input": [CALL, OUTPUT, OUTPUT]}, "input", "invalid_value"),
        ({"input": [CALL]}, "input", "invalid_value"),
    ],
)
def test_intake_refuses_what_it_cannot_serve(fields: dict[str, Any], param: str, code: str) -> None:
    """A field that needs memory, belongs to a WebSocket, or is wrong, is refused by its name."""
    with pytest.raises(Refusal) as caught:
        read(**fields)
    error = orjson.loads(caught.value.body())["error"]
    assert caught.value.status == 400
    assert error == {
        "message": caught.value.message,
        "type": "invalid_request_error",
        "param": param,
        "code": code,
    }


@pytest.mark.parametrize(("body", "code"), [(b"{", "invalid_json"), (b"[]", "invalid_type"), (b"", "invalid_json")])
def test_intake_refuses_what_is_no_object(body: bytes, code: str) -> None:
    """A body that is no JSON object is refused."""
    with pytest.raises(Refusal) as caught:
        intake.read(body)
    assert caught.value.code == code


def test_intake_takes_null_for_what_is_not_said() -> None:
    """A field that is null is as good as absent, and one that is not known is let pass."""
    names = ("previous_response_id", "conversation", "background", "stream", "tools", "instructions", "tool_choice")
    request = read(**dict.fromkeys(names), something_new={"a": 1})
    assert not request.is_streamed
    assert request.functions() == []


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (None, ["look", "touch"]),
        ("auto", ["look", "touch"]),
        ("required", ["look", "touch"]),
        ("none", []),
        ({"type": "function", "name": "touch"}, ["touch"]),
        ({"type": "function", "name": "taste"}, []),
    ],
)
def test_request_offers_the_functions_that_may_be_called(choice: Any, names: list[str]) -> None:
    """Only functions can be called, and only those that `tool_choice` allows."""
    assert [tool["name"] for tool in read(tools=TOOLS, tool_choice=choice).functions()] == names


def test_request_renders_a_prompt_without_ids() -> None:
    """Two runs of the same conversation have the same prompt, although their ids differ."""
    other = {"call_id": "call_2"}
    one = read(input=[CALL, OUTPUT], tools=TOOLS, instructions="be kind").prompt()
    same = read(input=[{**CALL, **other, "id": "fc_2"}, {**OUTPUT, **other}], tools=TOOLS, instructions="be kind")
    assert one == same.prompt()
    assert one != read(input=[CALL, OUTPUT], tools=TOOLS).prompt()


def test_request_prompt_goes_on_from_the_one_before() -> None:
    """A conversation that grows has a prompt that begins with the old one."""
    assert read(input=[CALL, OUTPUT, {"role": "user", "content": "go on"}]).prompt().startswith(
        read(input=[CALL, OUTPUT]).prompt()
    )  # fmt: skip
