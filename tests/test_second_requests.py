"""Turns that ask the backend twice: first for a summary, or for what it turns out to have forgotten.

The client sees one response, the counts know one turn, and whatever ends it in whichever phase leaves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from proxy.protocol import compaction
from tests.fakes import (
    END,
    STREAM_HEAD,
    Gate,
    Product,
    ScriptedUpstream,
    Step,
    apart,
    ask,
    chunk,
    close,
    connect_to,
    create,
    drip,
    eventually,
    json_answer,
    read,
    receive,
    receive_turn,
    running,
    send,
    serving,
    soon,
    stall,
    types,
)
from tests.playbook import answer, call, message, output, sse, user
from tests.test_cancellations import expect_nothing_left, open_files, tasks, turns_in_flight
from tests.test_running_responses import Watcher, whole

PROMPT = json.loads(compaction.PROMPT_ITEM)
USAGE = {"input_tokens": 1990, "output_tokens": 10, "total_tokens": 2000}
THRESHOLD = [{"type": "compaction", "compact_threshold": 1000}]
#: The first turn's answer, after which a conversation is long.
LONG = whole(answer("resp_1", message("I see"), call("c1"), usage=USAGE))
SUMMARY = answer("resp_s", message("It went so."), usage=USAGE)
SECOND = whole(answer("resp_2", message("Thus.", "msg_2"), usage=USAGE))
COMPACTING = [
    "created",
    "in_progress",
    "output_item.added",
    "output_item.done",
    "output_item.done",
    "completed",
]

NOT_FOUND = {
    "error": {
        "type": "invalid_request_error",
        "code": "previous_response_not_found",
        "message": "Previous response with id 'resp_1' not found.",
        "param": "previous_response_id",
    }
}
FORGOT = sse({"type": "error", "code": "previous_response_not_found", "message": "Not found."})
HEAD = len(STREAM_HEAD)


async def continue_long(client: ClientConnection) -> None:
    """After a first turn ask for one that has to be compacted."""
    first = await ask(client, "the task")
    new: Any = [output("c1"), user("and now?")]
    await client.send(create(new, previous_response_id=first[-1]["response"]["id"], context_management=THRESHOLD))


def is_compacted(items: list[Any]) -> bool:
    """Whether a backend was sent the summary in the place of what it stands for."""
    return (
        len(items) == 3
        and items[0]["content"] == [{"type": "input_text", "text": "the task"}]
        and items[1]["content"][0]["text"].endswith("It went so.")
        and items[2] == user("and now?")
    )


# A summary first


@pytest.mark.parametrize(
    "step",
    [
        send(whole(SUMMARY)),
        apart(STREAM_HEAD, chunk(SUMMARY) + END),
        apart(STREAM_HEAD + chunk(SUMMARY), END),
        drip(whole(SUMMARY)),
        send(STREAM_HEAD + chunk(SUMMARY)),
    ],
    ids=["in one read", "behind its head", "before its end", "byte by byte", "without an end"],
)
@pytest.mark.parametrize("then", [[], [close]], ids=["kept", "closed"])
async def test_turn_goes_on_with_the_summary(step: Step, then: list[Step]) -> None:
    """However the summary comes: the second request has the first one's number, and nothing of that one disturbs it."""
    again: list[Step] = [read, send(SECOND), read, stall]
    scripts: list[list[Step]] = [[read, send(LONG), close], [read, step, *(then or again)]]
    async with ScriptedUpstream(*scripts, then=again) as upstream, serving(upstream) as product:
        watcher = Watcher(product)
        async with product.connect() as client:
            await continue_long(client)
            frames = await receive_turn(client)
            assert types(frames) == COMPACTING
            assert [frame["sequence_number"] for frame in frames] == list(range(6))
            assert upstream.requests[1].json["input"][-1] == PROMPT
            assert is_compacted(upstream.requests[2].json["input"])
            assert frames[-1]["response"]["usage"]["total_tokens"] == 4000
            assert turns_in_flight(product) == 0
            assert (watcher.most, watcher.outcomes) == (1, ["completed", "completed"])
            facts = watcher.turns[1].facts
            assert facts.upstream_bytes == len(upstream.requests[1].body) + len(upstream.requests[2].body)
            await client.send(create("next", previous_response_id=frames[-1]["response"]["id"]))
            await eventually(lambda: len(upstream.requests) == 4)
            assert upstream.requests[3].json["input"][3:] == [message("Thus.", "msg_2"), user("next")]


async def test_trigger_is_answered_with_the_summary_alone() -> None:
    """Codex's remote compaction, and the chain goes on from it, over HTTP too."""
    scripts: list[list[Step]] = [[read, send(LONG), close], [read, send(whole(SUMMARY)), close]]
    async with ScriptedUpstream(*scripts) as upstream, serving(upstream) as product, product.connect() as client:
        first = await ask(client, "the task")
        items: Any = [output("c1"), {"type": "compaction_trigger"}]
        frames = await ask(client, items, previous_response_id=first[-1]["response"]["id"])
        assert types(frames) == [*COMPACTING[:4], "completed"]
        final = frames[-1]["response"]
        assert [item["type"] for item in final["output"]] == ["compaction"]
        assert upstream.requests[1].json["input"][-1] == PROMPT
        await ask(client, [user("and now?")], previous_response_id=final["id"])  # type: ignore[arg-type]
        assert is_compacted(upstream.requests[2].json["input"])
        assert turns_in_flight(product) == 0


async def test_drain_waits_for_a_turn_whose_summary_is_written() -> None:
    """It is one turn, and it was begun."""
    gate = Gate()
    scripts: list[list[Step]] = [
        [read, send(LONG), close],
        [read, gate, send(whole(SUMMARY)), close],
        [read, send(SECOND)],
    ]
    async with ScriptedUpstream(*scripts) as upstream, serving(upstream) as product, product.connect() as client:
        await continue_long(client)
        await soon(gate.reached)
        async with asyncio.TaskGroup() as draining:
            draining.create_task(product.running.drain(20))
            await eventually(lambda: product.running.door.is_draining)
            gate.open()
            assert types(await receive_turn(client)) == COMPACTING
            with pytest.raises(ConnectionClosed) as caught:
                await receive(client)
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1012


async def test_process_finishes_a_turn_whose_summary_is_written(tmp_path: Path) -> None:
    """SIGTERM in between: both requests are made, the client gets its response, and the exit code is 0."""
    gate = Gate()
    scripts: list[list[Step]] = [
        [read, send(LONG), close],
        [read, gate, send(whole(SUMMARY)), close],
        [read, send(SECOND)],
    ]
    async with ScriptedUpstream(*scripts) as upstream, running(upstream, tmp_path) as process:
        async with connect_to(process.address) as client, connect_to(process.address) as idle:
            await continue_long(client)
            await soon(gate.reached)
            process.signal()
            await idle.wait_closed()
            gate.open()
            assert types(await receive_turn(client)) == COMPACTING
        assert await process.ended() == 0
    turns = [line["outcome"] for line in process.lines() if line["event"] == "turn"]
    assert turns == ["completed", "completed"]


# What the backend has forgotten


@pytest.mark.parametrize(
    ("step", "then"),
    [
        (send(json_answer(NOT_FOUND, status="404 Not Found")), []),
        (send(json_answer(NOT_FOUND, "Connection: close", status="404 Not Found")), [close]),
        (
            apart(
                json_answer(NOT_FOUND, status="400 Bad Request")[:60],
                json_answer(NOT_FOUND, status="400 Bad Request")[60:],
            ),
            [],
        ),
        (send(whole(FORGOT)), []),
        (apart(STREAM_HEAD, chunk(FORGOT), END), []),
        (send(whole(FORGOT)), [close]),
        (send(STREAM_HEAD + chunk(FORGOT)), [stall]),
        (send(json_answer(NOT_FOUND)), []),
    ],
    ids=[
        "404",
        "404 and close",
        "400 in two",
        "event",
        "event behind its head",
        "event and close",
        "event and silence",
        "200",
    ],
)
async def test_forgotten_response_is_replayed_in_the_same_turn(step: Step, then: list[Step]) -> None:
    """First what is new, then all of it; the client sees one response, and it is counted once."""
    again: list[Step] = [read, send(SECOND), stall]
    scripts: list[list[Step]] = [[read, send(whole(answer("resp_1", message("one"))))], [read, step, *(then or again)]]
    scripts[0].append(close)
    async with (
        ScriptedUpstream(*scripts, then=again) as upstream,
        serving(upstream, upstream__state="upstream") as product,
    ):
        watcher = Watcher(product)
        with capture_logs() as lines:
            async with product.connect() as client:
                await ask(client)
                frames = await ask(client, "more", previous_response_id="resp_1")
                assert types(frames) == ["created", "output_item.done", "completed"]
                assert turns_in_flight(product) == 0
        bodies = [request.json for request in upstream.requests]
        assert (bodies[1]["previous_response_id"], bodies[1]["input"]) == ("resp_1", [user("more")])
        assert "previous_response_id" not in bodies[2]
        assert bodies[2]["input"] == [user("hi"), message("one"), user("more")]
        assert (watcher.most, watcher.outcomes) == (1, ["completed", "completed"])
        assert await product.counts("turns") == {"completed": 2}
        assert await product.counts("upstream_requests") == {"2xx": 2}
        assert [line["turn"] for line in lines if line["event"] == "turn"] == [1, 2]
        facts, exchange = watcher.turns[1].facts, watcher.turns[1].exchange
        assert facts.upstream_bytes == len(upstream.requests[1].body) + len(upstream.requests[2].body)
        assert exchange is not None
        assert exchange.first_bytes is not None
        assert exchange.started <= exchange.first_bytes <= watcher.turns[1].ended


async def test_turn_has_one_limit_for_all_that_it_asks() -> None:
    """It begins with the first request."""

    async def wait(_: object) -> None:
        await asyncio.sleep(0.4)

    not_found = json_answer(NOT_FOUND, "Connection: close", status="404 Not Found")
    scripts: list[list[Step]] = [
        [read, send(whole(answer("resp_1", message("one")))), close],
        [read, wait, send(not_found), close],
        [read, send(STREAM_HEAD), stall],
    ]
    async with (
        ScriptedUpstream(*scripts) as upstream,
        serving(upstream, upstream__state="upstream", upstream__timeouts__turn=0.6) as product,
        product.connect() as client,
    ):
        watcher = Watcher(product)
        await ask(client)
        (error,) = await ask(client, "more", previous_response_id="resp_1")
        assert (error["status"], error["error"]["code"]) == (504, "upstream_timeout")
        assert len(upstream.requests) == 3
        assert watcher.turns[1].ended - watcher.turns[1].facts.received < 0.9


# Whatever ends it


@contextlib.asynccontextmanager
async def scene(phase: str) -> AsyncIterator[tuple[Product, ScriptedUpstream, ClientConnection]]:
    """A turn that asks twice, in its phase; at the end nothing may be left of it."""
    one = whole(answer("resp_1", message("I see"), call("c1"), usage=USAGE))
    not_found = json_answer(NOT_FOUND, "Connection: close", status="404 Not Found")
    said: dict[str, list[list[Step]]] = {
        "summary, no head": [[read, stall]],
        "summary, in its stream": [[read, send(STREAM_HEAD + chunk(SUMMARY[:200])), stall]],
        "after the summary": [[read, send(whole(SUMMARY)), close], [read, stall]],
        "asked what is new": [[read, stall]],
        "asked everything": [[read, send(not_found), close], [read, send(STREAM_HEAD), stall]],
    }
    state = "upstream" if phase.startswith("asked") else "proxy"
    scripts: list[list[Step]] = [[read, send(one), close], *said[phase]]
    async with ScriptedUpstream(*scripts) as upstream, serving(upstream, upstream__state=state) as product:
        before, files = tasks(), open_files()
        async with product.connect() as client:
            if state == "upstream":
                await ask(client)
                await client.send(create([output("c1")], previous_response_id="resp_1"))  # type: ignore[arg-type]
            else:
                await continue_long(client)
            await eventually(lambda: len(upstream.requests) == len(scripts))
            assert turns_in_flight(product) == 1
            yield product, upstream, client
        await expect_nothing_left(product, upstream, before, files)


PHASES = ("summary, no head", "summary, in its stream", "after the summary", "asked what is new", "asked everything")


@pytest.mark.parametrize("phase", PHASES)
async def test_client_that_leaves_ends_it(phase: str) -> None:
    """The backend's work is stopped within a second, and no bytes are remembered."""
    async with scene(phase) as (product, upstream, client):
        client.transport.abort()
        async with asyncio.timeout(1):
            await upstream.peers[-1].gone.wait()
            await eventually(lambda: not product.running.door.connections)
        assert await product.counts("turns") == {"completed": 1, "client_gone": 1}


@pytest.mark.parametrize("phase", PHASES)
async def test_cancel_ends_it(phase: str) -> None:
    """The response ends, the backend's work is stopped within a second, and the next turn works."""
    async with scene(phase) as (product, upstream, client):
        await client.send('{"type":"response.cancel"}')
        async with asyncio.timeout(1):
            await upstream.peers[-1].gone.wait()
        assert (await receive_turn(client))[-1]["type"] == "response.incomplete"
        assert turns_in_flight(product) == 0
        assert types(await ask(client)) == ["created", "output_text.delta", "completed"]
        for wire in list(product.running.door._backends.first._pool._idle):
            wire.close()


@pytest.mark.parametrize("phase", PHASES)
async def test_server_that_closes_ends_it(phase: str) -> None:
    """What runs at the deadline of a drain is cut."""
    async with scene(phase) as (product, upstream, _):
        await product.running.drain(0.05)
        await product.running.door.close()
        await soon(upstream.peers[-1].gone)
