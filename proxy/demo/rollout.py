"""The demo's client: one agent rollout, over plain HTTP or in WebSocket mode, and what it took.

Both are an ordinary client of aiohttp with its ordinary settings: a connection is kept and used again, nothing is
compressed. A turn's answer is read to its terminal event, event by event, as an agent does that shows what it gets.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiohttp
import orjson

from proxy.demo import task
from proxy.demo.intake import Object
from proxy.demo.meter import Meter

_TURN_TIMEOUT: Final = 60.0
"""Seconds after which a turn is given up, so that a demo never hangs."""


class RolloutFailed(Exception):
    """A rollout did not go as it should; ``str()`` says how."""


class Dialogue(Protocol):
    """One conversation with a server."""

    async def ask(self, new: list[Object]) -> Object:
        """Take a turn.

        Args:
            new: The items that the server has not been sent yet.

        Returns:
            The completed Response.

        Raises:
            RolloutFailed: there is none.
        """
        ...


class PlainHttp:
    """A conversation over plain HTTP: every turn is a request with the whole history.

    Args:
        session: The HTTP client.
        url: Base URL of the API.
        model: The model to ask.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self._session = session
        self._url = f"{url}/responses"
        self._fields = {**_fields(model), "stream": True}
        self._history: list[Object] = []

    async def ask(self, new: list[Object]) -> Object:
        """Take a turn, and keep its items for the next ones."""
        self._history += new
        body = orjson.dumps({**self._fields, "input": self._history})
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        response: Object | None = None
        async with self._session.post(self._url, data=body, headers=headers) as answer:
            if answer.status != 200:
                raise RolloutFailed(f"HTTP {answer.status}: {await answer.text()}")
            # To the very end, not to the terminal event only: else the connection could not be used again.
            async for event in _events(answer.content):
                response = _completed(event) or response
        if response is None:
            raise RolloutFailed("the stream ended before its response did")
        self._history += response["output"]
        return response


class WebSocketMode:
    """A conversation in WebSocket mode: every turn is a message with what is new.

    Args:
        socket: The open WebSocket.
        meter: Where to count messages.
        model: The model to ask.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, meter: Meter, model: str) -> None:
        self._socket = socket
        self._meter = meter
        self._fields = {"type": "response.create", **_fields(model)}
        self._previous: Object = {}

    async def ask(self, new: list[Object]) -> Object:
        """Take a turn, and name it in the next one."""
        await self._socket.send_str(orjson.dumps({**self._fields, **self._previous, "input": new}).decode())
        self._meter.messages += 1
        response: Object | None = None
        while response is None:
            message = await self._socket.receive()
            if message.type is not aiohttp.WSMsgType.TEXT:
                raise RolloutFailed(f"the WebSocket was closed with code {self._socket.close_code}")
            response = _completed(orjson.loads(message.data))
        self._previous = {"previous_response_id": response["id"]}
        return response


@dataclass(frozen=True, slots=True)
class Measured:
    """What one rollout took.

    Attributes:
        meter: What the client's sockets and its HTTP library saw, from before the first connection until after the last.
        turn_seconds: Each turn, from before its request was built to its terminal event; at least one.
        total_seconds: From before the connection to the end of the last turn, connection set-up and tools included.
        story: What the agent said and did, without ids; the same for rollouts that went the same way.
    """

    meter: Meter
    turn_seconds: list[float]
    total_seconds: float
    story: list[tuple[str, ...]]

    @property
    def tool_calls(self) -> int:
        """How many tools were called."""
        return sum(kind == "function_call" for kind, *_ in self.story)


Observe = Callable[[int, Meter], None]
"""Told after each turn: how many turns there were, and what was counted so far."""

Way = Callable[[Meter, str, str], contextlib.AbstractAsyncContextManager[Dialogue]]
"""How to open a conversation: :func:`plain_http` or :func:`websocket_mode`."""


@contextlib.asynccontextmanager
async def plain_http(meter: Meter, url: str, model: str) -> AsyncIterator[Dialogue]:
    """Open a conversation over plain HTTP.

    Args:
        meter: Where to count.
        url: Base URL of the API, `/v1` included.
        model: The model to ask.
    """
    async with meter.session() as session:
        yield PlainHttp(session, url, model)


@contextlib.asynccontextmanager
async def websocket_mode(meter: Meter, url: str, model: str) -> AsyncIterator[Dialogue]:
    """Open a conversation in WebSocket mode; see :func:`plain_http`."""
    async with meter.session() as session, session.ws_connect(f"{url}/responses", max_msg_size=0) as socket:
        yield WebSocketMode(socket, meter, model)


async def measure(way: Way, url: str, model: str, observe: Observe) -> Measured:
    """Run the rollout.

    Args:
        way: How to talk.
        url: Base URL of the API, `/v1` included.
        model: The model to ask.
        observe: Told after each turn.

    Raises:
        RolloutFailed: a turn did not end as it should, or took longer than a minute.
    """
    meter = Meter()
    turn_seconds: list[float] = []
    story: list[tuple[str, ...]] = []
    began = time.perf_counter()
    try:
        async with way(meter, url, model) as dialogue:
            new = [task.question()]
            while new:
                turn_began = time.perf_counter()
                async with asyncio.timeout(_TURN_TIMEOUT):
                    response = await dialogue.ask(new)
                turn_seconds.append(time.perf_counter() - turn_began)
                story += [_chapter(item) for item in response["output"]]
                new = _tool_outputs(response, sum(kind == "function_call" for kind, *_ in story))
                observe(len(turn_seconds), meter)
            total_seconds = time.perf_counter() - began
    except TimeoutError as exc:
        raise RolloutFailed(f"a turn at {url} took longer than {_TURN_TIMEOUT:g} s") from exc
    except aiohttp.ClientError as exc:
        raise RolloutFailed(f"no answer from {url}: {exc}") from exc
    assert meter.sent_bytes, "only asyncio's own event loop sends through the sockets that count"
    return Measured(meter, turn_seconds, total_seconds, story)


def _tool_outputs(response: Object, calls: int) -> list[Object]:
    """What the tools say to a response's calls.

    Args:
        response: A completed Response.
        calls: How many calls there were in all, with those of this response.
    """
    new = [item for item in response["output"] if item["type"] == "function_call"]
    return [task.run(call, number) for number, call in enumerate(new, calls - len(new))]


def _chapter(item: Object) -> tuple[str, ...]:
    if item["type"] == "function_call":
        return item["type"], item["name"], item["arguments"]
    return item["type"], *(part["text"] for part in item["content"])


def _fields(model: str) -> Object:
    """What every turn says again, either way."""
    return {"model": model, "store": False, "instructions": task.INSTRUCTIONS, "tools": task.TOOLS}


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[Any]:
    """The events of a stream that has LF line ends and one `data` line an event, as the backend here writes it."""
    pending = b""
    async for data in content.iter_any():
        *blocks, pending = (pending + data).split(b"\n\n")
        for block in blocks:
            yield orjson.loads(block[block.index(b"data: ") + 6 :])


def _completed(event: Any) -> Object | None:
    """The Response that an event completes; None for an event before that.

    Raises:
        RolloutFailed: the event ends the turn in another way.
    """
    match event["type"]:
        case "response.completed":
            response: Object = event["response"]
            return response
        case "response.failed" | "response.incomplete" | "error":
            raise RolloutFailed(f"a turn ended with {orjson.dumps(event).decode()}")
        case _:
            return None
