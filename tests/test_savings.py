"""What the metrics say was saved is what was saved: fifty rollouts with failures, counted on both sides as well.

The backend keeps every body and every connection, the clients keep every message; from these alone each figure is
counted once more, without anything of the product's. Bytes and counts have to be the same.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web

from proxy import app
from proxy.config import Config
from tests.dialogue import TERMINALS, compact
from tests.test_metrics import Samples, samples

ROLLOUTS: Final = 50
TURNS: Final = 8
TOOLS: Final = [{"type": "function", "name": "run", "parameters": {"type": "object"}, "strict": True}]


@dataclass
class Backend:
    """Does with each request what the last item of its input says, and keeps what came.

    Attributes:
        bodies: By the tag of the turn that they belong to; a turn may come twice.
        connections: Distinct connections that answered requests came over.
        answered: Requests that got a status.
        tokens: Input, cached and output tokens that were reported.
    """

    bodies: dict[str, list[bytes]] = field(default_factory=dict)
    connections: set[int] = field(default_factory=set)
    peers: list[Any] = field(default_factory=list)
    answered: int = 0
    tokens: Counter[str] = field(default_factory=Counter)

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        body = await request.read()
        asked = json.loads(body)
        tag, fate = _said(asked["input"][-1]).split()
        self.bodies.setdefault(tag, []).append(body)
        self.connections.add(id(request.transport))
        self.peers.append(request.transport)  # so that no id is given twice
        self.answered += 1
        if fate == "refused":
            return web.json_response({"error": {"message": "Not now.", "type": "server_error"}}, status=500)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for number, event in enumerate(self._events(tag, len(asked["input"]), fate)):
            data = json.dumps({**event, "sequence_number": number})
            await answer.write(f"event: {event['type']}\ndata: {data}\n\n".encode())
        if fate == "cut":
            assert request.transport is not None
            request.transport.close()
        else:
            await answer.write_eof()
        return answer

    def _events(self, tag: str, items: int, fate: str) -> list[dict[str, Any]]:
        call = {
            "id": f"fc_{tag}",
            "type": "function_call",
            "status": "completed",
            "call_id": f"call_{tag}",
            "name": "run",
            "arguments": json.dumps({"command": tag}),
        }
        response = {"id": f"resp_{tag}", "object": "response", "status": "in_progress", "model": "m", "output": []}
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": response},
            {"type": "response.output_item.done", "output_index": 0, "item": call},
        ]
        if fate == "cut":
            return events
        cached = items - 1
        self.tokens.update(input_tokens=items, cached_input_tokens=cached, output_tokens=1)
        usage = {
            "input_tokens": items,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": 1,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": items + 1,
        }
        done = {**response, "status": "completed", "output": [call], "usage": usage}
        return [*events, {"type": "response.completed", "response": done}]


@dataclass
class Books:
    """What the clients have counted.

    Attributes:
        sent: Bytes of all their messages.
        new_items: By tag: the items of a turn, as the client wrote them.
        outcomes: Turns by how they ended.
        lookups: Turns by what was to be found.
        later_turns: Turns after the first on their connection.
    """

    sent: int = 0
    new_items: dict[str, list[bytes]] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    lookups: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    later_turns: int = 0


def _said(item: dict[str, Any]) -> str:
    text = item.get("output") or item["content"]
    assert isinstance(text, str)
    return text


async def _lead(session: aiohttp.ClientSession, url: str, number: int, books: Books) -> None:
    """One rollout: a task, its tools' outputs turn by turn, and whatever goes wrong on the way."""
    chance = random.Random(number)  # noqa: S311 - no secret
    history: list[dict[str, Any]] = []
    previous: str | None = None
    on_connection = 0
    tools: list[dict[str, Any]] | None = None
    async with session.ws_connect(f"{url}/responses", compress=0, max_msg_size=0) as socket:
        for turn in range(TURNS):
            tag = f"r{number}t{turn}"
            fate = "ok" if turn == 0 else chance.choice(["ok"] * 6 + ["refused", "cut", "lost"])
            new: dict[str, Any] = {"type": "message", "role": "user", "content": f"{tag} {fate}"}
            if history and history[-1]["type"] == "function_call":
                call_id = history[-1]["call_id"]
                new = {"type": "function_call_output", "call_id": call_id, "output": f"{tag} {fate}"}
            items = [*history, new] if previous is None else [new]
            wanted = TOOLS if chance.random() < 0.8 else [*TOOLS, *TOOLS]
            create: dict[str, Any] = {"type": "response.create", "model": "m", "tools": wanted, "input": items}
            books.lookups["tools", *_compared(wanted, tools if previous is not None else None)] += fate != "lost"
            if previous is not None:
                create["previous_response_id"] = "resp_lost" if fate == "lost" else previous
            elif fate == "lost":
                create["previous_response_id"] = "resp_lost"
            frame = compact(create)
            books.sent += len(frame)
            books.later_turns += on_connection > 0
            on_connection += 1
            books.new_items[tag] = [compact(item) for item in items]
            await socket.send_str(frame.decode())
            last = await _terminal(socket)
            if fate == "lost":
                assert last["error"]["code"] == "previous_response_not_found"
                books.outcomes["refused"] += 1
                books.lookups["response", "miss", "unknown"] += 1
                continue
            books.lookups["response", *(("hit", "tip") if previous is not None else ("new", "none"))] += 1
            if fate != "ok":
                assert last["type"] == "error"
                books.outcomes["error"] += 1
                previous = None  # a failed continuation takes its parent along: everything is sent again
                continue
            books.outcomes["completed"] += 1
            history += [new, *last["response"]["output"]]
            previous, tools = last["response"]["id"], wanted


def _compared(tools: list[dict[str, Any]], before: list[dict[str, Any]] | None) -> tuple[str, str]:
    if before is None:
        return "new", "none"
    return ("hit", "same") if tools == before else ("miss", "changed")


async def _terminal(socket: aiohttp.ClientWebSocketResponse) -> dict[str, Any]:
    while True:
        event: dict[str, Any] = json.loads(await socket.receive_str())
        if event["type"] in TERMINALS:
            return event


def _items(body: bytes) -> list[bytes]:
    return [compact(item) for item in json.loads(body)["input"]]


def _check(found: Samples, backend: Backend, books: Books) -> None:
    """Each figure, counted from what both sides have kept."""
    bodies = [(tag, body) for tag, sent in backend.bodies.items() for body in sent]
    assert found["client_bytes_total"] == books.sent
    assert found["upstream_bytes_total"] == found["plain_http_bytes_total"] == sum(len(body) for _, body in bodies)
    saved = items = 0
    for tag, body in bodies:
        text = body[body.index(b'"input":[') + len(b'"input":[') : -len(b"]}")]
        new = b",".join(books.new_items[tag])
        assert text.endswith(new)
        saved += max(len(text) - len(new) - 1, 0)  # the comma between the two was not the client's to send either way
        items += len(_items(body)) - len(books.new_items[tag])
    assert found["client_bytes_saved_total"] == saved > 0
    assert found["replayed_items_total"] == items > 0
    assert found["handshakes_avoided_total"] == books.later_turns
    assert found['upstream_connections_total{kind="new"}'] == len(backend.connections)
    assert found['upstream_connections_total{kind="reused"}'] == backend.answered - len(backend.connections) > 0
    for name, count in backend.tokens.items():
        assert found[f"{name}_total"] == count
    outcomes = {name: value for name, value in found.items() if name.startswith("turns_total") and value}
    assert outcomes == {f'turns_total{{outcome="{name}"}}': count for name, count in books.outcomes.items()}
    lookups = {name: value for name, value in found.items() if name.startswith("cache_lookups_total") and value}
    routes = [lookups.pop(name) for name in list(lookups) if 'kind="route"' in name]
    assert sum(routes) == found["turn_duration_seconds_count"]  # one for each turn that the backend was asked for
    assert lookups == {
        f'cache_lookups_total{{kind="{kind}",reason="{reason}",result="{result}"}}': count
        for (kind, result, reason), count in books.lookups.items()
        if count
    }
    assert set(books.outcomes) == {"completed", "error", "refused"}


@pytest.mark.timeout(120)
async def test_figures_are_what_both_sides_have_counted() -> None:
    """Fifty rollouts, ten at a time, with refusals, cut streams and lost ids."""
    backend, books = Backend(), Books()
    application = web.Application()
    application.router.add_post("/v1/responses", backend.respond)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    listen = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0"}
    config = Config.model_validate({**listen, "upstream": {"url": url, "profile": "vllm"}})
    async with app.start(config) as running, aiohttp.ClientSession() as session:
        places = asyncio.Semaphore(10)

        async def lead(number: int) -> None:
            async with places:
                await _lead(session, f"http://{running.listen}/v1", number, books)

        async with asyncio.TaskGroup() as tasks:
            for number in range(ROLLOUTS):
                tasks.create_task(lead(number))
        async with session.get(f"http://{running.admin}/metrics") as answer:
            found = samples(await answer.text())
    await runner.cleanup()
    _check(found, backend, books)


@pytest.mark.load
@pytest.mark.timeout(120)
async def test_clients_cannot_make_a_series() -> None:
    """Ten thousand models, ids, lanes, paths and methods of the clients' choosing: the series are those of the start."""
    listen = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "upstream": {"url": "http://127.0.0.1:9/v1"}}
    config = Config.model_validate({**listen, "websocket": {"max_lanes": 1000}})
    chance = random.Random(1)  # noqa: S311 - no secret
    async with app.start(config) as running, aiohttp.ClientSession() as session:

        async def series() -> set[str]:
            async with session.get(f"http://{running.admin}/metrics") as answer:
                return set(samples(await answer.text()))

        before = await series()
        url = f"http://{running.listen}/v1"
        async with session.ws_connect(f"{url}/responses", headers={"User-Agent": "x" * 300}) as socket:
            for number in range(0, 10_000, 50):
                for _ in range(50):
                    create = {
                        "type": "response.create",
                        "model": f"m{chance.random()}",
                        "previous_response_id": f"resp_{chance.random()}",
                        "stream_id": f"lane{number % 500}",
                        "input": "x",
                    }
                    await socket.send_str(json.dumps(create))
                for _ in range(50):
                    assert json.loads(await socket.receive_str())["type"] == "error"
        for number in range(100):
            path = f"/{chance.random()}/{number}"
            async with session.request(chance.choice(["GET", "PUT", "PATCH"]), f"{url}{path}") as answer:
                assert answer.status in (404, 502)
        assert await series() == before
