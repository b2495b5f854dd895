"""The bench from its beginning to its end: servers, links, rollouts in turn, and what came of them.

The client and the simulated links share this process and asyncio's own event loop (:mod:`~proxy.rollout.meter` says why);
the proxy and the simulated backend have processes of their own.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from yarl import URL

from proxy.bench import children, relay
from proxy.bench.children import DidNotStart
from proxy.bench.link import Link
from proxy.bench.workload import Rollout, Sizes
from proxy.config import Address
from proxy.rollout import dialogue
from proxy.rollout.dialogue import RolloutFailed, Service, Way
from proxy.rollout.measure import Measured, Observe, measure
from proxy.rollout.meter import Meter
from proxy.rollout.screen import Screen
from proxy.rollout.stopping import until_stopped

WAYS: Final[dict[str, Way]] = {
    "fresh": dialogue.fresh_http,
    "kept": dialogue.plain_http,
    "websocket": dialogue.websocket_mode,
}
NAMES: Final = {"fresh": "HTTP, new connections", "kept": "HTTP, kept alive", "websocket": "WebSocket mode"}
"""What each way of talking is called."""

_MIN_SECRET: Final = 8
"""What is shorter than this is no key, but a word like `Bearer`."""

_WIDTH: Final = max(map(len, NAMES.values()))

_PROXY_READY: Final = re.compile(r'"url":"([^"]+)".*"event":"listening"')
_BACKEND_READY: Final = re.compile(r"serves at (\S+)")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and how.

    Attributes:
        upstream: Base URL of the backend; None for a simulated one.
        proxy: Base URL of a proxy that runs already; None to start one.
        model: The model to ask.
        sizes: How large everything is.
        turns: Of a rollout, at least 1.
        output_tokens: Of an answer, at the most; the simulated backend's answers have so many.
        rounds: How many rollouts each way, at least 1.
        timeout: Seconds that a turn may take.
        token_rate: Tokens a second of the simulated backend; 0 for no limit.
        pause: Seconds that the tools take, between two turns.
        link: The simulated path between client and server; None for what is there.
        compresses: Offer permessage-deflate on the WebSocket, and have our own proxy accept it.
        headers: What each request says; keys are in it.
        serve_options: Further options for the proxy that is started.
    """

    upstream: str | None
    proxy: str | None
    model: str
    sizes: Sizes
    turns: int
    output_tokens: int
    rounds: int
    timeout: float
    token_rate: float = 0
    pause: float = 0
    link: Link | None = None
    compresses: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    serve_options: tuple[str, ...] = ()


Round = dict[str, Measured]
"""A rollout each way, by the names in `WAYS`."""


@dataclass(slots=True)
class Results:
    """What was measured so far.

    Attributes:
        rounds: The rounds that are over.
        is_stopped: It was ended before its time.
        error: What ended it before its time; None if nothing did.
    """

    rounds: list[Round] = field(default_factory=list)
    is_stopped: bool = False
    error: str | None = None

    def of(self, way: str) -> list[Measured]:
        """The rollouts of one way of talking, in their order."""
        return [measured[way] for measured in self.rounds]


async def bench(plan: Plan, introduction: str, screen: Screen) -> Results:
    """Measure, until it is done or until SIGINT or SIGTERM.

    Args:
        plan: What to measure.
        introduction: What is said first.
        screen: Where that and progress are shown.

    Returns:
        What was measured; with an error, what was measured before that.
    """
    results = Results()

    async def run() -> None:
        screen.say(introduction)
        await _bench(plan, screen, results)

    try:
        results.is_stopped = not await until_stopped(run())
    except* (RolloutFailed, DidNotStart) as group:
        results.error = _without_secrets(str(_first(group)), plan.headers)
    return results


async def _bench(plan: Plan, screen: Screen, results: Results) -> None:
    async with contextlib.AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(_backend(plan))
        proxy = await stack.enter_async_context(_proxy(plan, upstream))
        http, socket = (Service(url, plan.headers, offers_compression=plan.compresses) for url in (upstream, proxy))
        await _warm_up(plan, http, socket)
        if plan.link:
            http, socket = [await stack.enter_async_context(_behind(plan.link, service)) for service in (http, socket)]
        services = {"fresh": http, "kept": http, "websocket": socket}
        for number in range(plan.rounds):
            results.rounds.append(await _round(plan, services, number, screen))


def _without_secrets(text: str, headers: Mapping[str, str]) -> str:
    """Somebody else's error without the key, which some of them repeat."""
    for value in headers.values():
        for word in value.split():
            if len(word) >= _MIN_SECRET:
                text = text.replace(word, "***")
    return text


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _warm_up(plan: Plan, http: Service, socket: Service) -> None:
    """Two turns each way that do not count: what a first request needs is there, and what is wrong is told early."""
    short = replace(plan, turns=min(plan.turns, 2))
    for way, service in (("kept", http), ("websocket", socket)):
        await _rollout(short, way, service, lambda _turns, _meter: None)


async def _round(plan: Plan, services: Mapping[str, Service], number: int, screen: Screen) -> Round:
    """One rollout each way, every other round in the opposite order, so that a drift of the machine favours none."""
    done: Round = {}
    for way in list(WAYS) if number % 2 == 0 else reversed(WAYS):
        before = (number * len(WAYS) + len(done)) * plan.turns
        observe = functools.partial(_show, plan, screen, f"{number + 1}/{plan.rounds} {NAMES[way]:<{_WIDTH}}", before)
        done[way] = await _rollout(plan, way, services[way], observe)
    if not screen.is_terminal:
        seconds = ", ".join(f"{NAMES[way]} {done[way].total_seconds:.2f} s" for way in WAYS)
        screen.say(f"round {number + 1} of {plan.rounds}: {seconds}")
    return done


def _show(plan: Plan, screen: Screen, name: str, before: int, turns: int, meter: Meter) -> None:
    """Show how far all of it is; where lines cannot be written over a line for each round is enough."""
    if screen.is_terminal:
        screen.progress(name, plan.rounds * len(WAYS) * plan.turns, before + turns, meter)


async def _rollout(plan: Plan, way: str, service: Service, observe: Observe) -> Measured:
    task = Rollout(
        plan.model,
        plan.sizes,
        turns=plan.turns,
        output_tokens=plan.output_tokens,
        calls_tools=plan.upstream is None,
    )
    try:
        return await measure(WAYS[way], service, task, observe, pause=plan.pause, timeout=plan.timeout)
    except RolloutFailed as exc:
        raise RolloutFailed(f"{NAMES[way]}: {exc}") from exc


@contextlib.asynccontextmanager
async def _backend(plan: Plan) -> AsyncIterator[str]:
    """The backend that was named, or a simulated one."""
    if plan.upstream is not None:
        yield plan.upstream
        return
    token_ms = 1000 / plan.token_rate if plan.token_rate else 0
    async with children.slipstream(
        *("demo-backend", "--listen", "127.0.0.1:0", "--token-ms", str(token_ms)),
        *("--tool-calls", str(max(plan.turns - 1, 1)), "--answer-tokens", str(plan.output_tokens)),
        ready=_BACKEND_READY,
    ) as match:
        yield match[1]


@contextlib.asynccontextmanager
async def _proxy(plan: Plan, upstream: str) -> AsyncIterator[str]:
    """The proxy that was named, or one of our own with its defaults and the options that were given for it."""
    if plan.proxy is not None:
        yield plan.proxy
        return
    async with children.slipstream(
        *("serve", *plan.serve_options, "--upstream", upstream, "--log-format", "json", "--log-level", "info"),
        *("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
        ready=_PROXY_READY,
        environ={"SLIPSTREAM_WEBSOCKET__COMPRESSION": "true"} if plan.compresses else None,
    ) as match:
        yield match[1]


@contextlib.asynccontextmanager
async def _behind(link: Link, service: Service) -> AsyncIterator[Service]:
    """The same service at the other end of a simulated path."""
    url = URL(service.url)
    assert url.host is not None and url.port is not None
    async with relay.start(link, Address(url.host, url.port)) as address:
        near = url.with_host(address.host).with_port(address.port)
        yield replace(service, url=str(near).rstrip("/"), handshake_seconds=link.handshake_seconds)
