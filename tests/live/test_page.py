"""The page as an operator sees it: a real browser, a real proxy, the demo's backend, clients that do something."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.config import Address
from proxy.demo import backend, report
from proxy.demo.backend import Backend, Script
from tests.live.drive import CANARY, ask, busy, open_socket
from tests.live.png import colours
from tests.rig.browser import Page, browsing, chromium
from tests.rig.processes import free_port
from tests.rig.slipstream import Slipstream, slipstream

pytestmark = pytest.mark.observability

PICTURES = Path(__file__).parents[2] / ".cache"

Scene = tuple[Slipstream, Page]


@contextlib.asynccontextmanager
async def scene(folder: Path, token_seconds: float = 0.001, **settings: str) -> AsyncIterator[Scene]:
    """A proxy before a simulated backend, and a browser that has its page open."""
    if chromium() is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is not installed")
        pytest.skip("chromium is not installed")
    simulated = Backend(Script(6, token_seconds))
    async with backend.start(simulated, Address("127.0.0.1", 0)) as address:
        with slipstream(folder, report.url(address), **settings) as product:
            async with browsing(folder) as page:
                await page.size(1440, 900)
                yield product, page


async def show(product: Slipstream, page: Page) -> None:
    """Open the page."""
    await page.call("Page.navigate", url=f"{product.admin_url}/")
    await page.until("document.querySelector('#state')?.dataset.state === 'live'")


async def picture(page: Page, scheme: str) -> tuple[bytes, bytes]:
    """A screenshot in light or dark, and its most frequent colour."""
    await page.prefer(scheme)
    await asyncio.sleep(0.3)
    png = await page.screenshot()
    width, height, found = colours(png)
    assert (width, height) == (1440, 900)
    assert len(found) > 100  # there is something in it
    ((ground, count),) = found.most_common(1)
    assert count < width * height * 0.9
    return png, ground


async def test_page_shows_a_run(tmp_path: Path) -> None:
    """Connections, turns and why, lanes, totals, the backend; in light and in dark; without a word of content."""
    async with scene(tmp_path) as (product, page), busy(product.base_url):
        await show(product, page)
        await page.until("document.querySelectorAll('.conn').length === 4")
        text = await page.value("document.body.innerText")
        assert "4 open" in text
        assert "codex_cli_rs/0.142.0" in text
        await page.until("document.querySelector('#rate-sub').textContent.startsWith('22 turns, 1 error')")
        assert "200 over a kept connection" in text or "200 over a new connection" in text
        assert f"{product.lines('listening')[0]['upstream']}" in text

        await page.click("[id^=c-]:has([title^=codex])")
        await page.until("document.querySelectorAll('#turns .turn').length === 7")
        whys = await page.value("[...document.querySelectorAll('#turns .why')].map(node => node.textContent)")
        assert whys[0].startswith(
            "Full replay: tools changed at index 2, so the request does not begin like the one before."
        )
        assert whys[1].startswith("previous_response_not_found · The response it names was never known here")
        assert whys[-1] == "A new conversation: it names no response before it."
        assert await page.value("document.querySelectorAll('#timeline .bar').length") == 7
        facts = await page.value("document.querySelector('#detail').innerText")
        assert "changed at index 2" in facts
        assert "spared" in facts
        assert CANARY not in await page.value("document.documentElement.outerHTML")
        assert "What was said" not in facts

        light, day = await picture(page, "light")
        dark, night = await picture(page, "dark")
        assert sum(day) > 600
        assert sum(night) < 150
        PICTURES.mkdir(exist_ok=True)
        (PICTURES / "live-light.png").write_bytes(light)
        (PICTURES / "live-dark.png").write_bytes(dark)

        await page.click("[id^=c-]:has([title^=openai-agents])")
        await page.until("document.querySelectorAll('#timeline .lane').length === 3")
        assert page.problems == []


async def test_page_is_used_with_the_keyboard_alone(tmp_path: Path) -> None:
    """Through the list into the turns, into one of them, and back; what has the focus shows it."""
    async with scene(tmp_path) as (product, page), busy(product.base_url):
        await show(product, page)
        await page.until("document.querySelectorAll('.conn').length === 4")
        focused = "document.activeElement.id"
        for expected in ("theme", "filter", "list"):
            await page.press("Tab")
            assert await page.value(focused) == expected
        assert await page.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        chosen = "document.querySelector('.conn[aria-selected=true]').ariaPosInSet"
        active = "document.getElementById(document.querySelector('#list').getAttribute('aria-activedescendant'))"
        for key, expected in (("End", "4"), ("ArrowUp", "3"), ("Home", "1"), ("ArrowDown", "2")):
            await page.press(key)
            assert await page.value(chosen) == expected
            assert await page.value(f"{active}.ariaSelected") == "true"
        await page.press("Home")
        while "codex" not in await page.value(f"{active}.innerText"):
            await page.press("ArrowDown")
        await page.press("Enter")
        assert await page.value(focused) == "turns"
        for key, expected in (("End", "1"), ("Home", "7"), ("ArrowDown", "6"), ("ArrowDown", "5"), ("ArrowUp", "6")):
            await page.press(key)
            assert await page.value("document.querySelector('#detail h2').textContent") == f"Turn {expected}"
        await page.press("Enter")
        assert await page.value(focused) == "detail"
        await page.press("Escape")
        await page.press("Escape")
        assert await page.value(focused) == "list"
        assert page.problems == []


async def test_theme_can_be_chosen(tmp_path: Path) -> None:
    """It wins over the system's, and is still there when the page is opened again."""
    async with scene(tmp_path) as (product, page):
        await page.prefer("light")
        await show(product, page)
        scheme = "getComputedStyle(document.documentElement).colorScheme"
        assert await page.value(scheme) == "light dark"
        await page.click("#theme")
        await page.click("#theme")
        assert await page.value(scheme) == "dark"
        await show(product, page)
        assert await page.value(scheme) == "dark"
        assert await page.value("document.querySelector('#theme').textContent") == "Theme: dark"
        assert page.problems == []


async def test_content_is_looked_into_with_two_clicks(tmp_path: Path) -> None:
    """Masked after the first, readable after the second, masked again after the third."""
    async with scene(tmp_path, live__inspect="true") as (product, page), busy(product.base_url):
        await show(product, page)
        await page.until("document.querySelectorAll('.conn').length === 4")
        await page.click("[id^=c-]:has([title^=codex])")
        html = "document.documentElement.outerHTML"
        assert CANARY not in await page.value(html)
        await page.click("#detail .said button")
        await page.until("document.querySelectorAll('.part').length > 20")
        assert CANARY not in await page.value(html)
        assert "•••" in await page.value("document.querySelector('#detail').textContent")
        await page.press("Enter")  # the button that asks for the text has the focus
        await page.until(f"{html}.includes('{CANARY}')")
        assert await page.value("document.querySelector('#detail .said button').ariaPressed") == "true"
        await page.click("#detail .said button")
        await page.until(f"!{html}.includes('{CANARY}')")
        assert page.problems == []


async def test_page_says_when_the_proxy_is_gone_and_comes_back(tmp_path: Path) -> None:
    """What it shows is out of date then, and it says so."""
    admin = f"127.0.0.1:{free_port()}"
    said = "document.querySelector('#state').textContent"
    async with scene(tmp_path) as (other, page):
        with slipstream(tmp_path, other.base_url, "--admin", admin) as product:
            await show(product, page)
            await asyncio.to_thread(product.server.end)
            await page.until(f"{said} === 'reconnecting…'")
        with slipstream(tmp_path, other.base_url, "--admin", admin):
            await page.until(f"{said} === 'live'")


async def test_page_is_smooth_with_500_connections(tmp_path: Path) -> None:
    """Only the rows that can be seen are in the document, and drawing all that is fast while all of them work."""
    async with scene(tmp_path, 0) as (product, page), contextlib.AsyncExitStack() as stack:
        await show(product, page)
        sockets = [
            await stack.enter_async_context(open_socket(product.base_url, f"client {number}")) for number in range(500)
        ]
        await page.until("document.querySelector('#count').textContent === '500 open'")
        await page.value(
            "window.slow = []; window.drawing = []; const redraw = draw;"
            "draw = () => { const t = performance.now(); redraw(); window.drawing.push(performance.now() - t); };"
            "new PerformanceObserver(list => window.slow.push(...list.getEntries().map(e => e.duration)))"
            ".observe({ entryTypes: ['longtask'] });",
        )
        for round_ in range(3):
            for at in range(0, 500, 50):
                async with asyncio.TaskGroup() as tasks:
                    for socket in sockets[at : at + 50]:
                        tasks.create_task(ask(socket, [{"role": "user", "content": f"hi {round_}"}], None))
        await page.until("document.querySelector('#rate-sub').textContent.startsWith('1,500 turns')")
        assert await page.value("document.querySelectorAll('.conn').length") < 40
        drawing = await page.value("window.drawing.sort((a, b) => a - b)")
        slow = await page.value("window.slow")
        (PICTURES / "live-drawing.txt").write_text(f"{drawing}\n{slow}\n")
        assert len(drawing) > 3
        assert drawing[len(drawing) // 2] < 50, (drawing, slow)  # half of them within three frames, on a busy machine
        await page.click(".conn")
        await page.press("End")
        assert await page.value("document.querySelector('.conn[aria-selected=true]').ariaPosInSet") == "500"
        assert await page.value("document.activeElement.id") == "list"
        await page.value("$('filter').value = 'client 499'; $('filter').dispatchEvent(new Event('input'))")
        await page.until("document.querySelectorAll('.conn').length === 1")
        assert page.problems == []
