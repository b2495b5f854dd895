"""`POST /v1/responses/compact` in front of backends that lack it (:mod:`proxy.compactor`)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from openai.types.responses import CompactedResponse
from pydantic import TypeAdapter

from proxy.protocol import compaction, rawjson
from proxy.protocol.chain import Entry, Settings
from proxy.protocol.profiles import PROFILES
from proxy.protocol.transcript import extend
from tests.fakes import (
    Gate,
    Product,
    RawClient,
    Request,
    ScriptedUpstream,
    Step,
    chunk,
    close,
    eventually,
    head,
    json_answer,
    read,
    send,
    serving,
    soon,
    stall,
)
from tests.openresponses import usage_problems

PATHS = [
    "/v1/responses/compact",
    "/responses/compact",
    "/v1/responses/compact/",
    "/v1/codex/responses/compact",
    "/codex/responses/compact",
]
SUMMARY = "The user says hi."
ASK: Any = {"model": "m", "input": "hi"}


def response(*output: Any, **members: Any) -> dict[str, Any]:
    """What a backend answers to the summarising request."""
    return {"id": "resp_1", "object": "response", "status": "completed", "output": list(output), **members}


def says(text: str) -> dict[str, Any]:
    """A message of the assistant."""
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


USAGE = {"input_tokens": 7, "output_tokens": 3}
GOOD = json_answer(response({"type": "reasoning", "summary": []}, says(SUMMARY), usage=USAGE))


def user(text: str, **members: Any) -> dict[str, Any]:
    """A message of the user, in its shortest form."""
    return {"role": "user", "content": text, **members}


def posted(body: bytes, *headers: str, target: str = "/v1/responses/compact", method: str = "POST") -> bytes:
    """A request."""
    lines = (f"{method} {target} HTTP/1.1", "Host: proxy:1", "Connection: close", *headers)
    return ("\r\n".join((*lines, f"Content-Length: {len(body)}")) + "\r\n\r\n").encode() + body


async def ask(product: Product, body: Any, *headers: str, target: str = PATHS[0]) -> tuple[int, Any]:
    """Post something, JSON unless it is bytes: the status of the answer and its JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with await RawClient.open(product.address) as client:
        await client.send_bytes(posted(data, *headers, target=target))
        answered, _, content = (await client.read_all()).partition(b"\r\n\r\n")
    return int(answered.split(b" ")[1]), json.loads(content)


async def compacted(
    *steps: Step, body: Any = ASK, headers: tuple[str, ...] = (), target: str = PATHS[0], **options: Any
) -> tuple[list[Request], int, Any]:
    """One request for compaction: what the backend got, and what the client did."""
    chosen = {"upstream__profile": "vllm", **options}
    async with ScriptedUpstream(*([read, step] for step in steps)) as upstream, serving(upstream, **chosen) as product:
        status, answer = await ask(product, body, *headers, target=target)
        return upstream.requests, status, answer


# What is answered


@pytest.mark.parametrize("target", PATHS)
async def test_compactor_answers_on_every_path_that_clients_build(target: str) -> None:
    """With and without the base path, by either name; one request goes to the backend's `/responses`."""
    requests, status, answer = await compacted(send(GOOD), target=f"{target}?a=b")
    assert [(request.method, request.target) for request in requests] == [("POST", "/v1/responses?a=b")]
    assert status == 200
    assert answer["output"][-1]["type"] == "compaction"


async def test_compactor_returns_the_window_of_the_api() -> None:
    """The user's messages and one item, in an object that a strict client takes; the item holds the summary."""
    conversation = [
        {"type": "message", "role": "developer", "content": "Be brief."},
        user("hi"),
        says("Hello."),
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
        user("bye", type="message", id="msg_1"),
    ]
    _, status, answer = await compacted(send(GOOD), body={"model": "m", "input": conversation})
    assert status == 200
    assert set(answer) == {"id", "object", "created_at", "output", "usage"}
    assert answer["id"].startswith("resp_")
    assert answer["object"] == "response.compaction"
    assert abs(answer["created_at"] - 1_700_000_000) < 10**9
    first, second, item = answer["output"]
    stem = item["id"].removeprefix("cmp_")
    assert (first["role"], first["status"], first["id"]) == ("user", "completed", f"msg_{stem}_0")
    assert first["content"] == [{"type": "input_text", "text": "hi"}]
    assert second["id"] == "msg_1"
    assert compaction.read_item(json.dumps(item).encode()) == SUMMARY
    assert usage_problems(answer["usage"]) == []
    assert (answer["usage"]["input_tokens"], answer["usage"]["total_tokens"]) == (7, 10)
    TypeAdapter(CompactedResponse).validate_python({**answer, "output": [item]}, strict=True)


async def test_compactor_counts_nothing_where_the_backend_does_not() -> None:
    """Usage is complete even then."""
    _, _, answer = await compacted(send(json_answer(response(says("Yes."), usage=None))))
    assert usage_problems(answer["usage"]) == []
    assert answer["usage"]["total_tokens"] == 0


async def test_compactor_asks_as_the_turn_did() -> None:
    """The prompt begins as that of a turn, then comes the question; the rest of the body is for an answer in one piece."""
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    body = {
        "model": "m",
        "input": "hi",
        "instructions": "Be brief.",
        "tools": tools,
        "tool_choice": "required",
        "max_output_tokens": 5,
        "text": {"format": {"type": "json_object"}},
        "prompt_cache_key": "k",
        "client_metadata": {"a": "b"},
        "stream": True,
        "background": True,
        "store": True,
        "generate": False,
    }
    (request,), status, _ = await compacted(send(GOOD), body=body)
    assert status == 200
    prompt = json.loads(compaction.PROMPT_ITEM)
    assert request.json == {
        "tools": tools,
        "instructions": "Be brief.",
        "model": "m",
        "prompt_cache_key": "k",
        "store": False,
        "tool_choice": "none",
        "stream": False,
        "input": [{"type": "message", "role": "user", "content": "hi"}, prompt],
    }
    assert list(request.json)[:2] == ["tools", "instructions"]
    assert list(request.json)[-1] == "input"


async def test_compactor_sends_the_headers_that_pass_through_sends() -> None:
    """The client's own, the operator's key in place of the client's, and none that belong to the client's body."""
    headers = ("Authorization: Bearer client", "X-Team: a", "Accept-Encoding: gzip", "Content-Type: text/plain")
    (request,), _, _ = await compacted(send(GOOD), headers=headers, upstream__api_key="operator")
    assert request.headers["Authorization"] == "Bearer operator"
    assert request.headers["X-Team"] == "a"
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["Content-Length"] == str(len(request.body))
    assert "Accept-Encoding" not in request.headers
    (request,), _, _ = await compacted(send(GOOD), headers=headers)
    assert request.headers["Authorization"] == "Bearer client"


async def test_compactor_takes_compressed_and_chunked_bodies() -> None:
    """As pass-through does."""
    body = json.dumps(ASK).encode()
    data = posted(b"", "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"") + chunk(body) + b"0\r\n\r\n"
    async with ScriptedUpstream([read, send(GOOD)]) as upstream, serving(upstream, upstream__profile="vllm") as product:
        with await RawClient.open(product.address) as client:
            await client.send_bytes(data)
            assert (await client.read_head()).startswith(b"HTTP/1.1 200 ")
        (request,) = upstream.requests
        assert request.json["input"][0]["content"] == "hi"


async def test_compactor_compacts_what_was_compacted() -> None:
    """The backend gets the first summary as a message, and the second window has one item."""
    first = json.loads(compaction.make_item("cmp_1", "First."))
    old = user("old", type="message", id="msg_0", status="completed")
    body = {"model": "m", "input": [old, first, says("Yes."), user("new")]}
    (request,), _, answer = await compacted(send(GOOD), body=body)
    assert b'"compaction"' not in request.body
    assert [item["type"] for item in request.json["input"][:3]] == ["message"] * 3
    assert request.json["input"][1]["content"][0]["text"].endswith("First.")
    assert [item["type"] for item in answer["output"]] == ["message", "message", "compaction"]
    assert [item["content"][0]["text"] for item in answer["output"][1:2]] == ["new"]
    assert answer["output"][0] == {**old, "content": [{"type": "input_text", "text": "old"}]}


@pytest.mark.parametrize("profile", PROFILES)
async def test_window_goes_on_over_http(profile: str) -> None:
    """A new chain over plain HTTP: the backend gets a message where the client sends an item of the proxy's."""
    item = json.loads(compaction.make_item("cmp_1", SUMMARY))
    body = {"model": "m", "input": [user("hi"), item, user("Go on.")], "x" * 5000: "y" * 5 * 2**20}
    async with (
        ScriptedUpstream([read, send(json_answer({}))]) as upstream,
        serving(upstream, upstream__profile=profile) as product,
    ):
        await ask(product, body, target="/v1/responses")
        (request,) = upstream.requests
    assert request.headers["Content-Length"] == str(len(request.body))
    assert b'"compaction"' not in request.body
    message = compaction.as_message(json.dumps(item).encode()) or b""
    assert request.json == {**body, "input": [user("hi"), json.loads(message), user("Go on.")]}


async def test_conversation_that_was_compacted_and_not_cut_is_cut() -> None:
    """What an item stands for is not sent again when a client has kept all of it."""
    item = json.loads(compaction.make_item("cmp_1", "First."))
    (request,), _, _ = await compacted(
        send(GOOD), body={"model": "m", "input": [user("a"), says("b"), item, says("c")]}
    )
    assert [item["role"] for item in request.json["input"]] == ["user", "user", "assistant", "user"]


async def test_unknown_backend_is_asked_with_messages() -> None:
    """Also one that compacts gets no item that it cannot read."""
    item = json.loads(compaction.make_item("cmp_1", "First."))
    body = {"model": "m", "input": [user("hi"), item]}
    (request,), _, _ = await compacted(send(json_answer({})), body=body, upstream__profile="generic")
    assert request.target == "/v1/responses/compact"
    assert [item.get("type", "message") for item in request.json["input"]] == ["message", "message"]


# What is refused


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"input": "hi"}, "missing_required_parameter", "model"),
        ({"model": None, "input": "hi"}, "missing_required_parameter", "model"),
        ({"model": 1, "input": "hi"}, "invalid_type", "model"),
        ({"model": "m"}, "missing_required_parameter", "input"),
        ({"model": "m", "input": []}, "missing_required_parameter", "input"),
        ({"model": "m", "input": 1}, "invalid_type", "input"),
        ({"model": "m", "input": [1]}, "invalid_type", "input"),
        ({"model": "m", "input": [{}] * 4}, "invalid_value", "input"),
        ({"model": "m", "input": "hi", "previous_response_id": 1}, "invalid_type", "previous_response_id"),
        (
            {"model": "m", "input": "hi", "previous_response_id": "resp_0"},
            "previous_response_not_found",
            "previous_response_id",
        ),
        ({"model": "m", "input": "x" * 2000}, None, None),
    ],
)
async def test_compactor_refuses_what_it_cannot_compact(body: Any, code: str | None, param: str | None) -> None:
    """With an error of the API, before the backend is asked."""
    size = {"websocket__max_message": 1000, "websocket__max_items": 3}
    data = json.dumps(body).encode()
    chunked = (
        posted(b"", "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"") + chunk(data) + b"0\r\n\r\n"
    )
    for sent in (posted(data), chunked):
        async with ScriptedUpstream() as upstream, serving(upstream, upstream__profile="vllm", **size) as product:
            with await RawClient.open(product.address) as client:
                await client.send_bytes(sent)
                answered, _, content = (await client.read_all()).partition(b"\r\n\r\n")
            assert upstream.requests == []
        assert answered.startswith(b"HTTP/1.1 400 " if code else b"HTTP/1.1 413 ")  # the API's has no code for size
        error = json.loads(content)["error"]
        assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)


async def test_compactor_says_that_the_model_is_missing_as_the_api_does() -> None:
    """To the letter."""
    _, status, answer = await compacted(body={"input": "hi"})
    assert (status, answer) == (
        400,
        {
            "error": {
                "type": "invalid_request_error",
                "code": "missing_required_parameter",
                "message": "Missing required parameter: 'model'.",
                "param": "model",
            }
        },
    )


@pytest.mark.parametrize(
    "status", ["400 Bad Request", "404 Not Found", "429 Too Many Requests", "500 Oops", "302 Found"]
)
async def test_compactor_hands_the_backends_refusal_on(status: str) -> None:
    """Its own status, headers and body."""
    body = {"error": {"message": "No.", "code": 17}}
    _, answered, answer = await compacted(send(json_answer(body, "Retry-After: 3", status=status)))
    assert (answered, answer) == (int(status[:3]), body)


FAILED = {"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "Slow down."}}


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (json_answer(response(says(" "))), 502, "upstream_protocol_error"),
        (json_answer(response({"type": "function_call", "call_id": "1"})), 502, "upstream_protocol_error"),
        (json_answer(response(output=None)), 502, "upstream_protocol_error"),
        (json_answer({}), 502, "upstream_protocol_error"),
        (json_answer([]), 502, "upstream_protocol_error"),
        (json_answer(response(says("x" * 5000))), 502, "upstream_protocol_error"),
        (head("Content-Length: 4") + b"\xff\xfe\xfd\xfc", 502, "upstream_protocol_error"),
        (head("Content-Length: 9") + b'{"id', 502, "upstream_disconnected"),
        (head("Transfer-Encoding: chunked") + chunk(b'{"id'), 502, "upstream_disconnected"),
        (b"no HTTP\r\n\r\n", 502, "upstream_protocol_error"),
        (b"", 502, "upstream_disconnected"),
        (json_answer(response(says("Some."), **FAILED)), 429, "rate_limit_exceeded"),
        (json_answer(response(status="failed", error=None)), 500, None),
    ],
)
async def test_compactor_says_that_there_is_no_summary(data: bytes, status: int, code: str | None) -> None:
    """An answer without a text, a failed response, and one that breaks off are errors; never an empty summary."""

    async def answer(peer: Any) -> None:
        await peer.send(data)
        await close(peer)

    _, answered, body = await compacted(answer, max_event=4000)
    assert (answered, body["error"]["code"]) == (status, code)


async def test_compactor_takes_a_summary_that_was_cut_short() -> None:
    """A backend whose context is nearly full has no room for more; without it the client could not go on at all."""
    data = json_answer(
        response(says("Half a"), status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    )
    _, status, answer = await compacted(send(data))
    assert status == 200
    assert compaction.read_item(json.dumps(answer["output"][-1]).encode()) == "Half a"


# Who answers


async def test_backend_that_compacts_is_left_to_it() -> None:
    """The request goes through as it came."""
    chosen: list[dict[str, Any]] = [{"upstream__profile": "openai"}, {"upstream__compaction": "backend"}]
    for options in chosen:
        (request,), status, answer = await compacted(send(json_answer({"a": 1})), body=b'{ "x": [ ] }', **options)
        assert (request.target, request.body) == ("/v1/responses/compact", b'{ "x": [ ] }')
        assert (status, answer) == (200, {"a": 1})


async def test_operator_has_the_proxy_compact() -> None:
    """Whatever the profile says."""
    requests, status, _ = await compacted(send(GOOD), upstream__profile="openai", upstream__compaction="proxy")
    assert [request.target for request in requests] == ["/v1/responses"]
    assert status == 200


@pytest.mark.parametrize("status", ["404 Not Found", "405 Method Not Allowed", "501 Not Implemented"])
async def test_unknown_backend_is_asked_first(status: str) -> None:
    """Where it does not have the path the proxy answers."""
    refusal = send(json_answer({"error": "no"}, status=status))
    requests, answered, answer = await compacted(refusal, send(GOOD), upstream__profile="generic")
    assert [request.target for request in requests] == ["/v1/responses/compact", "/v1/responses"]
    assert requests[0].body == json.dumps(ASK).encode()
    assert (answered, answer["object"]) == (200, "response.compaction")


@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request", "401 Unauthorized", "422 Oops", "500 Oops"])
async def test_unknown_backend_answers_for_itself(status: str) -> None:
    """Everything else that it says is its answer, errors included."""
    requests, answered, answer = await compacted(
        send(json_answer({"a": 1}, status=status)), upstream__profile="generic"
    )
    assert [request.target for request in requests] == ["/v1/responses/compact"]
    assert (answered, answer) == (int(status[:3]), {"a": 1})


@pytest.mark.parametrize("body", [b"", b"no JSON", b"[]", b'"text"', b'{"a":1', b'{"a":"\xff"}'])
@pytest.mark.parametrize("profile", ["generic", "vllm"])
async def test_what_is_no_json_goes_through(body: bytes, profile: str) -> None:
    """The backend says what it thinks of it."""
    refusal = send(json_answer({"a": 1}, status="404 Not Found"))
    (request,), status, answer = await compacted(refusal, body=body, upstream__profile=profile)
    assert (request.target, request.body) == ("/v1/responses/compact", body)
    assert (status, answer) == (404, {"a": 1})


@pytest.mark.parametrize(("method", "target"), [("PUT", PATHS[0]), ("POST", "/v1/responses/resp_1/compact")])
async def test_other_requests_go_through(method: str, target: str) -> None:
    """Compaction is a POST to one path."""
    async with (
        ScriptedUpstream([read, send(json_answer({}))]) as upstream,
        serving(upstream, upstream__profile="vllm") as product,
    ):
        with await RawClient.open(product.address) as client:
            await client.send_bytes(posted(b"{}", target=target, method=method))
            await client.read_all()
        assert [(request.method, request.target) for request in upstream.requests] == [(method, target)]


# Its life


async def test_client_that_leaves_cancels_the_summary() -> None:
    """The backend's connection is closed."""
    async with ScriptedUpstream([read, stall]) as upstream, serving(upstream, upstream__profile="vllm") as product:
        with await RawClient.open(product.address) as client:
            await client.send_bytes(posted(json.dumps(ASK).encode()))
            peer = await upstream.peer()
            await eventually(lambda: peer.requests)
        await soon(peer.gone)
        await eventually(lambda: not product.running.door._pass_through._requests)


async def test_drain_waits_for_the_summary() -> None:
    """It is a request on its way like any other."""
    gate = Gate()
    async with (
        ScriptedUpstream([read, gate, send(GOOD)]) as upstream,
        serving(upstream, upstream__profile="vllm") as product,
        asyncio.TaskGroup() as tasks,
    ):
        asked = tasks.create_task(ask(product, ASK))
        await soon(gate.reached)
        drained = tasks.create_task(product.running.drain(20))
        await eventually(lambda: product.running.door.is_draining)
        await asyncio.sleep(0.05)
        assert not drained.done()
        gate.open()
        assert (await asked)[0] == 200


async def test_compaction_is_counted_as_what_passes_through() -> None:
    """By who answered: the proxy a window, the backend its refusals."""
    scripts: list[list[Step]] = [[read, send(GOOD)], [read, send(json_answer({}, status="400 Bad Request"))]]
    async with ScriptedUpstream(*scripts) as upstream, serving(upstream, upstream__profile="vllm") as product:
        for _ in scripts:
            await ask(product, ASK)
        counts: Any = await product.counts("http_requests")
    assert counts == {("proxy", "2xx"): 1, ("upstream", "4xx"): 1}


# Stored responses


def entry(*items: Any) -> Entry:
    """A stored response with a transcript."""
    raw, heads = rawjson.split_items(json.dumps(items).encode())
    return Entry(
        response_id="resp_0",
        lane=None,
        transcript=extend(extend(None, raw[:1], heads[:1]), raw[1:], heads[1:]),
        settings=Settings([]),
        depth=1,
        is_warmup=False,
        brought=frozenset(),
        response=b"{}",
    )


async def compact_stored(stored: Entry, body: Any) -> tuple[list[Request], int, Any]:
    """Compaction of a response that is stored for whoever says `Authorization: a`."""

    async def load(request: web.Request, response_id: str) -> Entry | None:
        is_there = response_id == stored.response_id and request.headers.get("Authorization") == "a"
        return stored if is_there else None

    async with ScriptedUpstream([read, send(GOOD)]) as upstream, serving(upstream, upstream__profile="vllm") as product:
        product.running.door._compactor._load = load
        assert (await ask(product, body, "Authorization: b"))[0] == 400
        assert upstream.requests == []
        status, answer = await ask(product, body, "Authorization: a")
        return upstream.requests, status, answer


async def test_stored_response_is_compacted() -> None:
    """With what the request adds; the backend is sent all of it, and no id. To others it is as if it were not there."""
    stored = entry(user("one"), says("Yes."))
    body = {"model": "m", "input": "two", "previous_response_id": "resp_0"}
    (request,), status, answer = await compact_stored(stored, body)
    assert status == 200
    assert "previous_response_id" not in request.json
    assert request.json["input"][:2] == [user("one"), says("Yes.")]
    assert [item["content"][0]["text"] for item in answer["output"][:-1]] == ["one", "two"]


async def test_stored_response_alone_is_compacted() -> None:
    """What an earlier compaction stands for is not sent again; the user's messages are."""
    item = json.loads(compaction.make_item("cmp_1", "First."))
    stored = entry(user("one"), says("Gone."), item, says("Kept."))
    (request,), status, answer = await compact_stored(stored, {"model": "m", "previous_response_id": "resp_0"})
    assert status == 200
    sent = request.json["input"]
    assert (sent[0], sent[2], len(sent)) == (user("one"), says("Kept."), 4)
    assert sent[1]["content"][0]["text"].endswith("First.")
    assert [item["type"] for item in answer["output"]] == ["message", "compaction"]
