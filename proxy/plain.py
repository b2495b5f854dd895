"""The client of plain HTTP: requests that are handed on as they are, and an answer that is read by whoever asked."""

from __future__ import annotations

import io
from typing import Final, Self

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from proxy.protocol.upstream_errors import (
    UpstreamDisconnected,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnreachable,
)

MAX_BUFFERED: Final = 4 * 2**20
"""Bodies up to this size are read first, so that they leave in one write with their head; larger ones in several."""

_KEEPALIVE: Final = 4.0
"""Seconds for which an idle connection is used again; uvicorn closes its own after 5."""

_REPEATABLE: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})
"""Methods that may be sent twice (RFC 9110 section 9.2.2)."""


class PlainClient:
    """Sends requests; use as an async context manager. It owns its connections."""

    def __init__(self) -> None:
        self._shared: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._shared = _session(aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE))
        self._fresh = _session(aiohttp.TCPConnector(limit=0, force_close=True))
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in (self._shared, self._fresh):
            if session is not None:
                await session.close()

    async def send(
        self,
        url: str,
        method: str,
        headers: CIMultiDict[str],
        body: bytes | aiohttp.StreamReader | None,
        connect_timeout: float,
    ) -> aiohttp.ClientResponse:
        """Send a request.

        Args:
            url: Where, as it goes on the wire.
            method: Its method.
            headers: Its headers.
            body: Its body; None for none.
            connect_timeout: Seconds to open a connection; 0 for no limit.

        Returns:
            The answer, its body unread, for the caller to close.

        Raises:
            UpstreamError: no answer came.
        """
        is_repeatable = method in _REPEATABLE and not isinstance(body, aiohttp.StreamReader)
        session = self._shared if is_repeatable else self._fresh
        assert session is not None, "use PlainClient as a context manager"
        # In one piece it would keep the loop from everything else.
        data = io.BytesIO(body) if isinstance(body, bytes) and len(body) > MAX_BUFFERED else body
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout or None)
        target = URL(url, encoded=True)
        try:
            return await session.request(
                method, target, headers=headers, data=data, allow_redirects=False, timeout=timeout
            )
        except (aiohttp.ConnectionTimeoutError, TimeoutError) as exc:
            raise UpstreamTimeout("connect", connect_timeout) from exc
        except aiohttp.ClientConnectorError as exc:
            raise UpstreamUnreachable from exc
        except (aiohttp.ClientConnectionError, ConnectionError) as exc:
            raise UpstreamDisconnected from exc
        except aiohttp.ClientError as exc:
            raise UpstreamProtocolError("it is not HTTP") from exc


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None),
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
    )
