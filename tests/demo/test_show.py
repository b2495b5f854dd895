"""The demo as its users run it: as a command of its own, ended by Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
import socket
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from proxy.config import Address
from proxy.demo import report, show
from proxy.demo.backend import Script
from proxy.demo.show import CannotListen, Choices
from proxy.rollout.screen import Screen

PATIENCE = 40.0
"""Seconds after which what a test waits for will not come any more."""


@contextlib.asynccontextmanager
async def command(*arguments: str, **options: Any) -> AsyncIterator[Process]:
    """`slipstream` with these arguments, in a process that does not outlive the test."""
    options = {"stdout": PIPE, "stderr": STDOUT, **options}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "proxy", *arguments, **options)
    try:
        async with asyncio.timeout(PATIENCE):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def read_until(process: Process, word: str) -> str:
    """What the process writes, up to the line with a word in it."""
    assert process.stdout is not None
    text = ""
    while word not in text:
        line = await process.stdout.readline()
        assert line, f"it ended without {word!r}: {text}"
        text += line.decode()
    return text


async def stop(process: Process, number: signal.Signals = signal.SIGINT) -> str:
    """Send a signal; the rest of what it writes, once it has ended with 0 and without a traceback."""
    process.send_signal(number)
    rest = (await process.communicate())[0].decode()
    assert process.returncode == 0
    assert "Traceback" not in rest
    return rest


def words_after(text: str, label: str) -> str:
    """What stands behind a label in its line."""
    found = re.search(rf"{re.escape(label)} +(\S+)", text)
    assert found is not None
    return found[1]


async def test_demo_ends_by_itself_when_told_to() -> None:
    """With --once it shows the table and ends with 0; both rollouts went the same way."""
    async with command("demo", "--once", "--tool-calls", "4", "--token-ms", "0") as process:
        output, _ = await process.communicate()
    text = output.decode()
    assert process.returncode == 0
    assert "plain HTTP: turn 5 of 5" in text
    assert "WebSocket mode: turn 5 of 5" in text
    assert "Same rollout, word for word: 5 turns, 4 tool calls." in text
    assert "SIMULATION" in text
    assert "Ctrl-C" not in text
    assert "\r" not in text


async def test_demo_serves_until_ctrl_c() -> None:
    """Without --once everything it names can be reached, and what it offers to copy works, until Ctrl-C."""
    async with command("demo", "--tool-calls", "1", "--token-ms", "0", "--listen", "127.0.0.1:0") as process:
        text = await read_until(process, "slipstream bench --upstream")
        base = words_after(text, "HTTP base URL")
        curl = shlex.split(report.curl(base))
        assert report.curl(base) in text
        assert report.snippet(base) in text
        async with aiohttp.ClientSession() as session:
            async with session.get(words_after(text, "metrics")) as answer:
                assert "slipstream_" in await answer.text()
            async with session.post(curl[2], data=curl[-1]) as answer:
                assert "response.completed" in await answer.text()
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", report.snippet(base), stdout=PIPE, stderr=STDOUT
        )
        output, _ = await client.communicate()
        assert output.decode().count("Hello! This answer comes from a simulated backend") == 2
        assert "3 input items" in output.decode()
        assert await stop(process) == "\nStopped.\n"


async def test_demo_ends_in_the_middle_of_a_rollout() -> None:
    """Ctrl-C is heeded at any time; asking twice changes nothing."""
    async with command("demo", "--token-ms", "1000", "--listen", "127.0.0.1:0") as process:
        await read_until(process, "told so")
        process.send_signal(signal.SIGINT)
        assert (await stop(process)).endswith("Stopped.\n")


async def test_demo_shows_its_progress_on_a_terminal() -> None:
    """On a terminal the line with the progress is written over."""
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        async with command("demo", "--once", "--tool-calls", "2", "--token-ms", "0", stdout=theirs) as process:
            os.close(theirs)
            text = await asyncio.to_thread(read_all, terminal)
            assert await process.wait() == 0
    assert re.search(r"\r  plain HTTP     \[#+\.+\] turn 1 of 3, [0-9,]+ bytes sent *\r", text)
    assert re.search(r"\r  WebSocket mode \[#{20}\] turn 3 of 3, [0-9,]+ bytes sent *\r\n", text)


def read_all(terminal: Any) -> str:
    """What is written to a terminal until nobody is left who writes."""
    data = b""
    with contextlib.suppress(OSError):  # how a terminal says that nobody is left at its other end
        while more := terminal.read(65536):
            data += more
    return data.decode()


async def test_demo_refuses_an_address_that_is_taken() -> None:
    """An address that was asked for and is taken is an error in one line."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address(*taken.getsockname())
        async with command("demo", "--once", "--listen", str(address)) as process:
            output, _ = await process.communicate()
    assert process.returncode == 1
    assert output.decode().startswith("slipstream: cannot listen: ")
    assert output.count(b"\n") == 1


async def test_demo_refuses_what_is_no_address() -> None:
    """A mistake in an option is told before anything starts."""
    async with command("demo", "--listen", "here") as process:
        output, _ = await process.communicate()
    assert process.returncode == 2
    assert b"expected HOST:PORT" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_backend_serves_alone(number: signal.Signals) -> None:
    """The simulated backend runs without the demo, says what it is, and ends with 0."""
    async with command("demo-backend", "--listen", "127.0.0.1:0", "--token-ms", "0") as process:
        text = await read_until(process, "/v1")
        assert "SIMULATED" in text
        async with aiohttp.ClientSession() as session, session.get(f"{text.split()[-1]}/models") as answer:
            assert answer.status == 200
        await stop(process, number)


def test_address_is_the_usual_one_if_it_is_free() -> None:
    """A free address is taken, one that is in use becomes a port of the system's choice."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address(*taken.getsockname())
        assert show._free(address, None) == Address("127.0.0.1", 0)
    assert show._free(address, None) == address
    assert show._free(address, Address("::1", address.port)) == Address("127.0.0.1", 0)


def test_address_that_does_not_exist_is_an_error() -> None:
    """Only an address in use is passed over; any other trouble is told."""
    with pytest.raises(CannotListen, match="cannot listen: "):
        show._free(Address("192.0.2.1", 8080), None)


async def test_demo_says_which_address_it_took_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the usual addresses are taken there is a note for each."""
    written: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address(*taken.getsockname())
        monkeypatch.setattr(show, "_usual", lambda _name: address)
        choices = Choices(script=Script(1, 0))

        def write(text: str) -> None:
            written.append(text)
            if "Still running" in text:
                os.kill(os.getpid(), signal.SIGINT)

        assert await show.demo(choices, Screen(write, is_terminal=False)) == 0
    notes = [text for text in written if text.startswith("Note: ")]
    assert len(notes) == 2
    assert all(f"{address} is taken" in note for note in notes)
    assert written[-1] == "Stopped.\n"


async def test_load_runs_rollouts_through_a_proxy(proxy_url: str) -> None:
    """As many as it was told, one line for each, then it ends with 0."""
    async with command("demo-load", "--url", proxy_url, "--pause", "0", "--rounds", "2") as process:
        output, _ = await process.communicate()
    assert process.returncode == 0
    assert re.fullmatch(r"(rollout \d: 4 turns in \d+\.\d s\n){2}", output.decode())


async def test_load_goes_on_when_a_rollout_fails() -> None:
    """Without a number it waits for the proxy to come, and ends when it is told to; with one a failure is the end."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://{Address(*taken.getsockname())}/v1"
    async with command("demo-load", "--url", url, "--pause", "0.1") as process:
        await read_until(process, f"rollout 2: no answer from {url}")
        await stop(process, signal.SIGTERM)
    async with command("demo-load", "--url", url, "--rounds", "1") as process:
        output, _ = await process.communicate()
    assert process.returncode == 1
    assert output.decode().startswith("slipstream: no answer from ")
