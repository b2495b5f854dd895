"""`slipstream top` from its beginning to its end: a feed, and a screen or one picture."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

import aiohttp
from yarl import URL

from proxy.top import plain
from proxy.top.feed import CannotWatch, Feed, Lost
from proxy.top.mirror import Mirror
from proxy.top.updates import Update

_PATIENCE: Final = 2.0
"""Seconds that one picture may take to be whole: workers that were not watched are asked for their rows."""


class NotInstalled(Exception):
    """The extra that the screen needs is not there."""

    def __str__(self) -> str:
        return "top needs the extra `tui`: pip install 'slipstream-proxy[tui]'; --once does without"


async def watch(url: URL, *, is_once: bool, write: Callable[[str], object]) -> None:
    """Show what goes on until the user has seen enough.

    Args:
        url: Where the live page is.
        is_once: Write one picture as plain text, and end.
        write: Where to.

    Raises:
        CannotWatch: there is nothing to see, or no more.
        NotInstalled: textual is not there.
    """
    if not is_once:
        _need_screen()
    async with opened(url) as (feed, updates, mirror):
        if is_once:
            await _wait_for_rows(updates, mirror)
            write(plain.picture(mirror, time.monotonic()))
            return
        from proxy.top.screen import Top  # noqa: PLC0415 - it is an extra, and takes a while

        top = Top(feed, updates, mirror)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, top.exit)  # else the terminal stays as the screen needs it
        try:
            problem = await top.run_async()
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
    if problem is not None:
        raise CannotWatch(problem)


@contextlib.asynccontextmanager
async def opened(url: URL) -> AsyncIterator[tuple[Feed, AsyncIterator[Update | Lost], Mirror]]:
    """A live page's feed, what it says from now on, and what it has said so far, for as long as the context lasts.

    Raises:
        CannotWatch: there is nothing to see.
    """
    async with aiohttp.ClientSession() as session:
        feed, mirror = Feed(session, url), Mirror()
        async with contextlib.aclosing(feed.updates()) as updates:
            first = await anext(updates)
            assert isinstance(first, Update), "nothing is lost before it was there"
            mirror.take(first, time.monotonic())
            yield feed, updates, mirror


async def _wait_for_rows(updates: AsyncIterator[Update | Lost], mirror: Mirror) -> None:
    """Take updates until the picture is whole, or for as long as one can wait for that."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            while not mirror.is_whole:
                news = await anext(updates)
                if isinstance(news, Update):
                    mirror.take(news, time.monotonic())


def _need_screen() -> None:
    """Import what the screen is made with.

    Raises:
        NotInstalled: it is not there.
    """
    try:
        import textual  # noqa: F401, PLC0415 - it is an extra
    except ImportError as exc:
        raise NotInstalled from exc
