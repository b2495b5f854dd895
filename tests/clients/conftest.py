"""What stands behind the clients: Slipstream, a tap in front of it, and a script behind it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.scripted import Backend, Step, playing
from tests.clients.tap import Tap, tapped
from tests.rig.slipstream import Slipstream, slipstream


@dataclass
class Stage:
    """Everything a client meets.

    Attributes:
        backend: The script.
        proxy: Slipstream.
        tap: What the client connects to.
        start: Starts another Slipstream.
    """

    backend: Backend
    proxy: Slipstream
    tap: Tap
    start: Callable[[], Slipstream]

    @property
    def base_url(self) -> str:
        """The client's base URL."""
        return self.tap.base_url

    def restart(self) -> None:
        """End Slipstream as an operator would, between two turns, and put another in its place."""
        assert self.proxy.server.end() == 0
        self.proxy = self.start()
        self.tap.lead_to(self.proxy.base_url)


#: Sets a stage: steps of the script, the tool that a request must offer to play one, and settings of Slipstream's.
SetStage = Callable[..., Stage]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[SetStage]:
    """Sets a stage for as long as the test lasts."""
    with contextlib.ExitStack() as stack:

        def set_stage(*steps: Step, needs_tool: str | None = None, **settings: str) -> Stage:
            backend = stack.enter_context(playing(*steps, needs_tool=needs_tool))

            def start() -> Slipstream:
                return stack.enter_context(slipstream(tmp_path, backend.base_url, **settings))

            proxy = start()
            return Stage(backend, proxy, stack.enter_context(tapped(proxy.base_url)), start)

        yield set_stage
