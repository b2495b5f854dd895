"""A proxy with clients that do something, and `slipstream top` looking at it."""

from __future__ import annotations

import asyncio
import contextlib
import html
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Generic, TypeVar

from textual.app import App
from textual.pilot import Pilot

from proxy.config import Address
from proxy.demo import backend, report
from proxy.demo.backend import Backend, Script
from proxy.top.feed import admin_url
from proxy.top.screen import Top
from proxy.top.text import fit
from proxy.top.watch import opened
from proxy.top.widgets import Table
from tests.fakes import Product, serving

PATIENCE = 20.0
"""Seconds until something must have happened."""


@contextlib.asynccontextmanager
async def proxy(token_seconds: float = 0.0, **chosen: Any) -> AsyncIterator[Product]:
    """A proxy in front of the demo's simulated backend."""
    simulated = Backend(Script(6, token_seconds))
    async with (
        backend.start(simulated, Address("127.0.0.1", 0)) as address,
        serving(report.url(address), **chosen) as product,
    ):
        yield product


_CELL = 12.2
"""Units between two cells of a picture."""
_PIECE = re.compile(r'<text class="[^"]*-r\d+" x="([\d.]+)"[^>]*-line-(\d+)\)">([^<]*)</text>')


Program = TypeVar("Program", bound=App[Any])


class Viewer(Generic[Program]):
    """Somebody in front of the screen.

    Attributes:
        top: The program.
        pilot: What presses its keys.
    """

    def __init__(self, top: Program, pilot: Pilot[Any]) -> None:
        self.top = top
        self.pilot = pilot

    async def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def resize(self, columns: int, lines: int) -> None:
        """Make the terminal as large."""
        await self.pilot.resize_terminal(columns, lines)
        await self.until(lambda: len(self.lines) == lines)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something holds."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    await self.pilot.pause(0.02)
        except TimeoutError:
            raise AssertionError(self.text) from None

    async def sees(self, *texts: str) -> None:
        """Wait until texts are on the screen."""

        def are_there() -> bool:
            seen = self.text
            return all(text in seen for text in texts)

        await self.until(are_there)

    @property
    def lines(self) -> list[str]:
        """What is on the screen."""
        return [strip.text.rstrip() for strip in self.top.screen._compositor.render_strips()]

    @property
    def exported(self) -> list[str]:
        """The same, read from a picture of it."""
        return list(_lines(self.top.export_screenshot()))

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join(self.lines)

    @property
    def focus(self) -> str | None:
        """Which pane the keys go to."""
        return None if self.top.focused is None else self.top.focused.id

    def table(self, name: str) -> Table:
        """One of the lists."""
        return self.top.query_one(f"#{name}", Table)

    def chosen(self, name: str) -> str:
        """The key of the row that is chosen in a list."""
        row = self.table(name).chosen
        assert row is not None
        return row.key


@contextlib.asynccontextmanager
async def viewer(admin: Address | str, *, size: tuple[int, int] = (120, 40)) -> AsyncIterator[Viewer[Top]]:
    """`slipstream top` on a screen of a size, in columns and lines."""
    async with opened(admin_url(str(admin))) as (feed, updates, mirror):
        top = Top(feed, updates, mirror)
        async with top.run_test(size=size) as pilot:
            yield Viewer(top, pilot)


def _lines(picture: str) -> Iterator[str]:
    """The text of a screenshot, line by line; each piece says where it begins."""
    rows: dict[int, str] = {}
    for x, line, text in _PIECE.findall(picture):
        before = rows.get(int(line), "")
        rows[int(line)] = fit(before, round(float(x) / _CELL)) + html.unescape(text).replace("\xa0", " ").strip("\n")
    for line in range(max(rows, default=-1) + 1):
        yield rows.get(line, "").rstrip()
