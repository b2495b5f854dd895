"""Logs of a real process with real traffic: how many lines, and what is never in them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator

import aiohttp

from tests.dialogue import Backend, hold

PATIENCE = 20.0


class Served:
    """A `slipstream serve` of its own.

    Attributes:
        url: The API's base URL.
        lines: Its lines on standard error so far.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self.url = ""
        self.lines: list[bytes] = []

    async def wait_until_listening(self) -> None:
        """Until it says where it listens."""
        while not self.url:
            line = json.loads(await self._read())
            self.url = line.get("url", "")

    async def stop(self) -> int:
        """Ask it to end; its exit code."""
        self._process.send_signal(signal.SIGTERM)
        while await self._read():
            pass
        return await self._process.wait()

    async def _read(self) -> bytes:
        assert self._process.stderr is not None
        line = await self._process.stderr.readline()
        if line:
            self.lines.append(line)
        return line


@contextlib.asynccontextmanager
async def serving(*arguments: str, **environment: str) -> AsyncIterator[Served]:
    """Run `slipstream serve` on ports that the system chooses."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLIPSTREAM_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *arguments),
        env={**inherited, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            served = Served(process)
            await served.wait_until_listening()
            yield served
    finally:
        if process.returncode is None:
            process.kill()
        assert process.stdout is not None
        assert await process.stdout.read() == b""
        await process.wait()


async def send_raw(url: str, data: bytes) -> None:
    """Send bytes to the server and read until it closes."""
    host, _, port = url.removeprefix("http://").partition("/")[0].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    await reader.read()
    writer.close()
    await writer.wait_closed()


async def test_product_writes_a_line_a_turn_and_a_connection() -> None:
    """A real process with real traffic: exactly those lines at `info`, each valid JSON, and an orderly end."""
    async with Backend() as backend, serving("--upstream", backend.url, "--log-format", "json") as served:
        async with aiohttp.ClientSession() as session:
            clients = [await hold(session, served.url, f"Hello {number}", {}) for number in range(2)]
            await clients[0].socket.close()
            await session.ws_connect(f"{served.url}/responses")
        assert await served.stop() == 0
        lines = [json.loads(line) for line in served.lines]
        events = [line["event"] for line in lines]
        assert events[0] == "listening"
        assert events[-1] == "stopped"
        assert sorted(events[1:-1]) == sorted(["turn"] * 14 + ["connection"] * 3 + ["draining"])
        ids = {line["connection_id"]: line["turns"] for line in lines if line["event"] == "connection"}
        assert sorted(ids.values()) == [0, 7, 7]
        turns = [(line["connection_id"], line["turn"]) for line in lines if line["event"] == "turn"]
        assert sorted(turns) == sorted((name, number + 1) for name, count in ids.items() for number in range(count))
        first = next(line for line in lines if line["event"] == "turn")
        assert (first["outcome"], first["upstream_status"], first["input_tokens"]) == ("completed", 200, 10)


async def test_product_writes_no_secret_and_no_message() -> None:
    """Even at `debug` neither a client's credential nor anything that was said is in any line."""
    said, key = "The eagle lands at midnight", "sk-client-0123456789"
    headers = {"Authorization": f"Bearer {key}", "Cookie": f"session={key}", "OpenAI-Organization": "org-plain"}
    protocols = ("realtime", f"openai-insecure-api-key.{key}")
    async with Backend() as backend, aiohttp.ClientSession(headers=headers) as session:
        async with serving("--upstream", backend.url, "--log-format", "json", "--log-level", "debug") as served:
            client = await hold(session, served.url, said, {})
            await client.ask("data:image/png;base64,iVBORw0KGgo", previous_response_id=f"{said}\n", model=key)
            async with session.post(f"{served.url}/responses?api_key={key}", json={"input": said}) as answer:
                assert answer.status == 200
            async with session.get(f"{served.url}/nothing/here?key={key}") as answer:
                assert answer.status == 404
            await (await session.ws_connect(f"{served.url}/responses?api_key={key}", protocols=protocols)).close()
            await send_raw(served.url, f'{{"input": "{said}"}}\r\n\r\n'.encode())
            await send_raw(served.url, f"GET / HTTP/1.1\r\nX Y: {key}\r\n\r\n".encode())
            await client.socket.close()
            assert await served.stop() == 0
        assert all(authorization == f"Bearer {key}" for authorization in backend.authorizations)
        text = b"".join(served.lines).decode()
        lines = [json.loads(line) for line in served.lines]
    assert len([line for line in lines if line["event"] == "turn"]) == 8
    assert len([line for line in lines if line["event"] == "connection"]) == 2
    # The id that the client chose is the one thing of its own that may be there.
    assert text.count(said) == 1
    for secret in (key, "Answer", "iVBOR", "org-plain", "midnight again", "otherwise"):
        assert secret not in text


async def test_product_hides_the_operators_key() -> None:
    """The key of the configuration reaches the backend and no line."""
    key = "operator-0123456789"
    async with (
        Backend() as backend,
        aiohttp.ClientSession() as session,
        serving("--log-level", "debug", "--upstream", backend.url, SLIPSTREAM_UPSTREAM__API_KEY=key) as served,
    ):
        await (await hold(session, served.url, "Hello", {})).socket.close()
        assert await served.stop() == 0
    assert backend.authorizations == [f"Bearer {key}"] * 4
    assert key.encode() not in b"".join(served.lines)
