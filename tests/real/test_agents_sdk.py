"""openai-agents (Python) at work in WebSocket mode."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from agents import Agent, function_tool, handoff, responses_websocket_session, set_tracing_disabled
from agents.items import ToolCallItem, ToolCallOutputItem
from agents.model_settings import ModelSettings
from agents.responses_websocket_session import ResponsesWebSocketSession

from tests.rig.llama import AFTER_TOOL, MODEL, SHORT_ANSWER
from tests.rig.slipstream import Slipstream

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def no_tracing() -> None:
    """The SDK would send what it did to its maker."""
    set_tracing_disabled(disabled=True)


@pytest.fixture
async def session(any_proxy: Slipstream) -> AsyncIterator[ResponsesWebSocketSession]:
    """Runs that share one WebSocket."""
    async with responses_websocket_session(api_key="unused", base_url=any_proxy.base_url) as session:
        yield session


@function_tool
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"In {city} it rains."


def _agent() -> Agent[None]:
    settings = ModelSettings(temperature=0, store=False)
    return Agent(name="Weather", instructions="Be brief.", tools=[get_weather], model=MODEL, model_settings=settings)


@pytest.mark.parametrize("chained", [True, False], ids=["incremental", "full"])
async def test_agent_runs_a_tool(session: ResponsesWebSocketSession, any_proxy: Slipstream, *, chained: bool) -> None:
    """A run calls its tool and finishes; chained, the second turn brings nothing but the tool's output."""
    result = await session.run(_agent(), "What is the weather in Paris?", auto_previous_response_id=chained)
    assert result.final_output == AFTER_TOOL
    outputs = [item.output for item in result.new_items if isinstance(item, ToolCallOutputItem)]
    assert outputs == ["In Paris it rains."]
    first, second = any_proxy.turns(2)[-2:]
    assert first["connection_id"] == second["connection_id"]
    assert (second["new_items"], second["replayed_items"]) == ((1, 2) if chained else (3, 0))


@pytest.mark.parametrize("chained", [True, False], ids=["incremental", "full"])
async def test_agent_streams_what_it_does(session: ResponsesWebSocketSession, *, chained: bool) -> None:
    """A streamed run shows the call, the output and the text as it is written."""
    result = session.run_streamed(_agent(), "What is the weather in Paris?", auto_previous_response_id=chained)
    text, items = "", []
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
        elif event.type == "run_item_stream_event":
            items.append(event.item)
    assert text == result.final_output == AFTER_TOOL
    assert [type(item) for item in items[:2]] == [ToolCallItem, ToolCallOutputItem]


async def test_agent_takes_up_a_conversation(session: ResponsesWebSocketSession, any_proxy: Slipstream) -> None:
    """A second run continues the last response of the first."""
    first = await session.run(_agent(), "What is the weather in Paris?", auto_previous_response_id=True)
    second = await session.run(
        _agent(), "And now?", previous_response_id=first.last_response_id, auto_previous_response_id=True
    )
    assert second.final_output == AFTER_TOOL
    lines = any_proxy.turns(4)[-4:]
    assert [line["depth"] for line in lines] == [1, 2, 3, 4]
    assert [line["new_items"] for line in lines] == [1, 1, 1, 1]


async def test_agent_hands_over_to_another(session: ResponsesWebSocketSession) -> None:
    """A handoff is a tool call, after which another agent speaks on the same connection."""
    settings = ModelSettings(temperature=0, store=False)
    other = Agent[None](name="Other", instructions="Be kind.", model=MODEL, model_settings=settings)
    # The model calls one tool only, so the handoff takes that one's name.
    first = Agent[None](
        name="First",
        instructions="Hand over.",
        handoffs=[handoff(other, tool_name_override="get_weather")],
        model=MODEL,
        model_settings=settings,
    )
    result = await session.run(first, "What is the weather in Paris?")
    assert result.last_agent.name == "Other"
    assert result.final_output == SHORT_ANSWER
