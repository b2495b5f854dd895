"""The rollouts' client tells the truth: what it says it sent and did is what went over the wire."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web

from proxy.config import Address
from proxy.demo import backend, report
from proxy.demo.backend import MODEL, Backend, Script
from proxy.demo.task import Demo
from proxy.rollout import dialogue
from proxy.rollout.dialogue import RolloutFailed, Service, Way
from proxy.rollout.measure import Measured, measure
from proxy.rollout.meter import Meter
from tests.demo.conftest import TOOL_CALLS, Place
from tests.rollout.servers import Handler, serving

WAYS = [dialogue.fresh_http, dialogue.plain_http, dialogue.websocket_mode]


class Tap:
    """Stands between a client and a server and counts what goes by, on sockets of its own.

    Attributes:
        connections: How many there were.
        sent_bytes: From clients.
        received_bytes: To clients.
    """

    def __init__(self) -> None:
        self.connections = 0
        self.sent_bytes = 0
        self.received_bytes = 0

    @contextlib.asynccontextmanager
    async def before(self, url: str) -> AsyncIterator[str]:
        """Stand before a server; gives the URL at which it is reached through the tap."""
        host, _, port = url.removeprefix("http://").removesuffix("/v1").partition(":")
        running: set[asyncio.Task[None] | None] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            running.add(asyncio.current_task())
            self.connections += 1
            server_reader, server_writer = await asyncio.open_connection(host, int(port))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_copy(reader, server_writer, self._count_sent))
                tasks.create_task(_copy(server_reader, writer, self._count_received))

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        yield f"http://{Address(*server.sockets[0].getsockname())}/v1"
        server.close()
        await asyncio.wait([task for task in running if task is not None])

    def _count_sent(self, length: int) -> None:
        self.sent_bytes += length

    def _count_received(self, length: int) -> None:
        self.received_bytes += length


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[int], None]) -> None:
    with contextlib.suppress(ConnectionError), contextlib.closing(writer):
        while data := await reader.read(65536):
            count(len(data))
            writer.write(data)
            await writer.drain()


async def roll_out(way: Way, url: str, **options: float) -> Measured:
    """Run the demo's rollout, which nobody watches."""
    return await measure(way, Service(url), Demo(MODEL), lambda _done, _meter: None, **options)


@pytest.mark.parametrize("way", WAYS)
async def test_client_counts_exactly_what_goes_over_the_wire(proxy_url: str, way: Way) -> None:
    """Bytes and connections are those that somebody between client and server counts, both ways of talking."""
    tap = Tap()
    async with tap.before(proxy_url) as url:
        meter = (await roll_out(way, url)).meter
    assert (meter.connections, meter.sent_bytes) == (tap.connections, tap.sent_bytes)
    # The client may be gone before the last bytes for it, those of a closing handshake, have come.
    assert 0 <= tap.received_bytes - meter.received_bytes <= 16


async def test_client_sends_a_request_a_turn_over_http(simulation: Place) -> None:
    """Over HTTP every turn is a request, all of them on one kept connection, as client and server agree."""
    measured = await roll_out(dialogue.plain_http, simulation.url)
    meter, seen = measured.meter, simulation.backend.take_seen()
    turns = TOOL_CALLS + 1
    assert len(measured.turns) == turns == seen.requests == meter.requests
    assert (meter.connections, meter.kept_alive, meter.messages) == (1, turns - 1, 0)
    assert seen.connections == 1
    assert seen.body_bytes < meter.sent_bytes


async def test_client_sends_a_message_a_turn_in_websocket_mode(simulation: Place, proxy_url: str) -> None:
    """In WebSocket mode there is one upgrade, then every turn is a message; the backend still gets a request a turn."""
    measured = await roll_out(dialogue.websocket_mode, proxy_url)
    meter, seen = measured.meter, simulation.backend.take_seen()
    turns = TOOL_CALLS + 1
    assert len(measured.turns) == turns == seen.requests == meter.messages
    assert (meter.connections, meter.requests, meter.kept_alive) == (1, 1, 0)
    # How many it needs depends on how fast the client is with its next turn, but not one for each.
    assert seen.connections < turns


async def test_rollouts_go_the_same_way_whichever_way_they_talk(simulation: Place, proxy_url: str) -> None:
    """The agent does and says the same, the backend gets the same bodies and prompts, and the client sends less."""
    seen = []
    measured = []
    for way, url in ((dialogue.plain_http, simulation.url), (dialogue.websocket_mode, proxy_url)):
        simulation.backend.forget_prompts()
        measured.append(await roll_out(way, url))
        seen.append(simulation.backend.take_seen())
    http, websocket = measured
    assert http.story == websocket.story
    assert http.tool_calls == TOOL_CALLS
    assert websocket.meter.sent_bytes < http.meter.sent_bytes
    assert seen[0].input_tokens == seen[1].input_tokens
    assert seen[0].cached_tokens == seen[1].cached_tokens > 0


async def test_client_is_watched_turn_by_turn(simulation: Place) -> None:
    """Whoever watches hears of each turn, with what was sent until then."""
    heard: list[tuple[int, int]] = []

    def observe(done: int, meter: Meter) -> None:
        heard.append((done, meter.sent_bytes))

    measured = await measure(dialogue.plain_http, Service(simulation.url), Demo(MODEL), observe)
    assert [done for done, _ in heard] == list(range(1, TOOL_CALLS + 2))
    assert [sent for _, sent in heard] == sorted({sent for _, sent in heard})
    assert heard[-1][1] == measured.meter.sent_bytes


# What can go wrong


async def _refuse(_request: web.Request) -> web.StreamResponse:
    return web.Response(status=418, text="I am a teapot")


async def _end_early(_request: web.Request) -> web.StreamResponse:
    return web.Response(text='event: response.created\ndata: {"type":"response.created"}\n\n')


async def _fail(request: web.Request) -> web.StreamResponse:
    if "Upgrade" not in request.headers:
        return web.Response(text='data: {"type":"response.failed"}\n\n')
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    await socket.send_str('{"type":"error"}')
    await socket.close()
    return socket


async def _hang_up(request: web.Request) -> web.StreamResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    await socket.close(code=1012)
    return socket


@pytest.mark.parametrize(
    ("way", "handler", "message"),
    [
        (dialogue.plain_http, _refuse, "HTTP 418: I am a teapot"),
        (dialogue.plain_http, _end_early, "the stream ended before"),
        (dialogue.plain_http, _fail, "a turn ended with .*response.failed"),
        (dialogue.websocket_mode, _refuse, "no answer from .*418"),
        (dialogue.websocket_mode, _hang_up, "closed with code 1012"),
        (dialogue.websocket_mode, _fail, "a turn ended with .*error"),
    ],
)
async def test_rollout_says_how_it_failed(way: Way, handler: Handler, message: str) -> None:
    """A turn that does not end well ends the rollout, and the error says how."""
    async with serving(handler) as url:
        with pytest.raises(RolloutFailed, match=message):
            await roll_out(way, url)


@pytest.mark.parametrize("way", WAYS)
async def test_rollout_fails_where_nobody_listens(way: Way) -> None:
    """Without a server there is an error, not a traceback of a library."""
    async with backend.start(Backend(Script()), Address("127.0.0.1", 0)) as address:
        url = report.url(address)
    with pytest.raises(RolloutFailed, match="no answer from"):
        await roll_out(way, url)


async def test_rollout_gives_up_in_the_end() -> None:
    """A turn that never ends is given up."""
    async with backend.start(Backend(Script(token_seconds=3600)), Address("127.0.0.1", 0)) as address:
        with pytest.raises(RolloutFailed, match="took longer than"):
            await roll_out(dialogue.plain_http, report.url(address), timeout=0.05)
