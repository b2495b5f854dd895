"""The live page over HTTP: what it may do, what feeds it, and that nobody's content is in it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re
from collections.abc import AsyncIterator
from importlib import resources
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from proxy import livepage
from proxy.live import Live
from proxy.watchers import MAX_WATCHERS
from tests.fakes import (
    Product,
    ScriptedUpstream,
    answer,
    ask,
    create,
    forever,
    read,
    send,
    serving,
    stall,
)

CANARY = "xylophone-quartz-7731"
"""A word that clients and the backend say, and nobody else."""

Event = dict[str, Any]


@contextlib.asynccontextmanager
async def backed(**chosen: Any) -> AsyncIterator[Product]:
    """The product in front of a backend that always says the same."""
    script = forever(read, send(answer(CANARY)))
    async with ScriptedUpstream(then=[script]) as upstream, serving(upstream, **chosen) as product:
        yield product


@contextlib.asynccontextmanager
async def operator(product: Product) -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client of the operator's listener."""
    async with aiohttp.ClientSession(f"http://{product.running.admin}") as session:
        yield session


async def event(stream: aiohttp.ClientResponse) -> tuple[Event, bytes]:
    """The next event of a stream, and its bytes."""
    async with asyncio.timeout(10):
        data = await stream.content.readuntil(b"\n\n")
    return json.loads(data.removeprefix(b"data: ")), data


async def ended(stream: aiohttp.ClientResponse, count: int = 1) -> tuple[list[Event], bytes]:
    """All events of a stream until so many turns have ended, and their bytes."""
    events: list[Event] = []
    raw = b""
    while len([turn for one in events for turn in one["turns"]]) < count:
        one, data = await event(stream)
        events.append(one)
        raw += data
    return events, raw


async def test_page_is_one_file_with_a_strict_policy() -> None:
    """It may run its own script and style, talk to where it came from, and nothing else."""
    async with backed() as product, operator(product) as session:
        got = await session.get("/")
        html = await got.text()
    assert (got.status, got.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert got.headers["X-Content-Type-Options"] == "nosniff"
    assert got.headers["Referrer-Policy"] == "no-referrer"
    assert got.headers["Cache-Control"] == "no-store"
    policy = dict(part.split(" ", 1) for part in got.headers["Content-Security-Policy"].split("; "))
    for tag in ("script", "style"):
        text = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert len(text) == len(re.findall(rf"<{tag}\b", html)) == 1
        digest = base64.b64encode(hashlib.sha256(text[0].encode()).digest()).decode()
        assert policy.pop(f"{tag}-src") == f"'sha256-{digest}'"
    assert policy.pop("connect-src") == "'self'"
    assert policy == dict.fromkeys(("default-src", "base-uri", "form-action", "frame-ancestors"), "'none'")


def test_page_writes_text_as_text_only() -> None:
    """Nothing in it makes HTML or code of a text, or has a style or a handler where the policy forbids it."""
    html = resources.files("proxy").joinpath("live.html").read_text()
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc"
    assert not re.search(forbidden, html)
    assert not re.search(r"<[a-z][^>]*\s(style|on[a-z]+)=", html)
    assert not re.search(r"(src|href)=|@import|url\(", html)
    assert html.count("\n") < 900


@pytest.mark.parametrize("path", ["/", "/live/events", "/live/turns/conn_1/1"])
async def test_page_is_for_reading_only(path: str) -> None:
    """Everything but GET is refused."""
    async with backed() as product, operator(product) as session:
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert (await session.request(method, path)).status == 405


async def test_page_can_be_switched_off() -> None:
    """There is nothing then, and nobody who keeps anything."""
    async with backed(live__enabled=False, live__inspect=True) as product, operator(product) as session:
        for path in ("/", "/live/events", "/live/turns/conn_1/1"):
            assert (await session.get(path)).status == 404
        async with product.connect() as client:
            await ask(client)


async def test_events_tell_of_turns_without_their_content() -> None:
    """A snapshot, then a turn with all its numbers; what was said is nowhere, and cannot be asked for."""
    async with backed() as product, operator(product) as session, session.get("/live/events") as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        assert stream.headers["Cache-Control"] == "no-store"
        assert (await event(stream))[0]["kind"] == "snapshot"
        async with product.connect(user_agent_header="some client") as client:
            said = [{"role": "user", "content": CANARY}]
            await ask(client, instructions=CANARY, input=said, tools=[{"type": "function", "name": CANARY}])
            await ask(client, CANARY, previous_response_id="resp_1")
            events, raw = await ended(stream, 2)
        async with session.get("/live/events") as other:
            _, again = await event(other)
        turns = [turn for one in events for turn in one["turns"]]
        assert [(turn["verdict"], turn["reason"]) for turn in turns] == [("new", "none"), ("hit", "tip")]
        assert turns[1]["replayed_bytes"] > 0
        assert turns[1]["total"] >= turns[1]["first"] >= turns[1]["queue"] >= 0
        (row,) = events[-1]["connections"]
        assert row["client"] == "some client"
        assert events[-1]["totals"]["turns"] == 2
        assert events[-1]["backends"][0]["statuses"]["2xx"] == 2
        assert CANARY.encode() not in raw + again
        assert (await session.get(f"/live/turns/{row['id']}/1")).status == 404


async def test_events_tell_what_runs() -> None:
    """A turn that the backend works on has its lane and since when; it is gone once it has ended."""
    async with (
        ScriptedUpstream([read, stall]) as upstream,
        serving(upstream) as product,
        operator(product) as session,
        session.get("/live/events") as stream,
    ):
        update, _ = await event(stream)
        async with product.connect() as client:
            await client.send(create(stream_id="a"))
            running: list[Any] = []
            while not running:
                update, _ = await event(stream)
                running = [turn for row in update["connections"] for turn in row["running"]]
            assert [(turn["turn"], turn["lane"]) for turn in running] == [(1, "a")]
            assert abs(running[0]["began"] - update["now"]) < 5
            assert running[0]["began"] <= running[0]["started"]
        events, _ = await ended(stream)
        assert events[-1]["connections"][0]["running"] == []
        assert events[-1]["turns"][0]["outcome"] == "client_gone"


async def test_content_is_shown_where_the_operator_wants_it() -> None:
    """Masked unless the text is asked for; the events have none of it all the same."""
    async with (
        backed(live__inspect=True) as product,
        operator(product) as session,
        session.get("/live/events") as stream,
    ):
        async with product.connect() as client:
            await ask(client, CANARY)
            await ask(client, "more", previous_response_id="resp_1")
            events, raw = await ended(stream, 2)
        turn = events[-1]["turns"][-1]
        path = f"/live/turns/{turn['connection']}/{turn['turn']}"
        masked = await (await session.get(path)).text()
        shown = await (await session.get(path, params={"text": "1"})).json()
        assert CANARY.encode() not in raw
        assert CANARY not in masked
        assert "•••••••••-••••••-••••" in masked
        assert [part["name"] for part in shown["sent"]["parts"]] == ["previous_response_id", "model", "message"]
        upstream = [part["text"] for part in shown["upstream"]["parts"] if part["kind"] == "item"]
        assert [CANARY in text for text in upstream] == [True, False]
        assert (await session.get(f"{path}9")).status == 404


async def test_warmups_and_refused_turns_can_be_looked_into_too() -> None:
    """They have one side only."""
    async with backed(live__inspect=True) as product, operator(product) as session:
        async with product.connect() as client, session.get("/live/events") as stream:
            await ask(client, generate=False)
            await ask(client, previous_response_id="resp_unknown")
            turns = [turn for one in (await ended(stream, 2))[0] for turn in one["turns"]]
        for turn in turns:
            got = await session.get(f"/live/turns/{turn['connection']}/{turn['turn']}")
            assert (await got.json())["upstream"] is None


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9100", 404),
        ("127.0.0.1", 404),
        ("[::1]:9100", 404),
        ("10.1.2.3:9100", 404),
        ("evil.example", 403),
        ("localhost.evil.example:9100", 403),
        ("[", 403),
        ("", 403),
    ],
)
async def test_content_is_shown_to_direct_requests_only(host: str, status: int) -> None:
    """A page elsewhere that has its own name lead here gets nothing."""
    async with backed(live__inspect=True) as product, operator(product) as session:
        assert (await session.get("/live/turns/conn_1/1", headers={"Host": host})).status == status


async def test_events_are_for_so_many_pages() -> None:
    """One more is told to come back later; who leaves makes room."""
    async with backed() as product, contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            aiohttp.ClientSession(f"http://{product.running.admin}", connector=aiohttp.TCPConnector(limit=0))
        )
        streams = [await session.get("/live/events") for _ in range(MAX_WATCHERS)]
        refused = await session.get("/live/events")
        assert (refused.status, refused.headers["Retry-After"]) == (503, "10")
        streams[0].close()

        async def has_room() -> bool:
            async with session.get("/live/events") as stream:
                return stream.status == 200

        async with asyncio.timeout(10):
            while not await has_room():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.02)
        for stream in streams:
            stream.close()


async def test_silence_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comment shows that there is still somebody, and that there is still nothing to say."""
    monkeypatch.setattr(livepage, "_HEARTBEAT", 0.05)
    async with backed() as product, operator(product) as session, session.get("/live/events") as stream:
        await event(stream)
        async with asyncio.timeout(10):
            assert await stream.content.readuntil(b"\n\n") == b":\n\n"


async def test_pages_do_not_hold_up_the_end() -> None:
    """The server stops at once, whoever watches."""
    async with contextlib.AsyncExitStack() as stack:
        async with backed() as product:
            session = await stack.enter_async_context(operator(product))
            stream = await session.get("/live/events")
            await event(stream)
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 0.45  # half a second is what aiohttp would wait
        async with asyncio.timeout(5):
            assert await stream.content.read() == b""


async def test_page_that_reads_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update that is not taken in time is the last one."""
    monkeypatch.setattr(livepage, "_PATIENCE", 0.05)

    class Deaf(web.StreamResponse):
        async def write(self, data: bytes | bytearray | memoryview) -> None:
            await asyncio.Event().wait()

    with Live([("upstream", "http://backend/v1")]).watch() as watcher, pytest.raises(TimeoutError):
        await livepage._send(watcher, Deaf())
