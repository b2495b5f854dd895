"""The product in front of each backend, and with each of the protocols that it can speak to its clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest

from proxy.config import Address
from proxy.demo import backend, report
from tests.acceptance.reader import Reader
from tests.acceptance.stand import Stand
from tests.fakes import serving
from tests.rig.llama import Llama, llama_server
from tests.rig.sdk import async_client

#: The product's settings, by the name of the protocol that they choose.
PROTOCOLS: Final[dict[str, dict[str, Any]]] = {
    "openai": {},
    "open-responses": {"websocket__protocol": "open-responses"},
}


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    """A llama-server."""
    with llama_server(tmp_path_factory.mktemp("llama")) as server:
        yield server


@pytest.fixture(params=["llama-server", "reader"])
async def behind(request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, Reader | None]]:
    """Each backend: its base URL and, if it is the one that reads, itself."""
    if request.param == "llama-server":
        server: Llama = request.getfixturevalue("llama")
        yield server.base_url, None
        return
    reader = Reader()
    async with backend.start(reader, Address("127.0.0.1", 0)) as address:
        yield report.url(address), reader


@pytest.fixture(params=PROTOCOLS)
async def stand(request: pytest.FixtureRequest, behind: tuple[str, Reader | None]) -> AsyncIterator[Stand]:
    """The product in front of each backend, with its defaults but for the protocol."""
    url, reader = behind
    async with serving(url, **PROTOCOLS[request.param]) as product, async_client(product.url) as client:
        yield Stand(product.url, url, reader, client)
