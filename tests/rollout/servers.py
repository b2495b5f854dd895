"""Servers that answer as a test wants."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from aiohttp import web

from proxy.config import Address

Handler = Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """A server that answers everything in one way; gives its base URL."""
    runner = web.ServerRunner(web.Server(handler))  # type: ignore[arg-type] # a handler of whole requests is one of base requests
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://{Address(*runner.addresses[0])}/v1"
    finally:
        await runner.cleanup()
