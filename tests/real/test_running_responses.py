"""What a client says while a response runs: a real backend stops, and goes on with what is new."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from openai.lib.responses_websocket import AsyncResponsesWebSocketSession, ResponsesWebSocketLimits
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from tests.rig.llama import AFTER_TOOL, MODEL, SHORT_ANSWER, Llama
from tests.rig.processes import wait_until
from tests.rig.sdk import WEATHER_TOOL, async_client, check_frame
from tests.rig.slipstream import Slipstream

pytestmark = pytest.mark.timeout(300)

_FIRST_GENERATION: Final = {"OpenAI-Beta": "responses_websockets=2026-02-04"}
_LIMITS: Final = ResponsesWebSocketLimits(
    max_lanes=8, max_events_per_lane=10_000, max_events=20_000, max_bytes_per_lane=2**24, max_bytes=2**26
)


def _story(tokens: int, **fields: Any) -> Any:
    """A create whose answer has so many tokens."""
    story = {"input": "Tell me a story.", "ignore_eos": True, "max_output_tokens": tokens, "temperature": 0}
    return {"type": "response.create", "model": MODEL, **story, **fields}


def _open(proxy: Slipstream, headers: dict[str, str] | None = None) -> Connection:
    return connect(f"{proxy.base_url.replace('http', 'ws')}/responses", max_queue=None, additional_headers=headers)


def _receive(client: Connection, *types: str) -> list[dict[str, Any]]:
    """Events up to one of these types; those before it are valid, and it may say what the SDK has no word for."""
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in types:
        frame = client.recv(timeout=60)
        events.append(json.loads(frame))
        if events[-1]["type"] not in types:
            check_frame(frame if isinstance(frame, bytes) else frame.encode())
    return events


async def test_client_steers_a_long_response_in_a_lane(any_proxy: Slipstream, llama: Llama) -> None:
    """By the SDK: the response ends as steered, and its successor begins by itself in the same lane, with the input."""
    before = len(any_proxy.lines("turn"))
    async with (
        async_client(any_proxy.base_url) as client,
        client.responses.connect() as connection,
        AsyncResponsesWebSocketSession(connection, limits=_LIMITS) as session,
    ):
        lane = session.lane("story")
        await lane.send(_story(1500))
        first_id = ""
        while (event := await lane.recv()).type != "response.output_text.delta":
            if event.type == "response.created":
                first_id = event.response.id
        steer: Any = {"type": "response.steer", "previous_response_id": first_id, "input": "Make it short."}
        await lane.send(steer)
        while (event := await lane.recv()).type != "response.steer.accepted":
            assert event.type == "response.output_text.delta"
        first = await lane.get_final_response()
        assert first.id == first_id
        assert first.incomplete_details is not None
        assert str(first.incomplete_details.reason) == "steered"
        while (await lane.recv()).type != "response.created":  # until then the first one is the lane's final one
            pass
        second = await lane.get_final_response()
        assert second.previous_response_id == first_id
        assert second.status == "completed"
        assert second.usage is not None
        assert second.usage.output_tokens == 1500
    assert wait_until(lambda: not llama.is_busy())
    stopped, successor = any_proxy.turns(before + 2)[before:]
    assert (stopped["outcome"], successor["outcome"]) == ("cancelled", "completed")
    assert stopped["events"] < 1500
    assert (stopped["lane"], successor["lane"]) == ("story", "story")
    assert successor["previous_response_id"] == first_id


async def test_client_steers_with_the_plain_connection(any_proxy: Slipstream) -> None:
    """By the SDK's own method for it, on the default lane."""
    async with async_client(any_proxy.base_url) as client, client.responses.connect() as connection:
        await connection.send(_story(400))
        seen: list[str] = []
        response_id = ""
        async for event in connection:
            seen.append(event.type)
            if event.type == "response.created":
                response_id = event.response.id
            if event.type == "response.output_text.delta" and seen.count(event.type) == 1:
                await connection.response.steer(input="Make it short.", previous_response_id=response_id)
            if event.type == "response.completed":
                break
    assert seen.count("response.created") == 2
    order = ("response.steer.accepted", "response.incomplete", "response.completed")
    assert [kind for kind in seen if kind in order] == list(order)


def test_client_cancels_a_long_response(any_proxy: Slipstream, llama: Llama) -> None:
    """The backend stops long before it would be done, and the next turn continues on the same socket."""
    with _open(any_proxy) as client:
        client.send(json.dumps(_story(15_000)))
        _receive(client, "response.output_text.delta")
        client.send(json.dumps({"type": "response.cancel"}))
        stopped = _receive(client, "response.incomplete")[-1]["response"]
        assert stopped["incomplete_details"]["reason"] == "cancelled"
        assert wait_until(lambda: not llama.is_busy())
        again = {"model": MODEL, "temperature": 0, "input": "Hello.", "previous_response_id": stopped["id"]}
        client.send(json.dumps({"type": "response.create", **again}))
        (*_, final) = _receive(client, "response.completed")
        assert final["response"]["output"][0]["content"][0]["text"] == SHORT_ANSWER


def test_client_of_the_first_generation_rolls_out(any_proxy: Slipstream) -> None:
    """A response that waits for its tool is done, the output is appended, and the next one is completed."""
    fields = {"model": MODEL, "temperature": 0, "tools": [WEATHER_TOOL], "input": "What is the weather in Paris?"}
    with _open(any_proxy, _FIRST_GENERATION) as client:
        client.send(json.dumps({"type": "response.create", **fields}))
        done: dict[str, Any] = {}
        while done.get("type") != "response.done":  # the SDK does not know this one any more
            done = json.loads(client.recv(timeout=60))
            assert done["type"] != "response.completed"
        (call,) = [item for item in done["response"]["output"] if item["type"] == "function_call"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": '{"temperature":21}'}
        client.send(json.dumps({"type": "response.append", "input": [output]}))
        (*_, final) = _receive(client, "response.completed")
        assert final["response"]["output"][-1]["content"][0]["text"] == AFTER_TOOL
        assert final["response"]["previous_response_id"] == done["response"]["id"]
