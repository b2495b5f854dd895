"""Clients that make the page worth looking at: agents with tools, lanes, branches, and some mistakes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from proxy.demo import task
from tests.fakes import receive, receive_turn

CANARY = "xylophone-quartz-7731"
"""A word that only clients say."""


def open_socket(base_url: str, name: str) -> connect:
    """A client of this name."""
    url = base_url.replace("http", "ws", 1) + "/responses"
    return connect(url, proxy=None, max_size=None, ping_interval=None, user_agent_header=name)


async def ask(socket: ClientConnection, items: list[Any], previous: str | None, **fields: Any) -> dict[str, Any]:
    """One turn: its last frame."""
    body = {"type": "response.create", "model": "simulated-model", "input": items, **fields}
    await socket.send(json.dumps(body if previous is None else {**body, "previous_response_id": previous}))
    return (await receive_turn(socket))[-1]


async def rollout(
    socket: ClientConnection, turns: int, question: str = task.QUESTION, **fields: Any
) -> tuple[str, list[Any]]:
    """An agent at work for so many turns at most; the id of its last response, and what it would say next."""
    items: list[Any] = [{"type": "message", "role": "user", "content": question}]
    previous: str | None = None
    for number in range(turns):
        fields = {"instructions": task.INSTRUCTIONS, "tools": task.TOOLS, **fields}
        response = (await ask(socket, items, previous, **fields))["response"]
        previous = response["id"]
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        items = [task.run(call, number) for call in calls]
        if not calls:
            break
    assert previous is not None
    return previous, items


@contextlib.asynccontextmanager
async def busy(base_url: str, *, pause: float = 0.4) -> AsyncIterator[None]:
    """A few connections with something to tell, open for as long as the context lasts; `pause` seconds nothing is said."""
    names = ("codex_cli_rs/0.142.0 (Linux; x86_64)", "OpenAI/Python 3.57.0", "openai-agents/0.24", "pi/0.61")
    async with contextlib.AsyncExitStack() as stack:
        codex, python, agents, pi = [
            await stack.enter_async_context(open_socket(base_url, name)) for name in reversed(names)
        ][::-1]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(rollout(python, 4))
            tasks.create_task(rollout(pi, 3))
            tasks.create_task(_lanes(agents))
        last, outputs = await rollout(codex, 5)
        await asyncio.sleep(pause)
        await ask(codex, [_message("And now?")], "resp_of_yesterday")
        tools = [*task.TOOLS[:2], {**task.TOOLS[2], "description": "Run it all."}]
        said = [*outputs, _message(f"Go on, {CANARY}.")]
        assert (await ask(codex, said, last, tools=tools, instructions="Short."))["type"] == "response.completed"
        yield


async def _lanes(socket: ClientConnection) -> None:
    """Three lanes side by side, each with a few turns."""
    previous: dict[str, str] = {}
    for round_ in range(3):
        for lane in ("research", "review", "summary")[: 3 - round_ // 2]:
            create = {"type": "response.create", "model": "simulated-model", "stream_id": lane}
            named = {"previous_response_id": previous[lane]} if lane in previous else {}
            await socket.send(json.dumps({**create, **named, "input": f"Look around, part {round_ + 1}."}))
            previous[lane] = ""
        while "" in previous.values():
            frame = await receive(socket)
            if frame["type"] == "response.completed":
                previous[frame["stream_id"]] = frame["response"]["id"]


def _message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}
