"""One agent rollout from its first turn to its last, and what it took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiohttp

from proxy.rollout.dialogue import Dialogue, Object, Reply, RolloutFailed, Service, Terms, Way
from proxy.rollout.meter import Meter

TURN_TIMEOUT: Final = 60.0
"""Seconds after which a turn is given up, so that a demo never hangs."""


class Task(Protocol):
    """What a rollout is about."""

    @property
    def terms(self) -> Terms:
        """What every turn says again."""
        ...

    def opening(self) -> list[Object]:
        """The items of the first turn."""
        ...

    def after(self, output: list[Object], turn: int) -> list[Object]:
        """The items of the next turn.

        Args:
            output: The items of the last one's answer.
            turn: How many turns there were, from 1.

        Returns:
            None of them if the rollout is over.
        """
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn took, in seconds, one after the other.

    Attributes:
        setup: Setting up its connection, if it needed one.
        wait: From there (or from before its request was built) to its first event.
        stream: From there to its end.
        usage: What the backend says that it used; empty if it says nothing.
    """

    setup: float
    wait: float
    stream: float
    usage: Object

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.setup + self.wait + self.stream

    def tokens(self, name: str, part: str = "") -> int | None:
        """A number of its usage; None where the backend says nothing of it.

        Args:
            name: `input_tokens` or `output_tokens`.
            part: The member of its details, or empty for all.
        """
        value = (self.usage.get(f"{name}_details") or {}).get(part) if part else self.usage.get(name)
        return value if isinstance(value, int) else None


@dataclass(frozen=True, slots=True)
class Measured:
    """What one rollout took.

    Attributes:
        meter: What the client's sockets and its HTTP library saw, from before the first connection until after the last.
        turns: Each turn; at least one.
        total_seconds: From before the connection to the end of the last turn, connection set-up and tools included.
        story: What the agent said and did, without ids; the same for rollouts that went the same way.
    """

    meter: Meter
    turns: list[Turn]
    total_seconds: float
    story: list[tuple[str, ...]]

    @property
    def tool_calls(self) -> int:
        """How many tools were called."""
        return sum(kind == "function_call" for kind, *_ in self.story)

    def tokens(self, name: str, part: str = "") -> int | None:
        """The sum over all turns; see :meth:`Turn.tokens`."""
        counts = [turn.tokens(name, part) for turn in self.turns]
        return None if None in counts else sum(count or 0 for count in counts)


Observe = Callable[[int, Meter], None]
"""Told after each turn: how many turns there were, and what was counted so far."""


async def measure(
    way: Way,
    service: Service,
    task: Task,
    observe: Observe,
    *,
    pause: float = 0,
    timeout: float = TURN_TIMEOUT,  # noqa: ASYNC109 - of a turn, and not of all
) -> Measured:
    """Run a rollout.

    Args:
        way: How to talk.
        service: To whom.
        task: About what.
        observe: Told after each turn.
        pause: Seconds between two turns: what the tools take.
        timeout: Seconds after which a turn is given up.

    Raises:
        RolloutFailed: a turn did not end as it should, or took too long.
    """
    meter = Meter(service.handshake_seconds)
    turns: list[Turn] = []
    story: list[tuple[str, ...]] = []
    began = time.perf_counter()
    try:
        async with way(meter, service, task.terms) as dialogue:
            new = task.opening()
            while new:
                async with asyncio.timeout(timeout):
                    reply, turn = await _timed(dialogue, new, meter, is_first=not turns)
                turns.append(turn)
                story += [_chapter(item) for item in reply.output]
                new = task.after(reply.output, len(turns))
                observe(len(turns), meter)
                if new and pause:
                    await asyncio.sleep(pause)
            total_seconds = time.perf_counter() - began
    except TimeoutError as exc:
        raise RolloutFailed(f"a turn at {service.url} took longer than {timeout:g} s") from exc
    except (aiohttp.ClientError, ConnectionError) as exc:
        raise RolloutFailed(f"no answer from {service.url}: {exc}") from exc
    assert meter.sent_bytes, "only asyncio's own event loop sends through the sockets that count"
    return Measured(meter, turns, total_seconds, story)


async def _timed(dialogue: Dialogue, new: list[Object], meter: Meter, *, is_first: bool) -> tuple[Reply, Turn]:
    """Take a turn; a WebSocket was set up before the first one, and that is counted to it."""
    before = meter.setup_seconds
    began = time.perf_counter()
    reply = await dialogue.ask(new)
    ended = time.perf_counter()
    setup = meter.setup_seconds - before
    wait = reply.first_event - began - setup
    usage = reply.response.get("usage") or {}
    return reply, Turn(setup + before if is_first else setup, wait, ended - reply.first_event, usage)


def _chapter(item: Object) -> tuple[str, ...]:
    if item["type"] == "function_call":
        return item["type"], item["name"], item["arguments"]
    parts: list[Any] = item.get("content") or item.get("summary") or []
    return item["type"], *(part.get("text") or "" for part in parts)
