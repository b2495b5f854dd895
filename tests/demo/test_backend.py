"""The simulated backend over HTTP, as clients meet it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import orjson
import pytest

from proxy.config import Address
from proxy.demo import backend, intake, prefix, task
from proxy.demo.backend import MODEL, Backend, Script
from tests.demo.conftest import TOOL_CALLS, Place


@pytest.fixture
async def client(simulation: Place) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client, on the simulated backend."""
    async with openai.AsyncOpenAI(base_url=simulation.url, api_key="demo", max_retries=0) as opened:
        yield opened


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A plain HTTP client."""
    async with aiohttp.ClientSession() as opened:
        yield opened


async def test_backend_lists_its_model(client: openai.AsyncOpenAI) -> None:
    """The official client finds one model, by list and by name."""
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("gpt-1")
    assert caught.value.code == "model_not_found"


async def test_backend_answers_with_an_object_or_a_stream(client: openai.AsyncOpenAI) -> None:
    """Both forms say the same."""
    whole = await client.responses.create(model="any", input="Hello")
    events = [event async for event in await client.responses.create(model="any", input="Hello", stream=True)]
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == whole.output_text
    assert "simulated" in whole.output_text


async def test_backend_acts_like_an_agent(client: openai.AsyncOpenAI) -> None:
    """With tools it calls them as often as its script says, then it ends with a message."""
    items: list[Any] = [task.question()]
    kinds = []
    while True:
        response = await client.responses.create(model=MODEL, input=items, tools=list(task.TOOLS))  # type: ignore[arg-type] # plain objects are what goes over the wire
        items += [item.model_dump() for item in response.output]
        kinds.append([item.type for item in response.output])
        calls = [item.model_dump() for item in response.output if item.type == "function_call"]
        if not calls:
            break
        items += [task.run(call, 0) for call in calls]
    assert kinds == [
        ["message", "function_call"],
        ["reasoning", "function_call"],
        ["message", "function_call"],
        ["message"],
    ]
    assert len(kinds) == TOOL_CALLS + 1


async def test_backend_has_the_prompt_before_in_its_prefix_cache(client: openai.AsyncOpenAI, simulation: Place) -> None:
    """A conversation that goes on finds its beginning cached, until the cache is emptied."""
    first: Any = {"role": "user", "content": "Tell me something long. " * 50}
    more: Any = {"role": "user", "content": "More."}
    usages = []
    for items in ([first], [first, more], [first]):
        response = await client.responses.create(model=MODEL, input=items)
        assert response.usage is not None
        usages.append(response.usage)
        if len(usages) == 2:
            simulation.backend.forget_prompts()
    cached = [usage.input_tokens_details.cached_tokens for usage in usages]
    assert (cached[0], cached[2]) == (0, 0)
    assert usages[0].input_tokens - 1 <= cached[1] <= usages[0].input_tokens < usages[1].input_tokens


async def test_backend_is_strict_about_memory(client: openai.AsyncOpenAI) -> None:
    """A request that leans on an earlier one is refused with 400, in OpenAI's form."""
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model=MODEL, input="Hello", previous_response_id="resp_1")
    error = caught.value
    assert (error.param, error.code, error.type) == (
        "previous_response_id",
        "unsupported_parameter",
        "invalid_request_error",
    )


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "unknown_url"),
        ("GET", "/responses/resp_1", 404, "unknown_url"),
        ("GET", "/responses", 405, "method_not_allowed"),
        ("DELETE", "/models", 405, "method_not_allowed"),
    ],
)
async def test_backend_gives_every_error_the_same_form(
    session: aiohttp.ClientSession, simulation: Place, method: str, path: str, status: int, code: str
) -> None:
    """What is served nowhere is an error in OpenAI's form as well."""
    async with session.request(method, simulation.url + path) as answer:
        assert answer.status == status
        assert (await answer.json())["error"]["code"] == code
        assert ("Allow" in answer.headers) == (status == 405)


async def test_backend_refuses_a_body_that_is_too_large(
    session: aiohttp.ClientSession, simulation: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body beyond the limit is refused with 413."""
    monkeypatch.setattr(backend, "_MAX_BODY", 1000)
    limited = Backend(Script())
    async with (
        backend.start(limited, Address("127.0.0.1", 0)) as address,
        session.post(f"http://{address}/v1/responses", data=b"x" * 2000) as answer,
    ):
        assert answer.status == 413
        assert (await answer.json())["error"]["code"] == "request_too_large"


async def test_backend_is_healthy(session: aiohttp.ClientSession, simulation: Place) -> None:
    """There is something to probe."""
    async with session.get(simulation.url.removesuffix("/v1") + "/health") as answer:
        assert await answer.json() == {"status": "ok"}


async def test_backend_counts_what_reaches_it(session: aiohttp.ClientSession, simulation: Place) -> None:
    """Requests, bodies and connections are counted as they come, and from nothing again after that."""
    url = f"{simulation.url}/responses"
    body = b'{"model":"m","input":"hi"}'
    for _ in range(2):
        async with session.post(url, data=body) as answer:
            assert answer.status == 200
    async with session.post(url, data=b"{}", headers={"Connection": "close"}) as answer:
        assert answer.status == 400
    seen = simulation.backend.take_seen()
    assert (seen.connections, seen.requests, seen.body_bytes) == (1, 3, 2 * len(body) + 2)
    prompt = len(intake.read(body).prompt())
    assert (seen.input_tokens, seen.cached_tokens) == (2 * prefix.tokens(prompt), prompt // prefix.BYTES_PER_TOKEN)
    assert seen.busy_seconds > 0
    assert simulation.backend.take_seen() == backend.Seen()
    async with aiohttp.ClientSession() as other, other.get(f"{simulation.url}/models"):
        pass
    assert simulation.backend.take_seen() == backend.Seen(connections=1)


async def test_backend_sends_tokens_as_they_come(session: aiohttp.ClientSession) -> None:
    """A stream begins before its tokens are there, and a client that leaves is let go."""
    endless = Backend(Script(token_seconds=3600))
    async with backend.start(endless, Address("127.0.0.1", 0)) as address:
        body = b'{"model":"m","input":"hi","stream":true}'
        async with session.post(f"http://{address}/v1/responses", data=body) as answer:
            assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            assert (await answer.content.readline()) == b"event: response.created\n"
    assert endless.take_seen().busy_seconds == 0


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_backend_takes_its_time(session: aiohttp.ClientSession, is_streamed: bool) -> None:  # noqa: FBT001 - a parameter of a test
    """A response takes at least as long as its tokens do, streamed or not."""
    slow = Backend(Script(token_seconds=0.001))
    body = orjson.dumps({"model": "m", "input": "hi", "stream": is_streamed})
    async with (
        backend.start(slow, Address("127.0.0.1", 0)) as address,
        session.post(f"http://{address}/v1/responses", data=body) as answer,
    ):
        found = re.findall(rb'"output_tokens":([0-9]+)', await answer.read())
    assert slow.take_seen().busy_seconds >= 0.001 * int(found[-1])


async def test_backend_cannot_listen_where_somebody_does(simulation: Place) -> None:
    """An address that is taken is an error, not silence."""
    port = int(simulation.url.removesuffix("/v1").rpartition(":")[2])
    with pytest.raises(OSError, match="in use"):
        await backend.start(Backend(Script()), Address("127.0.0.1", port)).__aenter__()
