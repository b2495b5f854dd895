"""The screen as an operator sees it: a real proxy, the demo's backend, clients that do something, and keys."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proxy.top.screen import Top
from proxy.top.widgets import Lines
from tests.fakes import Product, ask, create, receive
from tests.live.drive import CANARY, busy
from tests.rig.processes import free_port
from tests.top.stage import Viewer, proxy, viewer

LONG = (124, 32)
NARROW = (80, 24)
CODEX = "codex_cli_rs/0.142.0"


@contextlib.asynccontextmanager
async def at_work(size: tuple[int, int], **chosen: Any) -> AsyncIterator[tuple[Viewer[Top], Product]]:
    """Somebody in front of the screen, and four clients with 22 turns behind them."""
    async with proxy(**chosen) as product, busy(product.url, pause=0), viewer(product.running.admin, size=size) as seen:
        await seen.sees("1 error", "4 open", "94 % of 16; 6 new")
        yield seen, product


async def choose(seen: Viewer[Top], client: str) -> None:
    """Choose the connection of a client, from the list."""
    while client not in seen.table("turns")._title:
        await seen.press("down")


async def test_screen_shows_a_run() -> None:
    """Totals, the backend, connections, turns with both sizes and why, on every common terminal; no content."""
    async with at_work(NARROW) as (seen, product):
        for size in (NARROW, (100, 30), LONG, (200, 50)):
            await seen.resize(*size)
            await seen.sees("● live", str(product.running.admin), "upload (10 Mbit/s)", "cached", "a turn")
            await seen.sees("plain HTTP", "less", "healthy, 21 of the last 21 good", "q Quit")
            await seen.sees("all connections", "Why", "Sent", "Upstream", "Total", "Full replay", "previous_resp")
            assert ("Turn 7  replay" in seen.text) == (size == (200, 50))
            assert CODEX in seen.text or size == NARROW
            assert "Items" not in seen.lines[-1]
            assert CANARY not in seen.text
            assert max(map(len, seen.lines)) <= size[0]
            assert seen.exported == seen.lines


async def test_screen_is_used_with_keys() -> None:
    """Into a connection, a turn, and back; what is chosen is shown."""
    async with at_work(LONG) as (seen, _):
        assert (seen.focus, seen.chosen("connections")) == ("connections", "")
        assert "Turns of all connections" in seen.text
        await seen.press("tab")
        assert seen.focus == "turns"
        await seen.press("tab")
        assert seen.focus == "connections"  # the detail is not seen yet
        await choose(seen, CODEX)
        await seen.sees(f"Turns of {CODEX}")
        await seen.press("enter", "j", "j", "down", "k")
        assert seen.focus == "turns"
        await seen.press("enter")
        assert seen.focus == "detail"
        await seen.sees("Turn 5  hit  codex", "Next in its lane: 12 items remembered, 1 new.", "spared", "Tools")
        assert "Turns of" not in seen.text
        await seen.press("escape")
        assert (seen.focus, "Turns of" in seen.text) == ("turns", True)
        await seen.press("escape")
        assert seen.focus == "connections"
        await seen.press("q")
    assert seen.top.return_value is None
    assert seen.top.return_code == 0


async def test_miss_and_replay_say_why() -> None:
    """In full, in the words of the page."""
    async with at_work(NARROW) as (seen, _):
        await choose(seen, CODEX)
        await seen.press("tab", "enter")
        await seen.sees("Turn 7  replay", "Full replay: tools changed at index 2, so the request does not begin")
        await seen.press("escape", "down", "enter")
        await seen.sees("Turn 6  error", "The response it names was never known here", "The backend was not asked.")
        await seen.press(*["down"] * 8)
        await seen.sees("previous_response_not_found (400, downstream)")


async def test_wide_screen_shows_the_turn_beside_the_others() -> None:
    """It follows what is chosen, without a key."""
    async with at_work((200, 50)) as (seen, _):
        await choose(seen, CODEX)
        await seen.sees("Turn 7  replay")
        await seen.press("tab", "down")
        await seen.sees("Turn 6  error", "Turns of codex")
        await seen.press("tab")
        assert seen.focus == "detail"


async def test_connections_are_filtered() -> None:
    """By client or id, with what they asked for; Esc shows all again."""
    async with at_work(LONG) as (seen, _):
        await seen.press("slash")
        assert seen.focus == "filter"
        await seen.press(*"AGENTS")
        await seen.until(lambda: "pi/0.61" not in seen.text)
        assert "openai-agents/0.24" in seen.text
        assert CODEX not in seen.text
        assert len(seen.table("turns")._rows) == 8
        await seen.press("enter")
        assert (seen.focus, seen.top.is_running) == ("connections", True)
        await seen.press("slash", *"[q]p")
        assert not seen.table("turns")._rows
        await seen.press("escape")
        await seen.sees(CODEX, "pi/0.61")
        assert seen.focus == "connections"


async def test_lanes_are_told_apart() -> None:
    """Where there is room."""
    async with at_work(LONG) as (seen, _):
        await choose(seen, "openai-agents")
        await seen.press("tab", "enter")
        await seen.sees("Lane          re")
        await seen.resize(240, 50)
        await seen.sees("research", "review", "summary")


async def test_turns_that_run_are_seen() -> None:
    """First in the list, with their lane and how long they have been running."""
    async with proxy(token_seconds=0.2) as product, product.connect() as client:
        await client.send(create(stream_id="slow"))
        await receive(client)
        async with viewer(product.running.admin, size=LONG) as seen:
            await seen.sees("runs", "Running in lane slow")
            await seen.press("tab", "enter")
            await seen.sees("It runs; what it took can be seen once it has ended.")


async def test_picture_is_paused() -> None:
    """What comes meanwhile is shown afterwards; a pause says so, and one can look around in it."""
    async with at_work(LONG) as (seen, product), product.connect(user_agent_header="late/1.0") as client:
        await seen.sees("5 open")
        await seen.press("p")
        await ask(client)
        await seen.sees("● paused")
        await choose(seen, "late/1.0")
        await asyncio.sleep(0.5)  # two updates
        await seen.pilot.pause()
        assert "94 % of 16; 6 new" in seen.text
        assert not seen.table("turns")._rows
        await seen.press("p")
        await seen.sees("● live", "94 % of 16; 7 new", "A new conversation")


async def test_feed_is_lost_and_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, shows what it knew, grows no older, and goes on with the proxy that is there then."""
    monkeypatch.setattr("proxy.top.feed._FIRST_PAUSE", 0.01)
    monkeypatch.setattr("proxy.top.feed._MAX_PAUSE", 0.05)
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        product = await stack.enter_async_context(proxy(admin=f"127.0.0.1:{port}"))
        client = await stack.enter_async_context(product.connect(user_agent_header="early/1.0"))
        await ask(client)
        async with viewer(f"127.0.0.1:{port}", size=LONG) as seen:
            await seen.sees("early/1.0", "● live")
            await stack.aclose()
            await seen.sees("● lost, asked again after 0.0", " s: Connection refused", "early/1.0")
            was = seen.lines[4:]
            seen.top._draw()
            await seen.pilot.pause()
            assert seen.lines[4:] == was
            async with proxy(admin=f"127.0.0.1:{port}"):
                await seen.sees("● live", "0 open")
                assert "early/1.0" not in seen.text
                assert not seen.table("turns")._rows


async def test_page_that_is_taken_away_ends_it() -> None:
    """The program ends, and says why."""
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(proxy(admin=f"127.0.0.1:{port}"))
        async with viewer(f"127.0.0.1:{port}") as seen:
            await stack.aclose()
            async with proxy(admin=f"127.0.0.1:{port}", live__enabled=False):
                await seen.until(lambda: seen.top.return_value is not None)
        assert "live.enabled is false there" in (seen.top.return_value or "")


async def test_hostile_texts_are_only_shown() -> None:
    """Names, models and ids of clients are no markup, no escapes and no new lines, wherever they are shown."""
    hostile = "[bold red]\x1b]0;x\x07\n\u202e[/]"
    shown = "[bold red]\ufffd]0;x\ufffd \ufffd[/]"
    async with proxy(live__inspect=True) as product:
        name = "[blink]\u202e[@click=app.quit]no/1.0[/]"
        async with product.connect(user_agent_header=name) as client:
            await client.send(create(hostile, model=hostile, metadata={hostile: hostile}))
            await receive(client)
            await ask(client, hostile, previous_response_id=hostile)
            async with viewer(product.running.admin, size=(200, 70)) as seen:
                await seen.sees("[blink]\ufffd[@click=app.quit]no/1.0[/]")
                await choose(seen, "[blink]")
                await seen.press("tab", "end", "enter", "i", "x")
                await seen.sees("as it was said", f"Model         {shown}")
                await seen.press("escape", "home", "enter")
                await seen.sees(f"Continues     {shown}")
                assert not {"\x1b", "\x07", "\u202e"} & set(seen.text)
                assert seen.exported == seen.lines


async def test_content_is_looked_into_with_two_keys() -> None:
    """Masked after the first, readable after the second, masked again after the third; of this turn only."""
    async with at_work(LONG, live__inspect=True) as (seen, _):
        await seen.sees("i Items")
        await choose(seen, CODEX)
        await seen.press("tab", "x")
        await seen.sees("Turn 7")
        detail = seen.top.query_one("#detail")

        async def reads(words: str, *, there: bool = True) -> None:
            await seen.until(lambda: there == (words in said(seen)))

        await reads("letters and digits are masked")
        await reads("Went upstream")
        assert CANARY not in said(seen)
        await seen.press("x")
        await reads(CANARY)
        await reads("as it was said")
        assert detail.max_scroll_y > 0
        await seen.press("x")
        await reads(CANARY, there=False)
        await seen.press("x")
        await reads(CANARY)
        await seen.press("i")
        await reads(CANARY, there=False)
        await seen.press("x", "escape", "down")
        assert CANARY not in said(seen)
        assert "shows what was said, masked" in said(seen)


def said(seen: Viewer[Top]) -> str:
    """The whole text of the turn's detail, what has to be scrolled to among it."""
    return "\n".join("".join(text for text, _ in line) for line in seen.top.query_one("#turn", Lines)._lines)


async def test_content_that_is_not_kept_says_so() -> None:
    """Only the last turns' is."""
    async with at_work(LONG, live__inspect=True) as (seen, product):
        await choose(seen, "pi/0.61")
        async with product.connect() as client:
            for _ in range(51):
                await ask(client)
        await seen.press("tab", "i")
        await seen.sees("Nothing is kept of this turn: only the last ones are.")


async def test_content_is_not_offered_where_it_is_not_allowed() -> None:
    """The keys do nothing."""
    async with at_work(LONG) as (seen, _):
        await seen.press("tab", "i", "x")
        assert seen.focus == "turns"
        await seen.press("enter")
        assert "said" not in said(seen)


async def test_help_lists_the_keys() -> None:
    """Over everything, until a key; what goes on goes on below it, and no other key does anything but quit."""
    async with at_work(NARROW, live__inspect=True) as (seen, product), product.connect() as client:
        await seen.press("tab", "i", "question_mark")
        await seen.sees("filter connections by client or id", "what the turn said, masked (live.inspect)", "quit")
        await ask(client)
        await seen.press("p", "slash", "x", "escape")
        await seen.sees("● live", "94 % of 16; 7 new", "letters and digits are masked")
        assert seen.focus == "detail"
        await seen.press("question_mark", "ctrl+c")
    assert seen.top.return_code == 0


async def test_dark_and_light() -> None:
    """One key; both can be read."""
    async with at_work(LONG) as (seen, _):
        dark = seen.top.export_screenshot()
        ground = seen.top.screen.styles.background.brightness
        await seen.press("t")
        await seen.pilot.pause()
        assert seen.top.screen.styles.background.brightness > ground + 0.5
        assert seen.top.export_screenshot() != dark
        assert "all connections" in seen.text
        await seen.press("t")
        assert seen.top.screen.styles.background.brightness == ground


async def test_terminal_changes_its_size() -> None:
    """From wide to 80x24 and back, with the same chosen, whatever is read; even when it is tiny."""
    async with at_work((200, 50)) as (seen, _):
        await choose(seen, CODEX)
        chosen = seen.chosen("connections")
        await seen.press("tab", "down", "enter")
        for size in (NARROW, (30, 8), (60, 15), (130, 40), (200, 50)):
            await seen.resize(*size)
            assert seen.chosen("connections") == chosen
            if size[0] >= 80:
                await seen.sees("Turn 6  error")
        await seen.resize(*NARROW)
        await seen.press("escape", "escape")
        await seen.sees("Turns of codex", "Upstream", "q Quit")


async def test_500_connections_are_no_burden() -> None:
    """Rows are bounded, keys are answered, and an update costs little."""
    async with contextlib.AsyncExitStack() as stack:
        product = await stack.enter_async_context(proxy())
        clients = [
            await stack.enter_async_context(product.connect(user_agent_header=f"client {number}"))
            for number in range(500)
        ]
        seen = await stack.enter_async_context(viewer(product.running.admin, size=LONG))
        await seen.sees("500 open")
        async with asyncio.TaskGroup() as tasks:
            for client in clients[:250]:
                tasks.create_task(ask(client))
        await seen.until(lambda: "250, " in seen.lines[2])
        assert len(seen.table("connections")._rows) == 501
        assert len(seen.table("turns")._rows) == 200
        assert seen.text.count("client ") < 2 * LONG[1]
        took = []
        for _ in range(5):
            began = time.process_time()
            seen.top._draw()
            took.append(time.process_time() - began)
        assert min(took) < 0.25, took  # of the time between two updates; it takes about a tenth of that
        await seen.press("end")
        assert seen.chosen("connections") == seen.table("connections")._rows[500].key
        await seen.press("slash", *"client 499")
        await seen.until(lambda: len(seen.table("connections")._rows) == 2)


async def test_backends_are_listed() -> None:
    """A few of them, and how many more there are."""
    async with proxy() as product, viewer(product.running.admin) as seen:
        await seen.sees("not asked yet")
        backends = seen.top._mirror.backends
        seen.top._mirror.backends = backends * 5
        seen.top._draw()
        await seen.sees("and 2 more")
