"""The feed of a live page: read over HTTP, lost and found again, or not there at all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from proxy.top import feed as module
from proxy.top.feed import CannotWatch, Feed, Lost, NotSaid, admin_url
from proxy.top.updates import Update
from proxy.watchers import MAX_WATCHERS
from tests.fakes import Product, ask
from tests.live.drive import CANARY
from tests.rig.processes import free_port
from tests.top.pictures import turn
from tests.top.stage import PATIENCE, proxy

SNAPSHOT = (
    b'data: {"kind":"snapshot","now":1,"open":0,"totals":{},"backends":[{"name":"b"}],"connections":[],"turns":[]}\n\n'
)
Answer = Callable[[web.Request], AsyncIterator[bytes]]


@contextlib.asynccontextmanager
async def following(url: URL | str) -> AsyncIterator[tuple[Feed, AsyncIterator[Update | Lost]]]:
    """A feed that is followed, with short pauses."""
    async with aiohttp.ClientSession() as session:
        feed = Feed(session, URL(str(url)), first_pause=0.01)
        async with contextlib.aclosing(feed.updates()) as updates, asyncio.timeout(PATIENCE):
            yield feed, updates


@contextlib.asynccontextmanager
async def answering(*answers: bytes | web.Response, cuts: bool = False) -> AsyncIterator[URL]:
    """A server that answers so, one after the other and the last again and again; `cuts` breaks off behind each."""
    left = list(answers)

    async def handle(request: web.Request) -> web.StreamResponse:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, web.Response):
            return web.Response(status=answer.status, body=answer.body, headers=answer.headers)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(answer)
        if cuts:
            assert request.transport is not None
            request.transport.abort()
        return response

    application = web.Application()
    application.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield URL.build(scheme="http", host=host, port=port)
    finally:
        await runner.cleanup()


def admin_of(product: Product) -> URL:
    """Where a proxy's live page is."""
    return admin_url(str(product.running.admin))


async def changed(updates: AsyncIterator[Update | Lost]) -> Update:
    """The next update with turns."""
    while True:
        update = await anext(updates)
        assert isinstance(update, Update)
        if update.turns:
            return update


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9100", "http://127.0.0.1:9100"),
        ("proxy.example:80", "http://proxy.example"),
        (":9100", "http://127.0.0.1:9100"),
        ("0.0.0.0:9100", "http://127.0.0.1:9100"),
        ("[::]:9100", "http://[::1]:9100"),
        ("https://h.example/slip?x=1#y", "https://h.example/slip"),
    ],
)
def test_page_has_an_address(text: str, expected: str) -> None:
    """As in the configuration, or a URL; who listens everywhere is asked here."""
    assert str(admin_url(text)) == expected


@pytest.mark.parametrize("text", ["", "9100", "host", "ftp://h:1", "http://", "http://h:x", "a:99999"])
def test_other_words_are_no_address(text: str) -> None:
    """With what was expected."""
    with pytest.raises(ValueError, match=r"expected HOST:PORT|port|Port"):
        admin_url(text)


async def test_feed_of_a_proxy_is_followed() -> None:
    """All there is, then what changes."""
    async with proxy() as product, following(admin_of(product)) as (_, updates), product.connect() as client:
        first = await anext(updates)
        assert isinstance(first, Update)
        assert (first.kind, first.turns) == ("snapshot", ())
        await ask(client)
        update = await changed(updates)
        assert update.totals.turns == 1
        assert update.turns[0].why == "A new conversation: it names no response before it."


async def test_lost_feed_is_asked_for_again() -> None:
    """With pauses that grow, until it is there, and then with the first pause again; words say how it was lost."""
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(_closing(proxy(admin=f"127.0.0.1:{port}")))
        _, updates = await stack.enter_async_context(following(f"http://127.0.0.1:{port}"))
        assert isinstance(await anext(updates), Update)
        await first()
        assert await anext(updates) == Lost("it has ended", 0.01)
        lost = [await anext(updates) for _ in range(3)]
        assert lost == [Lost("Connection refused", 0.02 * 2**at) for at in range(3)]
        second = await stack.enter_async_context(_closing(proxy(admin=f"127.0.0.1:{port}")))
        while isinstance(update := await anext(updates), Lost):
            pass
        assert update.kind == "snapshot"
        await second()
        assert await anext(updates) == Lost("it has ended", 0.01)


@contextlib.asynccontextmanager
async def _closing(
    context: contextlib.AbstractAsyncContextManager[Product],
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """A context that can be left early, by a call."""
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(context)
        yield stack.aclose


async def test_pauses_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a proxy is away, it is found soon after it has come back."""
    monkeypatch.setattr(module, "_MAX_PAUSE", 0.03)
    refused = web.Response(status=503)
    async with answering(SNAPSHOT, refused) as url, following(url) as (_, updates):
        pauses = [update.pause for _ in range(5) if isinstance(update := await anext(updates), Lost)]
    assert pauses == [0.01, 0.02, 0.03, 0.03]


async def test_broken_connection_is_a_loss() -> None:
    """As is one that ends in order."""
    async with answering(SNAPSHOT, cuts=True) as url, following(url) as (_, updates):
        assert isinstance(await anext(updates), Update)
        assert await anext(updates) == Lost("the connection broke", 0.01)
        assert isinstance(await anext(updates), Update)


async def test_silence_is_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that is gone says nothing; a live page does, every few seconds."""
    monkeypatch.setattr(module, "_SILENCE_SECONDS", 0.05)
    async with proxy() as product, following(admin_of(product)) as (_, updates):
        assert isinstance(await anext(updates), Update)
        assert await anext(updates) == Lost("nothing was heard for too long", 0.01)


async def test_too_many_watchers_end_it_at_first_only() -> None:
    """Who has watched before waits for a place."""
    async with proxy() as product, contextlib.AsyncExitStack() as stack:
        admin = admin_of(product)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        _, updates = await stack.enter_async_context(following(admin))
        await anext(updates)
        for _ in range(MAX_WATCHERS - 1):
            await stack.enter_async_context(session.get(admin / "live" / "events"))
        async with following(admin) as (_, refused):
            with pytest.raises(CannotWatch, match=r"no live page at .*: too many watch it already"):
                await anext(refused)
    async with answering(SNAPSHOT, web.Response(status=503), SNAPSHOT) as url, following(url) as (_, updates):
        found = [await anext(updates) for _ in range(4)]
    assert [update.reason if isinstance(update, Lost) else update.kind for update in found] == [
        "snapshot",
        "it has ended",
        "too many watch it already",
        "snapshot",
    ]


async def test_proxy_without_a_page_ends_it() -> None:
    """It says which option that is."""
    async with proxy(live__enabled=False) as product, following(admin_of(product)) as (_, updates):
        with pytest.raises(CannotWatch, match=r"has no live page: .* live\.enabled is false"):
            await anext(updates)


async def test_page_that_is_taken_away_ends_it() -> None:
    """A proxy that came back without it."""
    async with answering(SNAPSHOT, web.Response(status=404)) as url, following(url) as (_, updates):
        assert [type(await anext(updates)) for _ in range(2)] == [Update, Lost]
        with pytest.raises(CannotWatch):
            await anext(updates)


async def test_nobody_there_ends_it() -> None:
    """What the system says, and where."""
    async with following(f"http://127.0.0.1:{free_port()}") as (_, updates):
        with pytest.raises(CannotWatch, match=r"no live page at 127\.0\.0\.1:\d+: Connection refused"):
            await anext(updates)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (web.Response(text="<html>", content_type="text/html"), r"answers 200 \(text/html\)"),
        (web.Response(status=302, headers={"Location": "/login"}), r"answers 302"),
        (web.Response(status=401), r"answers 401"),
        (b"data: {}\n\n", r"cannot be read"),
        (b"data: <html>\n\n", r"cannot be read"),
        (b"", r"it has ended"),
    ],
)
async def test_other_servers_end_it(answer: bytes | web.Response, words: str) -> None:
    """Whatever listens there, it is no live page."""
    async with answering(answer) as url, following(url) as (_, updates):
        with pytest.raises(CannotWatch, match=words):
            await anext(updates)


async def test_updates_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never ends its event fills no memory."""
    monkeypatch.setattr(module, "_MAX_UPDATE_BYTES", 1000)
    async with answering(b"data: " + b"x" * 3000) as url, following(url) as (_, updates):
        with pytest.raises(CannotWatch, match="too long"):
            await anext(updates)


async def test_what_turns_said_is_asked_for() -> None:
    """Masked, or as it is; of a turn that is known."""
    async with proxy(live__inspect=True) as product, following(admin_of(product)) as (feed, updates):
        async with product.connect() as client:
            await ask(client, CANARY)
            update = await changed(updates)
        (found,) = update.turns
        masked, shown = [await feed.said(found, shows_text=shows_text) for shows_text in (False, True)]
        assert (masked.masked, shown.masked) == (True, False)
        assert CANARY not in repr(masked)
        assert CANARY in repr(shown.sent)
        assert CANARY in repr(shown.upstream)
        with pytest.raises(NotSaid, match="Nothing is kept of this turn"):
            await feed.said(turn(1, "/../../metrics?"), shows_text=True)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (web.Response(status=403, text="only there\n"), r"The proxy refuses: only there$"),
        (web.Response(text="{}"), "cannot be read"),
    ],
)
async def test_what_turns_said_may_be_refused(answer: web.Response, words: str) -> None:
    """With the proxy's reason."""
    async with answering(answer) as url, following(url) as (feed, _):
        with pytest.raises(NotSaid, match=words):
            await feed.said(turn(1), shows_text=False)


async def test_what_turns_said_needs_an_answer() -> None:
    """A proxy that is gone has none."""
    async with following(f"http://127.0.0.1:{free_port()}") as (feed, _):
        with pytest.raises(NotSaid, match="does not answer"):
            await feed.said(turn(1), shows_text=False)
