"""A client of the Responses API: one conversation, over plain HTTP or in WebSocket mode.

All are an ordinary client of aiohttp with its ordinary settings. A turn's answer is read to its terminal event, event by
event, as an agent does that shows what it gets.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import aiohttp
import orjson

from proxy.protocol.sse import Splitter, parse_block
from proxy.rollout.meter import Meter

Object = dict[str, Any]
"""A JSON object."""

_MAX_EVENT: Final = 64 * 2**20
_UPGRADE_TIMEOUT: Final = 30.0
_MAX_SHOWN: Final = 600
"""Characters of somebody else's error that are shown."""


class RolloutFailed(Exception):
    """A rollout did not go as it should; ``str()`` says how."""


@dataclass(frozen=True, slots=True)
class Service:
    """Whom to ask.

    Attributes:
        url: Base URL of the API, `/v1` included.
        headers: What each request says; never shown, since keys are in it.
        handshake_seconds: What setting up a connection takes besides; see :class:`~proxy.rollout.meter.Meter`.
        offers_compression: Offer permessage-deflate, and compress if it is accepted.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    handshake_seconds: float = 0
    offers_compression: bool = False


@dataclass(frozen=True, slots=True)
class Terms:
    """What every turn says again.

    Attributes:
        fields: Of the request, either way: `model`, `tools` and so on.
        socket_fields: Those that only a WebSocket has, `client_metadata` for one.
    """

    fields: Object
    socket_fields: Object = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """How a turn was answered.

    Attributes:
        response: The Response, completed, or cut at `max_output_tokens` if that was asked for.
        output: Its items.
        first_event: When its first event came, by `time.perf_counter`.
    """

    response: Object
    output: list[Object]
    first_event: float


class Dialogue(Protocol):
    """One conversation with a server."""

    async def ask(self, new: list[Object]) -> Reply:
        """Take a turn.

        Args:
            new: The items that the server has not been sent yet.

        Raises:
            RolloutFailed: it is not answered.
        """
        ...


class PlainHttp:
    """A conversation over plain HTTP: every turn is a request with the whole history.

    Args:
        session: The HTTP client.
        meter: What counts its requests.
        url: Base URL of the API.
        terms: What every turn says again.
    """

    def __init__(self, session: aiohttp.ClientSession, meter: Meter, url: str, terms: Terms) -> None:
        self._session = session
        self._meter = meter
        self._url = f"{url}/responses"
        self._fields = {**terms.fields, "stream": True}
        self._history: list[Object] = []

    async def ask(self, new: list[Object]) -> Reply:
        """Take a turn, and keep its items for the next ones.

        A connection that was kept may be closed by the server just then; as clients do, it is tried once more on a new one.
        """
        self._history += new
        body = orjson.dumps({**self._fields, "input": self._history})
        kept_alive = self._meter.kept_alive
        try:
            reply = await self._post(body)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            if self._meter.kept_alive == kept_alive:
                raise
            reply = await self._post(body)
        self._history += reply.output
        return reply

    async def _post(self, body: bytes) -> Reply:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        reading = _Reading(self._fields)
        async with self._session.post(self._url, data=body, headers=headers) as answer:
            if answer.status != 200:
                raise RolloutFailed(f"HTTP {answer.status}: {_cut(await answer.text(errors='replace'))}")
            # To the very end, not to the terminal event only: else the connection could not be used again.
            async for event in _events(answer.content):
                reading.take(event)
        if reading.reply is None:
            raise RolloutFailed("the stream ended before its response did")
        return reading.reply


class WebSocketMode:
    """A conversation in WebSocket mode: every turn is a message with what is new.

    Args:
        socket: The open WebSocket.
        meter: Where to count messages.
        terms: What every turn says again.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, meter: Meter, terms: Terms) -> None:
        self._socket = socket
        self._meter = meter
        self._fields = {"type": "response.create", **terms.fields, **terms.socket_fields}
        self._previous: Object = {}

    async def ask(self, new: list[Object]) -> Reply:
        """Take a turn, and name it in the next one."""
        await self._socket.send_str(orjson.dumps({**self._fields, **self._previous, "input": new}).decode())
        self._meter.messages += 1
        reading = _Reading(self._fields)
        while reading.reply is None:
            message = await self._socket.receive()
            if message.type is not aiohttp.WSMsgType.TEXT:
                raise RolloutFailed(f"the WebSocket was closed with code {self._socket.close_code}")
            reading.take(orjson.loads(message.data))
        self._previous = {"previous_response_id": reading.reply.response["id"]}
        return reading.reply


Way = Callable[[Meter, Service, Terms], contextlib.AbstractAsyncContextManager[Dialogue]]
"""How to open a conversation: :func:`plain_http`, :func:`fresh_http` or :func:`websocket_mode`."""


@contextlib.asynccontextmanager
async def plain_http(meter: Meter, service: Service, terms: Terms) -> AsyncIterator[Dialogue]:
    """Open a conversation over plain HTTP, on a connection that is kept alive.

    Args:
        meter: Where to count.
        service: Whom to ask.
        terms: What every turn says again.
    """
    async with meter.session(service.headers) as session:
        yield PlainHttp(session, meter, service.url, terms)


@contextlib.asynccontextmanager
async def fresh_http(meter: Meter, service: Service, terms: Terms) -> AsyncIterator[Dialogue]:
    """Open a conversation over plain HTTP with a connection of its own for each turn; see :func:`plain_http`."""
    async with meter.session(service.headers, keeps_alive=False) as session:
        yield PlainHttp(session, meter, service.url, terms)


@contextlib.asynccontextmanager
async def websocket_mode(meter: Meter, service: Service, terms: Terms) -> AsyncIterator[Dialogue]:
    """Open a conversation in WebSocket mode; see :func:`plain_http`."""
    async with meter.session(service.headers) as session:
        with meter.setting_up():
            async with asyncio.timeout(_UPGRADE_TIMEOUT):
                socket = await session.ws_connect(
                    f"{service.url}/responses", max_msg_size=0, compress=15 if service.offers_compression else 0
                )
        async with socket:
            yield WebSocketMode(socket, meter, terms)


class _Reading:
    """One answer while it comes in.

    Args:
        fields: What was asked.

    Attributes:
        reply: What came of it, once its terminal event is there.
    """

    def __init__(self, fields: Object) -> None:
        self.reply: Reply | None = None
        self._may_be_cut = "max_output_tokens" in fields
        self._first_event: float | None = None
        self._items: list[Object] = []

    def take(self, event: Any) -> None:
        """Take an event.

        Raises:
            RolloutFailed: it ends the turn otherwise than well.
        """
        if self._first_event is None:
            self._first_event = time.perf_counter()
        kind = event.get("type") if isinstance(event, dict) else None
        if kind == "response.output_item.done":
            self._items.append(event["item"])
        elif kind == "response.completed" or (kind == "response.incomplete" and self._may_be_cut and _is_cut(event)):
            # Some backends leave the items out of the last event.
            response: Object = event["response"]
            self.reply = Reply(response, response.get("output") or self._items, self._first_event)
        elif kind in ("response.failed", "response.incomplete", "error") or (kind is None and "error" in event):
            raise RolloutFailed(f"a turn ended with {_cut(orjson.dumps(event).decode())}")


def _is_cut(event: Object) -> bool:
    return (event["response"].get("incomplete_details") or {}).get("reason") == "max_output_tokens"


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[Any]:
    splitter = Splitter(_MAX_EVENT)
    async for data in content.iter_any():
        for block in splitter.feed(data):
            parsed = parse_block(block)
            if parsed is not None and parsed[1] != b"[DONE]":
                yield orjson.loads(parsed[1])


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
