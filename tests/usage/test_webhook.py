"""The sink that is an HTTP server (proxy.usage.webhook), against a real one."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from proxy.usage.delivery import NotTaken
from proxy.usage.webhook import Webhook
from proxy.usageconfig import UsageWebhook
from tests.usage.server import Receiver


def sink(url: str, **options: Any) -> Webhook:
    """One."""
    return Webhook(UsageWebhook.model_validate({"url": url, **options}))


async def test_records_are_sent_as_one_document() -> None:
    """With the operator's key, over one connection, and nothing else that says who sends it."""
    async with Receiver() as receiver:
        one = sink(receiver.url, api_key="s3cret", batch=7)
        assert one.batch == 7
        await one.take([b'{"n":1}', b'{"n":2}'])
        receiver.mood = 204
        await one.take([b'{"n":3}'])
        await one.close()
    assert receiver.records == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert [headers["Authorization"] for headers in receiver.requests] == ["Bearer s3cret"] * 2
    assert receiver.requests[0]["Content-Type"] == "application/json"


@pytest.mark.parametrize("status", [301, 307, 400, 401, 413, 429, 500, 503])
async def test_what_is_not_2xx_is_not_taken(status: int) -> None:
    """A redirect neither: it could lead the key anywhere."""
    async with Receiver() as receiver:
        receiver.mood = status
        one = sink(receiver.url)
        with pytest.raises(NotTaken, match=str(status)):
            await one.take([b"{}"])
        assert len(receiver.requests) == 1
        assert "Authorization" not in receiver.requests[0]
        await one.close()


async def test_server_that_hangs_has_a_limit() -> None:
    """And one that is not there is found out."""
    async with Receiver() as receiver:
        receiver.mood = "hang"
        one = sink(receiver.url, timeout="50ms")
        with pytest.raises(TimeoutError):
            await one.take([b"{}"])
    with pytest.raises(aiohttp.ClientError):
        await one.take([b"{}"])
    await one.close()
