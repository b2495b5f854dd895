"""Stored responses over plain HTTP (:mod:`proxy.stored`), between a scripted backend and a client on a raw socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from backports import zstd
from openai.types.responses import Response

from proxy.protocol.responses import RequestEcho, compose
from tests import openresponses
from tests.fakes import (
    END,
    STREAM_HEAD,
    Gate,
    Product,
    RawClient,
    Request,
    ScriptedUpstream,
    Step,
    chunk,
    close,
    completed,
    created,
    delta,
    eventually,
    forever,
    head,
    json_answer,
    read,
    send,
    serving,
    soon,
    stall,
)
from tests.test_passthrough import fetch, headers_of, read_answer, request

JSON = "Content-Type: application/json"
KEY = "Authorization: Bearer one"
OTHER_KEY = "Authorization: Bearer two"
Json = dict[str, Any]


def said(text: str, **more: Any) -> Json:
    """An output item, with as little as a backend gets away with."""
    return {"type": "message", "id": f"msg_{text}", "content": [{"type": "output_text", "text": text}], **more}


def answered(response_id: str, *items: Json, **more: Any) -> Json:
    """A Response object of a backend that leaves most of it out."""
    return {"id": response_id, "object": "response", "status": "completed", "output": list(items), **more}


def event(kind: str, **members: Any) -> bytes:
    """An event with as little as llama-server sends."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


def bare_stream(response_id: str, *items: Json, kind: str = "completed") -> bytes:
    """A stream with items and the two events around them."""
    done = b"".join(event("response.output_item.done", item=item) for item in items)
    final = answered(response_id, *items) | {"status": kind}
    start = event("response.created", response={"id": response_id, "object": "response", "status": "in_progress"})
    return start + done + event(f"response.{kind}", response=final)


def streamed(data: bytes) -> bytes:
    """A whole answer with a stream in it."""
    return STREAM_HEAD + chunk(data) + END


def backend(*answers: bytes) -> ScriptedUpstream:
    """A backend that gives these answers, each on a connection of its own, and then only good ones."""
    return ScriptedUpstream(*([read, send(data)] for data in answers), then=[forever(read, send(json_answer({})))])


async def call(
    product: Product, method: str, target: str, body: Json | None = None, *headers: str, key: str = KEY
) -> tuple[int, Any]:
    """One request: status, and the answer's JSON."""
    data = json.dumps(body).encode() if body is not None else b""
    extra = [JSON, *headers] if body is not None else headers
    raw_head, raw = await fetch(product, request(method, target, key, *extra, body=data))
    return int(raw_head.split(b" ")[1]), json.loads(raw)


async def create(product: Product, text: Any = "hi", key: str = KEY, **fields: Any) -> tuple[int, Any]:
    """A create, not streamed."""
    return await call(product, "POST", "/v1/responses", {"model": "m", "input": text, **fields}, key=key)


async def create_stream(product: Product, text: Any = "hi", **fields: Any) -> list[Json]:
    """The events of a create with a stream."""
    body = json.dumps({"model": "m", "input": text, "stream": True, **fields}).encode()
    raw_head, raw = await fetch(product, request("POST", "/v1/responses", KEY, JSON, body=body))
    assert b"content-length" not in raw_head.lower()
    return [json.loads(block.partition(b"data: ")[2]) for block in raw.split(b"\n\n")[:-1]]


def input_of(got: Request) -> Any:
    """The input of a request as the backend got it."""
    assert "previous_response_id" not in got.json
    return got.json["input"]


USER = {"type": "message", "role": "user"}
ITEMS = [{**USER, "content": "one"}, said("first"), {**USER, "content": "two"}]

# Chains


async def test_response_is_continued_in_one_piece() -> None:
    """The second request holds all of the conversation, in the client's own spelling, and its true length."""
    async with (
        backend(
            json_answer(answered("resp_1", said("first"))), json_answer(answered("resp_2", said("second")))
        ) as upstream,
        serving(upstream) as product,
    ):
        body = b'{ "model":"m", "input":"one", "store" : true }'
        await fetch(product, request("POST", "/v1/responses", KEY, JSON, body=body))
        assert upstream.requests[0].body == body
        body = b'{"input":"two","previous_response_id":"resp_1","model":"m","temperature":1.0,"stream":false}'
        _, raw = await fetch(product, request("POST", "/v1/responses?a=b", KEY, JSON, "X-A: b", body=body))
        got = upstream.requests[1]
        raw_item = json.dumps(said("first")).encode()
        assert got.body == (
            b'{"model":"m","temperature":1.0,"stream":false,"input":[{"type":"message","role":"user","content":"one"},'
            + raw_item
            + b',{"type":"message","role":"user","content":"two"}]}'
        )
        assert got.headers.getall("Content-Length") == [str(len(got.body))]
        assert (got.target, got.headers["X-A"]) == ("/v1/responses?a=b", "b")
        second = json.loads(raw)
        assert (second["id"], second["previous_response_id"]) == ("resp_2", "resp_1")
        await create(product, "three", previous_response_id="resp_2")
        assert input_of(upstream.requests[2]) == [*ITEMS, said("second"), {**USER, "content": "three"}]


async def test_response_is_continued_in_a_stream() -> None:
    """From a stream to a stream, to one piece, and from an incomplete one."""
    answers = [
        streamed(bare_stream("resp_1", said("first"))),
        streamed(bare_stream("resp_2", said("second"), kind="incomplete")),
    ]
    async with backend(*answers) as upstream, serving(upstream) as product:
        await create_stream(product, "one")
        second = await create_stream(product, "two", previous_response_id="resp_1")
        assert {each["response"]["previous_response_id"] for each in second if "response" in each} == {"resp_1"}
        assert input_of(upstream.requests[1]) == ITEMS
        assert upstream.requests[1].json["stream"] is True
        await create(product, "three", previous_response_id="resp_2")
        assert input_of(upstream.requests[2]) == [*ITEMS, said("second"), {**USER, "content": "three"}]


async def test_chain_may_branch() -> None:
    """An older response can be continued as well, more than once."""
    answers = [json_answer(answered(f"resp_{number}", said(str(number)))) for number in range(3)]
    async with backend(*answers) as upstream, serving(upstream) as product:
        await create(product, "one")
        for number in (1, 2):
            await create(product, "two", previous_response_id="resp_0")
            assert input_of(upstream.requests[number]) == [ITEMS[0], said("0"), ITEMS[2]]


@pytest.mark.parametrize(
    "path", ["/v1/responses", "/responses", "/codex/responses", "/v1/codex/responses", "/v1/responses/"]
)
async def test_every_path_of_the_api_knows_what_is_stored(path: str) -> None:
    """With the base path and without, and the one that Codex takes for ChatGPT's."""
    async with backend(json_answer(answered("resp_1", said("first")))) as upstream, serving(upstream) as product:
        await call(product, "POST", path, {"model": "m", "input": "one"})
        await call(product, "POST", path, {"model": "m", "input": "two", "previous_response_id": "resp_1"})
        assert input_of(upstream.requests[1]) == ITEMS


async def test_compressed_create_is_read() -> None:
    """What can be inflated can be continued."""
    async with backend(json_answer(answered("resp_1", said("first")))) as upstream, serving(upstream) as product:
        await create(product, "one")
        body = zstd.compress(b'{"model":"m","input":"two","previous_response_id":"resp_1"}')
        data = request("POST", "/v1/responses", KEY, JSON, "Content-Encoding: zstd", body=body)
        await fetch(product, data)
        assert input_of(upstream.requests[1]) == ITEMS
        assert "Content-Encoding" not in upstream.requests[1].headers


async def test_item_reference_is_resolved() -> None:
    """To an item of any stored response; the unknown is refused."""
    async with backend(json_answer(answered("resp_1", said("first")))) as upstream, serving(upstream) as product:
        await create(product, "one")
        reference = {"type": "item_reference", "id": "msg_first"}
        await create(product, [reference, {**USER, "content": "two"}])
        assert input_of(upstream.requests[1]) == ITEMS[1:]
        status, body = await create(product, [{**reference, "id": "msg_x"}])
        assert (status, body["error"]["code"]) == (404, "item_not_found")
        status, body = await create(product, [reference], key=OTHER_KEY)
        assert (status, body["error"]["code"]) == (404, "item_not_found")
        assert len(upstream.requests) == 2


async def test_output_without_a_call_is_refused() -> None:
    """Before it costs a request."""
    item = {"type": "function_call_output", "call_id": "c", "output": ""}
    async with backend(json_answer(answered("resp_1", said("first")))) as upstream, serving(upstream) as product:
        await create(product, "one")
        status, body = await create(product, [item], previous_response_id="resp_1")
        assert (status, body["error"]["code"]) == (400, "tool_call_not_found")
        assert len(upstream.requests) == 1


# Who may continue what

NOT_FOUND = {
    "type": "invalid_request_error",
    "code": "previous_response_not_found",
    "message": "Previous response with id 'resp_1' not found.",
    "param": "previous_response_id",
}


@pytest.mark.parametrize("key", [OTHER_KEY, "X-Nothing: 1", "api-key: Bearer one"])
async def test_another_credential_knows_nothing(key: str) -> None:
    """It is told the same as for an id that never was, whatever it asks."""
    async with backend(json_answer(answered("resp_1", said("first")))) as upstream, serving(upstream) as product:
        await create(product, "one")
        assert await create(product, "two", key, previous_response_id="resp_1") == (400, {"error": NOT_FOUND})
        for method, target in (("GET", ""), ("DELETE", ""), ("GET", "/input_items")):
            status, body = await call(product, method, f"/v1/responses/resp_1{target}", key=key)
            random = await call(product, method, f"/v1/responses/resp_9{target}", key=key)
            assert (status, json.dumps(body).replace("resp_1", "resp_9")) == (404, json.dumps(random[1]))
        assert (await call(product, "GET", "/v1/responses/resp_1"))[0] == 200
        assert len(upstream.requests) == 1


@pytest.mark.parametrize(
    ("fields", "reply"),
    [
        ({"store": False}, answered("resp_1", said("first"))),
        ({"conversation": "conv_1"}, answered("resp_1", said("first"))),
        ({}, answered("resp_1", said("first")) | {"status": "failed", "error": {"code": "x", "message": "y"}}),
        ({"background": True}, answered("resp_1") | {"status": "queued"}),
        ({}, {"error": {"message": "x"}}),
        ({"input": 5}, answered("resp_1", said("first"))),
    ],
    ids=["store", "conversation", "failed", "queued", "no response", "odd input"],
)
async def test_what_may_not_be_stored_is_not(fields: Json, reply: Json) -> None:
    """The client did not want it, or there is nothing that could be continued."""
    async with backend(json_answer(reply)) as upstream, serving(upstream) as product:
        assert (await call(product, "POST", "/v1/responses", {"input": "one", **fields}))[0] == 200
        assert await create(product, "two", previous_response_id="resp_1") == (400, {"error": NOT_FOUND})
        assert (await call(product, "GET", "/v1/responses/resp_1"))[0] == 404


async def test_stream_that_was_cut_is_not_stored() -> None:
    """There was no end that could be continued."""
    data = bare_stream("resp_1", said("first")).partition(b"event: response.completed")[0]
    async with backend(streamed(data)) as upstream, serving(upstream) as product:
        await create_stream(product, "one")
        assert await create(product, "two", previous_response_id="resp_1") == (400, {"error": NOT_FOUND})


async def test_store_false_ends_a_stored_chain() -> None:
    """It may continue what is stored, and cannot be continued itself."""
    answers = [json_answer(answered(f"resp_{number}", said("x"))) for number in (0, 1)]
    async with backend(*answers) as upstream, serving(upstream) as product:
        await create(product, "one")
        assert (await create(product, "two", previous_response_id="resp_0", store=False))[0] == 200
        assert await create(product, "three", previous_response_id="resp_1") == (400, {"error": NOT_FOUND})


async def test_stored_response_gets_too_old() -> None:
    """Its age counts from its last use."""
    reply = json_answer(answered("resp_1", said("first")))
    async with backend(reply) as upstream, serving(upstream, response_store__max_age=0.05) as product:
        await create(product, "one")
        await asyncio.sleep(0.1)
        assert await create(product, "two", previous_response_id="resp_1") == (400, {"error": NOT_FOUND})


async def test_what_does_not_fit_is_not_kept() -> None:
    """The store has a bound."""
    reply = json_answer(answered("resp_1", said("first")))
    async with backend(reply) as upstream, serving(upstream, response_store__max_bytes=1000) as product:
        assert (await create(product, "one"))[0] == 200
        assert (await call(product, "GET", "/v1/responses/resp_1"))[0] == 404


async def test_backend_that_keeps_responses_is_asked_for_the_others() -> None:
    """With `state: upstream` what is not stored here goes on unchanged, and what is made of it is not stored."""
    async with (
        backend(json_answer(answered("resp_2", said("x")))) as upstream,
        serving(upstream, upstream__state="upstream") as product,
    ):
        body = b'{ "input":"two","previous_response_id":"resp_1" }'
        _, raw = await fetch(product, request("POST", "/v1/responses", KEY, JSON, body=body))
        assert upstream.requests[0].body == body
        assert json.loads(raw)["previous_response_id"] == "resp_1"
        calls = [
            ("POST", "/responses", b'{"input":"three","previous_response_id":"resp_2"}'),
            ("GET", "/responses/resp_2?include=a", b""),
            ("GET", "/responses/resp_2/input_items?limit=0", b""),
            ("DELETE", "/responses/resp_2", b""),
            ("POST", "/responses/resp_2/cancel", b""),
        ]
        for method, target, data in calls:
            _, raw = await fetch(product, request(method, f"/v1{target}", KEY, JSON, body=data))
            assert json.loads(raw) == {}
            assert upstream.requests[-1].target == f"/v1{target}"
            assert upstream.requests[-1].body == data


async def test_what_both_keep_is_deleted_in_both() -> None:
    """And a stream of it is the backend's to give."""
    async with (
        backend(json_answer(answered("resp_1", said("first")))) as upstream,
        serving(upstream, upstream__profile="openai") as product,
    ):
        await create(product, "one")
        assert (await call(product, "GET", "/v1/responses/resp_1"))[1]["id"] == "resp_1"
        assert len(upstream.requests) == 1
        await call(product, "GET", "/v1/responses/resp_1?stream=true")
        assert (await call(product, "DELETE", "/v1/responses/resp_1"))[1] == {}
        assert (await call(product, "GET", "/v1/responses/resp_1"))[1] == {}
        assert [got.method for got in upstream.requests[1:]] == ["GET", "DELETE", "GET"]


async def test_without_a_store_everything_passes_through() -> None:
    """But what an answer lacks is filled in all the same."""
    async with (
        backend(json_answer(answered("resp_2", said("x")))) as upstream,
        serving(upstream, response_store__enabled=False) as product,
    ):
        body = {"model": "m", "input": [{"type": "item_reference", "id": "x"}], "previous_response_id": "resp_1"}
        status, reply = await call(product, "POST", "/v1/responses", body)
        assert upstream.requests[0].json == body
        assert (status, openresponses.response_problems(reply)) == (200, [])
        assert reply["previous_response_id"] == "resp_1"
        for method, target in (("GET", "resp_2"), ("DELETE", "resp_2"), ("GET", "resp_2/input_items")):
            assert await call(product, method, f"/v1/responses/{target}") == (200, {})
        assert (await create(product, previous_response_id=5))[0] == 200
        assert product.running.door._store is None


# Bad requests


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"previous_response_id": 5}, "previous_response_id", "invalid_type"),
        ({"previous_response_id": ["resp_1"]}, "previous_response_id", "invalid_type"),
        ({"previous_response_id": "resp_1", "input": 5}, "input", "invalid_type"),
        ({"previous_response_id": ""}, "previous_response_id", "previous_response_not_found"),
        ({"previous_response_id": "\ud83d"}, "previous_response_id", "previous_response_not_found"),
    ],
)
async def test_create_that_cannot_be_is_refused(body: Json, param: str, code: str) -> None:
    """In the API's form; the backend hears nothing of it."""
    async with backend() as upstream, serving(upstream) as product:
        status, reply = await call(product, "POST", "/v1/responses", body)
        assert status == 400
        assert (reply["error"]["param"], reply["error"]["code"]) == (param, code)
        assert not upstream.requests


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ([JSON], b""),
        ([JSON], b"[]"),
        ([JSON], b'{"previous_response_id":"resp_1"'),
        ([JSON], b'{"a":"\xff","previous_response_id":"resp_1"}'),
        (["Content-Type: text/plain"], b'{"previous_response_id":"resp_1"}'),
        ([], b'{"previous_response_id":"resp_1"}'),
        ([JSON, "Content-Encoding: x-unheard-of"], b'{"previous_response_id":"resp_1"}'),
    ],
)
async def test_what_is_no_create_passes_through(headers: list[str], body: bytes) -> None:
    """It is the backend's to refuse, and its answer is not touched."""
    reply = json.dumps(answered("resp_2")).encode()
    async with backend(json_answer(answered("resp_2"))) as upstream, serving(upstream) as product:
        data = request("POST", "/v1/responses", KEY, "Accept-Encoding: gzip", *headers, body=body)
        _, raw = await fetch(product, data)
        assert (upstream.requests[0].body, raw) == (body, reply)
        assert upstream.requests[0].headers["Accept-Encoding"] == "gzip"


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_body_that_is_too_large_is_refused(*, is_chunked: bool) -> None:
    """As large as a message may be, and no larger."""
    body = json.dumps({"input": "x" * 70_000}).encode()
    framing = ["Transfer-Encoding: chunked"] if is_chunked else []
    framed = chunk(body) + END if is_chunked else body
    async with backend() as upstream, serving(upstream, websocket__max_message=65536) as product:
        raw_head, raw = await fetch(product, request("POST", "/v1/responses", JSON, *framing, body=framed))
        assert raw_head.startswith(b"HTTP/1.1 413 ")
        assert "65536 bytes" in json.loads(raw)["error"]["message"]
        assert not upstream.requests


async def test_large_create_is_sent_whole() -> None:
    """Larger than what goes out in one write."""
    async with backend(json_answer(answered("resp_1", said("first")))) as upstream, serving(upstream) as product:
        await create(product, "x" * 5_000_000)
        await create(product, "two", previous_response_id="resp_1")
        assert len(upstream.requests[0].json["input"]) == 5_000_000
        assert len(upstream.requests[1].json["input"]) == 3


# Showing, listing, deleting


@pytest.mark.parametrize("is_stream", [False, True])
async def test_stored_response_is_shown(*, is_stream: bool) -> None:
    """The whole object, by both schemas, as the client got it at first."""
    item = said("first")
    reply = streamed(bare_stream("resp_1", item)) if is_stream else json_answer(answered("resp_1", item))
    async with backend(reply) as upstream, serving(upstream) as product:
        fields: Json = {"instructions": "i", "tools": [{"type": "function", "name": "f"}], "temperature": 0.5}
        if is_stream:
            got = (await create_stream(product, "one", **fields))[-1]["response"]
        else:
            got = (await create(product, "one", **fields))[1]
        status, shown = await call(product, "GET", "/v1/responses/resp_1?include=x&unknown=1")
        assert (status, shown) == (200, got)
        assert openresponses.response_problems(shown) == []
        assert Response.model_validate(shown).output_text == "first"
        assert (shown["instructions"], shown["store"]) == ("i", True)
        assert len(upstream.requests) == 1


async def test_stored_response_is_not_streamed() -> None:
    """Its events are not kept: a clear error."""
    async with backend(json_answer(answered("resp_1", said("first")))) as upstream, serving(upstream) as product:
        await create(product, "one")
        status, body = await call(product, "GET", "/v1/responses/resp_1?stream=true")
        assert (status, body["error"]["param"]) == (400, "stream")


async def test_unknown_response_is_not_found() -> None:
    """The API's own words."""
    async with backend() as upstream, serving(upstream) as product:
        error = {
            "message": "Response with id 'a/b' not found.",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }
        for method, target in (("GET", "a%2Fb"), ("DELETE", "a%2Fb"), ("GET", "a%2Fb/input_items")):
            assert await call(product, method, f"/v1/responses/{target}") == (404, {"error": error})
        assert not upstream.requests


async def test_stored_response_is_deleted() -> None:
    """Once; what continued it stays."""
    answers = [json_answer(answered(f"resp_{number}", said("first"))) for number in (1, 2)]
    async with backend(*answers) as upstream, serving(upstream) as product:
        await create(product, "one")
        await create(product, "two", previous_response_id="resp_1")
        gone = {"id": "resp_1", "object": "response", "deleted": True}
        assert await call(product, "DELETE", "/responses/resp_1") == (200, gone)
        assert (await call(product, "DELETE", "/responses/resp_1"))[0] == 404
        assert (await call(product, "GET", "/responses/resp_1"))[0] == 404
        assert await create(product, "two", previous_response_id="resp_1") == (400, {"error": NOT_FOUND})
        await create(product, "three", previous_response_id="resp_2")
        assert len(input_of(upstream.requests[2])) == 5


async def test_input_items_are_listed() -> None:
    """All that the model was given, a page at a time."""
    answers = [json_answer(answered(f"resp_{number}", said("first"))) for number in (1, 2)]
    async with backend(*answers) as upstream, serving(upstream) as product:
        await create(product, "one")
        await create(product, "two", previous_response_id="resp_1")
        target = "/v1/responses/resp_2/input_items"
        _, whole = await call(product, "GET", f"{target}?order=asc&include=x")
        assert [item.get("role") for item in whole["data"]] == ["user", None, "user"]
        assert whole["data"][0]["content"] == [{"type": "input_text", "text": "one"}]
        assert not whole["has_more"]
        found: list[Json] = []
        page: Json = {}
        after = ""
        for _ in range(3):
            _, page = await call(product, "GET", f"{target}?limit=1{after}")
            found += page["data"]
            after = f"&after={page['last_id']}"
        assert found == whole["data"][::-1]
        assert not page["has_more"]
        for query in ("limit=0", "limit=101", "order=up", "after=msg_x"):
            status, body = await call(product, "GET", f"{target}?{query}")
            assert (status, body["error"]["param"]) == (400, query.partition("=")[0])


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/v1/responses/resp_1/cancel"),
        ("POST", "/v1/responses/compact"),
        ("POST", "/v1/responses/input_tokens"),
        ("GET", "/v1/responses"),
        ("PUT", "/v1/responses"),
        ("GET", "/v1/responses/resp_1/other"),
        ("DELETE", "/v1/responses/resp_1/input_items"),
        ("HEAD", "/v1/responses/resp_1"),
        ("GET", "/v1/conversations/conv_1"),
    ],
)
async def test_everything_else_passes_through(method: str, target: str) -> None:
    """Whatever is asked about a response that is not answered from the store."""
    async with backend() as upstream, serving(upstream) as product:
        await fetch(product, request(method, target, KEY), is_head=method == "HEAD")
        assert [(got.method, got.target) for got in upstream.requests] == [(method, target)]


# What an answer lacks


async def test_stream_is_filled() -> None:
    """A strict client refuses nothing of what a backend sends that leaves most out."""
    async with backend(streamed(bare_stream("resp_1", said("first")))) as upstream, serving(upstream) as product:
        events = await create_stream(product, "one", instructions="i")
        assert [problem for each in events for problem in openresponses.problems(each)] == []
        assert [each["sequence_number"] for each in events] == [0, 1, 2]
        assert events[-1]["response"]["instructions"] == "i"


def whole_response(status: str) -> bytes:
    """A Response that lacks nothing, spelt as no library would."""
    raw = compose(RequestEcho({"model": b'"m"'}, 1000, None), "resp_1", status)
    return raw.replace(b'"output":', b'"output" : ')


async def test_complete_stream_keeps_its_bytes() -> None:
    """Comments, names, ids, line ends and `[DONE]` too."""
    stream = (
        b": hi\r\n\r\nid: 1\r\nevent: response.created\r\n"
        b'data: {"type":"response.created","sequence_number":0,"response":'
        + whole_response("in_progress")
        + b"}\r\n\r\n"
        + delta("x").replace(b"\n", b"\r\n") * 2
        + b'data: {"type":"response.completed","sequence_number":3,"response":'
        + whole_response("completed")
        + b"}\r\n\r\ndata: [DONE]\r\n\r\n"
    )
    async with backend(streamed(stream)) as upstream, serving(upstream) as product:
        body = b'{"model":"m","input":"one","stream":true}'
        raw_head, raw = await fetch(product, request("POST", "/v1/responses", KEY, JSON, body=body))
        assert raw == stream
        assert headers_of(raw_head) == ["content-type: text/event-stream"]
        assert (await call(product, "GET", "/v1/responses/resp_1"))[0] == 200


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_complete_object_keeps_its_bytes(*, is_chunked: bool) -> None:
    """White space and line ends too, and the headers with it."""
    body = whole_response("completed").replace(b",", b",\n  ") + b"\n"
    headers = [JSON, "X-A: b", "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {len(body)}"]
    reply = head(*headers, status="200 Fine") + (chunk(body[:9]) + chunk(body[9:]) + END if is_chunked else body)
    async with backend(reply) as upstream, serving(upstream) as product:
        raw_head, raw = await fetch(product, request("POST", "/v1/responses", KEY, JSON, body=b'{"model":"m"}'))
        assert raw == body
        assert raw_head.startswith(b"HTTP/1.1 200 Fine\r\n")
        assert sorted(headers_of(raw_head)) == sorted(
            ["content-type: application/json", "x-a: b", f"content-length: {len(body)}"]
        )


@pytest.mark.parametrize(
    "reply",
    [
        json_answer(answered("resp_1"), status="400 Bad Request"),
        json_answer(answered("resp_1"), status="201 Created"),
        json_answer(answered("resp_1"), "Content-Encoding: br"),
        json_answer(answered("resp_1")).replace(b"application/json", b"text/whatever123"),
        head(JSON, "Content-Length: 8") + b"not JSON",
        json_answer({"error": {"message": "x"}}, status="500 Oops"),
    ],
    ids=["400", "201", "encoded", "type", "no json", "500"],
)
async def test_what_is_no_response_keeps_its_bytes(reply: bytes) -> None:
    """Errors, and what cannot be read."""
    async with backend(reply) as upstream, serving(upstream) as product:
        raw_head, raw = await fetch(product, request("POST", "/v1/responses", KEY, JSON, body=b'{"model":"m"}'))
        assert raw == reply.partition(b"\r\n\r\n")[2]
        assert raw_head.split(b"\r\n")[0] == reply.split(b"\r\n")[0]


@pytest.mark.parametrize("accepts", [[], ["Accept-Encoding: br, gzip", "accept-encoding: zstd"]])
async def test_answer_is_asked_for_in_plain(accepts: Sequence[str]) -> None:
    """Or it could not be read here."""
    async with backend() as upstream, serving(upstream) as product:
        await fetch(product, request("POST", "/v1/responses", KEY, JSON, *accepts, body=b"{}"))
        expected = ["identity"] if accepts else []
        assert upstream.requests[0].headers.getall("Accept-Encoding", []) == expected


async def test_response_without_an_id_gets_one() -> None:
    """And can be continued by it."""
    item = said("first")
    async with backend(json_answer({"object": "response", "output": [item]})) as upstream, serving(upstream) as product:
        _, first = await create(product, "one")
        assert first["id"].startswith("resp_")
        await create(product, "two", previous_response_id=first["id"])
        assert input_of(upstream.requests[1]) == ITEMS


@pytest.mark.parametrize("encoding", ["identity", "Identity"])
async def test_answer_that_says_it_is_plain_is_plain(encoding: str) -> None:
    """It can be read, and so it is filled and stored."""
    reply = json_answer(answered("resp_1", said("first")), f"Content-Encoding: {encoding}")
    async with backend(reply) as upstream, serving(upstream) as product:
        _, got = await create(product, "one")
        assert openresponses.response_problems(got) == []
        assert await call(product, "GET", "/v1/responses/resp_1") == (200, got)


async def test_object_that_is_too_large_is_handed_on() -> None:
    """It is not looked at, and not stored."""
    reply = answered("resp_1", said("x" * 70_000))
    async with backend(json_answer(reply)) as upstream, serving(upstream, max_event=65536) as product:
        assert await create(product, "one") == (200, reply)
        assert (await call(product, "GET", "/v1/responses/resp_1"))[0] == 404


# While it runs


async def test_stream_is_handed_on_while_it_comes() -> None:
    """Each event as soon as it is complete; the response is stored before the client can know its end."""
    first, second = Gate(), Gate()
    stream = bare_stream("resp_1", said("first"))
    start, rest = stream[: stream.index(b"\n\n") + 2], stream[stream.index(b"\n\n") + 2 :]
    script: list[Step] = [read, send(STREAM_HEAD + chunk(start)), first, send(chunk(rest)), second, send(END)]
    async with ScriptedUpstream(script) as upstream, serving(upstream) as product:
        with await RawClient.open(product.address) as client:
            body = b'{"model":"m","input":"one","stream":true}'
            await client.send_bytes(request("POST", "/v1/responses", KEY, JSON, body=body))
            assert b"Transfer-Encoding: chunked" in await client.read_head()
            await client.read_until(b"\n\n")
            await soon(first.reached)
            first.open()
            await client.read_until(b"response.completed")
            assert (await call(product, "GET", "/v1/responses/resp_1"))[0] == 200
            second.open()
            await client.read_until(END)


@pytest.mark.parametrize("how", ["leave", "reset"])
@pytest.mark.parametrize(
    "steps",
    [[], [send(STREAM_HEAD)], [send(STREAM_HEAD + chunk(created()))], [send(head(JSON, "Content-Length: 99") + b"{")]],
    ids=["before the head", "after the head", "in the stream", "in the object"],
)
async def test_client_that_leaves_cancels(steps: list[Step], how: str) -> None:
    """Whatever the phase, the backend's connection is closed within a second, and nothing is counted as running."""
    async with ScriptedUpstream([read, *steps, stall]) as upstream, serving(upstream) as product:
        with await RawClient.open(product.address) as client:
            await client.send_bytes(request("POST", "/v1/responses", JSON, body=b"{}"))
            peer = await upstream.peer()
            await eventually(lambda: peer.requests)
            if steps:
                await asyncio.sleep(0.05)
            if how == "reset":
                client.reset()
            else:
                client.sock.close()
            async with asyncio.timeout(1):
                await peer.gone.wait()
        await product.running.door._pass_through.wait_idle()


async def test_stream_breaks_off_when_the_backend_does() -> None:
    """What is cut must look cut."""
    gate = Gate()
    script: list[Step] = [read, send(STREAM_HEAD + chunk(created())), gate, close]
    async with ScriptedUpstream(script) as upstream, serving(upstream) as product:
        with await RawClient.open(product.address) as client:
            await client.send_bytes(request("POST", "/v1/responses", JSON, body=b"{}"))
            await client.read_head()
            gate.open()
            with pytest.raises((EOFError, ConnectionResetError)) as caught:
                await client.read_until(END)
            assert END not in str(caught.value).encode()


async def test_object_that_was_cut_is_an_error() -> None:
    """Nothing of it has been given out yet, so that there can be one."""
    script: list[Step] = [read, send(head(JSON, "Content-Length: 99") + b'{"id":'), close]
    async with ScriptedUpstream(script) as upstream, serving(upstream) as product:
        status, body = await create(product)
        assert (status, body["error"]["code"]) == (502, "upstream_disconnected")


async def test_drain_waits_for_a_stream() -> None:
    """It is a request that is on its way, like any other."""
    gate = Gate()
    script: list[Step] = [read, send(STREAM_HEAD + chunk(created())), gate, send(chunk(completed()) + END)]
    async with ScriptedUpstream(script) as upstream, serving(upstream) as product:
        with await RawClient.open(product.address) as client:
            await client.send_bytes(request("POST", "/v1/responses", JSON, body=b'{"stream":true}'))
            await client.read_head()
            async with asyncio.TaskGroup() as tasks:
                drain = tasks.create_task(product.running.drain(10))
                await asyncio.sleep(0.1)
                assert not drain.done()
                gate.open()
                await client.read_until(END)


async def test_every_answer_is_counted() -> None:
    """The backend's and the proxy's own."""
    async with backend(json_answer(answered("resp_1", said("first")))) as upstream, serving(upstream) as product:
        with await RawClient.open(product.address) as client:
            body = json.dumps({"input": "one"}).encode()
            for data in (
                request("POST", "/v1/responses", JSON, body=body),
                request("GET", "/v1/responses/resp_1"),
                request("GET", "/v1/responses/resp_1/input_items"),
                request("GET", "/v1/responses/resp_2"),
                request("DELETE", "/v1/responses/resp_1"),
            ):
                await client.send_bytes(data)
                await read_answer(client)
        counted = product.running.metrics.http_requests
        assert {row: child._value.get() for row, child in counted.items() if child._value.get()} == {
            ("upstream", "2xx"): 1,
            ("proxy", "2xx"): 3,
            ("proxy", "4xx"): 1,
        }


async def test_filled_stream_reaches_a_client_of_http_1_0() -> None:
    """It gets no chunks, whatever the length was that the backend had promised."""
    stream = bare_stream("resp_1", said("first"))
    reply = head("Content-Type: text/event-stream", f"Content-Length: {len(stream)}") + stream
    async with backend(reply) as upstream, serving(upstream) as product:
        with await RawClient.open(product.address) as client:
            await client.send_bytes(request("POST", "/v1/responses", JSON, body=b"{}", version="1.0"))
            raw_head, _, raw = (await client.read_all()).partition(b"\r\n\r\n")
        assert b"content-length" not in raw_head.lower()
        assert b"chunked" not in raw_head.lower()
        events = [json.loads(block.partition(b"data: ")[2]) for block in raw.split(b"\n\n")[:-1]]
        assert [problem for each in events for problem in openresponses.problems(each)] == []
