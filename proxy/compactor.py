"""`POST …/responses/compact`, where the backend has no such path: one summarising request instead.

What the client sends becomes a request for a summary (:mod:`proxy.protocol.compaction`) to the same backend, with the same
headers and credentials; the answer becomes the window that the API would return: the user's messages, and one compaction
item. It is not kept anywhere, and only this proxy, whichever copy of it, can read it.

Where nobody knows what the backend has, it is asked first, and answers for itself if it can.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from proxy.config import Config
from proxy.passthrough import Answered, PassThrough
from proxy.protocol import compaction, messages, rawjson, refusals, responses
from proxy.protocol.chain import Entry
from proxy.protocol.errors import InvalidMessage, PreviousResponseNotFound
from proxy.protocol.messages import Create, Frame
from proxy.protocol.profiles import Compaction, RequestRules
from proxy.protocol.rawjson import Head, InvalidJSON, Pairs
from proxy.protocol.request import admit_fields, admit_items, build
from proxy.protocol.routes import RoutingTable
from proxy.protocol.transcript import items_of
from proxy.protocol.upstream_errors import UpstreamDisconnected, UpstreamProtocolError

Load = Callable[[web.Request, str], Awaitable[Entry | None]]
"""Finds a response that was stored for whoever sent a request, by its id; None if there is none."""

_NOT_SERVED: Final = (404, 405, 501)
"""How backends say that they do not have a path."""

_NOT_OURS: Final = ("Content-Length", "Content-Encoding", "Content-Type", "Accept-Encoding")
"""Headers that say how the client's own body is sent, or what the proxy would have to inflate."""


class Compactor:
    """Compacts conversations for backends that cannot.

    Args:
        config: The operator's choices.
        routes: Which backend serves a model, how it wants its requests, and who compacts.
        pass_through: The way to the backend.
        load: Finds stored responses, for `previous_response_id`; without it none is found.
    """

    def __init__(
        self, config: Config, routes: RoutingTable, pass_through: PassThrough, load: Load | None = None
    ) -> None:
        self._routes = routes
        self._is_needed = any(one.rules.compaction is not Compaction.BACKEND for one in routes.routes.values())
        self._pass_through = pass_through
        self._load = load
        self._max_items = config.websocket.max_items
        self._max_answer = config.max_event
        self._paths = {
            f"{prefix}{path}/compact"
            for prefix in ("", config.base_path)
            for path in ("/responses", "/codex/responses")
        }

    def takes(self, request: web.Request) -> bool:
        """Whether a request is for compaction, and the backend may not be able to answer it."""
        return request.method == "POST" and request.path.rstrip("/") in self._paths and self._is_needed

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request for compaction; it is counted as one that passes through."""
        return await self._pass_through.count(request, self._answer)

    async def _answer(self, request: web.Request) -> Answered:
        whole = await self._pass_through.read(request)
        if whole is None:
            return await self._pass_through.forward(request)
        headers, body = whole
        pairs = _members(body)
        model = rawjson.string(dict(pairs or ()).get("model", b""))
        rules = self._routes.find(model).rules
        if pairs is None or rules.compaction is not Compaction.PROXY:
            answer = await self._pass_through.send(request, headers, body or None)
            try:
                is_asked_for_all = rules.compaction is Compaction.BACKEND
                if pairs is None or is_asked_for_all or answer.status not in _NOT_SERVED:
                    return await self._pass_through.relay(request, answer), "upstream"
            finally:
                answer.close()
        create = self._create(pairs, len(body))
        items, heads = await self._conversation(request, create, rules)
        return await self._compact(request, headers, admit_fields(create.fields, rules), items, heads)

    def _create(self, pairs: Pairs, size: int) -> Create:
        """The body, read as that of a turn.

        Raises:
            InvalidMessage: it is none, or lacks what compaction needs.
        """
        members = dict(pairs)
        model = members.get("model", b"null")
        if model == b"null":
            raise _missing("model")
        if rawjson.string(model) is None:
            raise InvalidMessage("Invalid type for 'model': expected a string.", param="model", code="invalid_type")
        of_a_turn = [pair for pair in pairs if pair[0] not in ("background", "generate")]
        return messages.read_create(Frame(messages.CREATE, None, of_a_turn, size), max_items=self._max_items)

    async def _conversation(
        self, request: web.Request, create: Create, rules: RequestRules
    ) -> tuple[list[bytes], list[Head]]:
        """All items that are to be compacted.

        Raises:
            PreviousResponseNotFound: it continues a response that is not stored for this client.
            InvalidMessage: there are none.
        """
        items, heads = admit_items(create.items, create.heads, rules)
        response_id = create.previous_response_id
        if response_id is not None:
            entry = await self._load(request, response_id) if self._load is not None else None
            if entry is None:
                raise PreviousResponseNotFound(response_id, "unknown")
            stored = items_of(entry.transcript)
            items = [*(item for item, _ in stored), *items]
            heads = [*(head for _, head in stored), *heads]
        if not items:
            raise _missing("input")
        return compaction.replayed(items, heads)

    async def _compact(
        self, request: web.Request, headers: CIMultiDict[str], fields: Pairs, items: list[bytes], heads: list[Head]
    ) -> Answered:
        asked, _ = compaction.admit(items, heads)
        wanted = compaction.summary_fields(fields)
        body = build(wanted, None, [*asked, compaction.PROMPT_ITEM], stream=b"false").body()
        _, mark, query = request.raw_path.partition("?")
        answer = await self._pass_through.send(request, _own(headers), body, f"/responses{mark}{query}")
        try:
            if answer.status != 200:
                return await self._pass_through.relay(request, answer), "upstream"
            summary, usage = await self._read_summary(answer)
        finally:
            answer.close()
        item = compaction.make_item(f"cmp_{secrets.token_hex(24)}", summary)
        window = compaction.window(items, heads, item)
        compacted = rawjson.join_object(
            [
                ("id", rawjson.dumps(f"resp_{secrets.token_hex(24)}")),
                ("object", b'"response.compaction"'),
                ("created_at", b"%d" % time.time()),
                ("output", b"[" + b",".join(window) + b"]"),
                ("usage", usage),
            ]
        )
        return web.Response(body=compacted, content_type="application/json"), "proxy"

    async def _read_summary(self, answer: aiohttp.ClientResponse) -> tuple[str, bytes]:
        """The text of a response, and its token counts. One that was cut short is better than none.

        Raises:
            UpstreamError: it failed, broke off, or is no response with a text.
        """
        data = bytearray()
        try:
            while piece := await answer.content.readany():
                data += piece
                if len(data) > self._max_answer:
                    raise UpstreamProtocolError(f"a response of more than {self._max_answer} bytes")
        except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError) as exc:
            raise UpstreamDisconnected from exc
        members = dict(_members(bytes(data)) or [])
        if rawjson.string(members.get("status", b"")) == "failed":
            raise refusals.from_event(bytes(data))
        try:
            output, _ = rawjson.split_items(members.get("output", b"null"))
        except InvalidJSON as exc:
            raise UpstreamProtocolError("it is no response") from exc
        summary = compaction.summary_text(output)
        if summary is None:
            raise UpstreamProtocolError("a summary was asked for, and the response has no text")
        usage = members.get("usage", b"null")
        return summary, responses.fill_usage(usage) if usage[:1] == b"{" else responses.ZERO_USAGE


def _members(body: bytes) -> Pairs | None:
    """The members of a body that is a JSON object; None if it is none."""
    if not rawjson.is_utf8(body):
        return None
    try:
        return rawjson.split_object(body)
    except InvalidJSON:
        return None


def _own(headers: CIMultiDict[str]) -> CIMultiDict[str]:
    """The client's headers for a request of the proxy's own."""
    own = CIMultiDict(headers)
    for name in _NOT_OURS:
        own.popall(name, None)
    own["Content-Type"] = "application/json"
    return own


def _missing(param: str) -> InvalidMessage:
    return InvalidMessage(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
