"""A response that is kept, as an object again: what of it is kept, and how it is shown to who asks for it.

Of a final response nearly all stands elsewhere: its output in the transcript, its settings beside it, the rest are
defaults. :func:`trim` drops that, :func:`restore` brings it back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from proxy.protocol import gaps, rawjson, responses
from proxy.protocol.chain import Entry
from proxy.protocol.errors import InvalidMessage
from proxy.protocol.rawjson import Head
from proxy.protocol.responses import RequestEcho
from proxy.protocol.transcript import items_of

_NULL: Final = b"null"
_MAX_PAGE: Final = 100
_PREFIXES: Final = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
"""What ids begin with in the API; those of other items are made up with `item`."""


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list is asked for.

    Attributes:
        limit: Items, at most; 1..100.
        is_ascending: From the oldest on; else from the newest.
        after: The id of the item behind which it begins; None for the list's beginning.
    """

    limit: int = 20
    is_ascending: bool = False
    after: str | None = None


def trim(response: bytes, echo: RequestEcho) -> bytes:
    """A final response without what can be told from its transcript and its settings.

    Args:
        response: The whole object, raw.
        echo: What it says about its request. The id that the client continued is kept, since nothing else holds it.

    Raises:
        InvalidJSON: it is no object, or has too many members.
    """
    settings = _without_parent(echo)
    members = dict(rawjson.split_object(response))
    return rawjson.join_object(
        (name, value)
        for name, value in members.items()
        if name != "output" and not _is_repeated(name, value, echo) and not _means(value, settings.default(name))
    )


def restore(trimmed: bytes, echo: RequestEcho, response_id: str, output: Sequence[bytes]) -> bytes:
    """The inverse of :func:`trim`; what was left out because it meant the same comes back in the request's spelling.

    Args:
        trimmed: What was kept.
        echo: What the response says about its request.
        response_id: Its id.
        output: Its output items, raw.
    """
    listed = ("output", b"[" + b",".join(output) + b"]")
    whole = rawjson.join_object([*rawjson.split_object(trimmed), listed])
    return responses.fill(whole, response_id, "completed", _without_parent(echo))


def response_object(entry: Entry) -> bytes:
    """The Response object of what is kept, whole."""
    # A backend that stores nothing may have said so in its own object; here it is stored.
    members = dict(rawjson.split_object(entry.response))
    rest = [pair for pair in members.items() if pair[0] not in ("store", "output")]
    listed, _ = rawjson.split_items(members["output"]) if "output" in members else ([], [])
    output = [gaps.fill_item(item, "completed") for item in listed or [item for item, _ in _output_of(entry)]]
    echo = RequestEcho(dict(entry.settings.fields), entry.created_at, None)
    return restore(rawjson.join_object([*rest, ("store", b"true")]), echo, entry.response_id, output)


def deletion(response_id: str) -> bytes:
    """What is said of a response that is no longer there."""
    return b'{"id":' + rawjson.dumps(response_id) + b',"object":"response","deleted":true}'


def read_page(query: Mapping[str, str]) -> Page:
    """Read the parameters of a list; those that it has not are left alone.

    Raises:
        InvalidMessage: one has a value that it cannot have.
    """
    limit, order = query.get("limit", "20"), query.get("order", "desc")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 10 and 1 <= int(limit) <= _MAX_PAGE):
        raise InvalidMessage(f"Invalid 'limit': expected a whole number from 1 to {_MAX_PAGE}.", param="limit")
    if order not in ("asc", "desc"):
        raise InvalidMessage("Invalid 'order': expected 'asc' or 'desc'.", param="order")
    return Page(int(limit), order == "asc", query.get("after"))


def input_items(entry: Entry, page: Page) -> bytes:
    """A part of the list of all items that a response saw, those of the turns before it included.

    Raises:
        InvalidMessage: the item behind which it is to begin is not in the list.
    """
    everything = items_of(entry.transcript)
    ids = [
        head.id or _made_id(entry.response_id, position, head)
        for position, (_, head) in enumerate(everything[: len(everything) - entry.output_items])
    ]
    order = list(range(len(ids))) if page.is_ascending else list(reversed(range(len(ids))))
    if page.after is not None:
        # Some backends give several items one id: behind the last of them, or the list would have no end.
        places = [place for place, position in enumerate(order) if ids[position] == page.after]
        if not places:
            raise InvalidMessage("No item with the id in 'after' is in this list.", param="after")
        order = order[places[-1] + 1 :]
    shown = order[: page.limit]
    data = [_shown(everything[position][0], ids[position]) for position in shown]
    ends = (rawjson.dumps(ids[shown[index]]) if shown else _NULL for index in (0, -1))
    return b'{"object":"list","data":[%b],"first_id":%b,"last_id":%b,"has_more":%b}' % (
        b",".join(data),
        *ends,
        b"true" if len(order) > len(shown) else b"false",
    )


def _without_parent(echo: RequestEcho) -> RequestEcho:
    return RequestEcho(echo.fields, echo.created_at, None, echo.normalised)


def _is_repeated(name: str, value: bytes, echo: RequestEcho) -> bool:
    """Whether it is the request's tools, in whatever spelling: they are long, and no backend invents any."""
    return name == "tools" and value[:2] == b"[{" and echo.fields.get(name, b"")[:2] == b"[{"


def _means(value: bytes, default: bytes | None) -> bool:
    """Whether a value is the default, however it is spelt: a backend writes a client's tools in its own way."""
    if default is None or value == default:
        return value == default
    if value[:1] != default[:1] or value[:1] not in (b"{", b"[", b'"'):
        return False
    try:
        return bool(msgspec.json.decode(value) == msgspec.json.decode(default))
    except (msgspec.DecodeError, RecursionError):
        return False


def _output_of(entry: Entry) -> list[tuple[bytes, Head]]:
    everything = items_of(entry.transcript)
    return everything[len(everything) - entry.output_items :]


def _made_id(response_id: str, position: int, head: Head) -> str:
    """An id for an item that has none: the same whenever it is asked for."""
    digest = hashlib.sha256(f"{position}:{response_id}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"{_PREFIXES.get(head.type or 'message', 'item')}_{digest[:48]}"


def _shown(item: bytes, item_id: str) -> bytes:
    """An item as the API lists it: with an id; a message with its type, a status, and its text as a content part."""
    values = dict(rawjson.split_object(item))
    wanted = {"id": rawjson.dumps(item_id)}
    if rawjson.string(values.get("id", b"")) == "":
        del values["id"]
    if values.get("type", b'"message"') == b'"message"' and "role" in values:
        wanted |= {"type": b'"message"', "status": b'"completed"'}
    added = {name: value for name, value in wanted.items() if values.get(name, _NULL) == _NULL}
    text = values.get("content", b"")
    is_short = "type" in wanted and text[:1] == b'"'
    if is_short and values["role"] == b'"assistant"':
        added["content"] = b'[{"type":"output_text","text":%b,"annotations":[]}]' % text
    elif is_short:
        added["content"] = b'[{"type":"input_text","text":%b}]' % text
    return rawjson.join_object((values | added).items()) if added else item
