"""A store that fails or hangs is only one that knows nothing (:mod:`proxy.custody`), on a socket and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

import pytest
from structlog.testing import capture_logs

from proxy import app
from proxy.custody import Custody
from proxy.protocol.chain import Entry, Settings
from proxy.protocol.errors import InternalError
from proxy.protocol.store import MemoryStore, Owner, StoredItem
from tests.fakes import RawClient, ScriptedUpstream, ask, create, eventually, receive, receive_turn, serving, types
from tests.test_cancellations import expect_nothing_left, open_files, tasks
from tests.test_passthrough import request
from tests.test_stored import call

GOOD = ["created", "output_text.delta", "completed"]
REFERENCE = [{"type": "item_reference", "id": "msg_x"}]


class Broken:
    """A store of which nothing works."""

    async def load(self, owner: Owner, response_id: str) -> Entry | None:
        """Fail."""
        self._fail()

    async def find_items(self, owner: Owner, item_ids: Collection[str]) -> Mapping[str, StoredItem]:
        """Fail."""
        self._fail()

    def save(self, owner: Owner, entry: Entry) -> None:
        """Fail."""
        self._fail()

    async def delete(self, owner: Owner, response_id: str) -> bool:
        """Fail."""
        self._fail()

    def _fail(self) -> NoReturn:
        raise ZeroDivisionError


class Hanging(MemoryStore):
    """A store that answers once it is told to.

    Attributes:
        asked: Set once somebody waits.
        answering: Set it to have it answer.
    """

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop().time, max_bytes=2**20, max_age=0)
        self.asked = asyncio.Event()
        self.answering = asyncio.Event()

    async def load(self, owner: Owner, response_id: str) -> Entry | None:
        """Wait, and answer."""
        self.asked.set()
        await self.answering.wait()
        return await super().load(owner, response_id)


def use(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have servers that start from now on use a store."""

    def response_store(*_: Any) -> Any:
        return store

    monkeypatch.setattr(app, "response_store", response_store)


def failures(lines: list[Any]) -> list[str]:
    """What failed, by the log."""
    return [line["during"] for line in lines if line["event"] == "response store failed"]


ENTRY = Entry("resp_1", None, None, Settings([]), 1, is_warmup=False, brought=frozenset(), response=b"{}")


async def test_broken_store_knows_nothing_and_keeps_nothing() -> None:
    """Each failure is logged with its cause; a deletion that was not done is not said to be."""
    custody = Custody(Broken())
    with capture_logs() as lines:
        assert await custody.load(b"", "resp_1") is None
        assert await custody.find_items(b"", {"msg_1"}) == {}
        custody.save(b"", ENTRY)
        with pytest.raises(InternalError):
            await custody.delete(b"", "resp_1")
    assert failures(lines) == ["load", "find_items", "save", "delete"]
    assert all("exc_info" in line for line in lines)


async def test_sound_store_is_what_it_was() -> None:
    """What it answers is handed on."""
    custody = Custody(MemoryStore(asyncio.get_running_loop().time, max_bytes=2**20, max_age=0))
    custody.save(b"", ENTRY)
    assert await custody.load(b"", "resp_1") is ENTRY
    assert await custody.find_items(b"", {"msg_1"}) == {}
    assert [await custody.delete(b"", "resp_1") for _ in range(2)] == [True, False]


async def test_store_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while it has failed."""
    monkeypatch.setattr("proxy.custody._LIMIT", 0.01)
    with capture_logs() as lines:
        assert await Custody(Hanging()).load(b"", "resp_1") is None
    assert failures(lines) == ["load"]


async def test_broken_store_is_a_miss_on_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns run, their responses can be continued on their connection, and what only the store knew is not found."""
    use(Broken(), monkeypatch)
    async with ScriptedUpstream() as upstream, serving(upstream) as product, product.connect() as client:
        first = await ask(client)
        assert types(first) == GOOD
        assert types(await ask(client, previous_response_id=first[-1]["response"]["id"])) == GOOD
        (error,) = await ask(client, previous_response_id="resp_old")
        assert error["error"]["code"] == "previous_response_not_found"
        await client.send(create(REFERENCE))  # type: ignore[arg-type]
        assert (await receive(client))["error"]["code"] == "item_not_found"
        assert types(await ask(client)) == GOOD
        assert product.running.door.connections == 1


async def test_broken_store_is_a_miss_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response reaches its client although it cannot be kept; only a deletion fails."""
    use(Broken(), monkeypatch)
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        body = {"model": "m", "input": "one"}
        async with product.connect() as client:
            assert types(await ask(client)) == GOOD
        for more, status, code in (
            ({"previous_response_id": "resp_1"}, 400, "previous_response_not_found"),
            ({"input": REFERENCE}, 404, "item_not_found"),
        ):
            answered = await call(product, "POST", "/v1/responses", {**body, **more})
            assert (answered[0], answered[1]["error"]["code"]) == (status, code)
        for method, target, status in (
            ("GET", "/v1/responses/resp_1", 404),
            ("GET", "/v1/responses/resp_1/input_items", 404),
            ("DELETE", "/v1/responses/resp_1", 500),
        ):
            assert (await call(product, method, target))[0] == status


@pytest.mark.parametrize("ending", ["client leaves", "server closes", "client is refused"])
async def test_connection_that_ends_does_not_wait_for_the_store(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of a turn that waits for an answer that does not come."""
    store = Hanging()
    use(store, monkeypatch)
    async with ScriptedUpstream() as upstream, serving(upstream, websocket__max_message=1000) as product:
        before, files = tasks(), open_files()
        async with product.connect() as client:
            await client.send(create(previous_response_id="resp_old"))
            await store.asked.wait()
            async with asyncio.timeout(2):
                if ending == "server closes":
                    await product.running.door.close()
                elif ending == "client is refused":
                    await client.send("x" * 1001)
                else:
                    client.transport.abort()
                await eventually(lambda: not product.running.door.connections)
        await expect_nothing_left(product, upstream, before, files)


async def test_http_client_that_leaves_does_not_wait_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a create nor a question about a response is left of it."""
    store = Hanging()
    use(store, monkeypatch)
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        before, files = tasks(), open_files()
        body = b'{"model":"m","input":"one","previous_response_id":"resp_old"}'
        for data in (
            request("POST", "/v1/responses", "Content-Type: application/json", body=body),
            request("GET", "/v1/responses/resp_old"),
            request("DELETE", "/v1/responses/resp_old"),
        ):
            store.asked.clear()
            with await RawClient.open(product.address) as client:
                await client.send_bytes(data)
                await store.asked.wait()
            async with asyncio.timeout(2):
                await product.running.door._pass_through.wait_idle()
        await expect_nothing_left(product, upstream, before, files)


async def test_drain_waits_for_a_turn_that_waits_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was promised like any other: once the store has answered it runs."""
    store = Hanging()
    use(store, monkeypatch)
    async with ScriptedUpstream() as upstream, serving(upstream) as product, product.connect() as client:
        first = await ask(client, "one")
        async with product.connect() as other:
            await other.send(create("two", previous_response_id=first[-1]["response"]["id"]))
            await store.asked.wait()
            async with asyncio.TaskGroup() as draining:
                draining.create_task(product.running.drain(20))
                await eventually(lambda: product.running.door.is_draining)
                store.answering.set()
                assert types(await receive_turn(other)) == GOOD
        assert [item["content"] for item in upstream.requests[1].json["input"]] == ["one", "two"]


async def test_cancel_meets_a_turn_that_waits_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends as soon as the store has answered, without the backend, and the next one runs."""
    store = Hanging()
    use(store, monkeypatch)
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        async with product.connect() as client:
            first = await ask(client, "one")
        async with product.connect() as client:
            await client.send(create("two", previous_response_id=first[-1]["response"]["id"]))
            await store.asked.wait()
            await client.send('{"type":"response.cancel"}')
            await client.send(create("three"))
            (connection,) = product.running.door._connections
            await eventually(lambda: connection.session.lanes._queued == 1)
            store.answering.set()
            assert types(await receive_turn(client)) == ["created", "incomplete"]
            assert types(await receive_turn(client)) == GOOD
        assert [request.json["input"][-1]["content"] for request in upstream.requests] == ["one", "three"]
