"""Control events, read and answered: the corners that the dialogues do not show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.protocol import controls
from proxy.protocol.errors import InjectRefused, InvalidMessage, SteerRefused
from proxy.protocol.messages import Frame, open_frame
from proxy.protocol.rawjson import Head
from proxy.protocol.relay import lane_member


def opened(**members: Any) -> Frame:
    """A client event of these members."""
    return open_frame(json.dumps(members).encode())


def test_cancel_may_name_its_lane() -> None:
    """Without an id it is about whatever runs there."""
    stop = controls.read_stop(opened(type="response.cancel", stream_id="a"))
    assert (stop.response_id, stop.stream_id, stop.is_interrupt) == (None, "a", False)


def test_interrupt_needs_no_mode() -> None:
    """The only one there is."""
    stop = controls.read_stop(opened(type="response.interrupt", response_id="resp_1"))
    assert stop.is_interrupt


def test_steer_keeps_its_input_as_it_came() -> None:
    """What is handed back is what the client sent, to the byte; what is committed are items."""
    frame = open_frame(b'{"type":"response.steer","previous_response_id":"r","input": "a\\ud83d" }')
    steer = controls.read_steer(frame, max_items=10)
    assert steer.raw_input == b'"a\\ud83d"'
    assert steer.items == [b'{"type":"message","role":"user","content":"a\\ud83d"}']


@pytest.mark.parametrize("raw", [b"[1]", b"{}", b"true"])
def test_steer_with_an_unreadable_input(raw: bytes) -> None:
    """It is the code for bad input, whatever is bad about it."""
    frame = Frame("response.steer", None, [("previous_response_id", b'"r"'), ("input", raw)], 10)
    with pytest.raises(SteerRefused) as raised:
        controls.read_steer(frame, max_items=10)
    assert raised.value.code == "invalid_input"


def test_steer_has_the_limit_of_a_create() -> None:
    """So many items and no more."""
    items = [{"role": "user", "content": "x"}] * 3
    frame = opened(type="response.steer", previous_response_id="r", input=items)
    assert len(controls.read_steer(frame, max_items=3).items) == 3
    with pytest.raises(SteerRefused):
        controls.read_steer(frame, max_items=2)
    with pytest.raises(InvalidMessage):
        controls.read_inject(opened(type="response.inject", response_id="r", input=items), max_items=2)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"input": "x", "previous_response_id": "r"}, {"input": "x", "previous_response_id": "r"}),
        ({}, {"input": "", "previous_response_id": ""}),
        ({"previous_response_id": 5, "input": None}, {"input": None, "previous_response_id": ""}),
    ],
)
def test_refused_submission_is_handed_back_as_far_as_it_is_there(
    members: dict[str, Any], expected: dict[str, Any]
) -> None:
    """The types of the event want both members."""
    pairs = controls.submission_in(opened(type="response.steer", **members))
    failed = json.loads(controls.steer_failed(SteerRefused("invalid_input", "No."), pairs, lane_member("a"), 3))
    assert failed == {
        "type": "response.steer.failed",
        "stream_id": "a",
        "sequence_number": 3,
        "error": {"type": "invalid_request_error", "code": "invalid_input", "message": "No."},
        "steer": expected,
    }


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"type": "function_call", "name": "f"}, {"type": "function_call_output", "name": "f"}),
        ({"type": "custom_tool_call", "name": "f"}, {"type": "custom_tool_call_output"}),
        ({"type": "computer_call"}, {"type": "computer_call_output"}),
        ({"type": "tool_search_call"}, {"type": "tool_search_output", "execution": "client"}),
    ],
)
def test_stub_of_an_output_has_just_what_identifies_it(item: dict[str, Any], expected: dict[str, Any]) -> None:
    """openai-python's types of the stubs."""
    stub = controls.required_input(json.dumps(item).encode(), Head(item["type"], None, "c1"))
    assert json.loads(stub) == {"call_id": "c1", **expected}


def test_injection_that_failed_gives_its_input_back() -> None:
    """As it came."""
    inject = controls.read_inject(opened(type="response.inject", response_id="r", input=[{"a": 1}]), max_items=10)
    failed = json.loads(controls.inject_failed(InjectRefused("response_not_found", "No."), inject))
    assert failed["input"] == [{"a": 1}]
    assert failed["error"] == {"code": "response_not_found", "message": "No."}
    assert failed["response_id"] == "r"
