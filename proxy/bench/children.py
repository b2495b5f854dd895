"""Servers in processes of their own, so that their work is not done by the process that measures."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Mapping
from typing import Final

_PATIENCE: Final = 15.0
"""Seconds that one has to start, and seconds that it has to end."""

_MAX_LINE: Final = 2**20


class DidNotStart(Exception):
    """A server that ended before it listened; ``str()`` says what it wrote."""


@contextlib.asynccontextmanager
async def slipstream(
    *arguments: str, ready: re.Pattern[str], environ: Mapping[str, str] | None = None
) -> AsyncIterator[re.Match[str]]:
    """Run a command of ours that serves, for as long as the context lasts.

    Args:
        arguments: The command, and its options.
        ready: What it writes once it listens.
        environ: Variables besides those of this process.

    Yields:
        The match.

    Raises:
        DidNotStart: it did not come to that.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", *arguments),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        env={**os.environ, **(environ or {})},
        limit=_MAX_LINE,
        start_new_session=True,  # Ctrl-C is for this process, which ends that one when it is done with it
    )
    try:
        match = await _wait(process, ready)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(_read_on(process))
            try:
                yield match
            finally:
                reading.cancel()
    finally:
        await _end(process)


async def _wait(process: Process, ready: re.Pattern[str]) -> re.Match[str]:
    assert process.stdout is not None
    written = ""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            while line := await process.stdout.readline():
                written += line.decode(errors="replace")
                if match := ready.search(written):
                    return match
    raise DidNotStart(written.strip() or "it wrote nothing")


async def _read_on(process: Process) -> None:
    """Read what nobody wants to know, or it would stop at a full pipe."""
    assert process.stdout is not None
    while await process.stdout.read(_MAX_LINE):
        pass


async def _end(process: Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_PATIENCE):
                await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
