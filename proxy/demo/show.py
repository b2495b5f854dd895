"""The demo from its beginning to its end: a simulated backend, the proxy, two rollouts, a table, open doors.

Everything runs in one process and one event loop, asyncio's own (:mod:`~proxy.rollout.meter` says why).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import itertools
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

from proxy import app
from proxy.app import Running
from proxy.config import Address, Config, Upstream
from proxy.demo import backend, report, task
from proxy.demo.backend import Backend, Script
from proxy.demo.report import Places, Side
from proxy.rollout import dialogue
from proxy.rollout.dialogue import RolloutFailed, Service
from proxy.rollout.measure import measure
from proxy.rollout.screen import Screen
from proxy.rollout.stopping import until_stopped

_T = TypeVar("_T")

_LOOPBACK: Final = Address("127.0.0.1", 0)
_DRAIN_SECONDS: Final = 1.0
"""How long whoever tries the demo may take to finish after Ctrl-C."""


class CannotListen(Exception):
    """An address cannot be listened on.

    Args:
        cause: What the system said.
    """

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return f"cannot listen: {self.cause.strerror or self.cause}"


@dataclass(frozen=True, slots=True)
class Choices:
    """What the user chose.

    Attributes:
        listen: For clients; None to try the usual address, and take another port if that is taken.
        admin: For metrics, likewise.
        is_once: End after the table.
        script: How the simulated backend behaves.
    """

    listen: Address | None = None
    admin: Address | None = None
    is_once: bool = False
    script: Script = field(default_factory=Script)


async def demo(choices: Choices, screen: Screen) -> int:
    """Show what WebSocket mode saves, then serve until SIGINT or SIGTERM.

    Args:
        choices: What the user chose.
        screen: Where to write.

    Returns:
        The exit code, 0.

    Raises:
        CannotListen: an address is taken.
        RolloutFailed: a rollout did not go as it should.
    """
    if not await until_stopped(_demo(choices, screen)):
        screen.stopped()
    return 0


async def serve_backend(address: Address, script: Script, screen: Screen) -> int:
    """Serve a simulated backend alone, until SIGINT or SIGTERM.

    Args:
        address: Where to listen.
        script: How it behaves.
        screen: Where to write.

    Returns:
        The exit code, 0.

    Raises:
        CannotListen: the address is taken.
    """
    await until_stopped(_serve_backend(address, script, screen))
    return 0


async def load(url: str, pause: float, rounds: int | None, screen: Screen) -> int:
    """Run rollouts in WebSocket mode through a proxy that runs already, one after the other.

    Args:
        url: The proxy's base URL, `/v1` included.
        pause: Seconds between two.
        rounds: How many; None to go on until SIGINT or SIGTERM, whatever becomes of each.
        screen: Where to write.

    Returns:
        The exit code, 0.

    Raises:
        RolloutFailed: a rollout did not go as it should, and their number was given.
    """
    await until_stopped(_load(url, pause, rounds, screen))
    return 0


async def _load(url: str, pause: float, rounds: int | None, screen: Screen) -> None:
    for number in itertools.count(1):
        try:
            work = task.Demo(backend.MODEL)
            client = await measure(dialogue.websocket_mode, _service(url), work, lambda _turns, _meter: None)
            screen.say(f"rollout {number}: {len(client.turns)} turns in {client.total_seconds:.1f} s")
        except RolloutFailed as exc:
            if rounds is not None:
                raise
            screen.say(f"rollout {number}: {exc}")  # the proxy or its backend may start later, or again
        if number == rounds:
            return
        await asyncio.sleep(pause)


async def _serve_backend(address: Address, script: Script, screen: Screen) -> None:
    async with _listening(backend.start(Backend(script), address)) as place:
        screen.say(f"A SIMULATED Responses backend, without a model, serves at {report.url(place)}")
        await asyncio.Event().wait()


async def _demo(choices: Choices, screen: Screen) -> None:
    simulation = Backend(choices.script)
    async with (
        _listening(backend.start(simulation, _LOOPBACK)) as place,
        _listening(app.start(_config(choices, report.url(place)))) as running,
    ):
        places = Places(running.listen, running.admin, place)
        screen.say(report.introduction(places, choices.script.tool_calls, choices.script.token_seconds))
        await _compare(simulation, places, choices.script.tool_calls, screen)
        if not choices.is_once:
            _note_moves(choices, running, screen)
            screen.say(report.invitation(places))
            try:
                await asyncio.Event().wait()
            finally:
                await running.drain(_DRAIN_SECONDS)


async def _compare(simulation: Backend, places: Places, tool_calls: int, screen: Screen) -> None:
    """Run the rollout both ways, and say what came of it."""
    sides = []
    for name, way, address in (
        ("plain HTTP", dialogue.plain_http, places.backend),
        ("WebSocket mode", dialogue.websocket_mode, places.clients),
    ):
        simulation.forget_prompts()  # so that the second does not find the prompts of the first
        simulation.take_seen()
        observe = functools.partial(screen.progress, name, tool_calls + 1)
        client = await measure(way, _service(report.url(address)), task.Demo(backend.MODEL), observe)
        sides.append(Side(client, simulation.take_seen()))
    screen.say()
    screen.say(report.comparison(*sides))
    screen.say()


def _service(url: str) -> Service:
    """Whom to ask, with a key as every client of the API sends one; nobody checks it here."""
    return Service(url, {"Authorization": "Bearer demo"})


def _config(choices: Choices, upstream: str) -> Config:
    """The proxy's configuration: its defaults, but for where it listens."""
    return Config(
        upstream=Upstream(url=upstream),
        listen=choices.listen or _free(_usual("listen"), choices.admin),
        admin=choices.admin or _free(_usual("admin"), choices.listen),
    )


def _free(address: Address, other: Address | None) -> Address:
    """An address if nobody listens there, else one on the same host with a port of the system's choice.

    Args:
        address: The address.
        other: Where the proxy's other listener will be, as far as that is chosen.
    """
    if other is not None and other.port == address.port:
        return Address(address.host, 0)
    try:
        socket.create_server(address).close()
    except OSError as exc:
        if exc.errno != errno.EADDRINUSE:
            raise CannotListen(exc) from exc
        return Address(address.host, 0)
    return address


def _note_moves(choices: Choices, running: Running, screen: Screen) -> None:
    """Say it where a usual address was taken."""
    for chosen, usual, real in (
        (choices.listen, _usual("listen"), running.listen),
        (choices.admin, _usual("admin"), running.admin),
    ):
        if chosen is None and real != usual:
            screen.say(f"Note: {usual} is taken, so {real} is used in its place.")


def _usual(name: str) -> Address:
    """The configuration's default for an address."""
    address: Address = Config.model_fields[name].default
    return address


@contextlib.asynccontextmanager
async def _listening(server: contextlib.AbstractAsyncContextManager[_T]) -> AsyncIterator[_T]:
    """Enter a server; that it cannot listen is told from every other error.

    Raises:
        CannotListen: it cannot.
    """
    async with contextlib.AsyncExitStack() as stack:
        try:
            entered = await stack.enter_async_context(server)
        except OSError as exc:
            raise CannotListen(exc) from exc
        yield entered
