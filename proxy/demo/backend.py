"""The simulated backend: a stateless server of the Responses API over HTTP, without a model.

It stands in for a model server in the demo, and alone where a stack needs something to talk to. What it answers is
scripted (:mod:`~proxy.demo.agent`), and the time it takes is made up: so many milliseconds a token. The HTTP around that
is meant to be right: streams and single objects, errors in OpenAI's form, kept connections, a client that leaves ends the
work. It counts what comes in, so that the demo can tell what reached the model server.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

import orjson
from aiohttp import web

from proxy.config import Address
from proxy.demo import agent, intake
from proxy.demo.intake import Object, Refusal
from proxy.demo.prefix import PrefixCache
from proxy.demo.stream import Event, ResponseStream

MODEL: Final = "simulated-model"
"""The model that is listed; requests may name any."""

_MAX_BODY: Final = 64 * 2**20
_BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class Script:
    """How the simulation behaves.

    Attributes:
        tool_calls: How many tool outputs a transcript holds when its rollout is done.
        token_seconds: What a token takes, in seconds; 0 for no time at all.
        answer_tokens: How many tokens an answer has at least.
    """

    tool_calls: int = 20
    token_seconds: float = 0.005
    answer_tokens: int = 0


@dataclass(slots=True)
class Seen:
    """What reached the backend so far.

    Attributes:
        connections: TCP connections accepted.
        requests: `POST /v1/responses`, refused ones included.
        body_bytes: Their bodies, in bytes.
        input_tokens: Tokens of the prompts, of the size that the simulation takes a token to be.
        cached_tokens: Those of them that the simulated prefix cache held.
        busy_seconds: From each request to the last event of its response, all of them together.
    """

    connections: int = 0
    requests: int = 0
    body_bytes: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    busy_seconds: float = 0.0


class Backend:
    """A simulated backend.

    Args:
        script: How it behaves.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._cache = PrefixCache()
        self._seen = Seen()

    def take_seen(self) -> Seen:
        """What reached it since the last call; connections that are still open were counted when they came."""
        seen = replace(self._seen)
        self._seen = Seen()
        return seen

    def forget_prompts(self) -> None:
        """Empty the prefix cache, as a restart would."""
        self._cache.forget()

    def connection_accepted(self) -> None:
        """Count a connection."""
        self._seen.connections += 1

    def application(self) -> web.Application:
        """The aiohttp application, with the API below `/v1`."""
        application = web.Application(client_max_size=_MAX_BODY, middlewares=[_answer_errors])
        application.router.add_post("/v1/responses", self._create)
        application.router.add_get("/v1/models", _list_models)
        application.router.add_get("/v1/models/{model:.+}", _show_model)
        application.router.add_get("/health", _health)
        return application

    # One response

    async def _create(self, request: web.Request) -> web.StreamResponse:
        began = time.perf_counter()
        self._seen.requests += 1
        body = await request.read()
        self._seen.body_bytes += len(body)
        asked = intake.read(body)
        prompt = asked.prompt()
        stream = ResponseStream(
            asked,
            agent.answer(asked, self._script.tool_calls, self._script.answer_tokens),
            prompt_bytes=len(prompt),
            cached_bytes=self._cache.take(prompt),
        )
        paced = self._paced(stream, began)
        return await (_send_events(request, paced) if asked.is_streamed else _send_object(stream, paced))

    async def _paced(self, stream: ResponseStream, began: float) -> AsyncIterator[list[Event]]:
        """The events of a response, those that come at the same time together.

        The times are set when the response begins, as a model's pace is, which does not depend on how fast anybody reads.
        """
        loop = asyncio.get_running_loop()
        due = loop.time()
        ready: list[Event] = []
        for event in stream.events():
            if event.is_token:
                due += self._script.token_seconds
                wait = due - loop.time()
                if wait > 0:
                    yield ready
                    ready = []
                    await asyncio.sleep(wait)
            ready.append(event)
        # Before the last events leave, so that whoever has them finds their response counted.
        usage = stream.response["usage"]
        self._seen.input_tokens += usage["input_tokens"]
        self._seen.cached_tokens += usage["input_tokens_details"]["cached_tokens"]
        self._seen.busy_seconds += time.perf_counter() - began
        yield ready


async def _send_events(request: web.Request, paced: AsyncIterator[list[Event]]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Cache-Control": "no-cache"})
    response.content_type = "text/event-stream"
    response.charset = "utf-8"
    await response.prepare(request)
    async for events in paced:
        await response.write(b"".join(event.sse() for event in events))
    await response.write_eof()
    return response


async def _send_object(stream: ResponseStream, paced: AsyncIterator[list[Event]]) -> web.Response:
    async for _ in paced:
        pass  # it takes as long as the stream would
    return _json(stream.response)


@contextlib.asynccontextmanager
async def start(backend: Backend, address: Address) -> AsyncIterator[Address]:
    """Serve a simulated backend, for as long as the context lasts.

    Args:
        backend: What to serve.
        address: Where; port 0 lets the system choose.

    Yields:
        Where it listens.

    Raises:
        OSError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with contextlib.closing(socket.create_server(address, family=family, backlog=_BACKLOG)) as listener:
        # With cancellation a client that leaves ends its response, as it ends generation on a real server.
        runner = web.AppRunner(backend.application(), handler_cancellation=True, shutdown_timeout=0.5, access_log=None)
        await runner.setup()
        try:
            server = await asyncio.get_running_loop().create_server(_counted(backend, runner), sock=listener)
            try:
                yield Address(address.host, listener.getsockname()[1])
            finally:
                server.close()
        finally:
            await runner.cleanup()


def _counted(backend: Backend, runner: web.AppRunner) -> Callable[[], asyncio.Protocol]:
    """What makes a protocol for each connection that is accepted, and counts it."""

    def accept() -> asyncio.Protocol:
        server = runner.server
        assert server is not None, "set up before anything is accepted"
        backend.connection_accepted()
        return server()

    return accept


# Everything but responses


@web.middleware
async def _answer_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Give every error the form of OpenAI's API."""
    headers = {}
    try:
        return await handler(request)
    except Refusal as exc:
        refusal = exc
    except web.HTTPNotFound:
        refusal = Refusal(f"Unknown request URL: {request.method} {request.path}.", code="unknown_url", status=404)
    except web.HTTPMethodNotAllowed as exc:
        refusal = Refusal(f"{request.method} is not allowed here.", code="method_not_allowed", status=405)
        headers["Allow"] = exc.headers["Allow"]
    except web.HTTPRequestEntityTooLarge:
        refusal = Refusal(f"The body is larger than {_MAX_BODY} bytes.", code="request_too_large", status=413)
    return web.Response(status=refusal.status, body=refusal.body(), content_type="application/json", headers=headers)


async def _list_models(_request: web.Request) -> web.Response:
    return _json({"object": "list", "data": [_model()]})


async def _show_model(request: web.Request) -> web.Response:
    name = request.match_info["model"]
    if name != MODEL:
        raise Refusal(f"The model '{name}' does not exist.", param="model", code="model_not_found", status=404)
    return _json(_model())


async def _health(_request: web.Request) -> web.Response:
    return _json({"status": "ok"})


def _model() -> Object:
    return {"id": MODEL, "object": "model", "created": 0, "owned_by": "slipstream-demo"}


def _json(value: Object) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
