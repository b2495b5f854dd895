"""Several conversations on one WebSocket, by the SDK's own helper."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai.lib.responses_websocket import AsyncResponsesWebSocketSession, ResponsesWebSocketLimits

from tests.rig.llama import AFTER_TOOL, MODEL, SHORT_ANSWER
from tests.rig.sdk import WEATHER_TOOL, async_client
from tests.rig.slipstream import Slipstream

pytestmark = pytest.mark.timeout(300)


async def test_client_holds_conversations_in_lanes(any_proxy: Slipstream) -> None:
    """Four lanes at once, each with a call and its output, end as they would alone; then one continues another's."""
    limits = ResponsesWebSocketLimits(
        max_lanes=8, max_events_per_lane=1000, max_events=8000, max_bytes_per_lane=2**24, max_bytes=2**26
    )
    async with (
        async_client(any_proxy.base_url) as client,
        client.responses.connect() as connection,
        AsyncResponsesWebSocketSession(connection, limits=limits) as session,
    ):

        async def converse(name: str) -> tuple[str, str]:
            lane = session.lane(name)
            await lane.send(_create(f"What is the weather, asks {name}?", tools=[WEATHER_TOOL]))
            first = await lane.get_final_response()
            (call,) = [item for item in first.output if item.type == "function_call"]
            output = {"type": "function_call_output", "call_id": call.call_id, "output": "It rains."}
            await lane.send(_create([output], tools=[WEATHER_TOOL], previous_response_id=first.id))
            second = await lane.get_final_response()
            return second.id, second.output_text

        async with asyncio.TaskGroup() as tasks:
            lanes = [tasks.create_task(converse(f"lane-{number}")) for number in range(4)]
        assert [lane.result()[1] for lane in lanes] == [AFTER_TOOL] * 4
        other = session.lane("another")
        await other.send(_create("Thank you.", previous_response_id=lanes[0].result()[0]))
        assert (await other.get_final_response()).output_text in (SHORT_ANSWER, AFTER_TOOL)
    lines = any_proxy.turns(9)[-9:]
    assert {line["outcome"] for line in lines} == {"completed"}
    assert {line["lane"] for line in lines} == {"another", *(f"lane-{number}" for number in range(4))}


def _create(what: Any, **fields: Any) -> Any:
    return {"type": "response.create", "model": MODEL, "temperature": 0, "input": what, **fields}
