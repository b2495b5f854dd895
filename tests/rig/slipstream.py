"""Slipstream as its users run it: the installed command, in a process of its own."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2

from tests.rig.processes import Server, serving, wait_until

COMMAND: Final = Path(sys.executable).with_name("slipstream")

_READY: Final = re.compile(r'^\{.*"event":"listening".*\}$', re.MULTILINE)

_numbers = itertools.count()


@dataclass(frozen=True)
class Slipstream:
    """A running proxy.

    Attributes:
        base_url: What a client's base URL is.
        admin_url: Its operator's address.
        server: Its process.
    """

    base_url: str
    admin_url: str
    server: Server

    def lines(self, event: str) -> list[dict[str, Any]]:
        """What it has logged of one kind so far."""
        whole, _, _ = self.server.output().rpartition("\n")
        lines = (json.loads(line) for line in whole.splitlines() if line.startswith("{"))
        return [line for line in lines if line["event"] == event]

    def turns(self, count: int) -> list[dict[str, Any]]:
        """The log lines of the turns, once there are that many."""
        assert wait_until(lambda: len(self.lines("turn")) >= count), self.server.output()
        return self.lines("turn")

    def metrics(self) -> str:
        """What it counts."""
        return httpx2.get(f"{self.admin_url}/metrics", timeout=30).raise_for_status().text


@contextlib.contextmanager
def slipstream(folder: Path, upstream: str | None, *options: str, **settings: str) -> Iterator[Slipstream]:
    """Run `slipstream serve`, without a configuration file unless the options name one.

    Args:
        folder: Where its log goes.
        upstream: The backend's base URL; None if the options say it.
        options: Further options.
        settings: Values of the configuration by path, dots written as two underscores.
    """
    log = folder / f"slipstream-{next(_numbers)}.log"
    command = [str(COMMAND), "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    if upstream is not None:
        command += ["--upstream", upstream]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLIPSTREAM_")}
    environ |= {f"SLIPSTREAM_{path.upper()}": value for path, value in settings.items()}
    with serving(
        [*command, "--log-format", "json", *options], log=log, ready=_READY, environ=environ, cwd=folder
    ) as server:
        line = json.loads(server.ready[0])
        yield Slipstream(line["url"], line["admin"], server)
