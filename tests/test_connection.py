"""One connection from end to end: its turns, what is told about them, slow clients, bugs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs
from websockets.exceptions import ConnectionClosedError

from proxy.connection import Connection
from proxy.exchange import ConnectionSettings
from proxy.observe import Exchange, TurnRecord
from proxy.protocol.relay import Relay
from proxy.protocol.session import Session
from proxy.upstream import Upstream
from tests.fakes import (
    CLOSE,
    END,
    STREAM_HEAD,
    TEXT,
    Gate,
    Product,
    RawClient,
    ScriptedUpstream,
    Step,
    answer,
    apart,
    ask,
    chunk,
    client_frame,
    completed,
    configure,
    create,
    created,
    delta,
    eventually,
    flood,
    frames_in,
    read,
    receive,
    receive_turn,
    send,
    serving,
    soon,
    stall,
    stream,
    text_of,
    types,
)

CONTINUATION = 0
GOOD = ["created", "output_text.delta", "completed"]


def listen_to_turns(product: Product) -> list[TurnRecord]:
    """Every turn that ends from now on, with its exchange as it was then."""
    turns: list[TurnRecord] = []
    for observer in product.running.door._observer._observers[:1]:  # type: ignore[attr-defined]
        counted = observer.turn_ended

        def note(record: TurnRecord, counted: Callable[[TurnRecord], None] = counted) -> None:
            turns.append(replace(record, exchange=record.exchange and replace(record.exchange)))
            counted(record)

        observer.turn_ended = note
    return turns


def only(product: Product) -> Connection:
    """The connection that is open."""
    (connection,) = product.running.door._connections
    return connection


# Turns


async def test_connection_continues_a_conversation() -> None:
    """A second turn sends only what is new; the backend gets all of it."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product, product.connect() as client:
        first = await ask(client, "one")
        await ask(client, "two", previous_response_id=first[-1]["response"]["id"])
        items = upstream.requests[1].json["input"]
        assert [item["content"] for item in items if item.get("role") == "user"] == ["one", "two"]
        assert "previous_response_id" not in upstream.requests[1].json


async def test_connection_runs_lanes_side_by_side() -> None:
    """A lane that waits for its backend does not hold another one up."""
    gate = Gate()
    slow: list[Step] = [read, gate, send(answer("slow"))]
    async with ScriptedUpstream(slow) as upstream, serving(upstream) as product, product.connect() as client:
        await client.send(create(stream_id="slow"))
        await soon(gate.reached)
        frames = await ask(client, stream_id="fast")
        assert {frame["stream_id"] for frame in frames} == {"fast"}
        gate.open()
        assert text_of(await receive_turn(client)) == "slow"


async def test_connection_starts_the_next_turn_while_the_last_ones_tail_is_out() -> None:
    """A response is complete with its last event; the end of the answer is not waited for."""
    gate = Gate()
    script: list[Step] = [read, send(STREAM_HEAD + chunk(stream("one"))), gate, send(END)]
    async with ScriptedUpstream(script) as upstream, serving(upstream) as product, product.connect() as client:
        assert text_of(await ask(client)) == "one"
        assert text_of(await ask(client)) == "Hello"
        assert len(upstream.peers) == 2
        gate.open()
        await eventually(lambda: len(product.running.door._backends.first._pool._idle) == 2)


async def test_connection_takes_a_bad_event_in_the_very_first_segment() -> None:
    """The turn fails while its own task still reads what came with the head: error frame, and the next turn works."""
    bad = STREAM_HEAD + chunk(created() + b"data: {broken\n\n") + END
    for step in (send(bad), apart(bad[:-30], bad[-30:]), apart(STREAM_HEAD, bad[len(STREAM_HEAD) :])):
        async with (
            ScriptedUpstream([read, step]) as upstream,
            serving(upstream) as product,
            product.connect() as client,
        ):
            frames = await ask(client)
            assert types(frames) == ["created", "error"]
            assert frames[-1]["error"]["code"] == "upstream_protocol_error"
            assert types(await ask(client)) == GOOD
            assert not only(product)._exchanges


async def test_connection_cancels_an_exchange_whose_turn_failed() -> None:
    """A bad event in the middle of a stream: the backend's work is stopped."""
    script: list[Step] = [read, send(STREAM_HEAD + chunk(created())), send(chunk(b"data: {broken\n\n")), stall]
    async with ScriptedUpstream(script) as upstream, serving(upstream) as product, product.connect() as client:
        assert types(await ask(client)) == ["created", "error"]
        await soon(upstream.peers[0].gone)
        assert types(await ask(client)) == GOOD


async def test_connection_refuses_what_it_does_not_know() -> None:
    """A bad frame gets an error, and the connection goes on."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product, product.connect() as client:
        for frame in ("no json", "[]", "{}", '{"type":"response.unheard_of"}'):
            await client.send(frame)
            assert (await receive(client))["status"] == 400
        assert types(await ask(client)) == GOOD
        assert len(upstream.requests) == 1


# What is told about it


async def test_connection_tells_when_the_first_event_came() -> None:
    """Even of an answer whose whole stream came in one segment."""
    script: list[Step] = [
        read,
        send(answer("one")),
        read,
        apart(STREAM_HEAD + chunk(created()), chunk(completed()) + END),
    ]
    async with ScriptedUpstream(script) as upstream, serving(upstream) as product:
        turns = listen_to_turns(product)
        async with product.connect() as client:
            for _ in range(2):
                await ask(client)
        for record in turns:
            exchange = record.exchange
            assert exchange is not None
            assert exchange.first_bytes is not None
            assert exchange.started <= exchange.first_bytes <= record.ended
            assert 0 < exchange.own < record.ended - record.facts.received
        assert [record.exchange.reused for record in turns if record.exchange] == [False, True]


async def test_comment_is_no_first_event() -> None:
    """What a backend sends to keep the line alive while it reads a prompt does not count."""

    async def wait(_: object) -> None:
        await asyncio.sleep(0.1)

    script: list[Step] = [read, send(STREAM_HEAD + chunk(b": ping\n\n")), wait, send(chunk(stream("one")) + END)]
    async with ScriptedUpstream(script) as upstream, serving(upstream) as product:
        turns = listen_to_turns(product)
        async with product.connect() as client:
            await ask(client)
        (exchange,) = [record.exchange for record in turns if record.exchange]
        assert exchange.first_bytes is not None
        assert exchange.dispatched is not None
        assert exchange.first_bytes - exchange.dispatched > 0.05


async def test_request_that_never_left_counts_no_bytes() -> None:
    """Where there is no connection to the backend, nothing went upstream and nothing was saved."""
    async with ScriptedUpstream() as upstream:
        url = upstream.url
    async with serving(url) as product, product.connect() as client:
        turns = listen_to_turns(product)
        warm = (await ask(client, generate=False))[-1]["response"]["id"]
        (error,) = await ask(client, previous_response_id=warm)
        assert error["error"]["code"] == "upstream_unreachable"
        facts = turns[-1].facts
        assert (facts.upstream_bytes, facts.replayed_bytes, facts.replayed_items) == (0, 0, 0)
        assert facts.frame_bytes > 0


async def test_connection_tells_what_it_moved() -> None:
    """Bytes and turns of a connection are told when it ends."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        records: list[Any] = []
        product.running.door._observer._observers[1].connection_closed = records.append  # type: ignore[attr-defined]
        message = create()
        with await RawClient.upgrade(product.address, "User-Agent: " + "x" * 300) as client:
            await client.send_frame(TEXT, message.encode())
            frames = [await client.read_frame() for _ in range(3)]
            await client.send_frame(CLOSE, (1000).to_bytes(2, "big"))
            await client.read_all()
        await eventually(lambda: records)
        (record,) = records
        assert (record.turns, record.received_bytes, record.client) == (1, len(message), "x" * 200)
        assert record.sent_bytes == sum(len(frame.payload) + 4 for frame in frames)
        assert record.seconds > 0


async def test_connection_tells_what_it_forgets() -> None:
    """A response that has to go for a newer one is counted."""
    async with (
        ScriptedUpstream() as upstream,
        serving(upstream, cache__max_responses=1) as product,
        product.connect() as client,
    ):
        for _ in range(3):
            await ask(client)
        assert await product.counts("evictions") == {"connection_entries": 2}


# Slow clients


async def test_slow_client_gets_everything() -> None:
    """A client that takes one large event in small bites, for longer than the write timeout, is slow but not stalled."""
    size = 20_000_000
    event = b'data: {"type":"response.x","x":"' + b"x" * size + b'"}\n\n'
    body = created() + event + completed()
    async with (
        ScriptedUpstream([read, send(STREAM_HEAD + chunk(body) + END)]) as upstream,
        serving(upstream, websocket__write_timeout=0.6, websocket__ping_interval=0) as product,
    ):
        with await RawClient.upgrade(product.address, receive_buffer=2**16) as client:
            await client.send_frame(TEXT, create().encode())
            loop = asyncio.get_running_loop()
            end = loop.time() + 2.5 * 0.6
            while loop.time() < end:
                client.unread += await client.receive_some(2**16)
                await asyncio.sleep(0.03)
            assert only(product).downstream.protocol.writing_paused
            await client.send_frame(CLOSE, b"")
            frames = list(frames_in(await client.read_all()))
            assert [frame.opcode for frame in frames] == [TEXT, TEXT, CONTINUATION, CONTINUATION, TEXT, CLOSE]
            assert sum(len(frame.payload) for frame in frames[1:4]) > size


async def test_stalled_client_is_cut() -> None:
    """A client that takes nothing for the write timeout loses its connection, and the backend's work is stopped."""
    block = chunk(delta("x" * 60_000))
    script: list[Step] = [read, send(STREAM_HEAD + chunk(created())), *[send(block)] * 2000, stall]
    async with (
        ScriptedUpstream(script) as upstream,
        serving(upstream, websocket__write_timeout=0.3) as product,
    ):
        with await RawClient.upgrade(product.address, receive_buffer=2**14) as client:
            await client.send_frame(TEXT, create().encode())
            peer = await upstream.peer()
            await soon(peer.gone)
            await eventually(lambda: not product.running.door.connections)
            assert await product.counts("closes") == {"slow_client": 1}
            with pytest.raises((ConnectionResetError, EOFError)):
                await client.read_exactly(2**30)
        assert peer.sent < 2000 * len(block)


async def test_stalled_client_that_half_closes_is_cut() -> None:
    """Its end is there to be seen, but what it left unread keeps the connection open: the write timeout ends it."""
    script: list[Step] = [read, send(STREAM_HEAD + chunk(created())), flood(chunk(delta("x" * 60_000)), 500), stall]
    async with ScriptedUpstream(script) as upstream, serving(upstream, websocket__write_timeout=0.3) as product:
        with await RawClient.upgrade(product.address, receive_buffer=2**14) as client:
            await client.send_frame(TEXT, create().encode())
            await eventually(lambda: product.running.door.connections)
            await eventually(lambda: only(product).downstream.protocol.writing_paused)
            client.half_close()
            await soon(upstream.peers[0].gone)
            await eventually(lambda: not product.running.door.connections)


async def test_client_that_stalls_with_frames_of_its_own_is_cut() -> None:
    """A client that sends creates and reads no answers is stalled too, without any backend."""
    warmup = create(generate=False, instructions="y" * 100_000)
    async with ScriptedUpstream() as upstream, serving(upstream, websocket__write_timeout=0.3) as product:
        with await RawClient.upgrade(product.address, receive_buffer=2**14) as client:
            with pytest.raises(OSError, match=r"reset|Broken pipe"):
                await client.send_bytes(client_frame(TEXT, warmup.encode()) * 2000)
            await eventually(lambda: not product.running.door.connections)
            assert await product.counts("closes") == {"slow_client": 1}
        assert not upstream.peers


async def test_client_that_vanishes_while_it_is_slow_leaves_nothing() -> None:
    """A reset while its backend is paused: no task is made for it any more, and nothing is logged as an error."""
    block = chunk(delta("x" * 60_000))
    script: list[Step] = [read, send(STREAM_HEAD + chunk(created())), *[send(block)] * 500, stall]
    async with ScriptedUpstream(then=script) as upstream, serving(upstream) as product:
        for number in range(5):
            client = await RawClient.upgrade(product.address, receive_buffer=2**14)
            await client.send_frame(TEXT, create().encode())
            peer = await upstream.peer(number)
            await eventually(lambda: only(product).downstream.protocol.writing_paused)
            client.reset()
            await soon(peer.gone)
            await eventually(lambda: not product.running.door.connections)


async def test_relay_does_not_start_tasks_for_a_connection_that_ends() -> None:
    """Bytes that come between the client's end and the end of its exchange are dropped."""
    gate = Gate()
    async with (
        ScriptedUpstream([read, send(STREAM_HEAD + chunk(created())), gate]) as upstream,
        serving(upstream) as product,
    ):
        with await RawClient.upgrade(product.address) as client:
            await client.send_frame(TEXT, create().encode())
            await client.read_frame()
            connection = only(product)
            (running,) = connection._running.values()
            connection.downstream.protocol.pause_writing()
            connection._tasks._abort()  # type: ignore[attr-defined]
            connection._is_over = True
            wire = await upstream.peer()
            assert wire.requests

            class Paused:
                def pause(self) -> None:
                    """Nothing is to be paused."""
                    raise AssertionError

            connection._relay(running, Paused(), delta("x"))  # type: ignore[arg-type]
        await eventually(lambda: not product.running.door.connections)


# Bugs


async def test_bug_in_the_core_ends_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """1011 for the one that met it, one line in the log, the backend's work stopped, nothing counted for ever; others go on."""
    feed = Relay.feed

    def fail(self: Relay, data: bytes) -> list[bytes]:
        if b"poison" in data:
            raise ZeroDivisionError
        return feed(self, data)

    monkeypatch.setattr(Relay, "feed", fail)
    gate, other_gate = Gate(), Gate()
    poisoned: list[Step] = [
        read,
        send(STREAM_HEAD + chunk(created())),
        gate,
        *[send(chunk(delta("poison")))] * 3,
        stall,
    ]
    healthy: list[Step] = [read, send(STREAM_HEAD + chunk(created())), other_gate, send(chunk(completed()) + END)]
    async with ScriptedUpstream(poisoned, healthy) as upstream, serving(upstream) as product:
        with capture_logs() as lines:
            async with product.connect() as client, product.connect() as other:
                await client.send(create())
                await soon(gate.reached)
                await other.send(create())
                await soon(other_gate.reached)
                gate.open()
                assert (await receive(client))["type"] == "response.created"
                with pytest.raises(ConnectionClosedError) as caught:
                    await receive(client)
                assert caught.value.rcvd is not None
                assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1011, "internal error")
                await soon(upstream.peers[0].gone)
                await eventually(lambda: product.running.door.connections == 1)
                other_gate.open()
                assert types(await receive_turn(other)) == ["created", "completed"]
                gauges = await product.gauges()
                assert (gauges["turns_in_flight"], gauges["connections_open"]) == (0, 1)
        errors = [line for line in lines if line["log_level"] == "error"]
        assert [(line["event"], line["during"]) for line in errors] == [("internal error", "UpstreamBytes")]
        assert "exc_info" in errors[0]
        turns = [line for line in lines if line["event"] == "turn"]
        assert {line.get("error_code") for line in turns} == {"internal_error", None}
        assert (await product.counts("closes"))["internal_error"] == 1
        assert (await product.gauges())["cache_bytes"] == 0


@pytest.mark.parametrize("kind", ["FrameReceived", "UpstreamOpened", "UpstreamEnded", "ClientGone"])
async def test_bug_in_any_fact_ends_one_connection(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever fact it is that the core cannot take, the connection ends with nothing left, and the next one works."""
    take = Session.receive
    is_poisoned = True

    def fail(self: Session, event: Any) -> Any:
        if is_poisoned and type(event).__name__ == kind:
            raise ZeroDivisionError
        return take(self, event)

    monkeypatch.setattr(Session, "receive", fail)
    script: list[Step] = [read, send(STREAM_HEAD + chunk(created()) + END)]
    scripts = [] if kind == "FrameReceived" else [script]
    async with ScriptedUpstream(*scripts) as upstream, serving(upstream) as product:
        with capture_logs() as lines:
            with await RawClient.upgrade(product.address) as client:
                await client.send_frame(TEXT, create().encode())
                if kind != "ClientGone":
                    while (frame := await client.read_frame()).opcode != CLOSE:
                        pass
                    assert frame.payload.startswith((1011).to_bytes(2, "big"))
            await eventually(lambda: not product.running.door.connections)
        assert [line["during"] for line in lines if line["log_level"] == "error"] == [kind]
        is_poisoned = False
        async with product.connect() as other:
            assert types(await ask(other)) == GOOD
            gauges = await product.gauges()
            assert (gauges["turns_in_flight"], gauges["connections_open"]) == (0, 1)
        await eventually(lambda: not product.running.door.connections)
        assert (await product.gauges())["cache_bytes"] == 0


async def test_bug_outside_the_core_ends_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong on the way to the backend ends the connection just the same."""

    async def fail(self: Upstream, request: Any, headers: bytes, exchange: Exchange) -> Any:
        raise ZeroDivisionError

    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        with capture_logs() as lines, monkeypatch.context() as patch:
            patch.setattr(Upstream, "post", fail)
            async with product.connect() as client:
                await client.send(create())
                with pytest.raises(ConnectionClosedError) as caught:
                    await receive(client)
                assert caught.value.rcvd is not None
                assert caught.value.rcvd.code == 1011
            await eventually(lambda: not product.running.door.connections)
        assert [line["during"] for line in lines if line["log_level"] == "error"] == ["exchange"]
        async with product.connect() as client:
            assert types(await ask(client)) == GOOD
            assert (await product.gauges())["turns_in_flight"] == 0


# The clock


@pytest.mark.parametrize(
    ("options", "tick"),
    [
        ({}, 5.0),
        ({"websocket__ping_interval": 1}, 0.25),
        ({"upstream__timeouts__turn": 2}, 0.5),
        ({"websocket__ping_interval": 0, "websocket__keepalive_interval": 0, "websocket__lifetime": 0}, 5.0),
    ],
)
def test_clock_is_looked_at_often_enough(options: dict[str, Any], tick: float) -> None:
    """Four times in the shortest limit, and never less often than every 5 s."""
    config = configure("http://127.0.0.1:1/v1", **options)
    assert ConnectionSettings({"upstream": config.default.timeouts}, config.websocket).tick == tick
