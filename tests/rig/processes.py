"""Servers as processes of their own: started, waited for, and ended whatever happens."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

_STEP: Final = 0.02
"""Seconds between two looks at something that is waited for."""

_PATIENCE: Final = 60.0
"""Seconds that a process has to end when it is asked to."""

_TAIL: Final = 4000


class DidNotStart(Exception):
    """A server that ended, or said nothing, before it was ready.

    Args:
        command: How it was started.
        returncode: How it ended; None if it was still there.
        output: What it had written.
    """

    def __init__(self, command: Sequence[str], returncode: int | None, output: str) -> None:
        super().__init__(f"{command[0]} was not ready (exit code {returncode}):\n{output[-_TAIL:]}")
        self.returncode = returncode


class Server:
    """A process that serves.

    Args:
        process: The process.
        log: The file that takes what it writes.

    Attributes:
        pid: Its number.
        ready: The match of the line that said it was ready.
    """

    ready: re.Match[str]

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._log = log

    def output(self) -> str:
        """What it has written so far."""
        return self._log.read_text(errors="replace")

    def wait_for(self, pattern: re.Pattern[str], seconds: float) -> re.Match[str] | None:
        """The first match in its output; None if it ended, or the time did, without one."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            ended = self._process.poll() is not None
            found.extend(pattern.finditer(self.output()))
            return bool(found) or ended

        wait_until(look, seconds)
        return found[0] if found else None

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it as a crash does (SIGKILL), and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        """Ask it to end, then make it; its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self._process.wait()


@contextlib.contextmanager
def serving(
    command: Sequence[str],
    *,
    log: Path,
    ready: re.Pattern[str],
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    seconds: float = 60,
) -> Iterator[Server]:
    """Run a server for as long as the context lasts.

    Args:
        command: What to run.
        log: A new file for its output.
        ready: What it writes once it can be used.
        environ: Its environment; by default this process's.
        cwd: Its working directory.
        seconds: How long it may take to start.

    Raises:
        DidNotStart: it ended or the time was over before it was ready.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ, cwd=cwd
        )
    server = Server(process, log)
    try:
        match = server.wait_for(ready, seconds)
        if match is None:
            raise DidNotStart(command, process.poll(), server.output())
        server.ready = match
        yield server
    finally:
        server.end()


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> bool:
    """Look until a condition holds; False if the time is over first."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(_STEP)
    return True


def free_port() -> int:
    """A port that nobody listens on now: for servers that do not say which one they chose."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
