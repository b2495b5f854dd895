"""The sink that is an HTTP server: batches as `{"records": [...]}`."""

from __future__ import annotations

from collections.abc import Sequence

import aiohttp

from proxy import __version__
from proxy.usage.delivery import NotTaken
from proxy.usageconfig import SinkKind, UsageWebhook


class Webhook:
    """A server that takes records by POST.

    Args:
        options: The operator's choices; there is a URL.
    """

    kind: SinkKind = "webhook"

    def __init__(self, options: UsageWebhook) -> None:
        assert options.url is not None
        self.batch = options.batch
        self._url = options.url
        self._timeout = aiohttp.ClientTimeout(total=options.timeout)
        self._headers = {"Content-Type": "application/json", "User-Agent": f"slipstream/{__version__}"}
        if options.api_key is not None:
            self._headers["Authorization"] = f"Bearer {options.api_key.get_secret_value()}"
        self._session: aiohttp.ClientSession | None = None

    async def take(self, records: Sequence[bytes]) -> None:
        """Send records.

        Raises:
            NotTaken: the answer is not 2xx.
            aiohttp.ClientError: there is none.
            TimeoutError: there was none in time.
        """
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar())
        body = b'{"records":[' + b",".join(records) + b"]}"
        # A redirect would take the key elsewhere.
        request = self._session.post(self._url, data=body, headers=self._headers, allow_redirects=False)
        async with request as answer:
            if not 200 <= answer.status < 300:
                raise NotTaken(f"HTTP status {answer.status}")

    async def close(self) -> None:
        """Close its connections."""
        if self._session is not None:
            await self._session.close()
