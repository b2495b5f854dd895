"""Traces (proxy.tracing), as a real collector gets them."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.collector import Collector, attributes
from tests.fakes import (
    END,
    STREAM_HEAD,
    Product,
    Request,
    ScriptedUpstream,
    Step,
    answer,
    ask,
    chunk,
    close,
    connect_to,
    create,
    created,
    json_answer,
    read,
    receive,
    running,
    send,
    serving,
    stall,
    stream,
    types,
)

TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
PARENT: Final = f"00-{TRACE}-b7ad6b7169203331-01"
OTHER: Final = f"00-{TRACE[::-1]}-00f067aa0ba902b7-01"
GOOD: Final = ["created", "output_text.delta", "completed"]


@contextlib.asynccontextmanager
async def traced(upstream: ScriptedUpstream, collector: Collector, **options: Any) -> AsyncIterator[Product]:
    """The product with traces; all are at the collector afterwards."""
    chosen = {"tracing__enabled": True, "tracing__endpoint": collector.url, **options}
    async with serving(upstream, **chosen) as product:
        yield product
        await product.running.drain(10)


def parent_in(request: Request) -> tuple[str, str, str]:
    """The ids of trace and span, and the flags, that the backend was told; it is told once."""
    [line] = request.headers.getall("traceparent")
    version, trace_id, span_id, flags = line.split("-")
    assert version == "00"
    return trace_id, span_id, flags


def is_error(span: Span) -> bool:
    """Whether a span has the status of an error."""
    return span.status.code == Status.STATUS_CODE_ERROR


# A turn


async def test_turn_is_a_span_with_one_below_for_its_request() -> None:
    """Two turns of a connection: a trace each, linked to the connection's own span, with all that is known of them."""
    began = time.time_ns()
    async with (
        ScriptedUpstream() as upstream,
        Collector() as collector,
        traced(upstream, collector, upstream__profile="vllm", tracing__service_name="front") as product,
        product.connect(user_agent_header="agent/1") as client,
    ):
        frames = await ask(client, model="small")
        await ask(client, "more", model="small", previous_response_id=frames[-1]["response"]["id"])
        port = upstream.port
    assert collector.services == {"front"}
    [connection] = collector.named("responses.connection")
    first, second = collector.named("responses.create")
    asked = collector.named("chat small")
    assert len(collector.spans) == 5
    assert attributes(connection)["user_agent.original"] == "agent/1"
    for turn, request in zip((first, second), asked, strict=True):
        assert (turn.kind, request.kind) == (Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT)
        assert (request.trace_id, request.parent_span_id) == (turn.trace_id, turn.span_id)
        assert not turn.parent_span_id
        assert [link.span_id for link in turn.links] == [connection.span_id]
        assert began < turn.start_time_unix_nano <= request.start_time_unix_nano
        assert request.start_time_unix_nano < request.end_time_unix_nano <= turn.end_time_unix_nano < time.time_ns()
        assert not is_error(turn)
        assert not is_error(request)
    assert first.trace_id != second.trace_id
    known, told = attributes(second), attributes(asked[1])
    assert {name: known[name] for name in known if name in EXPECTED} == EXPECTED
    assert known["slipstream.replayed_bytes"] > 0
    assert 0 < known["slipstream.proxy_seconds"] < 1
    assert {name: told[name] for name in told if name in EXPECTED_BELOW} == EXPECTED_BELOW
    assert told["server.port"] == port
    assert told["gen_ai.response.time_to_first_chunk"] > 0


EXPECTED: Final = {
    "slipstream.outcome": "completed",
    "slipstream.turn": 2,
    "slipstream.cache.result": "hit",
    "slipstream.cache.reason": "tip",
    "slipstream.depth": 2,
    "slipstream.previous_response_id": "resp_1",
    "slipstream.replayed_items": 1,
    "slipstream.new_items": 1,
    "slipstream.frame_bytes": len(create("more", model="small", previous_response_id="resp_1")),
    "gen_ai.request.model": "small",
}
EXPECTED_BELOW: Final = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "vllm",
    "gen_ai.request.model": "small",
    "gen_ai.response.model": "m",
    "gen_ai.response.finish_reasons": ["completed"],
    "gen_ai.usage.input_tokens": 1,
    "gen_ai.usage.output_tokens": 1,
    "gen_ai.usage.cache_read.input_tokens": 0,
    "http.response.status_code": 200,
    "server.address": "127.0.0.1",
}


async def test_trace_holds_no_content_and_no_key() -> None:
    """Neither what is said nor who says it leaves for the collector."""
    async with ScriptedUpstream() as upstream, Collector() as collector:
        headers = {"Authorization": "Bearer sk-client-0123456789"}
        async with traced(upstream, collector) as product, product.connect(additional_headers=headers) as client:
            await ask(client, "The eagle lands", instructions="at midnight", metadata={"who": "a spy"})
    sent = b"".join(collector.bodies)
    assert b"responses.create" in sent
    assert [word for word in (b"eagle", b"midnight", b"a spy", b"sk-client", b"Hello") if word in sent] == []


async def test_turn_without_the_backend_is_a_span_alone() -> None:
    """A warm-up, and what a client must not ask; that is its own fault, and so no error of the server's."""
    async with (
        ScriptedUpstream() as upstream,
        Collector() as collector,
        traced(upstream, collector) as product,
        product.connect() as client,
    ):
        await ask(client, generate=False)
        await ask(client, previous_response_id="resp_lost")
    warm, lost = collector.named("responses.create")
    assert len(collector.spans) == 3
    assert attributes(warm)["slipstream.outcome"] == "warmup"
    assert attributes(lost)["error.type"] == "previous_response_not_found"
    assert attributes(lost)["slipstream.cache.reason"] == "unknown"
    assert not is_error(lost)
    assert warm.links


async def test_lanes_have_their_own_traces() -> None:
    """A lane is named; requests that run side by side stay apart."""
    async with (
        ScriptedUpstream() as upstream,
        Collector() as collector,
        traced(upstream, collector) as product,
        product.connect() as client,
    ):
        for lane in ("a", "b"):
            await client.send(create(stream_id=lane))
        done = 0
        while done < 2:
            done += (await receive(client))["type"] == "response.completed"
    turns = {attributes(span)["slipstream.lane"]: span for span in collector.named("responses.create")}
    below = {span.parent_span_id for span in collector.named("chat m")}
    assert set(turns) == {"a", "b"}
    assert below == {span.span_id for span in turns.values()}


async def test_each_request_names_the_server_that_it_went_to() -> None:
    """Where another replica goes on there are two of them, and the first one has failed."""
    refusal = json_answer({"error": {"message": "no"}}, status="503 Service Unavailable")
    async with ScriptedUpstream([read, send(refusal)]) as bad, ScriptedUpstream() as good, Collector() as collector:
        backend = {"name": "main", "replicas": [bad.url, good.url], "profile": "vllm"}
        routing = {"balance": "round_robin", "probe_interval": 0}
        async with (
            traced(bad, collector, backends=[backend], routing=routing) as product,
            product.connect() as client,
        ):
            assert types(await ask(client)) == GOOD
        first, second = sorted(collector.named("chat m"), key=is_error, reverse=True)
        assert (is_error(first), is_error(second)) == (True, False)
        assert [attributes(span)["server.port"] for span in (first, second)] == [bad.port, good.port]


async def test_text_that_cannot_be_encoded_loses_nothing() -> None:
    """A model's name with half a character in it, and a very long one."""
    async with (
        ScriptedUpstream() as upstream,
        Collector() as collector,
        traced(upstream, collector) as product,
        product.connect() as client,
    ):
        await ask(client, model="\ud83d")
        await ask(client, model="x" * 10_000)
    odd, long = collector.named("responses.create")
    assert attributes(odd)["gen_ai.request.model"] == "?"
    assert len(attributes(long)["gen_ai.request.model"]) == 512
    assert {len(span.name) for span in collector.spans} == {16, 20, 6, 105}


# Ids


async def test_ids_go_from_the_client_to_the_backend() -> None:
    """The handshake's trace is that of the turns; the backend is told of the request's span, in place of the client's."""
    headers = {"traceparent": PARENT, "tracestate": "vendor=1"}
    async with ScriptedUpstream() as upstream, Collector() as collector:
        async with traced(upstream, collector) as product, product.connect(additional_headers=headers) as client:
            await ask(client)
            await ask(client)
        assert {request.headers.get("tracestate") for request in upstream.requests} == {"vendor=1"}
        told = [parent_in(request) for request in upstream.requests]
    turns, asked = collector.named("responses.create"), collector.named("chat m")
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert {span.parent_span_id.hex() for span in turns} == {PARENT.split("-")[2]}
    assert told == [(TRACE, span.span_id.hex(), "01") for span in asked]


@pytest.mark.parametrize("name", ["traceparent", "ws_request_header_traceparent"])
async def test_trace_of_a_create_wins(name: str) -> None:
    """`client_metadata` names the trace of one turn, and the next one has the handshake's; what is not valid is none."""
    async with ScriptedUpstream() as upstream, Collector() as collector:
        headers = {"traceparent": PARENT}
        async with traced(upstream, collector) as product, product.connect(additional_headers=headers) as client:
            await ask(client, client_metadata={name: OTHER})
            await ask(client)
            await ask(client, client_metadata={name: OTHER.replace("-", "_")})
            await ask(client, client_metadata=[name])
        assert [parent_in(request)[0] for request in upstream.requests] == [TRACE[::-1], TRACE, TRACE, TRACE]
    assert collector.named("responses.create")[0].parent_span_id.hex() == OTHER.split("-")[2]


async def test_successor_of_a_steered_response_is_in_its_trace() -> None:
    """Nobody asked for it with a create of its own."""
    script = [read, send(STREAM_HEAD + chunk(created())), stall]
    async with ScriptedUpstream(script) as upstream, Collector() as collector:
        async with traced(upstream, collector) as product, product.connect() as client:
            await client.send(create(client_metadata={"traceparent": OTHER}))
            await receive(client)
            steer = {"type": "response.steer", "previous_response_id": "resp_1", "input": "Shorter"}
            await client.send(json.dumps(steer))
            while (await receive(client))["type"] != "response.completed":
                pass
        assert [parent_in(request)[0] for request in upstream.requests] == [TRACE[::-1]] * 2
    assert [attributes(span)["slipstream.outcome"] for span in collector.named("responses.create")] == [
        "cancelled",
        "completed",
    ]


async def test_trace_that_a_client_does_not_record_is_not_recorded() -> None:
    """The backend learns of it all the same."""
    async with ScriptedUpstream() as upstream, Collector() as collector:
        headers = {"traceparent": f"{PARENT[:-2]}00"}
        async with traced(upstream, collector) as product, product.connect(additional_headers=headers) as client:
            await ask(client)
        trace_id, _, flags = parent_in(upstream.requests[0])
        assert (trace_id, flags) == (TRACE, "00")
    assert collector.bodies == []


@pytest.mark.parametrize("headers", [{}, {"traceparent": PARENT}])
async def test_ratio_0_exports_nothing(headers: dict[str, str]) -> None:
    """Not even what a client records."""
    async with ScriptedUpstream() as upstream, Collector() as collector:
        async with (
            traced(upstream, collector, tracing__sample_ratio=0) as product,
            product.connect(additional_headers=headers) as client,
        ):
            assert types(await ask(client)) == GOOD
        assert not int(parent_in(upstream.requests[0])[2], 16) & 1
    assert collector.bodies == []


async def test_traces_are_off_by_default() -> None:
    """Then the backend gets what the client sent, or nothing."""
    async with ScriptedUpstream() as upstream, serving(upstream) as product:
        async with product.connect(additional_headers={"traceparent": PARENT, "tracestate": "a=b"}) as client:
            await ask(client, client_metadata={"traceparent": OTHER})
        async with product.connect() as client:
            await ask(client)
        first, second = upstream.requests
        assert (first.headers["traceparent"], first.headers["tracestate"]) == (PARENT, "a=b")
        assert "traceparent" not in second.headers


def test_opentelemetry_is_not_even_imported_without_traces() -> None:
    """It takes its time, and may not be there."""
    code = (
        "import asyncio, sys\n"
        "from proxy import app, cli\n"
        "from proxy.config import Config\n"
        "config = Config.model_validate("
        "{'listen': '127.0.0.1:0', 'admin': '127.0.0.1:0', 'upstream': {'url': 'http://127.0.0.1:9/v1'}})\n"
        "async def main():\n"
        "    async with app.start(config):\n"
        "        print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# Several requests for one turn, and failures


async def test_stale_connection_makes_two_spans() -> None:
    """A request that is sent again has a span each time, and an id each time."""
    script = [read, send(answer("Hello")), read, close]
    async with ScriptedUpstream(script) as upstream, Collector() as collector:
        async with traced(upstream, collector) as product, product.connect() as client:
            await ask(client)
            assert types(await ask(client)) == GOOD
        told = [parent_in(request)[1] for request in upstream.requests]
    turn = collector.named("responses.create")[1]
    _, stale, fresh = collector.named("chat m")
    assert told[1:] == [stale.span_id.hex(), fresh.span_id.hex()]
    assert {stale.parent_span_id, fresh.parent_span_id} == {turn.span_id}
    assert attributes(stale)["error.type"] == "upstream_disconnected"
    assert is_error(stale)
    assert not is_error(fresh)
    assert not is_error(turn)
    assert attributes(fresh)["gen_ai.usage.input_tokens"] == 1


async def test_backend_that_forgot_makes_two_spans() -> None:
    """A continuation by the backend's own id, then the whole conversation."""
    forgot = {"message": "Previous response with id 'resp_1' not found.", "code": "previous_response_not_found"}
    script = [
        read,
        send(answer("Hello")),
        read,
        send(json_answer({"error": forgot}, status="400 Bad Request")),
        read,
        send(answer("Again", response_id="resp_2")),
    ]
    async with (
        ScriptedUpstream(script) as upstream,
        Collector() as collector,
        traced(upstream, collector, upstream__state="upstream") as product,
        product.connect() as client,
    ):
        await ask(client)
        assert types(await ask(client, previous_response_id="resp_1")) == GOOD
    _, short, whole = collector.named("chat m")
    assert attributes(short)["error.type"] == "previous_response_not_found"
    assert attributes(short)["http.response.status_code"] == 400
    assert attributes(whole)["gen_ai.response.id"] == "resp_2"
    assert short.end_time_unix_nano <= whole.start_time_unix_nano
    assert not is_error(collector.named("responses.create")[1])


async def test_summary_makes_two_spans() -> None:
    """A conversation that is compacted first: the question for the summary is a request of the turn."""
    long = STREAM_HEAD + chunk(stream("Hello").replace(b'"input_tokens":1', b'"input_tokens":5000')) + END
    script = [read, send(long), read, send(answer("Sum", response_id="resp_s")), read, send(answer("x"))]
    async with ScriptedUpstream(script) as upstream, Collector() as collector:
        async with traced(upstream, collector, upstream__compaction="proxy") as product, product.connect() as client:
            await ask(client)
            wish = [{"type": "compaction", "compact_threshold": 1000}]
            await ask(client, previous_response_id="resp_1", context_management=wish)
        assert len(upstream.requests) == 3
    turn = collector.named("responses.create")[1]
    assert [span.parent_span_id for span in collector.named("chat m")[1:]] == [turn.span_id] * 2


BUSY: Final = {"error": {"message": "Overloaded", "type": "server_error", "code": "overloaded"}}


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        ([read, send(json_answer(BUSY, status="503 Service Unavailable"))], "overloaded"),
        ([read, send(STREAM_HEAD + chunk(created())), close], "upstream_disconnected"),
        ([read, send(json_answer([]))], "upstream_protocol_error"),
    ],
)
async def test_error_has_a_type_and_a_status(steps: list[Step], kind: str) -> None:
    """On both spans."""
    async with (
        ScriptedUpstream(steps) as upstream,
        Collector() as collector,
        traced(upstream, collector) as product,
        product.connect() as client,
    ):
        assert (await ask(client))[-1]["type"] == "error"
    [turn], [asked] = collector.named("responses.create"), collector.named("chat m")
    for span in (turn, asked):
        assert is_error(span)
        assert attributes(span)["error.type"] == kind


async def test_error_inside_a_stream_and_a_time_limit_are_errors_too() -> None:
    """A backend that says that it failed, and one that says nothing."""
    failed = STREAM_HEAD + chunk(b'data: {"type":"error","code":"overloaded","message":"no"}\n\n') + END
    async with ScriptedUpstream([read, send(failed), read, stall]) as upstream, Collector() as collector:
        options = {"upstream__timeouts__first_event": "300ms"}
        async with traced(upstream, collector, **options) as product, product.connect() as client:
            for _ in range(2):
                assert (await ask(client))[-1]["type"] == "error"
    kinds = [attributes(span)["error.type"] for span in collector.named("chat m")]
    assert kinds == ["overloaded", "upstream_timeout"]
    assert all(is_error(span) for span in collector.named("chat m") + collector.named("responses.create"))


async def test_client_that_leaves_ends_its_spans() -> None:
    """Without an error: nobody failed."""
    async with (
        ScriptedUpstream([read, send(STREAM_HEAD + chunk(created())), stall]) as upstream,
        Collector() as collector,
        traced(upstream, collector) as product,
        product.connect() as client,
    ):
        await client.send(create())
        await receive(client)
        await client.close()
    [turn], [asked] = collector.named("responses.create"), collector.named("chat m")
    assert attributes(turn)["slipstream.outcome"] == "client_gone"
    assert "gen_ai.response.finish_reasons" not in attributes(asked)
    assert not is_error(turn)
    assert not is_error(asked)


# Plain HTTP


async def test_plain_request_is_a_span() -> None:
    """One each, with the client's trace for a parent and the backend below it; a query is left out."""
    script = [read, send(json_answer({"data": []}))]
    async with ScriptedUpstream(script) as upstream, Collector() as collector:
        async with traced(upstream, collector) as product, aiohttp.ClientSession() as session:
            headers = {"traceparent": PARENT, "TraceState": "a=b"}
            async with session.get(f"{product.url}/models?key=secret", headers=headers) as response:
                assert response.status == 200
            async with session.get(f"{product.url}/responses/resp_lost") as response:
                assert response.status == 404
        told, state = parent_in(upstream.requests[0]), upstream.requests[0].headers.getall("tracestate")
    through, lost = collector.named("GET")
    assert (through.trace_id.hex(), through.parent_span_id.hex()) == (TRACE, PARENT.split("-")[2])
    assert told == (TRACE, through.span_id.hex(), "01")
    assert state == ["a=b"]
    assert through.kind == Span.SPAN_KIND_SERVER
    assert attributes(through) == {
        "http.request.method": "GET",
        "url.path": "/v1/models",
        "http.response.status_code": 200,
        "slipstream.source": "upstream",
    }
    assert attributes(lost)["http.response.status_code"] == 404
    assert attributes(lost)["slipstream.source"] == "proxy"
    assert not is_error(lost)


async def test_plain_request_that_fails_is_an_error() -> None:
    """A create over HTTP in front of a backend that is not there; a method that nobody knows has no name."""
    async with ScriptedUpstream() as gone:
        url = gone.url
    async with Collector() as collector, ScriptedUpstream() as upstream:
        options = {"tracing__enabled": True, "tracing__endpoint": collector.url}
        async with serving(url, **options) as product, aiohttp.ClientSession() as session:
            async with session.post(f"{product.url}/responses", json={"model": "m", "input": "x"}) as response:
                assert response.status == 502
            async with session.request("PROPFIND", f"{product.url}/files") as response:
                assert response.status == 502
            await product.running.drain(10)
        assert upstream.requests == []
    [failed], [odd] = collector.named("POST"), collector.named("HTTP")
    assert is_error(failed)
    assert attributes(failed)["error.type"] == "502"
    assert attributes(odd)["http.request.method"] == "_OTHER"


async def test_plain_request_keeps_its_trace_while_it_is_off() -> None:
    """What a client sends goes through as it came."""
    async with ScriptedUpstream([read, send(json_answer({}))]) as upstream, serving(upstream) as product:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{product.url}/models", headers={"traceparent": "mine"}) as response,
        ):
            assert response.status == 200
        assert upstream.requests[0].headers["traceparent"] == "mine"


# The collector


async def test_collector_that_is_down_disturbs_nothing() -> None:
    """Turns go on, and so does the end."""
    async with Collector() as gone:
        pass
    async with ScriptedUpstream() as upstream:
        began = time.monotonic()
        async with traced(upstream, gone) as product, product.connect() as client:
            for _ in range(20):
                assert types(await ask(client)) == GOOD
        assert time.monotonic() - began < 10


async def test_collector_that_hangs_holds_nobody_up() -> None:
    """A drain waits for it no longer than for anything else."""
    with socket.create_server(("127.0.0.1", 0)) as held:  # takes connections, and says nothing
        url = f"http://127.0.0.1:{held.getsockname()[1]}/v1/traces"
        options = {"tracing__enabled": True, "tracing__endpoint": url}
        async with ScriptedUpstream() as upstream, serving(upstream, **options) as product:
            async with product.connect() as client:
                assert types(await ask(client)) == GOOD
            began = time.monotonic()
            await product.running.drain(1)
    assert 0.5 < time.monotonic() - began < 2


async def test_process_sends_its_spans_before_it_ends(tmp_path: Path) -> None:
    """What waits for its batch at SIGTERM is not lost."""
    async with ScriptedUpstream() as upstream, Collector() as collector:
        options = {"tracing__enabled": True, "tracing__endpoint": collector.url}
        async with running(upstream, tmp_path, **options) as process:
            async with connect_to(process.address) as client:
                await ask(client)
            process.signal(signal.SIGTERM)
            assert await process.ended() == 0
            events = [line["event"] for line in process.lines()]
    assert len(collector.spans) == 3
    assert sorted(events) == ["connection", "draining", "listening", "stopped", "turn"]


async def test_process_says_once_that_nobody_takes_its_spans(tmp_path: Path) -> None:
    """In its own form, whatever OpenTelemetry would log."""
    async with Collector() as gone:
        pass
    async with ScriptedUpstream() as upstream:
        options = {"tracing__enabled": True, "tracing__endpoint": gone.url, "log__level": "debug"}
        async with running(upstream, tmp_path, **options) as process:
            async with connect_to(process.address) as client:
                await ask(client)
            process.signal(signal.SIGTERM)
            assert await process.ended() == 0
            text = json.dumps(process.lines())
    assert text.count("spans cannot be exported") <= 1
    assert "urllib3" not in text
    assert "opentelemetry" not in text
