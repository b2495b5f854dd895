"""The strict client takes what the schema allows, and misses each member that it asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests import openresponses

_LOGPROB: Final = {"token": "a", "logprob": -0.5, "bytes": [97]}
_CITATION: Final = {
    "type": "url_citation",
    "url": "https://example.com",
    "start_index": 0,
    "end_index": 1,
    "title": "t",
}
_TEXT: Final = {
    "type": "output_text",
    "text": "a",
    "annotations": [_CITATION],
    "logprobs": [{**_LOGPROB, "top_logprobs": [_LOGPROB]}],
}
_MESSAGE: Final = {
    "type": "message",
    "id": "msg_1",
    "status": "completed",
    "role": "assistant",
    "content": [_TEXT, {"type": "refusal", "refusal": "no"}],
}
_CALL: Final = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "f",
    "arguments": "{}",
    "status": "completed",
}
_OUTPUT: Final = {
    "type": "function_call_output",
    "id": "fco_1",
    "call_id": "call_1",
    "output": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": None, "detail": "auto"}],
    "status": "completed",
}
_REASONING: Final = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "a"}]}
_COMPACTED: Final = {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"}
_USAGE: Final = {
    "input_tokens": 1,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 1,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 2,
}
_TOOL: Final = {"type": "function", "name": "f", "description": None, "parameters": None, "strict": None}
_RESPONSE: Final[dict[str, Any]] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "completed_at": None,
    "status": "incomplete",
    "incomplete_details": {"reason": "max_output_tokens"},
    "model": "m",
    "previous_response_id": None,
    "instructions": None,
    "output": [_MESSAGE, _CALL, _OUTPUT, _REASONING, _COMPACTED],
    "error": {"code": "c", "message": "m"},
    "tools": [_TOOL],
    "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function"}], "mode": "auto"},
    "truncation": "disabled",
    "parallel_tool_calls": True,
    "text": {"format": {"type": "json_schema", "name": "n", "description": None, "schema": None, "strict": False}},
    "top_p": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "top_logprobs": 0,
    "temperature": 1,
    "reasoning": {"effort": None, "summary": None},
    "user": None,
    "usage": _USAGE,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "store": False,
    "background": False,
    "service_tier": "default",
    "metadata": {},
    "safety_identifier": None,
    "prompt_cache_key": None,
}
_COMPACTION: Final = {
    "id": "resp_2",
    "object": "response.compaction",
    "created_at": 1,
    "output": [_COMPACTED],
    "usage": _USAGE,
}
_ERROR: Final = {
    "type": "error",
    "status": 400,
    "error": {"type": "invalid_request_error", "code": "c", "message": "m", "param": None},
}
_CREATED: Final = {"type": "response.created", "sequence_number": 0, "response": _RESPONSE}

_CALL_PLACE: Final = {"sequence_number": 1, "item_id": "msg_1", "output_index": 0}
_PLACE: Final = {**_CALL_PLACE, "content_index": 0}
_SUMMARY_PLACE: Final = {**_CALL_PLACE, "summary_index": 0}
_EVENTS: Final[list[dict[str, Any]]] = [
    _CREATED,
    _ERROR,
    {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": _CALL},
    {"type": "response.content_part.done", **_PLACE, "part": _TEXT},
    {"type": "response.output_text.delta", **_PLACE, "delta": "a", "logprobs": _TEXT["logprobs"]},
    {"type": "response.output_text.done", **_PLACE, "text": "a", "logprobs": _TEXT["logprobs"]},
    {"type": "response.output_text.annotation.added", **_PLACE, "annotation_index": 0, "annotation": _CITATION},
    {"type": "response.refusal.delta", **_PLACE, "delta": "a"},
    {"type": "response.refusal.done", **_PLACE, "refusal": "a"},
    {"type": "response.reasoning.delta", **_PLACE, "delta": "a"},
    {"type": "response.reasoning_text.done", **_PLACE, "text": "a"},
    {"type": "response.reasoning_summary_part.added", **_SUMMARY_PLACE, "part": {"type": "summary_text", "text": ""}},
    {"type": "response.reasoning_summary_text.delta", **_SUMMARY_PLACE, "delta": "a"},
    {"type": "response.reasoning_summary_text.done", **_SUMMARY_PLACE, "text": "a"},
    {"type": "response.function_call_arguments.delta", **_CALL_PLACE, "delta": "a"},
    {"type": "response.function_call_arguments.done", **_CALL_PLACE, "arguments": "a"},
]

_CASES: Final = [
    *(pytest.param(openresponses.problems, event, id=event["type"]) for event in _EVENTS),
    pytest.param(openresponses.compaction_problems, _COMPACTION, id="compaction"),
]

#: What may be left out.
_OPTIONAL: Final = ("logprobs",)


@pytest.mark.parametrize(("find", "whole"), _CASES)
def test_what_is_whole_is_taken_and_each_lack_is_noticed(find: Any, whole: Any) -> None:
    """However deep a member lies: without it, or with something else in its place, the client refuses."""
    assert find(whole) == []
    assert [lacking for lacking in _lacking(whole) if not find(lacking)] == []


@pytest.mark.parametrize("phase", ["commentary", "final_answer"])
def test_phase_of_a_message_is_taken(phase: str) -> None:
    """A message of the assistant may say which phase it belongs to, but not any."""
    assert openresponses.item_problems({**_MESSAGE, "phase": phase}) == []
    assert openresponses.item_problems({**_MESSAGE, "phase": "overture"}) == [".phase is 'overture'"]


@pytest.mark.parametrize("choice", ["none", "auto", "required", {"type": "function", "name": "f"}])
def test_choices_of_tools_are_taken(choice: Any) -> None:
    """A choice is one of three words, or an object."""
    assert openresponses.response_problems({**_RESPONSE, "tool_choice": choice}) == []


@pytest.mark.parametrize("choice", ["some", None, 1, {}, {"type": "none"}])
def test_other_choices_of_tools_are_not(choice: Any) -> None:
    """Nothing else is."""
    assert openresponses.response_problems({**_RESPONSE, "tool_choice": choice})


def test_problem_says_where_it_is() -> None:
    """A path leads to it."""
    event = {**_CREATED, "response": {**_RESPONSE, "output": [_CALL, {**_CALL, "status": "done"}]}}
    assert openresponses.problems(event) == ["response.created.response.output[1].status is 'done'"]
    assert openresponses.problems({"type": "response.new"}) == ["response.new.type is 'response.new'"]


def _lacking(value: Any) -> Iterator[Any]:
    """Copies of a JSON value, each without one of the members in it, or with `...` in its place."""
    if isinstance(value, list):
        for index, element in enumerate(value):
            yield from ([*value[:index], changed, *value[index + 1 :]] for changed in _lacking(element))
    elif isinstance(value, dict):
        for name, member in value.items():
            if name not in _OPTIONAL:
                yield {other: kept for other, kept in value.items() if other != name}
            yield {**value, name: ...}
            yield from ({**value, name: changed} for changed in _lacking(member))
