"""The forms of the protocol that a client or the operator can choose, from end to end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes import (
    STREAM_HEAD,
    Gate,
    ScriptedUpstream,
    Step,
    ask,
    chunk,
    close,
    create,
    eventually,
    json_answer,
    read,
    receive,
    receive_turn,
    send,
    serving,
    soon,
    types,
)
from tests.playbook import answer, begun, call, message, output, sse, user
from tests.test_cancellations import turns_in_flight
from tests.test_running_responses import Watcher, whole

GOOD = ["created", "output_text.delta", "completed"]
FIRST, SECOND = "responses_websockets=2026-02-04", "responses_websockets=2026-02-06"
CALLED = whole(answer("resp_1", call("c1")))
APPEND = json.dumps({"type": "response.append", "input": [output("c1")]})


# The first generation


@pytest.mark.parametrize(
    ("rollout", "beta", "is_first"),
    [
        ("auto", None, False),
        ("auto", FIRST, True),
        ("auto", f"x=1,{FIRST}", True),
        ("auto", SECOND, False),
        ("always", None, True),
        ("always", FIRST, True),
        ("always", SECOND, False),
        ("always", f"x=1, {SECOND}", False),
        ("never", FIRST, False),
        ("never", None, False),
    ],
)
async def test_first_generation_is_spoken_with_whom_it_suits(rollout: str, beta: str | None, *, is_first: bool) -> None:
    """What tells is how a response ends that waits for outputs of tools; one that does not ends as ever."""
    headers = {} if beta is None else {"OpenAI-Beta": beta}
    scripts: list[list[Step]] = [[read, send(CALLED), close], [read, send(whole(answer("resp_2", message("x"))))]]
    async with (
        ScriptedUpstream(*scripts) as upstream,
        serving(upstream, websocket__rollout=rollout) as product,
        product.connect(additional_headers=headers) as client,
    ):
        await client.send(create())
        frames = [await receive(client) for _ in range(3)]
        assert types(frames) == ["created", "output_item.done", "done" if is_first else "completed"]
        assert frames[-1]["response"]["status"] == "completed"
        assert types(await ask(client))[-1] == "completed"


@pytest.mark.parametrize("beta", [FIRST, None])
async def test_rollout_appends(beta: str | None) -> None:
    """The lane's newest response is continued, with the fields of its create, whether the client had asked for it or not."""
    headers = {} if beta is None else {"OpenAI-Beta": beta}
    scripts: list[list[Step]] = [[read, send(CALLED), close], [read, send(whole(answer("resp_2", message("x"))))]]
    async with ScriptedUpstream(*scripts) as upstream, serving(upstream) as product:
        watcher = Watcher(product)
        async with product.connect(additional_headers=headers) as client:
            await client.send(create(tools=[{"type": "function", "name": "f"}]))
            for _ in range(3):
                await receive(client)
            await client.send(APPEND)
            assert types(await receive_turn(client)) == ["created", "output_item.done", "completed"]
        first, second = (request.json for request in upstream.requests)
        assert second == {**first, "input": [user("hi"), call("c1"), output("c1")]}
        assert watcher.outcomes == ["completed", "completed"]
        assert turns_in_flight(product) == 0


async def test_rollout_can_be_forbidden() -> None:
    """A client that appends all the same is told what is wrong; the connection goes on."""
    async with (
        ScriptedUpstream([read, send(CALLED), close]) as upstream,
        serving(upstream, websocket__rollout="never") as product,
        product.connect(additional_headers={"OpenAI-Beta": FIRST}) as client,
    ):
        await ask(client)
        await client.send(APPEND)
        error = await receive(client)
        assert (error["type"], error["status"]) == ("error", 400)
        assert types(await ask(client)) == GOOD


async def test_first_generation_is_told_of_failures_as_responses() -> None:
    """It does not read `error` frames, and would wait."""
    refusal = json_answer({"error": {"message": "no", "type": "server_error", "code": None}}, status="500 Oops")
    async with (
        ScriptedUpstream([read, send(refusal)]) as upstream,
        serving(upstream) as product,
        product.connect(additional_headers={"OpenAI-Beta": FIRST}) as client,
    ):
        watcher = Watcher(product)
        frames = await ask(client)
        assert types(frames) == ["created", "failed"]
        assert frames[-1]["response"]["error"]["message"] == "no"
        assert types(await ask(client)) == GOOD
        assert watcher.outcomes == ["error", "completed"]


# Open Responses


async def test_open_responses_runs_one_response_after_the_other() -> None:
    """Lanes are named in the answers, and wait for each other; a cancel that names none meets the one that runs."""
    gate = Gate()
    scripts: list[list[Step]] = [
        [read, gate, send(whole(answer("resp_1"))), close],
        [read, send(STREAM_HEAD + chunk(begun("resp_2"))), close],
    ]
    async with (
        ScriptedUpstream(*scripts) as upstream,
        serving(upstream, websocket__protocol="open-responses", websocket__max_lanes=1) as product,
        product.connect() as client,
    ):
        watcher = Watcher(product)
        for lane in ("a", "b", "c"):
            await client.send(create(lane, stream_id=lane))
        (connection,) = product.running.door._connections
        await eventually(lambda: connection.session.lanes._queued == 2)
        await soon(gate.reached)
        assert len(upstream.requests) == 1
        gate.open()
        turns = [await receive_turn(client) for _ in range(3)]
        assert [turn[0]["stream_id"] for turn in turns] == ["a", "b", "c"]
        assert [turn[-1]["type"] for turn in turns] == ["response.completed", "error", "response.completed"]
        assert watcher.most == 1
        assert [request.json["input"][0]["content"] for request in upstream.requests] == ["a", "b", "c"]


# A prompt that is too long

OVERFLOW: Any = {
    "code": 400,
    "message": "request (9000 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 9000,
    "n_ctx": 4096,
}


@pytest.mark.parametrize(
    ("reply", "is_failed", "expected"),
    [
        (json_answer({"error": OVERFLOW}, status="400 Bad Request"), True, ["created", "failed"]),
        (whole(sse({**OVERFLOW, "type": "error"})), True, ["created", "failed"]),
        (whole(begun("resp_1") + sse({**OVERFLOW, "type": "error"})), True, ["created", "output_item.added", "failed"]),
        (json_answer({"error": OVERFLOW}, status="400 Bad Request"), False, ["error"]),
    ],
    ids=["answer", "event", "event in the middle", "left as it is"],
)
async def test_overflow_ends_in_a_failed_response(reply: bytes, expected: list[str], *, is_failed: bool) -> None:
    """With the code on which clients compact, the request's failure in the counts, and a connection that goes on."""
    async with (
        ScriptedUpstream([read, send(reply), close]) as upstream,
        serving(upstream, upstream__overflow_as_failed=is_failed) as product,
        product.connect() as client,
    ):
        watcher = Watcher(product)
        frames = await ask(client)
        assert types(frames) == expected
        error = frames[-1]["response"]["error"] if is_failed else frames[-1]["error"]
        assert error["message"] == OVERFLOW["message"]
        assert error["code"] == "context_length_exceeded"
        assert types(await ask(client)) == GOOD
        assert watcher.outcomes == ["failed" if is_failed else "error", "completed"]
        assert (await product.counts("errors")) == {"upstream": 1}
        assert turns_in_flight(product) == 0
