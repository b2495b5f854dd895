"""The soak: clients of all kinds visit the product for a while, and then nothing of them may be left.

The product runs in processes of its own. What it had after a warm-up of the same kind is compared with what it has at the
end: its memory, open files, and what it says of itself.
"""

from __future__ import annotations

import asyncio
import collections
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from proxy.config import Address
from tests.fakes import Process, get, running
from tests.soak.backend import Backend
from tests.soak.clients import VISITS

_PATIENCE: Final = 60.0
_STORED: Final = 10.0
"""Seconds for which a stored response is kept here."""


@dataclass(frozen=True, slots=True)
class Rest:
    """What there is when nobody visits.

    Attributes:
        resident: Bytes of memory, of all processes together.
        files: Open files and sockets, likewise.
        gauges: What the product says of itself.
    """

    resident: int
    files: int
    gauges: dict[str, float]


@dataclass(slots=True)
class Result:
    """What came of it.

    Attributes:
        before: After the warm-up.
        after: At the end.
        visits: How often each kind of client came.
        failures: What went wrong with clients that behaved.
        slowest: Seconds that `/metrics` took at most while all this went on.
        asked: Requests that the backend got.
    """

    before: Rest
    after: Rest
    visits: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0
    asked: int = 0


_GAUGES: Final = (
    "tasks",
    "connections_open",
    "turns_in_flight",
    "cache_entries",
    "cache_bytes",
    "store_entries",
    "store_bytes",
)


async def soak(
    folder: Path, *, warm_up: float, seconds: float, clients: int, workers: int, say: Callable[[str], object] = bool
) -> Result:
    """Run it.

    Args:
        folder: For the product's configuration and log.
        warm_up: Seconds of load before anything is measured.
        seconds: Seconds of load then.
        clients: How many visit at any time.
        workers: Of the product.
        say: Told now and then how it goes.
    """
    backend = Backend()
    options = {"workers": workers, "response_store__max_age": _STORED, "websocket__write_timeout": 3}
    async with backend.serving(), running(backend.url, folder, **options) as process:
        visits: collections.Counter[str] = collections.Counter()
        failures: list[str] = []
        await _visit(process, clients, warm_up, visits, failures, say)
        before = await _rest(process)
        slowest = await _visit(process, clients, seconds, visits, failures, say)
        after = await _rest(process)
        return Result(before, after, visits, failures, slowest, backend.asked)


async def _visit(
    process: Process,
    clients: int,
    seconds: float,
    visits: collections.Counter[str],
    failures: list[str],
    say: Callable[[str], object],
) -> float:
    """Visits from so many clients at a time; returns how long the operator waited at most."""
    end = time.monotonic() + seconds
    slowest = 0.0

    async def come(number: int) -> None:
        chance = random.Random(number)  # noqa: S311 - the same visits each time
        while time.monotonic() < end:
            (visit,) = chance.choices(list(VISITS), list(VISITS.values()))
            visits[visit.__name__] += 1
            try:
                async with asyncio.timeout(_PATIENCE):
                    await visit(process.address, chance)
            except Exception as exc:  # noqa: BLE001 - whatever it is, it is what is looked for
                failures.append(f"{visit.__name__}: {type(exc).__name__}: {exc}"[:500])

    async with asyncio.TaskGroup() as tasks:
        for number in range(clients):
            tasks.create_task(come(number))
        while time.monotonic() < end:
            began = time.monotonic()
            await get(process.admin, "/metrics")
            slowest = max(slowest, time.monotonic() - began)
            say(f"{sum(visits.values())} visits, {len(failures)} failed, {end - time.monotonic():.0f} s to go")
            await asyncio.sleep(min(5.0, seconds / 4))
    return slowest


async def _rest(process: Process) -> Rest:
    """What is left, once the product has had the time to put it away."""
    async with asyncio.timeout(_PATIENCE):
        while (gauges := await _gauges(process.admin))["connections_open"] or gauges["turns_in_flight"]:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    await asyncio.sleep(_STORED + 5)  # stored responses are old now, and kept connections of the backend's are closed
    gauges = await _gauges(process.admin)
    uses = [_use(number) for number in _family(process.process.pid)]
    resident, files = (sum(column) for column in zip(*uses, strict=True))
    return Rest(resident, files, {name: gauges[name] for name in _GAUGES})


def _use(number: int) -> tuple[int, int]:
    """Bytes of memory and open files of a process."""
    status = Path(f"/proc/{number}/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024, len(list(Path(f"/proc/{number}/fd").iterdir()))


async def _gauges(admin: Address) -> dict[str, float]:
    _, body = await get(admin, "/metrics")
    lines = [line.split(" ") for line in body.decode().splitlines() if line[:1] != "#" and "{" not in line]
    return {name.removeprefix("slipstream_"): float(value) for name, value in lines}


def _family(number: int) -> list[int]:
    children = Path(f"/proc/{number}/task/{number}/children").read_text(encoding="ascii").split()
    return [number, *map(int, children)]
