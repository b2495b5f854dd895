"""The door: which upgrades are taken, and how the others are refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from proxy.config import Address
from proxy.server import new_id, session_settings
from tests.fakes import (
    TEXT,
    Product,
    RawClient,
    ScriptedUpstream,
    ask,
    configure,
    create,
    eventually,
    json_answer,
    read,
    send,
    serving,
    types,
    upgrade_request,
)

GOOD = ["created", "output_text.delta", "completed"]
PATHS = ["/v1/responses", "/responses", "/v1/codex/responses", "/codex/responses"]


async def refusal(address: Address, request: bytes) -> tuple[int, dict[str, str], dict[str, Any]]:
    """The answer to an upgrade that is refused: status, headers, error; the connection ends with it."""
    with await RawClient.open(address) as client:
        await client.send_bytes(request)
        raw_head, _, body = (await client.read_all()).partition(b"\r\n\r\n")
    first, *lines = raw_head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert headers["Content-Type"].startswith("application/json")
    assert headers["Connection"] == "close"
    assert "Server" not in headers
    error = json.loads(body)["error"]
    assert set(error) == {"type", "code", "message", "param"}
    return int(first.split()[1]), headers, error


# What is taken


@pytest.mark.parametrize(
    "path", [*PATHS, "/v1/responses/", "/v1/responses?model=m&x=%20", "/responses?a=b", "http://h/v1/responses"]
)
async def test_door_takes_an_upgrade_on_every_path_that_clients_build(path: str) -> None:
    """With and without the base path, by either name, with any query, in absolute form."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        with await RawClient.open(product.address) as client:
            await client.send_bytes(upgrade_request(target=path))
            assert (await client.read_head()).startswith(b"HTTP/1.1 101 ")
            await client.send_frame(TEXT, create().encode())
            assert b"response.created" in (await client.read_frame()).payload
        assert upstream.requests[0].target == "/v1/responses"


@pytest.mark.parametrize(
    "beta", [None, "responses_websockets=2026-02-06", "responses_websockets=2026-02-04, x=1", "unheard-of", ""]
)
async def test_door_takes_any_beta_header(beta: str | None) -> None:
    """It says nothing that is needed."""
    headers = {} if beta is None else {"OpenAI-Beta": beta}
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        async with product.connect(additional_headers=headers, compression=None) as client:
            assert types(await ask(client)) == GOOD
        assert "OpenAI-Beta" not in upstream.requests[0].headers


async def test_door_says_on_the_101_what_clients_may_need() -> None:
    """The limit of a message stands there; nothing that depends on the backend does, and not what serves."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        async with product.connect() as client:
            assert client.response is not None
            headers = client.response.headers
            assert headers["x-codex-websocket-max-message-bytes"] == str(64 * 2**20)
            assert not {"openai-model", "x-request-id", "x-codex-turn-state", "x-models-etag", "server"} & {
                name.lower() for name in headers
            }
        assert not upstream.peers


async def test_door_takes_subprotocols_and_chooses_none() -> None:
    """Browsers put keys there."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        offer = "Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.k"
        with await RawClient.open(product.address) as client:
            await client.send_bytes(upgrade_request(offer))
            assert b"sec-websocket-protocol" not in (await client.read_head()).lower()


async def test_door_serves_another_base_path() -> None:
    """The operator may serve the API elsewhere; the root is served all the same."""
    async with ScriptedUpstream() as upstream, serving(upstream, base_path="/api/llm") as product:
        for path in ("/api/llm/responses", "/responses", "/api/llm/codex/responses"):
            async with product.connect(path) as client:
                assert types(await ask(client)) == GOOD
        status, _, error = await refusal(product.address, upgrade_request(target="/v1/responses"))
        assert (status, "/api/llm/responses" in error["message"]) == (404, True)


# What is refused


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/chat/completions", "/v1/realtime", "/v1/responses/x", "/v2/responses", "//responses"]
)
async def test_door_refuses_an_upgrade_elsewhere(path: str) -> None:
    """404 at once, and the body says where the WebSocket is."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        status, _, error = await refusal(product.address, upgrade_request(target=path))
        assert (status, error["code"]) == (404, "websocket_not_found")
        assert "/v1/responses" in error["message"]
        assert await product.counts("upgrades") == {"not_found": 1}
        assert not upstream.peers


@pytest.mark.parametrize("path", PATHS)
async def test_door_refuses_upgrades_when_switched_off(path: str) -> None:
    """426, on which Codex goes over to HTTP; and HTTP is served."""
    async with (
        ScriptedUpstream([read, send(json_answer({"ok": True}))]) as upstream,
        serving(upstream, websocket__enabled=False) as product,
    ):
        status, _, error = await refusal(product.address, upgrade_request(target=path))
        assert (status, error["code"]) == (426, "websocket_disabled")
        assert await product.counts("upgrades") == {"disabled": 1}
        with await RawClient.open(product.address) as client:
            await client.send_bytes(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b" 200 " in await client.read_head()


@pytest.mark.parametrize(
    "request_bytes",
    [
        upgrade_request().replace(b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Version: 99"),
        upgrade_request().replace(b"Sec-WebSocket-Version: 13\r\n", b""),
        upgrade_request().replace(b"Sec-WebSocket-Key: ", b"X-Key: "),
        upgrade_request().replace(b"Sec-WebSocket-Key: ", b"Sec-WebSocket-Key: x"),
        upgrade_request().replace(b"Connection: Upgrade", b"Connection: keep-alive"),
        upgrade_request().replace(b"Upgrade: websocket", b"Upgrade: websocket, h2c"),
        upgrade_request(method="POST"),
        upgrade_request(method="PUT"),
    ],
    ids=["version", "no version", "no key", "bad key", "no upgrade", "two upgrades", "POST", "PUT"],
)
async def test_door_refuses_a_bad_handshake(request_bytes: bytes) -> None:
    """400 with a reason, and the connection ends."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        status, _, error = await refusal(product.address, request_bytes)
        assert (status, error["code"]) == (400, "websocket_bad_handshake")
        assert await product.counts("upgrades") == {"bad_handshake": 1}
        assert not upstream.peers


async def test_door_refuses_upgrades_while_draining() -> None:
    """503 with advice to come back, on a connection that was there before the listener shut."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        with await RawClient.open(product.address) as client:
            await client.send_bytes(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
            await client.read_head()
            await product.running.drain(5)
            client.unread.clear()
            await client.send_bytes(upgrade_request())
            raw = await client.read_all()
        assert b"HTTP/1.1 503 " in raw
        assert b"Retry-After: 1\r\n" in raw
        assert b'"websocket_draining"' in raw
        assert await product.counts("upgrades") == {"draining": 1}


async def test_door_survives_a_client_that_leaves_in_its_handshake() -> None:
    """A client that resets before it gets the 101 leaves nothing behind."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        for _ in range(10):
            client = await RawClient.open(product.address)
            await client.send_bytes(upgrade_request())
            client.reset()
        async with product.connect() as other:
            assert types(await ask(other)) == GOOD
        await eventually(lambda: not product.running.door.connections)
        gauges = await product.gauges()
        assert gauges["connections_open"] == 0


async def test_door_serves_many_clients_at_once() -> None:
    """A hundred connections with a turn each, none of them disturbed by another."""

    async def serve(product: Product, number: int) -> None:
        async with product.connect() as client:
            frames = await ask(client, f"client {number}")
            assert types(frames) == GOOD

    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        async with asyncio.TaskGroup() as tasks:
            for number in range(100):
                tasks.create_task(serve(product, number))
        assert len(upstream.requests) == 100
        await eventually(lambda: not product.running.door.connections)


# Conversations of a door


async def test_door_keeps_conversations_apart() -> None:
    """What one connection remembers is unknown on another."""
    async with (
        ScriptedUpstream() as upstream,
        serving(upstream) as product,
        product.connect() as client,
        product.connect() as other,
    ):
        response_id = (await ask(client, store=False))[-1]["response"]["id"]
        (error,) = await ask(other, previous_response_id=response_id)
        assert error["error"]["code"] == "previous_response_not_found"


async def test_door_lets_a_stored_response_be_continued_by_its_owner_only() -> None:
    """On another connection, with the same credential; with another one it is as unknown as a random id."""
    headers = [{"Authorization": f"Bearer {name}"} for name in ("one", "one", "two")]
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        async with product.connect(additional_headers=headers[0]) as client:
            response_id = (await ask(client, "first"))[-1]["response"]["id"]
        async with product.connect(additional_headers=headers[1]) as client:
            frames = await ask(client, "second", previous_response_id=response_id)
            assert types(frames) == GOOD
            assert frames[0]["response"]["previous_response_id"] == response_id
        assert b"first" in upstream.requests[1].body
        async with product.connect(additional_headers=headers[2]) as client:
            (error,) = await ask(client, previous_response_id=response_id)
            (random,) = await ask(client, previous_response_id="resp_random")
    assert error["error"]["code"] == random["error"]["code"] == "previous_response_not_found"
    assert error["error"]["message"].replace(response_id, "") == random["error"]["message"].replace("resp_random", "")


async def test_door_forgets_what_a_connection_remembered() -> None:
    """The memory of a conversation is given back with its connection."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        async with product.connect() as client:
            await ask(client, "x" * 100_000)
            assert (await product.gauges())["cache_bytes"] > 100_000
        await eventually(lambda: not product.running.door.connections)
        gauges = await product.gauges()
        assert (gauges["cache_bytes"], gauges["cache_entries"]) == (0, 0)


def test_session_settings_come_from_the_configuration() -> None:
    """Every choice that the core knows of reaches it."""
    config = configure(
        "http://h/v1",
        websocket__max_lanes=3,
        websocket__max_in_flight=2,
        websocket__max_queued=5,
        websocket__max_queued_bytes=7,
        websocket__max_items=11,
        websocket__lifetime=90,
        cache__max_responses=13,
        cache__max_bytes=17,
        max_event=19,
        upstream__drop_fields=["metadata"],
        upstream__keep_fields=["client_metadata"],
    )
    settings = session_settings(config)
    limits = settings.lanes
    assert (limits.named, limits.in_flight, limits.queued, limits.queued_bytes) == (3, 2, 5, 7)
    assert (settings.max_items, settings.max_event_bytes, settings.lifetime_minutes) == (11, 19, 1.5)
    assert (settings.max_entries, settings.max_bytes) == (13, 17)
    assert settings.routes.default.rules.drop_fields == {"metadata"}


def test_response_ids_cannot_be_guessed() -> None:
    """They are long, random and of the API's form."""
    ids = {new_id("resp") for _ in range(100)}
    assert len(ids) == 100
    assert all(len(each) == 53 and each.startswith("resp_") for each in ids)
