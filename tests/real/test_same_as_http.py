"""A dialogue over WebSocket mode is the dialogue over HTTP: what is added is known to the letter, nothing else differs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from tests.rig.llama import AFTER_THOUGHT, AFTER_TOOL, MODEL, THOUGHTS, Llama
from tests.rig.sdk import (
    Dialogue,
    Http,
    Sockets,
    SyncSockets,
    Turn,
    async_client,
    check_frame,
    reasoning_dialogue,
    sync_client,
    take_out_added,
    tool_dialogue,
)
from tests.rig.slipstream import Slipstream

pytestmark = pytest.mark.timeout(300)

Event = dict[str, Any]

dialogues = pytest.mark.parametrize("dialogue", [tool_dialogue, reasoning_dialogue])

#: What llama.cpp leaves out of an event, apart from its number: the item's place, and what else clients require.
_GAPS: Final[dict[str, Event]] = {
    "response.output_item.added": {},
    "response.output_item.done": {},
    "response.function_call_arguments.delta": {},
    "response.content_part.added": {"content_index": 0, "part.annotations": []},
    "response.content_part.done": {"content_index": 0},
    "response.output_text.delta": {"content_index": 0, "logprobs": []},
    "response.output_text.done": {"content_index": 0, "logprobs": []},
    "response.reasoning_text.delta": {"content_index": 0},
}

#: Members of a Response that it leaves out: what the requests of these dialogues said, or the API's defaults.
_RESPONSE: Final[Event] = {
    "background": False,
    "completed_at": None,
    "error": None,
    "frequency_penalty": 0,
    "incomplete_details": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": False,
    "temperature": 0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}

#: Those that it leaves out as long as the response is not complete.
_UNFINISHED: Final[Event] = {"created_at": "a time", "model": MODEL, "output": [], "usage": None}

_USAGE_GAPS: Final[Event] = {
    "response.usage.input_tokens_details.cache_write_tokens": 0,
    "response.usage.output_tokens_details": {"reasoning_tokens": 0},
}


@dialogues
async def test_socket_client_gets_what_an_http_client_gets(
    any_proxy: Slipstream, llama: Llama, dialogue: Callable[[], Dialogue]
) -> None:
    """The events are those of the backend, in their order and with their content, plus the members it leaves out."""
    async with async_client(any_proxy.base_url) as client, client.responses.connect() as connection:
        ours = await Sockets(connection).play(dialogue())
    async with async_client(llama.base_url) as client:
        theirs = await Http(client).play(dialogue())
    _compare(ours, theirs)


@dialogues
async def test_synchronous_client_gets_what_an_http_client_gets(
    proxy: Slipstream, llama: Llama, dialogue: Callable[[], Dialogue]
) -> None:
    """The SDK's synchronous connection sees the same."""
    with sync_client(proxy.base_url) as sync, sync.responses.connect() as connection:
        ours = SyncSockets(connection).play(dialogue())
    async with async_client(llama.base_url) as client:
        theirs = await Http(client).play(dialogue())
    _compare(ours, theirs)


@dialogues
async def test_sdk_accepts_every_frame_strictly(any_proxy: Slipstream, dialogue: Callable[[], Dialogue]) -> None:
    """Each frame validates against the SDK's own types, over WebSocket and in the form that streams have over HTTP."""
    async with async_client(any_proxy.base_url) as client, client.responses.connect() as connection:
        turns = await Sockets(connection).play(dialogue())
    for frame in (frame for turn in turns for frame in turn.frames):
        check_frame(frame)


async def test_model_answers_as_it_was_trained(proxy: Slipstream) -> None:
    """The dialogues hold what they are here for: calls, closing sentences, thoughts, an answer."""
    async with async_client(proxy.base_url) as client, client.responses.connect() as connection:
        with_tools = await Sockets(connection).play(tool_dialogue())
        thinking = await Sockets(connection).play(reasoning_dialogue())
    assert [len(turn.calls) for turn in with_tools] == [1, 0, 1, 0, 0]
    assert [turn.text for turn in with_tools[1:4:2]] == [AFTER_TOOL, AFTER_TOOL]
    assert [turn.reasoning for turn in thinking] == [THOUGHTS, THOUGHTS]
    assert [turn.text for turn in thinking] == [AFTER_THOUGHT, AFTER_THOUGHT]


def _compare(ours: list[Turn], theirs: list[Turn]) -> None:
    for turn in ours:
        take_out_added(turn)
    assert [turn.types for turn in ours] == [turn.types for turn in theirs]
    previous = None
    for turn, our_events, their_events in zip(ours, _plain(ours), _plain(theirs), strict=True):
        added = [dict(_additions(*pair)) for pair in zip(our_events, their_events, strict=True)]
        asked = {"instructions": turn.request.get("instructions"), "tools": turn.request.get("tools", [])}
        assert added == list(_expected(their_events, {**_RESPONSE, **asked, "previous_response_id": previous}))
        assert "timings" in turn.events[-1]  # what only llama.cpp has goes through
        previous = our_events[-1]["response"]["id"]


def _expected(events: list[Event], response: Event) -> Iterator[Event]:
    """What is to be added to each event of a turn."""
    places: dict[str, int] = {}
    for number, event in enumerate(events):
        expected: Event = {"sequence_number": number}
        if "response" in event:
            is_complete = event["type"] == "response.completed"
            members = response if is_complete else {**response, **_UNFINISHED}
            expected |= {f"response.{name}": value for name, value in members.items()}
            expected |= _USAGE_GAPS if is_complete else {}
        else:
            item_id = event["item_id"] if "item_id" in event else event["item"]["id"]
            expected |= {"output_index": places.setdefault(item_id, len(places)), **_GAPS[event["type"]]}
        yield expected


def _additions(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of each member that ours has more; whatever else differs fails."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict) and not theirs.keys() - ours.keys(), path
        for name, value in ours.items():
            inner = f"{path}.{name}" if path else name
            if name in theirs:
                yield from _additions(value, theirs[name], inner)
            else:
                yield inner, value
    elif isinstance(theirs, list):
        assert isinstance(ours, list) and len(ours) == len(theirs), path
        for number, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from _additions(*pair, f"{path}[{number}]")
    else:
        assert type(ours) is type(theirs) and ours == theirs, path


def _plain(turns: list[Turn]) -> list[list[Event]]:
    """The events without what no two runs have in common: times, counts of cached tokens, the text of ids."""
    names: dict[str, str] = {}

    def visit(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: visit(inner, name) for name, inner in value.items() if name != "timings"}
        if isinstance(value, list):
            return [visit(inner) for inner in value]
        if key in ("id", "item_id", "call_id", "previous_response_id") and isinstance(value, str):
            return names.setdefault(value, f"id {len(names)}")
        if key == "created_at":
            return "a time"
        return 0 if key == "cached_tokens" else value

    plain = visit(copy.deepcopy([turn.events for turn in turns]))
    assert isinstance(plain, list)
    return plain
