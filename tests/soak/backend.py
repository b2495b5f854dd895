"""A SIMULATED backend for the soak: what a request's model is called says how it behaves. It keeps nothing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from typing import Final

from tests.fakes import END, STREAM_HEAD, chunk, completed, created, delta, json_answer

MODELS: Final = ("quick", "drip", "flood", "fail", "cut", "hang")
"""At once; an event every few milliseconds; twenty megabytes; an error instead of a stream; a stream that breaks off; a
stream that never goes on."""

_FLOOD: Final = chunk(delta("x" * 4000)) * 16
_FLOODS: Final = 300


class Backend:
    """It answers, for as long as the context of :meth:`serving` lasts.

    Attributes:
        url: Where.
        open: Connections to it that are open now.
        asked: Requests so far.
    """

    url: str

    def __init__(self) -> None:
        self.open = 0
        self.asked = 0
        self._numbers = itertools.count(1)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Backend]:
        """Listen."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**26)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while await self._answer(reader, writer):
                    pass
        finally:
            self.open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether another one may follow."""
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        model = json.loads(await reader.readexactly(length)).get("model", "quick")
        self.asked += 1
        if model == "fail":
            writer.write(json_answer({"error": {"message": "no", "code": "server_error"}}, status="500 No"))
            await writer.drain()
            return True
        name = f"resp_{next(self._numbers)}"
        writer.write(STREAM_HEAD + chunk(created(name)))
        match model:
            case "drip":
                for number in range(20):
                    writer.write(chunk(delta("word ", number + 1)))
                    await writer.drain()
                    await asyncio.sleep(0.005)
            case "flood":
                for _ in range(_FLOODS):
                    writer.write(_FLOOD)
                    await writer.drain()
            case "cut":
                writer.write(chunk(delta("that is")))
                await writer.drain()
                return False
            case "hang":
                await reader.read(1)  # until the other side leaves
                return False
        writer.write(chunk(completed(name)) + END)
        await writer.drain()
        return True
