"""A rollout's requests have the sizes that were asked for, whatever the model says."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import orjson
import pytest

from proxy.bench.workload import PRESETS, Rollout, Sizes
from proxy.demo import intake
from proxy.rollout import text

NOTHING = Sizes(instructions=0, tools=0, metadata=0, history=0, tool_output=0)


def rollout(sizes: Sizes, *, calls_tools: bool = False) -> Rollout:
    """A rollout of three turns."""
    return Rollout("m", sizes, turns=3, output_tokens=10, calls_tools=calls_tools)


def size(value: Any) -> int:
    """Bytes of something as JSON."""
    return len(orjson.dumps(value))


@pytest.mark.parametrize("preset", list(PRESETS))
def test_requests_have_their_sizes(preset: str) -> None:
    """What is in every turn, what was said before, and what a tool says: each within a tenth, and a few hundred bytes."""
    sizes = PRESETS[preset]
    one = rollout(sizes)
    fields = one.terms.fields
    for real, wanted in (
        (size(fields.get("instructions", "")), sizes.instructions),
        (size(fields["tools"]), sizes.tools),
        (size(one.terms.socket_fields), sizes.metadata),
        (size(one.opening()), sizes.history),
        (size(one.after([], 1)), sizes.tool_output),
    ):
        assert abs(real - wanted) <= wanted / 10 + 600


@pytest.mark.parametrize("preset", list(PRESETS))
def test_requests_are_good_ones(preset: str) -> None:
    """A strict server takes the first request, and the one after an answer with a call and without."""
    one = rollout(PRESETS[preset], calls_tools=True)
    call = {"type": "function_call", "call_id": "c", "name": "tool_0", "arguments": "{}"}
    said = {"type": "message", "role": "assistant", "content": "Hm."}
    for output in ([], [call], [said]):
        items = one.opening() + (output + one.after(output, 1) if output else [])
        assert intake.read(orjson.dumps({**one.terms.fields, "input": items})).items == items


def test_codex_is_the_size_that_was_captured() -> None:
    """Its first request over HTTP has 40 kB, as that of Codex had."""
    one = rollout(PRESETS["codex"])
    assert 38_000 < size({**one.terms.fields, "input": one.opening()}) < 42_000


def test_nothing_can_be_left_out() -> None:
    """All sizes may be 0, and there is a question all the same."""
    one = rollout(NOTHING)
    assert {"instructions", "tools", "tool_choice"}.isdisjoint(one.terms.fields)
    assert [item["role"] for item in one.opening()] == ["user"]
    assert one.after([], 1)


def test_rollouts_begin_differently_and_have_the_same_length() -> None:
    """No prefix of one is in the other's cache, neither of its instructions nor its tools nor its input."""
    sizes = PRESETS["agents"]
    one, other = rollout(sizes), rollout(sizes)
    for field in ("instructions", "tools"):
        first, second = (orjson.dumps(each.terms.fields[field]) for each in (one, other))
        assert len(first) == len(second)
        assert first[:120] != second[:120]
    assert one.opening()[0] != other.opening()[0]


def test_calls_are_answered_and_messages_followed() -> None:
    """An output for each call, the first of them of the size asked for; a message where nothing was called."""
    one = rollout(replace(NOTHING, tool_output=500))
    calls = [{"type": "function_call", "call_id": call_id} for call_id in "ab"]
    outputs = one.after([{"type": "reasoning"}, *calls], 1)
    assert [(item["call_id"], len(item["output"])) for item in outputs] == [("a", 500), ("b", 2)]
    (message,) = one.after([{"type": "message"}], 1)
    assert (message["role"], len(message["content"])) == ("user", 500)


def test_rollout_is_over_after_its_turns() -> None:
    """However the model goes on."""
    one = rollout(NOTHING)
    assert [bool(one.after([], turn)) for turn in (1, 2, 3)] == [True, True, False]


@pytest.mark.parametrize(("calls_tools", "choice"), [(True, "auto"), (False, "none")])
def test_models_are_told_not_to_call(calls_tools: bool, choice: str) -> None:  # noqa: FBT001 - a parameter of a test
    """Only a simulated one calls tools as often as it should."""
    assert rollout(PRESETS["small"], calls_tools=calls_tools).terms.fields["tool_choice"] == choice


def test_text_is_as_hard_to_compress_as_source_code() -> None:
    """Files of Python's standard library have 2.9 to one; less than 4 to one at the least."""
    made = "".join(text.lines("source", number, 4_100) for number in range(20)).encode()
    assert 2.5 < len(made) / len(zlib.compress(made)) < 4
