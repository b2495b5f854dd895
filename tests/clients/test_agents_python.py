"""openai-agents for Python: runs with tools and handoffs over one WebSocket, errors, and a restart between two runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import pytest
from agents import Agent, function_tool, responses_websocket_session, set_tracing_disabled
from agents.model_settings import ModelSettings
from agents.responses_websocket_session import ResponsesWebSocketSession

from tests.clients.conftest import SetStage, Stage
from tests.clients.scripted import Call, Refuse, Say
from tests.clients.transcripts import check_deltas, check_growth, check_requests, check_whole

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

_PARIS: Final = Call([("get_weather", {"city": "Paris"})], thinking=True)
_BOTH: Final = Call([("get_weather", {"city": city}) for city in ("Paris", "Rome")], thinking=True)


@function_tool
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"In {city} it rains."


_SETTINGS: Final = ModelSettings(store=False)
_WEATHER: Final = Agent[None](
    name="Weather", instructions="Be brief.", tools=[get_weather], model="scripted", model_settings=_SETTINGS
)
_DESK: Final = Agent[None](
    name="Desk", instructions="Hand over.", handoffs=[_WEATHER], model="scripted", model_settings=_SETTINGS
)

Open = Callable[[Stage], AbstractAsyncContextManager[ResponsesWebSocketSession]]


@pytest.fixture
def session() -> Open:
    """Opens a session: runs that share one WebSocket. Without the traces that the SDK would send to its maker."""
    set_tracing_disabled(disabled=True)

    @asynccontextmanager
    async def opened(playing: Stage) -> AsyncIterator[ResponsesWebSocketSession]:
        async with responses_websocket_session(api_key="unused", base_url=playing.base_url) as session:
            yield session

    return opened


async def test_agent_sends_only_what_is_new(stage: SetStage, session: Open) -> None:
    """Two runs, the first with two tools at once, in a chain of responses."""
    playing = stage(_BOTH, Say("It rains."), _PARIS, Say("It still does."))
    async with session(playing) as runs:
        first = await runs.run(_WEATHER, "What is the weather?", auto_previous_response_id=True)
        second = await runs.run(
            _WEATHER,
            "And in Paris?",
            previous_response_id=first.last_response_id,
            auto_previous_response_id=True,
        )
    assert [first.final_output, second.final_output] == ["It rains.", "It still does."]
    check_requests(playing.backend)
    check_growth(playing.backend.requests)
    check_deltas(playing.tap, playing.backend)


async def test_agent_sends_everything_each_time(stage: SetStage, session: Open) -> None:
    """Its default works too, on one socket."""
    playing = stage(_BOTH, Say("It rains."), Say("It will."))
    async with session(playing) as runs:
        first = await runs.run(_WEATHER, "What is the weather?")
        second = await runs.run(_WEATHER, _history(first, "And tomorrow?"))
    assert [first.final_output, second.final_output] == ["It rains.", "It will."]
    check_requests(playing.backend)
    check_whole(playing.tap, playing.backend)
    assert len(playing.tap.websockets) == 1


async def test_agent_hands_over_to_another(stage: SetStage, session: Open) -> None:
    """A handoff is a tool call, after which another agent, with other tools, goes on over the same socket."""
    playing = stage(Call([("transfer_to_weather", {})]), _PARIS, Say("It rains."))
    async with session(playing) as runs:
        result = await runs.run(_DESK, "What is the weather?")
    assert (result.final_output, result.last_agent.name) == ("It rains.", "Weather")
    check_requests(playing.backend)
    check_whole(playing.tap, playing.backend)
    tools = [[tool["name"] for tool in request.json["tools"]] for request in playing.backend.requests]
    assert tools == [["transfer_to_weather"], ["get_weather"], ["get_weather"]]
    assert len(playing.tap.websockets) == 1


async def test_agent_sees_an_error(stage: SetStage, session: Open) -> None:
    """A turn that the backend refuses ends the run with its words, and the next one works on the same socket."""
    playing = stage(Refuse(400, "invalid_prompt"), _PARIS, Say("It rains."))
    async with session(playing) as runs:
        with pytest.raises(Exception, match=r"The script says so\."):
            await runs.run(_WEATHER, "Hello.")
        result = await runs.run(_WEATHER, "What is the weather?")
    assert result.final_output == "It rains."
    check_whole(playing.tap, playing.backend)


async def test_agent_goes_on_after_a_restart(stage: SetStage, session: Open) -> None:
    """On another socket its last response is unknown, which it reports; with the history the run succeeds."""
    playing = stage(_PARIS, Say("It rains."), _PARIS, Say("It still does."))
    async with session(playing) as runs:
        first = await runs.run(_WEATHER, "What is the weather?")
        await asyncio.to_thread(playing.restart)
        with pytest.raises(Exception, match="previous_response_not_found"):
            await runs.run(_WEATHER, "And now?", previous_response_id=first.last_response_id)
        second = await runs.run(_WEATHER, _history(first, "And now?"))
    assert second.final_output == "It still does."
    check_requests(playing.backend)
    assert len(playing.backend.requests) == 4


def _history(result: Any, text: str) -> Any:
    return [*result.to_input_list(), {"role": "user", "content": text}]
