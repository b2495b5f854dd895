"""The demo's parts, running: the simulated backend without any delay, and the proxy in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from proxy import app
from proxy.config import Address, Config, Upstream
from proxy.demo import backend, report
from proxy.demo.backend import Backend, Script

TOOL_CALLS = 3


@dataclass(frozen=True, slots=True)
class Place:
    """A simulated backend that listens.

    Attributes:
        backend: It.
        url: Its base URL.
    """

    backend: Backend
    url: str


@pytest.fixture
async def simulation() -> AsyncIterator[Place]:
    """A simulated backend that takes no time and wants three tool calls."""
    simulated = Backend(Script(TOOL_CALLS, token_seconds=0))
    async with backend.start(simulated, Address("127.0.0.1", 0)) as address:
        yield Place(simulated, report.url(address))


@pytest.fixture
async def proxy_url(simulation: Place) -> AsyncIterator[str]:
    """The base URL of the proxy in front of the simulated backend."""
    loopback = Address("127.0.0.1", 0)
    config = Config(upstream=Upstream(url=simulation.url), listen=loopback, admin=loopback)
    async with app.start(config) as running:
        yield report.url(running.listen)
