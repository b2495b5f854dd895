"""The live page: one file, the events that feed it, and what turns said where an operator wants to look at that.

The page may run its own script and style and nothing else (their hashes are in its Content-Security-Policy), may connect
to where it came from only, and cannot be framed. What turns said is answered to requests by an address or as `localhost`
only: a page elsewhere whose name leads here (DNS rebinding) has another name.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import ipaddress
import re
from contextlib import AbstractContextManager
from importlib import resources
from typing import Final, Protocol

from aiohttp import web
from yarl import URL

from proxy.watchers import TooManyWatchers, Watcher

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_HEARTBEAT: Final = 15.0
"""Seconds of silence after which a comment is sent, so that whoever is gone is noticed."""
_PATIENCE: Final = 30.0
"""Seconds that a watcher may take to read one update."""


class Picture(Protocol):
    """What goes on now: of this process, or of several."""

    inspects: bool
    """Whether what turns said may be looked at."""

    async def prepare(self) -> None:
        """Make a snapshot cheap."""

    def watch(self) -> AbstractContextManager[Watcher]:
        """Be told, for as long as the context lasts.

        Raises:
            TooManyWatchers: there are enough already.
        """

    async def inspection(self, connection_id: str, turn: int, *, shows_text: bool) -> bytes | None:
        """What one of the last turns said, as JSON; None if that is not kept."""

    def close(self) -> None:
        """Let all watchers go."""


def add_routes(application: web.Application, live: Picture) -> None:
    """Serve the page.

    Args:
        application: Where.
        live: What it shows.
    """
    page = _Page(live)
    application.router.add_get("/", page.show, allow_head=False)
    application.router.add_get("/live/events", page.events, allow_head=False)
    application.router.add_get(r"/live/turns/{connection}/{turn:\d{1,9}}", page.inspect, allow_head=False)
    application.on_shutdown.append(page.close)


def policy(html: str) -> str:
    """The Content-Security-Policy of a page with one script and one style."""
    script, style = _inline("script", html), _inline("style", html)
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class _Page:
    def __init__(self, live: Picture) -> None:
        self._live = live
        self._html = resources.files("proxy").joinpath("live.html").read_text(encoding="utf-8")
        self._headers = {**_HEADERS, "Content-Security-Policy": policy(self._html)}

    async def show(self, _: web.Request) -> web.Response:
        return web.Response(text=self._html, content_type="text/html", charset="utf-8", headers=self._headers)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events for as long as somebody reads them."""
        await self._live.prepare()
        try:
            with self._live.watch() as watcher:
                response = web.StreamResponse(
                    headers={**_HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
                )
                await response.prepare(request)
                with contextlib.suppress(ConnectionError, TimeoutError):  # it has gone, or reads no more
                    await _send(watcher, response)
                return response
        except TooManyWatchers:
            return web.Response(status=503, text="too many pages are open\n", headers={**_HEADERS, "Retry-After": "10"})

    async def inspect(self, request: web.Request) -> web.Response:
        """What one turn said: masked, unless `text=1` asks for it as it is."""
        if not self._live.inspects:
            return web.Response(status=404, text="live.inspect is off\n", headers=_HEADERS)
        if not _is_addressed_directly(request.headers.get("Host", "")):
            text = "What turns said is shown at an IP address or localhost only.\n"
            return web.Response(status=403, text=text, headers=_HEADERS)
        found = await self._live.inspection(
            request.match_info["connection"],
            int(request.match_info["turn"]),
            shows_text=request.query.get("text") == "1",
        )
        if found is None:
            return web.Response(status=404, text="not kept\n", headers=_HEADERS)
        return web.Response(body=found, content_type="application/json", headers=_HEADERS)

    async def close(self, _: web.Application) -> None:
        self._live.close()


async def _send(watcher: Watcher, response: web.StreamResponse) -> None:
    """Send all updates.

    Raises:
        TimeoutError: an update was not read in time.
    """
    while True:
        message = b":\n\n"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HEARTBEAT):
                update = await watcher.next()
                if update is None:
                    return
                message = b"data: " + update + b"\n\n"
        async with asyncio.timeout(_PATIENCE):
            await response.write(message)


def _is_addressed_directly(host: str) -> bool:
    try:
        name = URL(f"http://{host}").host or ""
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _inline(tag: str, html: str) -> str:
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    assert len(found) == 1, f"the page has one <{tag}>"
    return str(found[0])


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
