"""Active probes: whether replicas are there, asked in ways that cost no tokens.

Only where there are several of a backend, so that something follows from it. `/health` at the server's root is what vLLM,
SGLang and llama-server have; who does not know it is asked for its models. Any answer but a 5xx says that a server is there:
one that wants a key says that too.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Self
from urllib.parse import urlsplit

import aiohttp

from proxy.backends import Backends
from proxy.config import Config
from proxy.credentials import Credentials
from proxy.fleet import Fleet, Replica

_UNKNOWN: Final = (404, 405, 501)


class Probes:
    """Looks after the replicas. Use as an async context manager.

    Args:
        config: The operator's choices.
        backends: Whose replicas.
    """

    def __init__(self, config: Config, backends: Backends) -> None:
        self._task: asyncio.Task[None] | None = None
        self._interval = config.routing.probe_interval
        self._timeout = aiohttp.ClientTimeout(total=config.routing.probe_timeout)
        self._watched = [
            (fleet, Credentials(one), replica)
            for one in config.served
            if len(one.replicas) > 1
            for fleet in (backends.fleets[one.name],)
            for replica in fleet.replicas
        ]

    async def __aenter__(self) -> Self:
        if self._watched and self._interval:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="probes")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        async with (
            aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                timeout=self._timeout,
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
            ) as session,
            asyncio.TaskGroup() as tasks,
        ):
            for fleet, credentials, replica in self._watched:
                tasks.create_task(self._watch(session, fleet, credentials, replica), name=f"probe {replica.url}")

    async def _watch(
        self, session: aiohttp.ClientSession, fleet: Fleet, credentials: Credentials, replica: Replica
    ) -> None:
        while True:
            await asyncio.sleep(self._interval)
            fleet.probed(replica.index, is_alive=await self._is_alive(session, credentials, replica.url))

    async def _is_alive(self, session: aiohttp.ClientSession, credentials: Credentials, url: str) -> bool:
        parts = urlsplit(url)
        try:
            status = await _status(session, f"{parts.scheme}://{parts.netloc}/health", {})
            if status in _UNKNOWN:
                status = await _status(session, f"{url}/models", dict(credentials.fixed))
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False
        return status < 500


async def _status(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> int:
    async with session.get(url, headers=headers, allow_redirects=False) as answer:
        return answer.status
