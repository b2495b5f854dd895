"""`slipstream top` as a command: on a terminal, without one, and without its extra."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec
import pytest

from proxy.config import Address
from proxy.top.feed import admin_url
from proxy.top.updates import Totals
from proxy.top.watch import NotInstalled, watch
from tests.fakes import ask
from tests.live.drive import CANARY
from tests.rig.processes import free_port
from tests.rig.slipstream import COMMAND
from tests.top.pictures import connection, turn, update
from tests.top.stage import PATIENCE, proxy
from tests.top.test_feed import answering

_WITHOUT_EXTRA = "import sys; sys.modules['textual'] = sys.modules['rich'] = None; from proxy.cli import main; main()"


@dataclass
class Terminal:
    """A program on a terminal of 80 columns and 24 lines.

    Attributes:
        process: The program.
        keyboard: The terminal's other end.
        seen: What was written to it.
        news: Something was.
    """

    process: asyncio.subprocess.Process
    keyboard: int
    seen: bytearray = field(default_factory=bytearray)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def press(self, keys: bytes) -> None:
        """Type."""
        os.write(self.keyboard, keys)

    async def until(self, words: bytes) -> None:
        """Wait until something was written."""
        async with asyncio.timeout(PATIENCE):
            while words not in self.seen:
                self.news.clear()
                await self.news.wait()

    async def ended(self) -> int:
        """Its exit code, once it has ended."""
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()


@contextlib.asynccontextmanager
async def terminal(*command: str) -> AsyncIterator[Terminal]:
    """Run a command on a terminal."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    loop = asyncio.get_running_loop()
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SLIPSTREAM_", "TEXTUAL"))}
    process = await asyncio.create_subprocess_exec(
        *command, stdin=its, stdout=its, stderr=its, env={**environ, "TERM": "xterm-256color"}
    )
    os.close(its)
    found = Terminal(process, ours)

    def read() -> None:
        try:
            found.seen.extend(os.read(ours, 65536))
            found.news.set()
        except OSError:  # the program has gone
            loop.remove_reader(ours)

    loop.add_reader(ours, read)
    try:
        yield found
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        loop.remove_reader(ours)
        os.close(ours)


async def run(*command: str, **environment: str) -> tuple[int | None, str, str]:
    """Run a command without a terminal: its exit code, what it said and what it complained of."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLIPSTREAM_")}
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**environ, **environment},
    )
    async with asyncio.timeout(PATIENCE):
        said, complained = await process.communicate()
    return process.returncode, said.decode(), complained.decode()


@pytest.mark.parametrize("end", [b"q", signal.SIGTERM], ids=["q", "SIGTERM"])
async def test_screen_comes_and_goes_with_a_terminal(end: bytes | signal.Signals) -> None:
    """What goes on is seen; it ends with 0 and gives the terminal back as it was."""
    async with proxy() as product, product.connect(user_agent_header="somebody/1.0") as client:
        await ask(client, CANARY)
        async with terminal(str(COMMAND), "top", "--admin", str(product.running.admin)) as seen:
            await seen.until(b"somebody/1.0")
            await seen.until(b"A new conversation")
            if isinstance(end, bytes):
                seen.press(end)
            else:
                seen.process.send_signal(end)
            assert await seen.ended() == 0
            await seen.until(b"\x1b[?1049l")
    assert seen.seen.rindex(b"\x1b[?1049l") > seen.seen.rindex(b"\x1b[?1049h")
    assert CANARY.encode() not in seen.seen


async def test_screen_ends_with_a_reason() -> None:
    """One line, exit code 1, and no screen at all, where there is nothing to watch."""
    async with (
        proxy(live__enabled=False) as product,
        terminal(str(COMMAND), "top", "--admin", str(product.running.admin)) as seen,
    ):
        assert await seen.ended() == 1
        await seen.until(b"live.enabled is false there")
    assert b"\x1b" not in seen.seen
    assert seen.seen.startswith(b"slipstream: 127.0.0.1:")
    assert seen.seen.count(b"\n") == 1


async def test_extra_that_is_missing_is_named() -> None:
    """One line, exit code 1."""
    async with terminal(sys.executable, "-c", _WITHOUT_EXTRA, "top", "--admin", f"127.0.0.1:{free_port()}") as seen:
        assert await seen.ended() == 1
        await seen.until(b"pip install 'slipstream-proxy[tui]'")
    assert seen.seen.startswith(b"slipstream: top needs the extra `tui`")
    assert seen.seen.count(b"\n") == 1


async def test_one_picture_needs_neither_terminal_nor_extra() -> None:
    """Plain text, exit code 0, no content; where only ASCII can be written, too."""
    name = "somebody/1.0 \x9b31m\u202e"
    async with proxy() as product, product.connect(user_agent_header=name) as client:
        await ask(client, CANARY)
        code, said, complained = await run(
            sys.executable,
            *("-c", _WITHOUT_EXTRA, "top", "--once"),
            SLIPSTREAM_ADMIN=str(product.running.admin),
            PYTHONIOENCODING="ascii",
        )
    assert (code, complained) == (0, "")
    assert said.isascii()
    assert "? http://127.0.0.1:" in said
    assert "Connections: 1 open" in said
    assert "somebody/1.0 ?31m?" in said
    assert "A new conversation: it names no response before it." in said
    assert "\x1b" not in said
    assert CANARY not in said


async def test_watching_asks_for_its_extra_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it looks whether there is anything to watch."""
    monkeypatch.setitem(sys.modules, "textual", None)
    with pytest.raises(NotInstalled, match="slipstream-proxy\\[tui\\]"):
        await watch(admin_url(str(Address("127.0.0.1", free_port()))), is_once=False, write=print)


@pytest.mark.parametrize("comes", [True, False])
async def test_one_picture_waits_for_its_rows(monkeypatch: pytest.MonkeyPatch, *, comes: bool) -> None:
    """Those of several workers come after the first snapshot; if they do not come, it is printed without."""
    monkeypatch.setattr("proxy.top.watch._PATIENCE", 0.1)
    sums = Totals(turns=1)
    row = update("snapshot", open=1, totals=sums, connections=(connection("a"),), turns=(turn(1),))
    snapshots = [update("snapshot", open=1, totals=sums), row] if comes else [update("snapshot", open=1, totals=sums)]
    printed: list[str] = []
    async with answering(b"".join(b"data: " + msgspec.json.encode(one) + b"\n\n" for one in snapshots)) as url:
        await watch(url, is_once=True, write=printed.append)
    assert ("client a" in printed[0]) == comes
    assert "Connections: 1 open" in printed[0]
