"""Complete Response objects: what a request said is echoed, the rest has the API's defaults."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import Response

from proxy.protocol import responses, shapes
from proxy.protocol.responses import RequestEcho
from tests import openresponses


def echo(**fields: Any) -> RequestEcho:
    """What a request with these fields says."""
    return RequestEcho({name: json.dumps(value).encode() for name, value in fields.items()}, 1000, "resp_before")


def fill(response: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A response, filled for a request with these fields."""
    filled = responses.fill(json.dumps(response).encode(), "resp_1", "in_progress", echo(**fields))
    value: dict[str, Any] = json.loads(filled)
    return value


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": "m", "instructions": "x", "temperature": 0.5, "top_p": 0.1, "store": False, "metadata": {"a": "b"}},
        {"tools": [{"type": "function", "name": "f"}], "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": [{"type": "function", "name": "f", "strict": True, "parameters": {}, "description": "d"}]},
        {"reasoning": {"effort": "low"}, "text": {"verbosity": "low"}, "max_output_tokens": 5, "truncation": "auto"},
        {"reasoning": None, "instructions": None, "text": None, "tools": None, "metadata": None, "service_tier": None},
        {"tools": "nonsense", "text": 5, "user": "u", "safety_identifier": "s", "prompt_cache_key": "k"},
    ],
)
def test_composed_response_satisfies_strict_clients(fields: dict[str, Any]) -> None:
    """Whatever a request says, the object is whole by both schemas."""
    raw = responses.compose(echo(model="m", **{k: v for k, v in fields.items() if k != "model"}), "resp_1", "completed")
    assert openresponses.response_problems(json.loads(raw)) == []
    Response.model_validate_json(raw)


def test_request_is_echoed() -> None:
    """What the request named stands in the response as it was named."""
    filled = fill({}, model="m", instructions="be brief", temperature=0, metadata={"a": "b"}, store=False)
    expected = {"model": "m", "instructions": "be brief", "temperature": 0, "metadata": {"a": "b"}, "store": False}
    assert filled.items() >= expected.items()
    assert filled["id"] == "resp_1"
    assert filled["created_at"] == 1000
    assert filled["previous_response_id"] == "resp_before"


def test_function_tools_are_shown_in_the_responses_form() -> None:
    """A Response lists description, parameters and strict even where the request left them out."""
    tool = {"type": "function", "name": "f"}
    custom = {"type": "custom", "name": "c"}
    shown = fill({}, tools=[tool, custom])["tools"]
    assert shown == [{**tool, "description": None, "parameters": None, "strict": None}, custom]


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        (
            "text",
            {"format": {"type": "json_schema", "name": "n", "schema": {}}},
            {"format": {"type": "json_schema", "name": "n", "schema": {}, "description": None, "strict": False}},
        ),
        ("text", {"verbosity": "low"}, {"verbosity": "low", "format": {"type": "text"}}),
        (
            "tool_choice",
            {"type": "allowed_tools", "tools": []},
            {"type": "allowed_tools", "tools": [], "mode": "auto"},
        ),
        ("tool_choice", {"type": "function", "name": "f"}, {"type": "function", "name": "f"}),
        ("tool_choice", "required", "required"),
    ],
)
def test_settings_are_echoed_with_all_that_a_response_needs(field: str, value: Any, shown: Any) -> None:
    """What a request may leave out of them a Response may not (Open Responses, `ResponseResource`)."""
    assert fill({}, **{field: value})[field] == shown


def test_what_the_backend_sent_stays() -> None:
    """Filling never changes a value, except null where null is not allowed."""
    sent: dict[str, Any] = {
        "id": "resp_1",
        "status": "queued",
        "model": "other",
        "tools": [],
        "text": None,
        "reasoning": None,
        "error": None,
        "extra": {"x": 1},
    }
    filled = fill(sent, model="m", tools=[{"type": "function", "name": "f"}])
    assert filled["status"] == "queued"
    assert filled["model"] == "other"
    assert filled["tools"] == []
    assert filled["error"] is None
    assert filled["reasoning"] is None
    assert filled["extra"] == {"x": 1}
    assert filled["text"] == {"format": {"type": "text"}}


def test_whole_response_is_the_same_bytes() -> None:
    """Where nothing is missing, nothing is built."""
    raw = responses.compose(echo(model="m"), "resp_1", "completed")
    assert responses.fill(raw, "resp_1", "completed", echo()) is raw


def test_same_lack_is_filled_from_memory() -> None:
    """The events of a turn lack the same members: their text is made once."""
    said = echo(model="m")
    responses.fill(b'{"id":"resp_1","status":"in_progress"}', "resp_1", "in_progress", said)
    assert len(said.tails) == 1
    responses.fill(b'{"id":"resp_1","status":"in_progress"}', "resp_1", "in_progress", said)
    assert len(said.tails) == 1


def test_another_id_replaces_the_backends() -> None:
    """The id is the one that the client is to know."""
    assert fill({"id": "resp_other"})["id"] == "resp_1"


@pytest.mark.parametrize(
    ("response", "own"),
    [
        ({"id": "resp_1"}, "resp_1"),
        ({"id": "resp_1", "text": None}, "resp_1"),
        ({"id": ""}, None),
        ({"id": 5}, None),
        ({}, None),
    ],
)
def test_own_id_is_read_or_none(response: dict[str, Any], own: str | None) -> None:
    """An id is a string that is not empty."""
    assert responses.own_id(json.dumps(response).encode()) == own


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, None),
        ({"input_tokens": 3, "output_tokens": 4}, (3, 0, 4, 7)),
        ({"input_tokens": 3, "output_tokens": 4, "total_tokens": 9}, (3, 0, 4, 9)),
        ({"input_tokens": 3, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": 4}, (3, 2, 4, 7)),
        (
            {
                "input_tokens": 3,
                "input_tokens_details": {"cached_tokens": 2},
                "output_tokens": 4,
                "output_tokens_details": {"reasoning_tokens": 1},
                "total_tokens": 7,
            },
            (3, 2, 4, 7),
        ),
        ({"input_tokens": 3, "input_tokens_details": None, "output_tokens": None}, (3, 0, 0, 3)),
        ({"input_tokens": None, "total_tokens": None}, (0, 0, 0, 0)),
    ],
)
def test_usage_gets_its_details(usage: dict[str, Any] | None, expected: tuple[int, ...] | None) -> None:
    """Counts that are missing are zero, the total is their sum, null stays null."""
    filled = json.loads(responses.fill_usage(json.dumps(usage).encode()))
    if expected is None:
        assert filled is None
        return
    assert openresponses.usage_problems(filled) == []
    cached = filled["input_tokens_details"]["cached_tokens"]
    assert (filled["input_tokens"], cached, filled["output_tokens"], filled["total_tokens"]) == expected


def test_final_members_are_read_either_way() -> None:
    """Output, usage, an error's code and the model, from a response of the usual kind and of an odd one."""
    usual = b'{"output":[1],"usage":null,"error":{"code":"c"},"model":"m"}'
    odd = b'{"output":[1],"usage":null,"error":{"code":"c"},"model":"m","text":null}'
    for raw in (usual, odd):
        assert responses.final_members(raw) == (b"[1]", b"null", "c", "m")
    assert responses.final_members(b'{"output":[],"usage":{},"error":null}')[2:] == (None, None)


@pytest.mark.parametrize("said", [None, "resp_before"])
def test_client_sees_which_response_it_continued(said: str | None) -> None:
    """A backend that was sent the whole conversation knows of none; null is what it says, not what was asked."""
    assert fill({"id": "resp_1", "previous_response_id": said})["previous_response_id"] == "resp_before"
    first = RequestEcho({}, 1000, None)
    whole = responses.compose(first, "resp_1", "completed")
    assert responses.fill(whole, "resp_1", "completed", first) is whole


def test_denied_parent_is_replaced_and_nothing_else() -> None:
    """Only the response's own member, wherever its like stands; everything else stays byte for byte."""
    said = RequestEcho({}, 1000, "resp_before")
    whole = responses.compose(RequestEcho({}, 1000, None), "resp_1", "completed")
    filled = responses.fill(whole, "resp_1", "completed", said)
    assert filled == whole.replace(b'"previous_response_id":null', b'"previous_response_id":"resp_before"')
    nested = whole[:-1] + b',"x":{"previous_response_id":null}}'
    members = json.loads(responses.fill(nested, "resp_1", "completed", said))
    assert (members["previous_response_id"], members["x"]["previous_response_id"]) == ("resp_before", None)
    spaced = whole.replace(b'"previous_response_id":null', b'"previous_response_id" : null')
    assert json.loads(responses.fill(spaced, "resp_1", "completed", said))["previous_response_id"] == "resp_before"


def test_shape_and_members_are_in_one_order() -> None:
    """What is missing is found by position."""
    assert shapes.ResponseShape.__struct_fields__ == ("id", "status", *responses.MEMBERS)
