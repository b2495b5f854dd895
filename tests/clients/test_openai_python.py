"""openai-python in WebSocket mode: synchronous, asynchronous, with a reconnect of its own, and with lanes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Generator
from typing import Any, Final

import pytest
from openai.lib.responses_websocket import (
    AsyncResponsesWebSocketLane,
    AsyncResponsesWebSocketSession,
    ResponsesWebSocketError,
    ResponsesWebSocketLimits,
)
from openai.resources.responses.responses import AsyncResponsesConnection, ResponsesConnection
from openai.types.responses import Response
from openai.types.websocket_reconnection import ReconnectingEvent
from websockets.exceptions import ConnectionClosedError

from tests.clients.conftest import SetStage, Stage
from tests.clients.scripted import Call, Refuse, Say, Step, Together
from tests.clients.transcripts import check_growth, check_requests
from tests.rig.sdk import TERMINALS, WEATHER_TOOL, Item, Sockets, SyncSockets, Turn, async_client, sync_client, user

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

_PARIS: Final = Call([("get_weather", {"city": "Paris"})], thinking=True)
_BOTH: Final = Call([("get_weather", {"city": city}) for city in ("Paris", "Rome")], thinking=True)

_FIELDS: Final[dict[str, Any]] = {"model": "scripted", "tools": [WEATHER_TOOL], "store": False}

#: A question with two tools at once, one that the backend refuses, one that works; after a restart two more.
_SCRIPT: Final[tuple[Step, ...]] = (
    *(_BOTH, Say("It rains."), Refuse(400, "invalid_prompt"), Say("It will.")),
    *(Say("It still will."), _PARIS, Say("It does.")),
)


#: A conversation: it is told what each turn brought and says what comes next; in the end, all that was said.
Talk = Generator[dict[str, Any], Turn, list[Item]]


def _before_restart() -> Talk:
    first = yield {"input": [user("What is the weather?")]}
    assert [json.loads(call["arguments"])["city"] for call in first.calls] == ["Paris", "Rome"]
    second = yield {"input": first.tool_outputs(), "previous_response_id": first.response["id"]}
    assert second.text == "It rains."
    refused = yield {"input": [user("And tomorrow?")], "previous_response_id": second.response["id"]}
    assert refused.events[-1]["status"] == 400
    assert "The script says so." in refused.events[-1]["error"]["message"]
    gone = yield refused.request
    assert gone.events[-1]["error"]["code"] == "previous_response_not_found"  # a continuation of it has failed
    again = yield {"input": [*_whole(first), *_whole(second), user("And tomorrow?")]}
    assert again.text == "It will."
    return _whole(again)


def _after_restart(said: list[Item]) -> Talk:
    sure = yield {"input": [*said, user("Sure?")]}
    assert sure.text == "It still will."
    asked = yield {"input": [user("And in Paris?")], "previous_response_id": sure.response["id"]}
    answer = yield {"input": asked.tool_outputs(), "previous_response_id": asked.response["id"]}
    assert answer.text == "It does."
    return [*_whole(sure), *_whole(asked), *_whole(answer)]


def _whole(turn: Turn) -> list[Item]:
    return [*turn.request["input"], *turn.response["output"]]


def test_sync_client_survives_an_error_and_a_restart(stage: SetStage) -> None:
    """Tools, an error and what follows on one socket; a restart is an exception, and all is said on another socket."""
    playing = stage(*_SCRIPT)

    def play(connection: ResponsesConnection, talk: Talk) -> list[Item]:
        fields = next(talk)
        while True:
            turn = SyncSockets(connection).turn(**{**_FIELDS, **fields})
            try:
                fields = talk.send(turn)
            except StopIteration as end:
                return list(end.value)

    with sync_client(playing.base_url) as client:
        with client.responses.connect() as connection:
            said = play(connection, _before_restart())
            playing.restart()
            with pytest.raises(ConnectionClosedError, match="1012"):
                play(connection, _after_restart(said))
        with client.responses.connect() as connection:
            play(connection, _after_restart(said))
    _check_script(playing)


async def test_async_client_survives_an_error_and_a_restart(stage: SetStage) -> None:
    """The same, asynchronously."""
    playing = stage(*_SCRIPT)

    async def play(connection: AsyncResponsesConnection, talk: Talk) -> list[Item]:
        fields = next(talk)
        while True:
            turn = await Sockets(connection).turn(**{**_FIELDS, **fields})
            try:
                fields = talk.send(turn)
            except StopIteration as end:
                return list(end.value)

    async with async_client(playing.base_url) as client:
        async with client.responses.connect() as connection:
            said = await play(connection, _before_restart())
            await asyncio.to_thread(playing.restart)
            with pytest.raises(ConnectionClosedError, match="1012"):
                await play(connection, _after_restart(said))
        async with client.responses.connect() as connection:
            await play(connection, _after_restart(said))
    _check_script(playing)


def _check_script(playing: Stage) -> None:
    check_requests(playing.backend)
    assert len(playing.backend.requests) == len(_SCRIPT)
    check_growth(playing.backend.requests[:3])
    check_growth(playing.backend.requests[4:])
    assert len(playing.tap.websockets) == 2


async def test_client_reconnects_by_itself(stage: SetStage) -> None:
    """Its events go on where they ended; an earlier response is unknown on the new socket, and all is said again."""
    playing = stage(_PARIS, Say("It rains."), Say("It will."))
    codes: list[int] = []

    def note(event: ReconnectingEvent) -> None:
        codes.append(event.close_code)

    async with (
        async_client(playing.base_url) as client,
        client.responses.connect(on_reconnecting=note, initial_delay=0.2) as connection,
    ):
        events = aiter(connection)
        first = await _ask(connection, events, [user("What is the weather?")])
        output = _output(first)
        second = await _ask(connection, events, [output], previous_response_id=first.id)
        assert second.output_text == "It rains."
        async with asyncio.TaskGroup() as tasks:
            next_end = tasks.create_task(_end(events))
            await asyncio.to_thread(playing.restart)
            await connection.send(_create([user("And tomorrow?")], previous_response_id=second.id))
        assert next_end.result().error.code == "previous_response_not_found"
        said = [user("What is the weather?"), *_items(first), output, *_items(second)]
        third = await _ask(connection, events, [*said, user("And tomorrow?")])
    assert third.output_text == "It will."
    assert set(codes) == {1012}
    check_requests(playing.backend)


async def test_client_holds_two_conversations_at_once(stage: SetStage) -> None:
    """Two lanes run side by side, each with a tool; one meets an error, the other goes on; both go on after a restart."""
    asking, answering = threading.Barrier(2), threading.Barrier(2)
    playing = stage(
        *[Together(_PARIS, asking)] * 2,
        *[Together(Say("It rains."), answering)] * 2,
        *(Refuse(400, "invalid_prompt"), Say("It will."), Say("It still will."), Say("I am.")),
    )
    limits = ResponsesWebSocketLimits(
        max_lanes=8, max_events_per_lane=1000, max_events=8000, max_bytes_per_lane=2**24, max_bytes=2**26
    )
    async with (
        async_client(playing.base_url) as client,
        client.responses.connect(on_reconnecting=lambda _event: None, initial_delay=0.2) as connection,
        AsyncResponsesWebSocketSession(connection, limits=limits) as session,
    ):
        left, right = session.lane("left"), session.lane("right")

        async def converse(lane: AsyncResponsesWebSocketLane) -> Response:
            first = await _ask_lane(lane, [user("What is the weather?")])
            return await _ask_lane(lane, [_output(first)], previous_response_id=first.id)

        async with asyncio.TaskGroup() as tasks:
            lanes = [tasks.create_task(converse(lane)) for lane in (left, right)]
        assert [lane.result().output_text for lane in lanes] == ["It rains."] * 2
        with pytest.raises(ResponsesWebSocketError) as caught:
            await _ask_lane(left, [user("And tomorrow?")], previous_response_id=lanes[0].result().id)
        error: Any = caught.value.event
        assert (error.status, error.stream_id) == (400, "left")
        other = await _ask_lane(right, [user("And tomorrow?")], previous_response_id=lanes[1].result().id)
        await asyncio.to_thread(playing.restart)
        late = [await _ask_lane(left, [user("And tomorrow?")]), await _ask_lane(right, [user("Are you there?")])]
    assert [response.output_text for response in (other, *late)] == ["It will.", "It still will.", "I am."]
    check_requests(playing.backend)
    assert playing.backend.left == 0
    lines = playing.proxy.turns(2)
    assert [line["lane"] for line in lines] == ["left", "right"]


def _create(items: list[Any], **fields: Any) -> Any:
    return {"type": "response.create", **_FIELDS, "input": items, **fields}


def _output(response: Response) -> Item:
    """What the tool says that a response has called."""
    call: Any = response.output[-1]
    return {"type": "function_call_output", "call_id": call.call_id, "output": "It rains."}


def _items(response: Response) -> list[Item]:
    return [item.to_dict() for item in response.output]


async def _ask(
    connection: AsyncResponsesConnection, events: AsyncIterator[Any], items: list[Any], **fields: Any
) -> Response:
    await connection.send(_create(items, **fields))
    response = (await _end(events)).response
    assert isinstance(response, Response)
    return response


async def _end(events: AsyncIterator[Any]) -> Any:
    """The next event that ends a turn."""
    while (event := await anext(events)).type not in TERMINALS:
        pass
    return event


async def _ask_lane(lane: AsyncResponsesWebSocketLane, items: list[Any], **fields: Any) -> Response:
    """A turn in a lane; while the session reconnects the lane takes nothing."""
    async with asyncio.timeout(60):
        while not await _send(lane, _create(items, **fields)):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.1)
    return await lane.get_final_response()


async def _send(lane: AsyncResponsesWebSocketLane, event: Any) -> bool:
    with contextlib.suppress(RuntimeError):
        await lane.send(event)
        return True
    return False
