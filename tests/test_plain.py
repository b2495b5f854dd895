"""The client of plain HTTP; how requests pass through is in test_passthrough.py."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from proxy.plain import PlainClient
from proxy.protocol.upstream_errors import (
    UpstreamDisconnected,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamUnreachable,
)
from tests.fakes import ScriptedUpstream, Step, close, json_answer, read, send
from tests.rig.processes import free_port


async def ask(url: str) -> int:
    """The status of an answer."""
    async with PlainClient() as client:
        answer = await client.send(f"{url}/x?a=%2F", "POST", CIMultiDict(), b"{}", 5)
        status = answer.status
        answer.close()
        return status


async def test_client_sends_a_request_as_it_is() -> None:
    """The target with its escapes, the body as bytes."""
    async with ScriptedUpstream([read, send(json_answer({}))]) as upstream:
        assert await ask(upstream.url) == 200
        (request,) = upstream.requests
        assert (request.method, request.target, request.body) == ("POST", "/v1/x?a=%2F", b"{}")


@pytest.mark.parametrize(
    ("script", "error"),
    [([read, close], UpstreamDisconnected), ([read, send(b"what?\r\n\r\n")], UpstreamProtocolError)],
)
async def test_failures_are_of_our_tree(script: list[Step], error: type[UpstreamError]) -> None:
    """What aiohttp raises does not get out."""
    async with ScriptedUpstream(script) as upstream:
        with pytest.raises(error):
            await ask(upstream.url)


async def test_nobody_is_there() -> None:
    """So nothing ran."""
    with pytest.raises(UpstreamUnreachable):
        await ask(f"http://127.0.0.1:{free_port()}")
