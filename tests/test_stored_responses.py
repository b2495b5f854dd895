"""Responses that outlive their connection, from end to end: WebSocket to HTTP and back, for their owner alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import openresponses
from tests.fakes import (
    Product,
    RawClient,
    ScriptedUpstream,
    Step,
    ask,
    close,
    eventually,
    json_answer,
    read,
    send,
    serving,
    types,
)
from tests.playbook import answer, call, message, output, user
from tests.test_passthrough import fetch, read_answer, request
from tests.test_running_responses import whole
from tests.test_second_requests import LONG, PROMPT, SUMMARY, THRESHOLD, is_compacted
from tests.test_stored import JSON, KEY, NOT_FOUND, OTHER_KEY, create_stream
from tests.test_stored import call as fetch_json

HEADERS = {"Authorization": "Bearer one"}
Json = dict[str, Any]


def replies(*items: Json, **members: Any) -> list[list[Step]]:
    """A backend that answers with these items one after the other, each on a connection of its own."""
    return [
        [read, send(whole(answer(f"resp_{number}", item, **members))), close] for number, item in enumerate(items, 1)
    ]


async def over_websocket(product: Product, text: Any, **fields: Any) -> Json:
    """A turn on a connection of its own; its last event."""
    async with product.connect(additional_headers=HEADERS) as client:
        return (await ask(client, text, **fields))[-1]


# There and back


async def test_response_of_a_socket_is_known_over_http() -> None:
    """Shown as the client got it, its input listed, deleted once."""
    async with ScriptedUpstream(*replies(message("one"))) as upstream, serving(upstream) as product:
        final = (await over_websocket(product, "first", instructions="i", temperature=0.5))["response"]
        assert openresponses.response_problems(final) == []
        assert await fetch_json(product, "GET", "/v1/responses/resp_1") == (200, {**final, "store": True})
        status, listed = await fetch_json(product, "GET", "/v1/responses/resp_1/input_items")
        assert (status, len(listed["data"])) == (200, 1)
        assert listed["data"][0]["content"] == [{"type": "input_text", "text": "first"}]
        gone = {"id": "resp_1", "object": "response", "deleted": True}
        assert await fetch_json(product, "DELETE", "/v1/responses/resp_1") == (200, gone)
        for method, target in (("DELETE", ""), ("GET", ""), ("GET", "/input_items")):
            assert (await fetch_json(product, method, f"/v1/responses/resp_1{target}"))[0] == 404
        error = await over_websocket(product, "second", previous_response_id="resp_1")
        assert error["error"]["code"] == "previous_response_not_found"
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("is_stream", [False, True])
async def test_conversation_moves_from_a_socket_to_http_and_back(*, is_stream: bool) -> None:
    """Each request to the backend holds all of it, whichever way each turn came."""
    items = [message(text, f"msg_{text}") for text in ("one", "two", "three")]
    scripts = replies(*items)
    if not is_stream:
        reply = {"id": "resp_2", "object": "response", "status": "completed", "output": [items[1]]}
        scripts[1] = [read, send(json_answer(reply)), close]
    async with ScriptedUpstream(*scripts) as upstream, serving(upstream) as product:
        await over_websocket(product, "a")
        body: Json = {"model": "m", "input": "b", "previous_response_id": "resp_1"}
        if is_stream:
            events = await create_stream(product, "b", previous_response_id="resp_1")
            assert events[-1]["response"]["previous_response_id"] == "resp_1"
        else:
            status, answered = await fetch_json(product, "POST", "/v1/responses", body)
            assert (status, answered["previous_response_id"]) == (200, "resp_1")
        final = await over_websocket(product, "c", previous_response_id="resp_2")
        assert final["response"]["previous_response_id"] == "resp_2"
        assert [got.json["input"] for got in upstream.requests] == [
            [user("a")],
            [user("a"), items[0], user("b")],
            [user("a"), items[0], user("b"), items[1], user("c")],
        ]
        assert [got.json["stream"] for got in upstream.requests[::2]] == [True, True]
        assert (await fetch_json(product, "GET", "/v1/responses/resp_3"))[1]["output"] == [items[2]]


async def test_warm_up_is_continued_elsewhere() -> None:
    """With the fields that it brought."""
    async with ScriptedUpstream(*replies(message("one"))) as upstream, serving(upstream) as product:
        warm = await over_websocket(product, "a", generate=False, instructions="i")
        body = {"model": "m", "input": "b", "previous_response_id": warm["response"]["id"], "stream": True}
        await fetch(product, request("POST", "/v1/responses", KEY, JSON, body=json.dumps(body).encode()))
        assert upstream.requests[0].json["input"] == [user("a"), user("b")]
        assert upstream.requests[0].json["instructions"] == "i"


async def test_call_is_answered_on_another_connection() -> None:
    """The output's call is looked for in what was stored."""
    async with ScriptedUpstream(*replies(call("c1"), message("so"))) as upstream, serving(upstream) as product:
        await over_websocket(product, "a")
        await over_websocket(product, [output("c1")], previous_response_id="resp_1")
        assert upstream.requests[1].json["input"] == [user("a"), call("c1"), output("c1")]
        error = await over_websocket(product, [output("c9")], previous_response_id="resp_1")
        assert error["error"]["code"] == "tool_call_not_found"


async def test_item_of_another_connection_is_referred_to() -> None:
    """By its id alone."""
    async with ScriptedUpstream(*replies(message("one"))) as upstream, serving(upstream) as product:
        await over_websocket(product, "a")
        await over_websocket(product, [{"type": "item_reference", "id": "msg_1"}, user("b")])
        assert upstream.requests[1].json["input"] == [message("one"), user("b")]


async def test_compacted_conversation_goes_on_elsewhere() -> None:
    """From the summary, over HTTP; the response is shown with its compaction item, and lists what it had been given."""
    scripts: list[list[Step]] = [
        [read, send(LONG), close],
        [read, send(whole(SUMMARY)), close],
        [read, send(whole(answer("resp_2", message("Thus.", "msg_2")))), close],
    ]
    async with ScriptedUpstream(*scripts) as upstream, serving(upstream) as product:
        async with product.connect(additional_headers=HEADERS) as client:
            first = (await ask(client, "the task"))[-1]["response"]["id"]
            new: Any = [output("c1"), user("and now?")]
            final = (await ask(client, new, previous_response_id=first, context_management=THRESHOLD))[-1]["response"]
        assert upstream.requests[1].json["input"][-1] == PROMPT
        shown = (await fetch_json(product, "GET", f"/v1/responses/{final['id']}"))[1]
        assert shown == {**final, "store": True}
        await create_stream(product, "next", previous_response_id=final["id"])
        sent = upstream.requests[3].json["input"]
        assert is_compacted(sent[:3])
        assert sent[3:] == [message("Thus.", "msg_2"), user("next")]


async def test_response_that_was_stopped_is_continued_elsewhere() -> None:
    """With what was finished of it."""
    async with ScriptedUpstream(then=[read]) as upstream, serving(upstream) as product:
        async with product.connect(additional_headers=HEADERS) as client:
            await client.send(json.dumps({"type": "response.create", "model": "m", "input": "a"}))
            await eventually(lambda: upstream.requests)
            await client.send('{"type":"response.cancel"}')
            await client.recv()
            final = json.loads(await client.recv())["response"]
        assert (await fetch_json(product, "GET", f"/v1/responses/{final['id']}"))[1]["status"] == "incomplete"


# What is not there


@pytest.mark.parametrize("fields", [{"store": False}, {"store": False, "generate": False}])
async def test_what_was_not_to_be_stored_is_known_nowhere(fields: Json) -> None:
    """Neither it nor what follows from it on its connection."""
    async with ScriptedUpstream(*replies(message("one"), message("two"))) as upstream, serving(upstream) as product:
        async with product.connect(additional_headers=HEADERS) as client:
            ids = [(await ask(client, "a", **fields))[-1]["response"]["id"]]
            ids.append((await ask(client, "b", previous_response_id=ids[0]))[-1]["response"]["id"])
        before = len(upstream.requests)
        for response_id in ids:
            assert (await fetch_json(product, "GET", f"/v1/responses/{response_id}"))[0] == 404
            assert (await fetch_json(product, "GET", f"/v1/responses/{response_id}/input_items"))[0] == 404
            body = {"model": "m", "input": "c", "previous_response_id": response_id}
            status, reply = await fetch_json(product, "POST", "/v1/responses", body)
            assert (status, reply["error"]["code"]) == (400, NOT_FOUND["code"])
            error = await over_websocket(product, "c", previous_response_id=response_id)
            assert error["error"]["code"] == NOT_FOUND["code"]
        assert len(upstream.requests) == before


UNKNOWN = "resp_9"


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("GET", "/v1/responses/{}", None),
        ("GET", "/v1/responses/{}?stream=true", None),
        ("GET", "/v1/responses/{}/input_items", None),
        ("GET", "/v1/responses/{}/input_items?limit=0&after=x", None),
        ("DELETE", "/v1/responses/{}", None),
        ("POST", "/v1/responses", {"model": "m", "input": "x", "previous_response_id": "{}"}),
        ("POST", "/v1/responses", {"model": "m", "input": 5, "previous_response_id": "{}"}),
        ("POST", "/v1/responses", {"input": [output("c1")], "previous_response_id": "{}", "stream": True}),
        ("POST", "/v1/responses", {"input": [{"type": "item_reference", "id": "msg_1"}, user("{}")]}),
        ("POST", "/v1/responses/compact", {"model": "m", "input": "x", "previous_response_id": "{}"}),
    ],
)
async def test_another_credential_learns_nothing(method: str, target: str, body: Json | None) -> None:
    """The very bytes of the answer are those for an id that never was, apart from the id; a socket says the same."""
    async with (
        ScriptedUpstream(*replies(call("c1"))) as upstream,
        serving(upstream, upstream__profile="llamacpp") as product,
    ):
        await over_websocket(product, "a")
        assert (await fetch_json(product, "GET", "/v1/responses/resp_1"))[0] == 200
        answers: dict[str, bytes] = {}
        for response_id in ("resp_1", UNKNOWN):
            data = b"" if body is None else json.dumps(body).replace("{}", response_id).encode()
            raw = request(method, target.format(response_id), OTHER_KEY, JSON, body=data)
            with await RawClient.open(product.address) as client:
                await client.send_bytes(raw)
                raw_head, raw_body = await read_answer(client)
            lines = [line for line in raw_head.split(b"\r\n") if not line.lower().startswith(b"date:")]
            answers[response_id] = b"\r\n".join(lines) + raw_body
        assert answers["resp_1"].replace(b"resp_1", UNKNOWN.encode()) == answers[UNKNOWN]
        assert answers["resp_1"].startswith(b"HTTP/1.1 4")
        assert len(upstream.requests) == 1


async def test_another_credential_learns_nothing_on_a_socket() -> None:
    """Byte for byte; not by what a cancel or a steer of it is answered, either."""
    frames = [
        {"type": "response.create", "model": "m", "input": "x", "previous_response_id": "resp_1"},
        {"type": "response.create", "model": "m", "input": [output("c1")], "previous_response_id": "resp_1"},
        {"type": "response.create", "model": "m", "input": "x", "previous_response_id": "resp_1", "generate": False},
        {"type": "response.steer", "previous_response_id": "resp_1", "input": "x"},
        {"type": "response.inject", "response_id": "resp_1", "input": [output("c1")]},
        {"type": "response.interrupt", "response_id": "resp_1"},
    ]
    async with ScriptedUpstream(*replies(call("c1"))) as upstream, serving(upstream) as product:
        await over_websocket(product, "a")
        for frame in frames:
            said = []
            for response_id in ("resp_1", UNKNOWN):
                async with product.connect(additional_headers={"Authorization": "Bearer two"}) as client:
                    await client.send(json.dumps(frame).replace("resp_1", response_id))
                    said.append(str(await client.recv()).replace(response_id, ""))
            assert said[0] == said[1]
        assert len(upstream.requests) == 1


# Ids and paths that are meant to be taken for others


@pytest.mark.parametrize(
    ("response_id", "expected"),
    [
        ("resp%5F1", 200),
        ("resp_1%2f", 404),
        ("resp_1%2F..%2Fresp_1", 404),
        ("resp_1%00", 404),
        ("..", 404),
        ("%2e%2e", 404),
        ("x/../resp_1", None),
        ("resp_1/", None),
        ("/resp_1", None),
        ("%", 404),
        ("%ff", 404),
        ("\xff", 400),
        ("x" * 7000, 404),
    ],
)
async def test_odd_ids_are_other_ids(response_id: str, expected: int | None) -> None:
    """Only what means the same is the same; what cannot be an id goes to the backend just as it came."""
    async with ScriptedUpstream(*replies(message("one"))) as upstream, serving(upstream) as product:
        await over_websocket(product, "a")
        for suffix in ("", "/input_items"):
            target = f"/v1/responses/{response_id}{suffix}"
            raw_head, _ = await fetch(product, request("GET", target, KEY))
            assert int(raw_head.split(b" ")[1]) == (expected or 200)
            assert [got.target for got in upstream.requests[1:]].count(target) == (expected is None)


@pytest.mark.parametrize("response_id", ["x" * 1_000_000, "", "resp_1/", "a\u0000b", "\ud800"])
async def test_odd_ids_in_a_body_are_not_found(response_id: str) -> None:
    """Nothing fails of them, on a socket or over HTTP."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        body = {"model": "m", "input": "x", "previous_response_id": response_id}
        raw_head, raw = await fetch(
            product, request("POST", "/v1/responses", KEY, JSON, body=json.dumps(body).encode())
        )
        assert raw_head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(raw)["error"]["code"] == "previous_response_not_found"
        error = await over_websocket(product, "x", previous_response_id=response_id)
        assert error["error"]["code"] == "previous_response_not_found"
        assert not upstream.requests


async def test_types_of_a_stored_turn_are_good() -> None:
    """Nothing of the store shows in what the client is sent."""
    async with ScriptedUpstream(*replies(message("one"))) as upstream, serving(upstream) as product:
        async with product.connect() as client:
            assert types(await ask(client)) == ["created", "output_item.done", "completed"]
        assert "store" not in upstream.requests[0].json
