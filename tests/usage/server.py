"""An HTTP server that takes records, or does not: as a test tells it."""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import Any, Literal, Self

from aiohttp import web

from tests.fakes import eventually


class Receiver:
    """A server that keeps what it takes. Use as an async context manager; it can be entered again, at the same port.

    Attributes:
        mood: A status to answer with, or `hang` for no answer at all.
        records: The records of batches that were answered with 2xx, in order.
        batches: How many were in each of them.
        requests: Headers of all requests, in order.
    """

    def __init__(self) -> None:
        self.mood: int | Literal["hang"] = 200
        self.records: list[dict[str, Any]] = []
        self.batches: list[int] = []
        self.requests: list[Any] = []
        self._port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._port}/usage"

    @property
    def turns(self) -> list[tuple[str, int]]:
        """The turns that it knows of."""
        return [(record["connection_id"], record["turn"]) for record in self.records]

    async def __aenter__(self) -> Self:
        application = web.Application(client_max_size=2**30)
        application.router.add_post("/usage", self._handle)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def received(self, count: int) -> None:
        """Wait until it has taken so many records."""
        await eventually(lambda: len(self.records) >= count)

    async def _handle(self, request: web.Request) -> web.Response:
        self.requests.append(request.headers)
        records = json.loads(await request.read())["records"]
        if self.mood == "hang":
            await asyncio.Event().wait()
        assert self.mood != "hang"
        if 200 <= self.mood < 300:
            self.records += records
            self.batches.append(len(records))
        return web.Response(status=self.mood, headers={"Location": "/usage"})
