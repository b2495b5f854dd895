"""The feed of a live page, followed for as long as somebody wants it: lost connections are made again."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

import aiohttp
import msgspec
from yarl import URL

from proxy.config import Address
from proxy.protocol.sse import Splitter, parse_block
from proxy.top.updates import Said, Turn, Update, read_said, read_update
from proxy.values import parse_address

_MAX_UPDATE_BYTES: Final = 64 * 2**20
_CONNECT_SECONDS: Final = 10.0
_SILENCE_SECONDS: Final = 45.0
"""After which a feed counts as lost: the live page says something three times as often (`proxy.livepage`)."""
_FIRST_PAUSE: Final = 0.5
_MAX_PAUSE: Final = 10.0
"""Seconds before a lost feed is asked for again, at first and at most."""

_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - who listens everywhere is reached here


class CannotWatch(Exception):
    """There is nothing to watch, and trying again would not help; the text says why."""


class NotSaid(Exception):
    """What a turn said cannot be shown; the text says why."""


class _Lost(Exception):
    """The feed ended, or never began; the text says how."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The feed was lost, and will be asked for again.

    Attributes:
        reason: How.
        pause: Seconds until then.
    """

    reason: str
    pause: float


def admin_url(text: str) -> URL:
    """Where a proxy's live page is.

    Args:
        text: `HOST:PORT` as in the configuration, where all interfaces mean this machine, or a URL.

    Raises:
        ValueError: it is neither.
    """
    if "://" in text:
        url = URL(text)
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError("expected HOST:PORT, or a URL that begins with http:// or https://")
        return url.with_query(None).with_fragment(None)
    address: Address = parse_address(text)
    return URL.build(scheme="http", host=_LOOPBACK.get(address.host, address.host), port=address.port)


class Feed:
    """The live page of one proxy.

    Args:
        session: What it is asked with.
        url: Where the page is.
        first_pause: Seconds before a lost feed is asked for again the first time; then it is twice as long each time.
    """

    def __init__(self, session: aiohttp.ClientSession, url: URL, *, first_pause: float = _FIRST_PAUSE) -> None:
        self._session = session
        self._url = url
        self._first_pause = first_pause
        self.place = f"{url.host_subcomponent}:{url.port}"

    async def updates(self) -> AsyncGenerator[Update | Lost]:
        """What it says, and each time that it is lost; without an end. The first is an update.

        Raises:
            CannotWatch: there is no such page, what it says cannot be read, or it was not there from the beginning.
        """
        pause, was_live = self._first_pause, False
        while True:
            try:
                async with contextlib.aclosing(self._listen()) as listening:
                    async for update in listening:
                        pause, was_live = self._first_pause, True
                        yield update
                reason = "it has ended"
            except _Lost as exc:
                reason = str(exc)
            if not was_live:
                raise CannotWatch(f"no live page at {self.place}: {reason}")
            yield Lost(reason, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    async def said(self, turn: Turn, *, shows_text: bool) -> Said:
        """What one turn said: masked, unless the text was asked for.

        Raises:
            NotSaid: it is not known, or may not be seen.
        """
        url = self._url / "live" / "turns" / turn.connection / str(turn.turn)
        timeout = aiohttp.ClientTimeout(total=_CONNECT_SECONDS)
        try:
            async with self._session.get(
                url.with_query(text="1") if shows_text else url, timeout=timeout, allow_redirects=False
            ) as response:
                body = await response.read()
                if response.status == 200:
                    return read_said(body)
                if response.status == 404:
                    raise NotSaid("Nothing is kept of this turn: only the last ones are.")
                raise NotSaid(f"The proxy refuses: {body[:200].decode(errors='replace').strip()}")
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise NotSaid("The proxy does not answer.") from exc
        except msgspec.DecodeError as exc:
            raise NotSaid("The proxy's answer cannot be read.") from exc

    async def _listen(self) -> AsyncGenerator[Update]:
        """The feed once, until it ends."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS)
        splitter = Splitter(_MAX_UPDATE_BYTES)
        try:
            async with self._session.get(
                self._url / "live" / "events", timeout=timeout, allow_redirects=False
            ) as response:
                self._judge(response)
                async for data in response.content.iter_any():
                    for block in splitter.feed(data):
                        event = parse_block(block)
                        if event is not None:
                            yield read_update(event[1])
                    if splitter.overflow:
                        raise _Lost("an update was too long")
        except aiohttp.ClientConnectorError as exc:
            raise _Lost(_reason(exc.os_error)) from exc
        except TimeoutError as exc:
            raise _Lost("nothing was heard for too long") from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise _Lost("the connection broke") from exc
        except msgspec.DecodeError as exc:
            raise CannotWatch(f"what {self.place} says cannot be read: is it another version?") from exc

    def _judge(self, response: aiohttp.ClientResponse) -> None:
        """Make sure that it is a feed.

        Raises:
            CannotWatch: it is none, and will be none.
            _Lost: not now.
        """
        if response.status == 404:
            raise CannotWatch(
                f"{self.place} has no live page: it is not a proxy's admin address, or live.enabled is false there"
            )
        if response.status == 503:
            raise _Lost("too many watch it already")
        if response.status != 200 or response.content_type != "text/event-stream":
            raise CannotWatch(
                f"{self.place} answers {response.status} ({response.content_type}): is it a proxy's admin address?"
            )


def _reason(error: OSError) -> str:
    """Why there is no connection; asyncio puts its own words in front of the system's, but not for names (negative)."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or "cannot connect"
