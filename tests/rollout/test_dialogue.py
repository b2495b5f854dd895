"""The client understands what backends say, also where they say it in their own way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import orjson
import pytest
from aiohttp import web

from proxy.config import Address
from proxy.rollout import dialogue
from proxy.rollout.dialogue import Object, Reply, RolloutFailed, Service, Terms, Way
from proxy.rollout.meter import Meter
from tests.rollout.servers import serving

ITEM = {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}
DONE = {"type": "response.output_item.done", "item": ITEM}
COMPLETED = {"type": "response.completed", "response": {"id": "resp_1", "output": [ITEM]}}
CUT = {
    "type": "response.incomplete",
    "response": {"id": "resp_1", "output": [ITEM], "incomplete_details": {"reason": "max_output_tokens"}},
}


async def ask(way: Way, url: str, *turns: str, meter: Meter | None = None, **fields: object) -> list[Reply]:
    """Take turns, each with one message."""
    async with way(meter or Meter(), Service(url), Terms({"model": "m", **fields})) as conversation:
        return [await conversation.ask([{"role": "user", "content": turn}]) for turn in turns]


def answering(text: str) -> contextlib.AbstractAsyncContextManager[str]:
    """A server whose answers are all this stream."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(text=text, content_type="text/event-stream")

    return serving(answer)


def sse(*events: Object, line_end: str = "\n") -> str:
    """A stream of events."""
    return "".join(f"data: {orjson.dumps(event).decode()}{line_end}{line_end}" for event in events)


@pytest.mark.parametrize(
    "stream",
    [
        sse(COMPLETED),
        sse(DONE, COMPLETED, line_end="\r\n"),
        ": comment\n\n" + sse(COMPLETED) + "data: [DONE]\n\n",
        "event: response.completed\n" + sse(COMPLETED),
        sse(DONE, {"type": "response.completed", "response": {"id": "resp_1"}}),
        sse(DONE, {"type": "response.completed", "response": {"id": "resp_1", "output": []}}),
    ],
)
async def test_client_reads_every_kind_of_stream(stream: str) -> None:
    """Other line ends, comments, an end marker, items that the last event leaves out."""
    async with answering(stream) as url:
        (reply,) = await ask(dialogue.plain_http, url, "hello")
    assert reply.output == [ITEM]
    assert reply.response["id"] == "resp_1"


async def test_answer_may_be_cut_if_it_was_asked_for() -> None:
    """With `max_output_tokens` an incomplete response is an answer, without it or for another reason it is none."""
    async with answering(sse(CUT)) as url:
        (reply,) = await ask(dialogue.plain_http, url, "hello", max_output_tokens=16)
        assert reply.output == [ITEM]
        with pytest.raises(RolloutFailed, match="incomplete"):
            await ask(dialogue.plain_http, url, "hello")
    filtered = {**CUT, "response": {"id": "resp_1", "incomplete_details": {"reason": "content_filter"}}}
    async with answering(sse(filtered)) as url:
        with pytest.raises(RolloutFailed, match="content_filter"):
            await ask(dialogue.plain_http, url, "hello", max_output_tokens=16)


async def test_error_without_a_type_is_an_error() -> None:
    """As llama.cpp and others send it in the middle of a stream."""
    async with answering(sse({"error": {"message": "context is full"}})) as url:
        with pytest.raises(RolloutFailed, match="context is full"):
            await ask(dialogue.plain_http, url, "hello")


async def test_long_error_is_cut() -> None:
    """A page of HTML does not fill the screen."""

    async def refuse(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=502, text="x" * 100_000)

    async with serving(refuse) as url:
        with pytest.raises(RolloutFailed) as caught:
            await ask(dialogue.plain_http, url, "hello")
    assert len(str(caught.value)) < 1_000


@contextlib.asynccontextmanager
async def forgetful() -> AsyncIterator[str]:
    """A server that answers one request on each connection, does not say that it closes it, and does."""
    body = sse(COMPLETED).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            request = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in request.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
            writer.write(head + body)
            await writer.drain()
            await reader.read(1)  # it is gone only when the client has sent more

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://{Address(*server.sockets[0].getsockname())}/v1"
    finally:
        server.close()


async def test_connection_that_was_closed_is_made_anew() -> None:
    """A kept connection that turns out to be closed costs a request, as it does clients, but not the rollout."""
    meter = Meter()
    async with forgetful() as url:
        replies = await ask(dialogue.plain_http, url, "one", "two", "three", meter=meter)
    assert len(replies) == 3
    assert (meter.connections, meter.requests) == (3, 5)


async def test_new_connection_that_is_closed_is_an_error() -> None:
    """Whoever closes new ones is not asked again."""

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    meter = Meter()
    url = f"http://{Address(*server.sockets[0].getsockname())}/v1"
    with contextlib.closing(server), pytest.raises((aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)):
        await ask(dialogue.plain_http, url, "one", meter=meter)
    assert meter.connections == 1


async def test_fresh_connections_are_not_kept() -> None:
    """Each turn has one of its own, and its set-up is counted, with what a simulated link adds to it."""
    meter = Meter(0.02)
    async with answering(sse(COMPLETED)) as url:
        await ask(dialogue.fresh_http, url, "one", "two", meter=meter)
    assert (meter.connections, meter.kept_alive) == (2, 0)
    assert meter.setup_seconds >= 2 * 0.02


def test_service_does_not_show_its_key() -> None:
    """It may stand in a traceback."""
    assert "secret" not in repr(Service("http://h/v1", {"Authorization": "Bearer secret"}))
