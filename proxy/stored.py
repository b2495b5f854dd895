"""The Responses API over plain HTTP, where the proxy has something to add to what passes through.

A create that continues a stored response, or refers to stored items, is expanded before the backend sees it
(:mod:`proxy.protocol.expand`); what the backend leaves out of its answer is filled in (:mod:`proxy.protocol.filling`);
the response is stored unless the client said `store: false`. `GET` and `DELETE` of a response, and `GET` of its input
items, are answered from the store (:mod:`proxy.protocol.kept`). Whatever is none of this passes through.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import aiohttp
from aiohttp import web

from proxy.config import Config
from proxy.owners import Owners
from proxy.passthrough import Answered, PassThrough
from proxy.protocol import expand, kept, rawjson
from proxy.protocol.errors import InvalidMessage, PreviousResponseNotFound, ResponseNotFound
from proxy.protocol.expand import Expanded, HttpCreate
from proxy.protocol.filling import StreamFiller, fill_object
from proxy.protocol.rawjson import InvalidJSON
from proxy.protocol.responses import RequestEcho
from proxy.protocol.settings import SessionSettings
from proxy.protocol.store import Owner, ResponseStore
from proxy.protocol.terminals import Terminal
from proxy.protocol.upstream_errors import UpstreamDisconnected

_RESPONSES: Final = re.compile(r"/responses/?")
_RESPONSE: Final = re.compile(r"/responses/([^/]+)")
_INPUT_ITEMS: Final = re.compile(r"/responses/([^/]+)/input_items")
_NULL: Final = b"null"


@dataclass(frozen=True, slots=True)
class _Asked:
    """A create on its way.

    Attributes:
        echo: What its response says about it.
        expanded: What it is without references; None if that is not known here.
        owner: Whose its response is; None if it is not stored.
        is_kept: Whether the backend keeps its response too.
    """

    echo: RequestEcho
    expanded: Expanded | None = None
    owner: Owner | None = None
    is_kept: bool = False


class StoredResponses:
    """Answers plain HTTP requests.

    Args:
        config: The operator's choices.
        settings: What the core knows of them.
        pass_through: The backend.
        store: Where responses are kept; None for nowhere.
        owners: Whose they are.
        new_id: Makes an id for a response that has none.
    """

    def __init__(
        self,
        config: Config,
        settings: SessionSettings,
        pass_through: PassThrough,
        store: ResponseStore | None,
        owners: Owners,
        new_id: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._pass_through = pass_through
        self._store = store
        self._owner_of = owners.owner_of
        self._new_id = new_id
        self._asks_backend = config.default.keeps_responses

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        return await self._pass_through.count(request, self._answer_to(request))

    def _answer_to(self, request: web.Request) -> Callable[[web.Request], Awaitable[Answered]]:
        path = self._pass_through.target(request).partition("?")[0]
        if request.method == "POST" and _RESPONSES.fullmatch(path) and _is_json(request.content_type):
            return self._create
        store = self._store
        if store is None or request.method not in ("GET", "DELETE"):
            return self._pass_through.forward
        if match := _RESPONSE.fullmatch(path):
            response_id = unquote(match[1])
            answer = self._show if request.method == "GET" else self._delete
            return lambda request: answer(request, store, response_id)
        if request.method == "GET" and (match := _INPUT_ITEMS.fullmatch(path)):
            response_id = unquote(match[1])
            return lambda request: self._list(request, store, response_id)
        return self._pass_through.forward

    # What is stored

    async def _show(self, request: web.Request, store: ResponseStore, response_id: str) -> Answered:
        entry = await store.load(self._owner_of(request), response_id)
        is_stream = request.query.get("stream", "").lower() in ("true", "1")
        if self._asks_backend and (entry is None or (is_stream and entry.upstream_id == response_id)):
            return await self._pass_through.forward(request)
        if entry is None:
            raise ResponseNotFound(response_id)
        if is_stream:
            raise InvalidMessage("A stored response is given as a whole only, not as a stream.", param="stream")
        return _json(kept.response_object(entry))

    async def _list(self, request: web.Request, store: ResponseStore, response_id: str) -> Answered:
        entry = await store.load(self._owner_of(request), response_id)
        if entry is None:
            if self._asks_backend:
                return await self._pass_through.forward(request)
            raise ResponseNotFound(response_id)
        return _json(kept.input_items(entry, kept.read_page(request.query)))

    async def _delete(self, request: web.Request, store: ResponseStore, response_id: str) -> Answered:
        owner = self._owner_of(request)
        entry = await store.load(owner, response_id)
        await store.delete(owner, response_id)
        if self._asks_backend and (entry is None or entry.upstream_id == response_id):
            return await self._pass_through.forward(request)  # it has it too
        if entry is None:
            raise ResponseNotFound(response_id)
        return _json(kept.deletion(response_id))

    # A create

    async def _create(self, request: web.Request) -> Answered:
        whole = await self._pass_through.read(request)
        if whole is None:
            return await self._pass_through.forward(request)
        headers, body = whole
        asked: _Asked | None = None
        create = expand.read(body)
        if create is not None:
            asked = await self._prepare(create, request)
            if asked.expanded is not None and asked.expanded.body is not None:
                headers.popall("Content-Length", None)
                body = asked.expanded.body
            if "Accept-Encoding" in headers:
                headers["Accept-Encoding"] = "identity"  # or its answer could not be read here
        answer = await self._pass_through.send(request, headers, body)
        try:
            is_plain = answer.headers.get("Content-Encoding", "identity").strip().lower() in ("identity", "")
            if asked is None or answer.status != 200 or not is_plain:
                return await self._pass_through.relay(request, answer), "upstream"
            return await self._answer(request, answer, asked), "upstream"
        finally:
            answer.close()

    async def _prepare(self, create: HttpCreate, request: web.Request) -> _Asked:
        """Resolve what a create refers to.

        Raises:
            ClientError: it refers to what is not there.
        """
        now = int(time.time())
        store = self._store
        unknown = _Asked(RequestEcho(dict(create.fields), now, rawjson.string(create.previous)))
        if store is None:
            return unknown
        try:
            sorted_ = expand.sort(create, max_items=self._settings.max_items)
        except InvalidMessage:
            if create.previous != _NULL:
                raise
            return unknown  # whether such an input can be taken is the backend's to say
        rules = self._settings.routes.find(rawjson.string(dict(create.fields).get("model", b""))).rules
        owner, parent = self._owner_of(request), None
        previous = sorted_.previous_response_id
        if previous is not None:
            parent = await store.load(owner, previous)
            if parent is None:
                if rules.keeps_responses:
                    return unknown
                raise PreviousResponseNotFound(previous, "unknown")
        wanted = expand.references(sorted_.heads)
        expanded = expand.expand(
            create,
            sorted_,
            parent,
            await store.find_items(owner, wanted) if wanted else {},
            rules,
            asks_backend=rules.keeps_responses or rules.profile.resolves_references,
        )
        echo = RequestEcho(dict(expanded.fields), now, previous)
        return _Asked(echo, expanded, owner if create.may_be_stored else None, is_kept=rules.keeps_responses)

    async def _answer(self, request: web.Request, answer: aiohttp.ClientResponse, asked: _Asked) -> web.StreamResponse:
        """Give the client an answer with what it lacks, and store the response before it can know of it."""
        if answer.content_type == "text/event-stream":
            filler = StreamFiller(asked.echo, self._claim_id, self._settings.max_event_bytes)
            return await self._pass_through.relay(
                request, answer, _Storing(filler, lambda terminal: self._keep(asked, terminal))
            )
        if not _is_json(answer.content_type):
            return await self._pass_through.relay(request, answer)
        body = bytearray()
        try:
            while data := await answer.content.readany():
                body += data
                if len(body) > self._settings.max_event_bytes:
                    return await self._pass_through.relay(request, answer, begun=bytes(body))
        except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError) as exc:
            raise UpstreamDisconnected from exc
        filled, terminal = fill_object(bytes(body), asked.echo, self._claim_id)
        if terminal is not None:
            self._keep(asked, terminal)
        return await self._pass_through.give(request, answer, filled)

    def _claim_id(self, own: str | None) -> str:
        return own or self._new_id()

    def _keep(self, asked: _Asked, terminal: Terminal) -> None:
        if self._store is None or asked.expanded is None or asked.owner is None or terminal.kind == "failed":
            return
        try:
            rest = kept.trim(terminal.response, asked.echo)
        except InvalidJSON:
            return  # it is beyond what can be looked at, and no reason to keep it from the client
        entry = expand.entry(
            asked.expanded,
            terminal.response_id,
            terminal.items,
            terminal.heads,
            rest,
            created_at=asked.echo.created_at,
            upstream_id=terminal.response_id if asked.is_kept else None,
        )
        self._store.save(asked.owner, entry)


class _Storing:
    """A filler that says how the response ended before the bytes that say so are given out.

    Args:
        filler: What fills.
        keep: Whom to tell.
    """

    def __init__(self, filler: StreamFiller, keep: Callable[[Terminal], None]) -> None:
        self._filler = filler
        self._keep = keep
        self._is_told = False

    def feed(self, data: bytes) -> bytes:
        """Take some bytes; what the client is to have of them by now."""
        return self._told(self._filler.feed(data))

    def end(self) -> bytes:
        """The body is complete; what is left of it."""
        return self._told(self._filler.end())

    def _told(self, out: bytes) -> bytes:
        if self._filler.terminal is not None and not self._is_told:
            self._is_told = True
            self._keep(self._filler.terminal)
        return out


def _is_json(content_type: str) -> bool:
    return content_type == "application/json" or content_type.endswith("+json")


def _json(body: bytes) -> Answered:
    return web.Response(body=body, content_type="application/json"), "proxy"
