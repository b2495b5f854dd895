"""Streams of the simulated backend are complete and in order, by the types of the official client."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from proxy.demo.agent import Call, Sentence, Step, Thought
from proxy.demo.intake import Request
from proxy.demo.stream import Event, ResponseStream
from tests import openresponses

STEPS: list[Step] = [Thought("let me see"), Sentence("I look around"), Call("look", '{"where": "around"}')]
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def stream(steps: list[Step] = STEPS, **fields: Any) -> ResponseStream:
    """A response to a request with some fields."""
    request = Request({"model": "m", **fields}, [{"role": "user", "content": "hi"}])
    return ResponseStream(request, steps, prompt_bytes=401, cached_bytes=203)


def datas(events: list[Event]) -> list[Any]:
    """Events as a client reads them."""
    return [orjson.loads(orjson.dumps(event.data)) for event in events]


def test_stream_satisfies_the_official_types() -> None:
    """Every event, and every Response in it, has all that the official client's types ask for."""
    for data in datas(list(stream().events())):
        EVENT.validate_python(data)
        assert openresponses.problems(data) == []
        if "response" in data:
            Response.model_validate(data["response"])


def test_stream_numbers_its_events() -> None:
    """Sequence numbers count from 0 without a gap."""
    events = datas(list(stream().events()))
    assert [data["sequence_number"] for data in events] == list(range(len(events)))


def test_stream_has_items_in_the_order_of_the_reference() -> None:
    """Each item is added, filled and finished before the next one comes."""
    kinds = [data["type"].removeprefix("response.") for data in datas(list(stream().events()))]
    short = [kind for at, kind in enumerate(kinds) if not at or kind != kinds[at - 1]]
    assert short == [
        "created",
        "in_progress",
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]


def test_stream_tells_where_an_event_belongs() -> None:
    """Events of an item carry its index and id; those of a part the part's index."""
    for data in datas(list(stream().events())):
        kind = data["type"]
        if "response" in data:
            continue
        assert data["output_index"] in (0, 1, 2)
        assert ("content_index" in data) == ("_text" in kind or "content_part" in kind)
        assert ("item_id" in data) != ("output_item" in kind)


def test_stream_deltas_make_up_what_is_said_at_the_end() -> None:
    """Deltas of an item together are its text or its arguments, as the finished Response has them."""
    made = stream()
    events = datas(list(made.events()))
    said = ["", "", ""]
    for data in events:
        if data["type"].endswith(".delta"):
            said[data["output_index"]] += data["delta"]
    thought, sentence, call = made.response["output"]
    assert said == [thought["content"][0]["text"], sentence["content"][0]["text"], call["arguments"]]
    assert said == ["let me see", "I look around", '{"where": "around"}']
    assert [data["item"] for data in events if data["type"] == "response.output_item.done"] == [thought, sentence, call]
    assert events[-1]["response"] == made.response


def test_stream_counts_its_tokens() -> None:
    """Usage has the prompt's tokens, those of them that were cached, and one for each delta."""
    made = stream()
    deltas = [event for event in made.events() if event.is_token]
    assert all(event.data["type"].endswith(".delta") for event in deltas)
    assert made.response["usage"] == {
        "input_tokens": 101,
        "input_tokens_details": {"cached_tokens": 50, "cache_write_tokens": 0},
        "output_tokens": len(deltas),
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 101 + len(deltas),
    }


def test_stream_echoes_the_request() -> None:
    """A Response says what was asked, with the API's defaults for the rest; nothing is ever stored."""
    made = stream(instructions="be kind", temperature=0.5, metadata={"a": "b"}, tools=None, store=True)
    response = made.response
    assert (response["instructions"], response["temperature"], response["metadata"]) == ("be kind", 0.5, {"a": "b"})
    assert (response["tools"], response["top_p"], response["store"]) == ([], 1.0, False)


@pytest.mark.parametrize("limit", range(1, 10))
def test_stream_stops_at_the_limit_of_tokens(limit: int) -> None:
    """With too few tokens the response is incomplete and says so, and so is the item that was cut."""
    made = stream(max_output_tokens=limit)
    events = datas(list(made.events()))
    for data in events:
        EVENT.validate_python(data)
    response = made.response
    assert (response["status"], events[-1]["type"]) == ("incomplete", "response.incomplete")
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] == limit
    assert all(item["status"] == "completed" for item in response["output"][:-1])


@pytest.mark.parametrize("limit", [10, 11])
def test_stream_is_complete_within_the_limit(limit: int) -> None:
    """A limit that is met exactly, or not met, changes nothing."""
    made = stream([Sentence("a b c d e"), Call("f", "x" * 25)], max_output_tokens=limit)
    list(made.events())
    assert made.response["status"] == "completed"
    assert made.response["usage"]["output_tokens"] == 10


def test_event_is_one_block_of_a_stream() -> None:
    """On the wire an event is its type and its data, each in a line, and an empty line."""
    assert Event({"type": "response.x", "sequence_number": 1}).sse() == (
        b'event: response.x\ndata: {"type":"response.x","sequence_number":1}\n\n'
    )
