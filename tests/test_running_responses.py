"""What a client says about a response that runs, from end to end: the backend's connections, the counts, what is left.

(What is said in which case is the core's: `tests/protocol/test_intake.py`, `test_steering.py`.)
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs
from websockets.asyncio.client import ClientConnection

from proxy.logs import Logs
from proxy.observe import ConnectionRecord, TurnRecord, TurnStarted
from tests.fakes import (
    END,
    STREAM_HEAD,
    Gate,
    Product,
    RawClient,
    ScriptedUpstream,
    Step,
    ask,
    chunk,
    create,
    eventually,
    read,
    receive,
    receive_turn,
    send,
    serving,
    soon,
    stall,
    types,
)
from tests.playbook import answer, begun, call, message, output, response, sse, user
from tests.test_cancellations import expect_nothing_left, open_files, tasks, turns_in_flight

GOOD = ["created", "output_text.delta", "completed"]
DONE = message("done", "msg_done")


class Watcher(Logs):
    """An observer that keeps what the others forget.

    Attributes:
        most: The most turns that the backend worked on at once.
        turns: The turns that ended.
    """

    def __init__(self, product: Product) -> None:
        super().__init__()
        self.most = self._now = 0
        self.turns: list[TurnRecord] = []
        product.running.door._observer._observers.append(self)  # type: ignore[attr-defined]

    def turn_started(self, record: TurnStarted) -> None:
        """One more."""
        self._now += 1
        self.most = max(self.most, self._now)

    def turn_ended(self, record: TurnRecord) -> None:
        """Keep it as it is now."""
        self._now -= record.exchange is not None
        self.turns.append(replace(record, exchange=record.exchange and replace(record.exchange)))

    def connection_closed(self, record: ConnectionRecord) -> None:
        """Others say that."""

    @property
    def outcomes(self) -> list[str]:
        """How the turns ended."""
        return [record.facts.outcome for record in self.turns]


def whole(data: bytes) -> bytes:
    """An answer with a stream, from head to end."""
    return STREAM_HEAD + chunk(data) + END


def part(data: bytes) -> Step:
    """Step: send the head of an answer and the beginning of its stream."""
    return send(STREAM_HEAD + chunk(data))


def said(**members: Any) -> str:
    """A client's message."""
    return json.dumps(members)


async def begin(client: ClientConnection, last: str = "output_item.added", **fields: Any) -> None:
    """Ask for a response, and read on until an unfinished item."""
    await client.send(create(**fields))
    while (event := await receive(client))["type"] != f"response.{last}" or event.get("item") in (DONE, call("c1")):
        pass


# Cancel and interrupt


@pytest.mark.parametrize(
    ("steps", "begins"),
    [
        ([], ["created"]),
        ([send(STREAM_HEAD)], ["created"]),
        ([part(begun("resp_1", DONE))], []),
    ],
    ids=["before the head", "before an event", "in the stream"],
)
async def test_cancel_stops_the_backend_at_once(steps: list[Step], begins: list[str]) -> None:
    """Its connection is closed within a second, nothing counts as running, and the conversation goes on."""
    gate = Gate()
    async with ScriptedUpstream([read, *steps, gate]) as upstream, serving(upstream) as product:
        before = tasks()
        with capture_logs() as lines:
            async with product.connect() as client:
                if steps[-1:] != [] and not begins:
                    await begin(client)
                else:
                    await client.send(create())
                    await soon(gate.reached)
                await client.send(said(type="response.cancel"))
                async with asyncio.timeout(1):
                    await upstream.peers[0].gone.wait()
                frames = await receive_turn(client)
                assert types(frames) == [*begins, "incomplete"]
                stopped = frames[-1]["response"]
                assert stopped["incomplete_details"] == {"reason": "cancelled"}
                assert turns_in_flight(product) == 0
                assert types(await ask(client, "more", previous_response_id=stopped["id"])) == GOOD
                expected = [DONE] if not begins else []
                assert upstream.requests[1].json["input"] == [user("hi"), *expected, user("more")]
            await eventually(lambda: not product.running.door.connections)
        assert [line["outcome"] for line in lines if line["event"] == "turn"] == ["cancelled", "completed"]
        assert await product.counts("turns") == {"cancelled": 1, "completed": 1}
        await eventually(lambda: not (tasks() - before))


async def test_cancel_of_a_lane_leaves_the_others() -> None:
    """The one that it names stops; the other one's backend goes on."""
    gate = Gate()
    scripts: list[list[Step]] = [
        [read, part(begun("resp_1")), stall],
        [
            read,
            part(begun("resp_2")),
            gate,
            send(chunk(sse({"type": "response.completed", "response": response("resp_2")}))),
            send(END),
        ],
    ]
    async with ScriptedUpstream(*scripts) as upstream, serving(upstream) as product, product.connect() as client:
        await begin(client, stream_id="a")
        await begin(client, stream_id="b")
        await client.send(said(type="response.cancel", response_id="resp_1"))
        (stopped,) = await receive_turn(client)
        assert (stopped["type"], stopped["stream_id"]) == ("response.incomplete", "a")
        await soon(upstream.peers[0].gone)
        assert turns_in_flight(product) == 1
        gate.open()
        (ended,) = await receive_turn(client)
        assert (ended["type"], ended["stream_id"]) == ("response.completed", "b")


async def test_interrupt_is_acknowledged_and_the_next_turn_continues() -> None:
    """Codex's way: one socket, and the next create names the interrupted response."""
    async with (
        ScriptedUpstream([read, part(begun("resp_1", DONE)), stall]) as upstream,
        serving(upstream) as product,
        product.connect() as client,
    ):
        await begin(client)
        await client.send(said(type="response.interrupt", response_id="resp_1", mode="discard_partial_items"))
        frames = await receive_turn(client)
        assert types(frames) == ["interrupt.accepted", "output_item.interrupted", "incomplete"]
        assert frames[-1]["response"]["output"] == [DONE]
        await soon(upstream.peers[0].gone)
        assert types(await ask(client, "more", previous_response_id="resp_1")) == GOOD
        assert await product.counts("turns") == {"cancelled": 1, "completed": 1}


async def test_late_cancel_is_passed_over() -> None:
    """An answer to it would be taken for that of the next create."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product, product.connect() as client:
        response_id = (await ask(client))[-1]["response"]["id"]
        await client.send(said(type="response.cancel", response_id=response_id))
        await client.send(said(type="response.interrupt", response_id=response_id))
        assert types(await ask(client)) == GOOD


# Steer


async def test_steering_cuts_the_first_request_and_sends_a_second() -> None:
    """With what is finished and the input; one turn at a time, and both are told of."""
    second = whole(answer("resp_2", message("so")))
    scripts: list[list[Step]] = [[read, part(begun("resp_1", DONE)), stall], [read, send(second), stall]]
    async with ScriptedUpstream(*scripts) as upstream, serving(upstream) as product:
        watcher = Watcher(product)
        with capture_logs() as lines:
            async with product.connect() as client:
                await begin(client, temperature=0.5)
                await client.send(said(type="response.steer", previous_response_id="resp_1", input="rather this"))
                assert (await receive(client))["type"] == "response.steer.accepted"
                assert (await receive_turn(client))[-1]["response"]["incomplete_details"] == {"reason": "steered"}
                async with asyncio.timeout(1):
                    await upstream.peers[0].gone.wait()
                frames = await receive_turn(client)
                assert types(frames) == ["created", "output_item.done", "completed"]
                assert frames[-1]["response"]["previous_response_id"] == "resp_1"
                assert turns_in_flight(product) == 0
            await eventually(lambda: not product.running.door.connections)
    assert [request.json["input"] for request in upstream.requests] == [
        [user("hi")],
        [user("hi"), DONE, user("rather this")],
    ]
    assert upstream.requests[1].json["temperature"] == 0.5
    assert watcher.most == 1
    assert watcher.outcomes == ["cancelled", "completed"]
    turns = [(line["turn"], line["outcome"], line["response_id"]) for line in lines if line["event"] == "turn"]
    assert turns == [(1, "cancelled", "resp_1"), (2, "completed", "resp_2")]
    (connection,) = [line for line in lines if line["event"] == "connection"]
    assert connection["turns"] == 2
    for record in watcher.turns:
        assert record.exchange is not None
        assert record.facts.received <= record.exchange.started <= record.ended


async def test_steering_while_the_client_is_gone_leaves_nothing() -> None:
    """It steers and leaves: the successor that begins is stopped as well."""
    scripts: list[list[Step]] = [[read, part(begun("resp_1", DONE)), stall], [read, part(begun("resp_2")), stall]]
    async with ScriptedUpstream(*scripts) as upstream, serving(upstream) as product:
        before, files = tasks(), open_files()
        async with product.connect() as client:
            await begin(client)
            await client.send(said(type="response.steer", previous_response_id="resp_1", input="rather this"))
            peer = await upstream.peer(1)
            await eventually(lambda: peer.requests)
            client.transport.abort()
        await expect_nothing_left(product, upstream, before, files)


async def test_steering_can_be_switched_off() -> None:
    """The client is told so, and the response goes on."""
    gate = Gate()
    final = sse({"type": "response.completed", "sequence_number": 9, "response": response("resp_1")})
    async with (
        ScriptedUpstream([read, part(begun("resp_1")), gate, send(chunk(final) + END)]) as upstream,
        serving(upstream, websocket__steering=False) as product,
        product.connect() as client,
    ):
        await begin(client)
        await client.send(said(type="response.steer", previous_response_id="resp_1", input="rather this"))
        refused = await receive(client)
        assert (refused["type"], refused["error"]["code"]) == ("response.steer.failed", "steering_not_supported")
        gate.open()
        assert types(await receive_turn(client)) == ["completed"]


# Inject


@pytest.mark.parametrize("is_cut", [False, True])
async def test_injected_output_makes_the_response_go_on(*, is_cut: bool) -> None:
    """Two requests, one response: whether the first answer's end comes with its last event or not."""
    gate = Gate()
    final = sse(
        {"type": "response.completed", "sequence_number": 9, "response": response("resp_1", items=[call("c1")])}
    )
    scripts: list[list[Step]] = [
        [read, part(begun("resp_1", call("c1"))), gate, send(chunk(final) + (b"" if is_cut else END))]
    ]
    scripts.append([read, send(whole(answer("resp_2", DONE))), read, stall])
    async with ScriptedUpstream(*scripts) as upstream, serving(upstream) as product, product.connect() as client:
        watcher = Watcher(product)
        await begin(client)
        await client.send(said(type="response.inject", response_id="resp_1", input=[output("c1")]))
        assert (await receive(client))["type"] == "response.inject.created"
        gate.open()
        frames = await receive_turn(client)
        assert types(frames) == ["output_item.done", "completed"]
        assert frames[-1]["response"]["id"] == "resp_1"
        assert frames[-1]["response"]["output"] == [call("c1"), DONE]
        assert turns_in_flight(product) == 0
        assert (watcher.most, watcher.outcomes) == (1, ["completed"])
        assert upstream.requests[1].json["input"] == [user("hi"), call("c1"), output("c1")]
        await client.send(create("more", previous_response_id="resp_1"))
        await eventually(lambda: len(upstream.requests) == 3)
        assert upstream.requests[2].json["input"] == [user("hi"), call("c1"), output("c1"), DONE, user("more")]


# Bytes of an exchange that is over


async def test_bytes_behind_a_cancelled_exchange_are_dropped() -> None:
    """They may come between the order to stop and the stop, when the turn has asked again under its number."""
    gate = Gate()
    final = sse(
        {"type": "response.completed", "sequence_number": 9, "response": response("resp_1", items=[call("c1")])}
    )
    scripts: list[list[Step]] = [
        [read, part(begun("resp_1", call("c1"))), gate, send(chunk(final)), stall],
        [read, stall],
    ]
    async with ScriptedUpstream(*scripts) as upstream, serving(upstream) as product:
        with await RawClient.upgrade(product.address) as client:
            await client.send_frame(1, create().encode())
            while b"msg_part" not in (await client.read_frame()).payload:
                pass
            (connection,) = product.running.door._connections
            (first,) = connection._running.values()
            await client.send_frame(
                1, said(type="response.inject", response_id="resp_1", input=[output("c1")]).encode()
            )
            await client.read_frame()
            gate.open()
            peer = await upstream.peer(1)
            await eventually(lambda: peer.requests)
            (second,) = connection._running.values()
            assert (first is not second, first.turn) == (True, second.turn)
            connection._relay(first, object(), b"data: {}\n\n")  # type: ignore[arg-type]
            assert connection._running == {second.turn: second}
            await client.send_frame(1, said(type="response.cancel").encode())
            assert b'"response.incomplete"' in (await client.read_frame()).payload
