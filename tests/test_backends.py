"""Several backends and replicas, end to end: who is asked, who goes on in whose place, and when nobody does."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy import app, backends
from proxy.config import Config
from tests.fakes import (
    END,
    STREAM_HEAD,
    Gate,
    Product,
    ScriptedUpstream,
    Step,
    answer,
    ask,
    chunk,
    close,
    completed,
    connect_to,
    create,
    created,
    eventually,
    head,
    json_answer,
    read,
    receive_turn,
    reset,
    running,
    send,
    soon,
    stall,
    text_of,
    types,
)
from tests.rig.processes import free_port

GOOD = ["created", "output_text.delta", "completed"]
TOOLS = [{"type": "function", "name": "f", "parameters": {}}]
BUSY = json_answer({"error": {"message": "busy"}}, "Retry-After: 60", status="429 Too Many Requests")
OTHERS = {"probe_interval": 0}


@contextlib.asynccontextmanager
async def serving(
    *served: dict[str, Any], routing: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Product]:
    """The product in front of backends."""
    document = {
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "backends": list(served),
        "routing": {**OTHERS, **(routing or {})},
        **options,
    }
    async with app.start(Config.model_validate(document)) as inside:
        yield Product(inside)


def main(*upstreams: ScriptedUpstream | str, **options: Any) -> dict[str, Any]:
    """One backend with so many replicas."""
    urls = [one if isinstance(one, str) else one.url for one in upstreams]
    return {"name": "main", "replicas": urls, **options}


IN_TURN = {"balance": "round_robin", "eject_after": 100}
"""The first replica is asked first."""


def counted(product: Product, name: str) -> dict[Any, float]:
    """The children of a counter that are not 0."""
    metrics = product.running.metrics
    children = getattr(metrics, name, None) or getattr(metrics.replicas, name)
    return {key: one._value.get() for key, one in children.items() if one._value.get()}


def routes(product: Product) -> dict[tuple[str, str], float]:
    """What was counted of routes, by result and reason."""
    return {(result, why): n for (kind, result, why), n in counted(product, "lookups").items() if kind == "route"}


def asked(*upstreams: ScriptedUpstream) -> list[int]:
    """How many requests each had."""
    return [len(one.requests) for one in upstreams]


# Where a chain is


async def test_chain_stays_where_its_prefix_is() -> None:
    """All its turns go to one replica, and the route is found once."""
    async with ScriptedUpstream() as one, ScriptedUpstream() as other, serving(main(one, other)) as product:
        async with product.connect() as client:
            previous: dict[str, Any] = {}
            for _ in range(6):
                frames = await ask(client, tools=TOOLS, **previous)
                previous = {"previous_response_id": frames[-1]["response"]["id"]}
        assert sorted(asked(one, other)) == [0, 6]
        assert routes(product) == {("new", "none"): 1, ("hit", "same"): 5}


async def test_agents_with_the_same_tools_share_a_replica_and_others_are_spread() -> None:
    """A prefix that one agent has warmed is found by the next; other tools go wherever their hash says."""
    async with ScriptedUpstream() as one, ScriptedUpstream() as other, serving(main(one, other)) as product:
        for _ in range(4):
            async with product.connect() as client:
                await ask(client, tools=TOOLS)
        assert sorted(asked(one, other)) == [0, 4]
        for number in range(12):
            async with product.connect() as client:
                await ask(client, tools=[{**TOOLS[0], "name": f"f{number}"}])
        assert all(asked(one, other))


async def test_client_that_comes_back_finds_its_conversation() -> None:
    """The replica of a `prompt_cache_key` is remembered, even if the hash has another opinion of a new chain."""
    async with ScriptedUpstream() as one, ScriptedUpstream() as other, serving(main(one, other)) as product:
        fleet = product.running.door._backends.default
        async with product.connect() as client:
            await ask(client, tools=TOOLS, prompt_cache_key="k")
        (conversation,) = fleet._known
        home = fleet._known[conversation]
        fleet._known[conversation] = 1 - home
        async with product.connect() as client:
            await ask(client, tools=TOOLS, prompt_cache_key="k")
            await ask(client, tools=TOOLS)
        requests = asked(one, other)
        assert (requests[home], requests[1 - home]) == (2, 1)


async def test_stored_response_is_continued_where_it_was_made() -> None:
    """From another connection too."""
    async with ScriptedUpstream() as one, ScriptedUpstream() as other, serving(main(one, other)) as product:
        async with product.connect() as client:
            frames = await ask(client, store=True)
        async with product.connect() as client:
            await ask(client, previous_response_id=frames[-1]["response"]["id"])
        assert sorted(asked(one, other)) == [0, 2]
        assert routes(product)["hit", "same"] == 1


# Who goes on


REFUSED = json_answer({"error": {"message": "no"}}, status="503 Service Unavailable")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ([read, close], "disconnected"),
        ([read, reset], "disconnected"),
        ([read, send(REFUSED)], "refused"),
        ([read, send(REFUSED.replace(b"503", b"502"))], "refused"),
        ([read, send(BUSY)], "refused"),
        (None, "unreachable"),
    ],
)
async def test_other_replica_goes_on_before_anything_was_said(script: list[Step] | None, reason: str) -> None:
    """The client sees a good turn and nothing else."""
    async with ScriptedUpstream(script or [], then=[stall]) as bad, ScriptedUpstream() as good:
        first = bad.url if script else f"http://127.0.0.1:{free_port()}/v1"
        async with serving(main(first, good), routing=IN_TURN) as product, product.connect() as client:
            assert types(await ask(client)) == GOOD
            assert counted(product, "reroutes") == {reason: 1}
            assert asked(bad, good) == [1 if script else 0, 1]
            assert counted(product, "upstream_requests") == {"2xx": 1}


@pytest.mark.parametrize(
    ("script", "code", "options"),
    [
        ([read, send(STREAM_HEAD + chunk(created())), close], "upstream_disconnected", {}),
        ([read, send(STREAM_HEAD), close], "upstream_disconnected", {}),
        ([read, send(b"HTTP/1.1 2"), close], "upstream_disconnected", {}),
        ([read, stall], "upstream_timeout", {"timeouts": {"first_event": 0.1}}),
        ([read, send(STREAM_HEAD + chunk(created())), stall], "upstream_timeout", {"timeouts": {"idle": 0.1}}),
        ([read, send(REFUSED.replace(b"503", b"504"))], None, {}),
        ([read, send(REFUSED.replace(b"503", b"500"))], None, {}),
        ([read, send(BUSY.replace(b"Retry-After", b"X-Other"))], None, {}),
        ([read, close], "upstream_disconnected", {"retry_stale": False}),
        ([read, send(head("Content-Length: 2", "Content-Type: text/plain") + b"hi")], "upstream_protocol_error", {}),
    ],
)
async def test_nobody_goes_on_where_something_may_have_run(
    script: list[Step], code: str | None, options: dict[str, Any]
) -> None:
    """After a byte of the answer, after a timeout, after a refusal that is the request's own: one error, one request."""
    async with (
        ScriptedUpstream(script) as bad,
        ScriptedUpstream() as good,
        serving(main(bad, good, **options), routing=IN_TURN) as product,
        product.connect() as client,
    ):
        frames = await ask(client)
        assert frames[-1]["type"] == "error"
        assert frames[-1]["error"]["code"] == code
        assert asked(bad, good) == [1, 0]
        assert counted(product, "reroutes") == {}
        assert types(await ask(client)) == GOOD


async def test_chain_goes_on_elsewhere_when_its_replica_is_gone() -> None:
    """With all that was said, without an error, and it stays there then."""
    async with (
        ScriptedUpstream([read, send(answer("one")), close]) as first,
        ScriptedUpstream() as second,
        serving(main(first, second), routing=IN_TURN) as product,
        product.connect() as client,
    ):
        frames = await ask(client, "a")
        first._listener.close()
        for text in ("b", "c"):
            frames = await ask(client, text, previous_response_id=frames[-1]["response"]["id"])
            assert types(frames) == GOOD
        assert asked(first, second) == [1, 2]
        assert [item["content"] for item in second.requests[0].json["input"] if item["role"] == "user"] == [
            "a",
            "b",
        ]
        assert routes(product) == {("new", "none"): 1, ("miss", "replica_failed"): 1, ("hit", "same"): 1}


async def test_all_replicas_are_asked_before_there_is_an_error() -> None:
    """Each once; the error is that of the last."""
    nobody = [f"http://127.0.0.1:{free_port()}/v1" for _ in range(2)]
    async with serving(main(*nobody), routing=IN_TURN) as product, product.connect() as client:
        frames = await ask(client)
        assert frames[-1]["error"]["code"] == "upstream_unreachable"
        assert counted(product, "reroutes") == {"unreachable": 1}


async def test_retry_budget_is_kept() -> None:
    """Where it is spent, the client gets the refusal as it came."""
    async with ScriptedUpstream([read, send(REFUSED)]) as bad, ScriptedUpstream() as good:
        routing = {**IN_TURN, "retry_budget": 0}
        async with serving(main(bad, good), routing=routing) as product, product.connect() as client:
            assert (await ask(client))[-1]["status"] == 503
            assert asked(bad, good) == [1, 0]
            assert product.running.metrics.replicas.exhausted._value.get() == 1


async def test_replica_that_asks_for_time_gets_it() -> None:
    """New chains, and those that were there, go to others until then."""
    async with (
        ScriptedUpstream([read, send(answer("one")), read, send(BUSY)]) as busy,
        ScriptedUpstream() as other,
        serving(main(busy, other), routing=IN_TURN) as product,
        product.connect() as client,
    ):
        frames = await ask(client)
        again = await ask(client, previous_response_id=frames[-1]["response"]["id"])
        assert types(again) == GOOD
        for _ in range(4):
            await ask(client)
        assert asked(busy, other) == [2, 5]


async def test_replica_that_fails_again_and_again_is_left_out() -> None:
    """New chains do not even try it; it is shown as down."""
    async with ScriptedUpstream(then=[read, send(REFUSED), close]) as bad, ScriptedUpstream() as good:
        routing = {"balance": "round_robin", "eject_after": 2}
        async with serving(main(bad, good), routing=routing) as product, product.connect() as client:
            for _ in range(8):
                assert types(await ask(client)) == GOOD
            assert asked(bad, good) == [2, 8]
            assert counted(product, "ejections") == {("main", bad.url): 1}
            metrics = product.running.metrics
            assert metrics.replicas.up["main", bad.url]._value is not None
            fleet = product.running.door._backends.default
            assert [fleet.is_up(0), fleet.is_up(1)] == [False, True]


async def test_stream_that_breaks_counts_against_its_replica() -> None:
    """Also where nobody may go on: the next chain goes elsewhere."""
    cut = [read, send(STREAM_HEAD + chunk(created())), close]
    async with ScriptedUpstream(then=cut) as bad, ScriptedUpstream() as good:
        routing = {"balance": "round_robin", "eject_after": 1}
        async with serving(main(bad, good), routing=routing) as product, product.connect() as client:
            assert (await ask(client))[-1]["type"] == "error"
            for _ in range(4):
                assert types(await ask(client)) == GOOD
            assert asked(bad, good) == [1, 4]


# What only one can read


def encrypted(response_id: str) -> bytes:
    """An answer with a reasoning item that only its deployment can read."""
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}
    done = {"type": "response.output_item.done", "output_index": 0, "sequence_number": 1, "item": item}
    data = created(response_id) + f"event: x\ndata: {json.dumps(done)}\n\n".encode() + completed(response_id)
    return STREAM_HEAD + chunk(data) + END


async def test_encrypted_content_keeps_a_chain_where_it_was_made() -> None:
    """Nobody else could read it, so nobody else is asked, whatever happens; a new chain is free."""
    async with (
        ScriptedUpstream([read, send(encrypted("resp_e")), read, send(REFUSED)]) as first,
        ScriptedUpstream() as second,
        serving(main(first, second), routing=IN_TURN) as product,
        product.connect() as client,
    ):
        frames = await ask(client)
        refused = await ask(client, previous_response_id=frames[-1]["response"]["id"])
        assert refused[-1]["status"] == 503
        assert asked(first, second) == [2, 0]
        assert types(await ask(client)) == GOOD
        assert asked(first, second) == [2, 1]


async def test_client_that_brings_encrypted_content_is_sent_to_its_maker() -> None:
    """Also on another connection, with all that was said as a new chain; and it stays there."""
    async with (
        ScriptedUpstream() as first,
        ScriptedUpstream([read, send(encrypted("resp_e"))]) as second,
        serving(main(first, second), routing=IN_TURN) as product,
    ):
        async with product.connect() as client:
            await ask(client)
            made = (await ask(client))[-1]["response"]
        item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}
        async with product.connect() as client:
            for _ in range(2):
                await ask(client, input=[item, {"role": "user", "content": "more"}])
            frames = await ask(client, input=[item, {"role": "user", "content": "more"}])
            await ask(client, previous_response_id=frames[-1]["response"]["id"])
        assert (made["id"], types(frames)) == ("resp_e", GOOD)
        assert asked(first, second) == [1, 5]


# How many at once


async def test_replica_has_no_more_than_it_may() -> None:
    """What is more waits for its turn, and is counted."""
    gate = Gate()
    async with (
        ScriptedUpstream([read, gate, send(answer("one")), read, send(answer("two"))]) as only,
        serving(main(only, max_in_flight=1)) as product,
        product.connect() as one,
        product.connect() as two,
    ):
        await one.send(create())
        await soon(gate.reached)
        await two.send(create())
        fleet = product.running.door._backends.default
        await eventually(lambda: fleet.replicas[0].gate.load == 2)
        assert len(only.requests) == 1
        gate.open()
        assert text_of(await receive_turn(one)) == "one"
        assert text_of(await receive_turn(two)) == "two"
        assert fleet.replicas[0].gate.load == 0


@pytest.mark.parametrize("options", [{"max_queued": 0}, {"queue_timeout": 0.05}])
async def test_what_cannot_wait_is_told_so(options: dict[str, Any]) -> None:
    """The queue is bounded in number and time; the connection goes on, and so does the chain: nothing was tried with it."""
    gate = Gate()
    async with (
        ScriptedUpstream([read, send(answer("zero")), read, gate, send(answer("one"))]) as only,
        serving(main(only, max_in_flight=1, **options)) as product,
        product.connect() as one,
        product.connect() as two,
    ):
        known = {"previous_response_id": (await ask(two))[-1]["response"]["id"]}
        await one.send(create())
        await soon(gate.reached)
        error = (await ask(two, **known))[-1]
        assert (error["status"], error["error"]["code"]) == (429, "backend_busy")
        assert error["headers"]["retry-after"] == "1"
        gate.open()
        await receive_turn(one)
        assert types(await ask(two, **known)) == GOOD
        assert counted(product, "shed") == {"backend_busy": 1}


@pytest.mark.parametrize("options", [{"max_queued": 0}, {"queue_timeout": 0.05}])
async def test_chain_that_cannot_wait_any_longer_goes_where_there_is_room(options: dict[str, Any]) -> None:
    """A prompt without its cache is better than an error."""
    gate = Gate()
    async with (
        ScriptedUpstream([read, send(answer("zero")), read, gate, send(answer("one"))]) as first,
        ScriptedUpstream([read, send(answer("two"))]) as second,
        serving(main(first, second, max_in_flight=1, **options), routing=IN_TURN) as product,
        product.connect() as client,
    ):
        known = {"previous_response_id": (await ask(client))[-1]["response"]["id"]}
        await client.send(create(stream_id="a", **known))
        await soon(gate.reached)
        assert text_of(await ask(client, stream_id="b", **known)) == "two"
        assert asked(first, second) == [2, 1]
        assert routes(product)["miss", "replica_full"] == 1
        gate.open()
        assert text_of(await receive_turn(client)) == "one"


async def test_plain_http_takes_places_too() -> None:
    """A create over HTTP counts like one on a socket, until it is over; a look at something waits for nobody."""
    gate = Gate()
    async with (
        ScriptedUpstream([read, gate, send(answer("one"))]) as only,
        serving(main(only, max_in_flight=1, max_queued=0)) as product,
        product.connect() as client,
        aiohttp.ClientSession() as session,
    ):
        await client.send(create())
        await soon(gate.reached)
        async with session.post(f"{product.url}/responses", json={"model": "m", "input": "hi"}) as got:
            assert (got.status, got.headers["Retry-After"]) == (429, "1")
            assert (await got.json())["error"]["code"] == "backend_busy"
        async with session.get(f"{product.url}/models") as got:
            assert got.status == 200
        gate.open()
        await receive_turn(client)
        async with session.post(f"{product.url}/responses", json={"model": "m", "input": "hi"}) as got:
            assert got.status == 200


async def test_new_chain_goes_where_there_is_room() -> None:
    """Rather than wait where its prefix would be."""
    gate = Gate()
    script: list[Step] = [read, gate, send(answer("one"))]
    async with (
        ScriptedUpstream(script) as one,
        ScriptedUpstream(script) as other,
        serving(main(one, other, max_in_flight=1)) as product,
        product.connect() as first,
        product.connect() as second,
    ):
        for client in (first, second):
            await client.send(create(tools=TOOLS))
        await eventually(lambda: asked(one, other) == [1, 1])
        gate.open()
        assert types(await receive_turn(first)) == types(await receive_turn(second)) == GOOD


# Models


async def test_each_model_goes_to_its_backend() -> None:
    """By name, alias and pattern, each with its own key and its own rules; what nobody names goes to the default."""
    async with ScriptedUpstream() as local, ScriptedUpstream() as hosted:
        backends_ = (
            main(local, models=["small"], aliases={"gpt-x": "small"}, drop_fields=["user"]),
            {"name": "hosted", "replicas": [hosted.url], "models": ["gpt-*"], "api_key": "sk-hosted"},
        )
        async with serving(*backends_) as product:
            async with product.connect(additional_headers={"Authorization": "Bearer own"}) as client:
                for model in ("small", "gpt-x", "gpt-5", "unknown"):
                    assert types(await ask(client, model=model, user="u")) == GOOD
            assert [request.json["model"] for request in local.requests] == ["small", "small", "unknown"]
            assert [request.json["model"] for request in hosted.requests] == ["gpt-5"]
            assert {request.headers["Authorization"] for request in local.requests} == {"Bearer own"}
            assert hosted.requests[0].headers["Authorization"] == "Bearer sk-hosted"
            assert ["user" in request.json for request in (*local.requests, *hosted.requests)] == [False] * 3 + [True]


async def test_chain_that_changes_its_model_takes_all_along() -> None:
    """The other backend gets the whole conversation, and never an id that only the first one knows."""
    async with ScriptedUpstream() as one, ScriptedUpstream() as other:
        two = {"name": "other", "replicas": [other.url], "models": ["b"], "state": "upstream"}
        async with serving(main(one, models=["a"], state="upstream"), two) as product, product.connect() as client:
            frames = await ask(client, "hi", model="a", store=True)
            await ask(client, "ho", model="b", store=True, previous_response_id=frames[-1]["response"]["id"])
            (request,) = other.requests
            assert "previous_response_id" not in request.json
            assert [item["content"] for item in request.json["input"] if item["role"] == "user"] == ["hi", "ho"]
            assert routes(product) == {("new", "none"): 1, ("miss", "model_changed"): 1}


async def test_plain_http_finds_the_backend_of_its_model() -> None:
    """As far as the body can be looked into; all else is the default's. A replica that is gone is passed over."""
    async with (
        ScriptedUpstream(then=[read, send(json_answer({"object": "list", "data": []})), close]) as local,
        ScriptedUpstream() as hosted,
        aiohttp.ClientSession() as session,
    ):
        nobody = f"http://127.0.0.1:{free_port()}/v1"
        two = {
            "name": "hosted",
            "replicas": [nobody, hosted.url],
            "aliases": {"big": "gpt-5"},
            "api_key": "sk-hosted",
        }
        async with serving(main(local), two, routing=IN_TURN) as product:
            body = {"model": "big", "input": "hi", "stream": True}
            async with session.post(f"{product.url}/responses", json=body) as got:
                assert got.status == 200
                assert b"response.completed" in await got.read()
            async with session.post(f"{product.url}/chat/completions", json={"model": "big"}) as got:
                assert got.status == 200
            async with session.get(f"{product.url}/models") as got:
                assert await got.json() == {"object": "list", "data": []}
            fleets = product.running.door._backends.fleets
            assert all(replica.gate.load == 0 for fleet in fleets.values() for replica in fleet.replicas)
        assert [request.json["model"] for request in hosted.requests] == ["gpt-5", "gpt-5"]
        assert {request.headers["Authorization"] for request in hosted.requests} == {"Bearer sk-hosted"}
        assert [request.target for request in local.requests] == ["/v1/models"]


async def test_page_shows_each_replica() -> None:
    """One row for each, with what was asked of it."""
    async with (
        ScriptedUpstream() as one,
        ScriptedUpstream() as other,
        serving(main(one, other), routing=IN_TURN) as product,
        product.connect() as client,
    ):
        for _ in range(2):
            await ask(client)
        live = product.running.live
        assert live is not None
        rows = live.general()["backends"]
        assert [(row["name"], row["statuses"]["2xx"]) for row in rows] == [(one.url, 1), (other.url, 1)]


async def test_page_shows_a_replica_that_others_have_to_answer_for() -> None:
    """It does badly, although no client has noticed."""
    async with (
        ScriptedUpstream([read, send(REFUSED)]) as bad,
        ScriptedUpstream() as good,
        serving(main(bad, good), routing=IN_TURN) as product,
        product.connect() as client,
    ):
        await ask(client)
        live = product.running.live
        assert live is not None
        assert [(row["health"], row["good"], row["recent"]) for row in live.general()["backends"]] == [
            ("bad", 0, 1),
            ("good", 1, 1),
        ]


async def test_log_line_says_who_was_asked(tmp_path: Path) -> None:
    """And why not the one before; with one server only there is nothing to say."""
    async with ScriptedUpstream([read, send(REFUSED)]) as bad, ScriptedUpstream() as good:
        chosen = {"backends": [main(bad, good)], "routing": {**OTHERS, **IN_TURN}}
        async with running(bad, tmp_path, **chosen) as process:
            async with connect_to(process.address) as client:
                await ask(client)
            await eventually(lambda: [line for line in process.lines() if line["event"] == "turn"])
            (line,) = [line for line in process.lines() if line["event"] == "turn"]
            assert (line["backend"], line["replica"], line["reroutes"]) == ("main", good.url, ["refused"])


async def test_backends_close_their_connections() -> None:
    """Those that serve nobody, of every replica."""
    async with ScriptedUpstream() as one, ScriptedUpstream() as other:
        async with serving(main(one, other), routing=IN_TURN) as product, product.connect() as client:
            assert isinstance(product.running.door._backends, backends.Backends)
            for _ in range(2):
                await ask(client)
        async with asyncio.timeout(10):
            for upstream in (one, other):
                await upstream.peers[0].gone.wait()
