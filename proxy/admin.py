"""The operator's listener: the live page, metrics and probes, apart from the clients' so that it can stay private."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from proxy import livepage


def application(
    registry: CollectorRegistry,
    is_ready: Callable[[], bool],
    live: livepage.Picture | None = None,
    refresh: Callable[[], Awaitable[None]] | None = None,
) -> web.Application:
    """The aiohttp application of the operator's listener.

    Args:
        registry: What `/metrics` shows.
        is_ready: Whether new connections are taken.
        live: What the page at `/` shows; None for no page.
        refresh: Brings the registry up to date before it is shown; None where it always is.
    """

    async def metrics(request: web.Request) -> web.Response:
        try:
            encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        except (TypeError, ValueError):  # a version that is no version; the plain format is right for anybody
            encode, content_type = choose_encoder("")
        if refresh is not None:
            await refresh()
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    async def livez(_: web.Request) -> web.Response:
        """The event loop runs: that it answers is the answer."""
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        """503 while the process drains, so that balancers stop sending."""
        return web.Response(text="ok\n") if is_ready() else web.Response(status=503, text="draining\n")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    if live is not None:
        livepage.add_routes(app, live)
    return app
