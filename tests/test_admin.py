"""The operator's listener: metrics in the form that was asked for, and probes that cost nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry, Counter

from proxy import admin
from proxy.live import Live

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)

Client = TestClient[web.Request, web.Application]


class State:
    """Whether the process takes new connections."""

    is_ready = True


@pytest.fixture
def state() -> State:
    """The process is ready."""
    return State()


@pytest.fixture
async def client(state: State) -> AsyncIterator[Client]:
    """A client of the operator's listener."""
    registry = CollectorRegistry()
    Counter("things", "Things that were counted.", registry=registry).inc(3)
    application = admin.application(registry, lambda: state.is_ready)
    async with TestClient(TestServer(application)) as client:
        yield client


async def test_admin_shows_metrics_as_text(client: Client) -> None:
    """Whoever asks for nothing in particular gets Prometheus' plain format."""
    answer = await client.get("/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "# TYPE things_total counter\nthings_total 3.0\n" in await answer.text()


async def test_admin_shows_metrics_as_prometheus_wants_them(client: Client) -> None:
    """A real Prometheus asks for OpenMetrics, and gets it."""
    answer = await client.get("/metrics", headers={"Accept": PROMETHEUS})
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    text = await answer.text()
    assert "# TYPE things counter\nthings_total 3.0\n" in text
    assert text.endswith("# EOF\n")


@pytest.mark.parametrize(
    "accept",
    ["text/plain; version=abc", "application/openmetrics-text; version=1.x", "text/plain;version==;", ";;,", "\xff"],
)
async def test_admin_shows_metrics_whatever_is_asked_for(client: Client, accept: str) -> None:
    """A header that makes no sense is answered in the plain format, not with an error."""
    answer = await client.get("/metrics", headers={"Accept": accept})
    assert answer.status == 200
    assert "things_total 3.0" in await answer.text()


async def test_admin_is_alive_and_ready(client: Client, state: State) -> None:
    """Both say so in a word; a process that drains lives and is not ready."""
    for path in ("/livez", "/readyz"):
        answer = await client.get(path)
        assert (answer.status, await answer.text()) == (200, "ok\n")
    state.is_ready = False
    answer = await client.get("/readyz")
    assert (answer.status, await answer.text()) == (503, "draining\n")
    assert (await client.get("/livez")).status == 200
    assert (await client.head("/readyz")).status == 503


async def test_admin_serves_the_live_page_if_there_is_one(client: Client) -> None:
    """It is at the root; without one there is nothing there, and nothing where its events would be."""
    assert [(await client.get(path)).status for path in ("/", "/live/events")] == [404, 404]
    application = admin.application(CollectorRegistry(), lambda: True, Live([("upstream", "http://backend/v1")]))
    async with TestClient(TestServer(application)) as other:
        answer = await other.get("/")
        assert (answer.status, answer.content_type) == (200, "text/html")
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert (await other.get("/livez")).status == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/v1/responses", 404), ("POST", "/metrics", 405), ("DELETE", "/readyz", 405)],
)
async def test_admin_serves_nothing_else(client: Client, method: str, path: str, status: int) -> None:
    """The API is on the other listener."""
    answer = await client.request(method, path)
    assert answer.status == status
