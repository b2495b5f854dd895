"""A small backend and a known dialogue, for tests that count: of lines, of bytes, of turns.

Both sides keep every byte, so that what the proxy reports can be compared with what was really sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web

TERMINALS = ("response.completed", "response.failed", "response.incomplete", "error")
USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 2,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 12,
}


class Backend:
    """Answers every `POST /v1/responses` with one short message; use it as an async context manager.

    Attributes:
        bodies: The requests' bodies, as they came.
        authorizations: Their `Authorization`, empty where there was none.
        url: The base URL.
    """

    url: str

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.authorizations: list[str] = []
        self._application = web.Application()
        self._application.router.add_post("/v1/responses", self._respond)
        self._application.router.add_get("/v1/models", self._models)

    async def __aenter__(self) -> Self:
        self._runner = web.AppRunner(self._application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self._runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": []})

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.authorizations.append(request.headers.get("Authorization", ""))
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for number, event in enumerate(_events(len(self.bodies))):
            event["sequence_number"] = number
            await answer.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        await answer.write_eof()
        return answer


def _events(turn: int) -> list[dict[str, Any]]:
    content = {"type": "output_text", "text": f"Answer {turn}", "annotations": []}
    item = {"id": f"msg_{turn}", "type": "message", "role": "assistant", "status": "completed", "content": [content]}
    response = {"id": f"resp_{turn}", "object": "response", "status": "in_progress", "model": "small", "output": []}
    done = {**response, "status": "completed", "output": [item], "usage": USAGE}
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    return [
        {"type": "response.created", "response": response},
        {"type": "response.output_text.delta", **place, "delta": "Answer "},
        {"type": "response.output_text.delta", **place, "delta": str(turn)},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": done},
    ]


def message(text: str) -> dict[str, Any]:
    """An input item with something that a user said."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def compact(value: Any) -> bytes:
    """JSON as the client of this module writes it."""
    return json.dumps(value, separators=(",", ":")).encode()


@dataclass(slots=True)
class Client:
    """A client that sends one request after another over one WebSocket.

    Attributes:
        socket: Its WebSocket.
        sent: Its messages, as they went out.
        received: All events, as they came.
    """

    socket: aiohttp.ClientWebSocketResponse
    sent: list[bytes] = field(default_factory=list)
    received: list[bytes] = field(default_factory=list)

    async def ask(self, *texts: str, **fields: Any) -> dict[str, Any]:
        """Ask for a response to some messages; its terminal event."""
        create = {"type": "response.create", "model": "small", **fields, "input": [message(text) for text in texts]}
        return await self.send(compact(create))

    async def send(self, frame: bytes) -> dict[str, Any]:
        """Send a message; the terminal event that answers it."""
        self.sent.append(frame)
        await self.socket.send_str(frame.decode())
        while True:
            text = await self.socket.receive_str()
            self.received.append(text.encode())
            event: dict[str, Any] = json.loads(text)
            if event["type"] in TERMINALS:
                return event


async def hold(session: aiohttp.ClientSession, url: str, text: str, headers: Mapping[str, str]) -> Client:
    """Lead the known dialogue, and leave the connection open.

    Seven turns: a new chain, its continuation, another continuation of its first response, an unknown response, a
    warm-up, its continuation, and a message that is no JSON. Four of them reach the backend.
    """
    client = Client(await session.ws_connect(f"{url}/responses", headers=headers, compress=0, max_msg_size=0))
    first = await client.ask(text)
    await client.ask(f"{text} again", previous_response_id=first["response"]["id"])
    await client.ask(f"{text} otherwise", previous_response_id=first["response"]["id"])
    lost = await client.ask(text, previous_response_id="resp_of_somebody_else")
    assert lost["error"]["code"] == "previous_response_not_found"
    warm = await client.ask(text, generate=False, instructions=text)
    last = await client.ask(f"{text} at last", previous_response_id=warm["response"]["id"])
    assert last["type"] == "response.completed"
    broken = await client.send(b'{"type": "response.create", "input": "' + text.encode())
    assert broken["error"]["code"] == "invalid_json"
    return client
