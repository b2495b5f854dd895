"""A create over HTTP that refers to what is stored becomes one that holds all of it.

The same rules as for a turn on a socket, but for what a client said that no backend needs to be kept from: a body that
refers to nothing goes on as it came, and one that does keeps its fields in the client's own spelling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from proxy.protocol import chain, messages, rawjson, request, transcript
from proxy.protocol.chain import Entry
from proxy.protocol.errors import ItemNotFound, ToolCallNotFound
from proxy.protocol.messages import Create, Frame
from proxy.protocol.profiles import RequestRules
from proxy.protocol.rawjson import Head, InvalidJSON, Pairs
from proxy.protocol.store import StoredItem
from proxy.protocol.transcript import Transcript

_NULL: Final = b"null"
_OWN: Final = frozenset({"input", "stream", "previous_response_id"})
#: Outputs whose calls the API looks for.
_CHECKED_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")


@dataclass(frozen=True, slots=True)
class HttpCreate:
    """A body of ``POST /v1/responses``, taken apart one level.

    Attributes:
        fields: Its fields, raw, in the client's order, but for the three below.
        stream: Raw; None if absent.
        input: Raw; null if absent.
        previous: `previous_response_id`, raw; null if absent.
        size: Bytes of the body.
    """

    fields: Pairs
    stream: bytes | None
    input: bytes
    previous: bytes
    size: int

    @property
    def may_be_stored(self) -> bool:
        """Whether the client lets its response be kept, and all that is before it can be known here."""
        values = dict(self.fields)
        return values.get("store") != b"false" and values.get("conversation", _NULL) == _NULL


@dataclass(frozen=True, slots=True)
class Expanded:
    """A create that refers to nothing any more.

    Attributes:
        body: What the backend is to be sent; None if that is what the client sent.
        parent: The response that it continues; None for a new chain.
        fields: The fields it runs with, raw, without input.
        items: The items it brings, raw, in the form in which they are remembered.
        heads: The head of each.
        brought: Fields among `fields` that a warm-up brought and that no create has named since.
    """

    body: bytes | None
    parent: Entry | None
    fields: Pairs
    items: list[bytes]
    heads: list[Head]
    brought: frozenset[str]


def read(body: bytes) -> HttpCreate | None:
    """Take a body apart; None if it is not the text of a JSON object."""
    if not (body.isascii() or rawjson.is_utf8(body)):
        return None
    try:
        pairs = rawjson.split_object(body)
    except InvalidJSON:
        return None
    members = dict(pairs)
    return HttpCreate(
        fields=[pair for pair in pairs if pair[0] not in _OWN],
        stream=members.get("stream"),
        input=members.get("input", _NULL),
        previous=members.get("previous_response_id", _NULL),
        size=len(body),
    )


def sort(asked: HttpCreate, *, max_items: int) -> Create:
    """What a create brings and continues, as a socket's create says it; its `fields` are empty.

    Args:
        asked: The create.
        max_items: How many input items it may hold.

    Raises:
        InvalidMessage: `input` or `previous_response_id` is none.
    """
    pairs = [("input", asked.input), ("previous_response_id", asked.previous)]
    return messages.read_create(Frame(messages.CREATE, None, pairs, asked.size), max_items=max_items)


def references(heads: Sequence[Head]) -> set[str]:
    """The ids of the items that `item_reference` items name."""
    return {head.id for head in heads if head.type == "item_reference" and head.id is not None}


def expand(
    asked: HttpCreate,
    create: Create,
    parent: Entry | None,
    found: Mapping[str, StoredItem],
    rules: RequestRules,
    *,
    asks_backend: bool,
) -> Expanded:
    """Put what a create refers to in the place of the references.

    Args:
        asked: The create.
        create: What :func:`sort` made of it.
        parent: The response that it continues; None if it names none.
        found: The items that its references name, as far as they are stored.
        rules: How the backend wants its requests.
        asks_backend: Whether a reference to an unknown item is handed on.

    Raises:
        ItemNotFound: an `item_reference` names an item that is not stored.
        ToolCallNotFound: a body that has to be expanded holds an output for a call that was never made.
    """
    items, heads = dereference(create.items, create.heads, found, asks_backend=asks_backend)
    if parent is None and not found:
        kept_items, kept_heads = request.admit_items(items, heads, rules)
        return Expanded(None, None, asked.fields, kept_items, kept_heads, frozenset())
    fields, brought = inherit(asked.fields, parent, rules)
    before = parent.transcript if parent else None
    if dict(fields).get("conversation", _NULL) == _NULL:  # else the calls may stand in what only the backend knows
        check_calls(heads, before)
    items, heads = request.admit_items(items, heads, rules)
    return Expanded(request.build(fields, before, items, asked.stream).body(), parent, fields, items, heads, brought)


def dereference(
    items: Sequence[bytes], heads: Sequence[Head], found: Mapping[str, StoredItem], *, asks_backend: bool
) -> tuple[list[bytes], list[Head]]:
    """Items, each `item_reference` replaced by the item it names (the AI SDK sends them).

    Raises:
        ItemNotFound: one is not found, and the backend is not to be asked.
    """
    whole = []
    for item, head in zip(items, heads, strict=True):
        if head.type == "item_reference" and head.id is not None:
            if head.id not in found and not asks_backend:
                raise ItemNotFound(head.id)
            item, head = found.get(head.id, (item, head))
        whole.append((item, head))
    return [item for item, _ in whole], [head for _, head in whole]


_NOTHING: Final[frozenset[str]] = frozenset()


def inherit(fields: Pairs, parent: Entry | None, rules: RequestRules) -> tuple[Pairs, frozenset[str]]:
    """The fields a create runs with, and those of them that it has from a warm-up before it.

    The API does not carry fields over from the previous response, but from a warm-up, which exists to bring them; others
    only where the operator wants it (`rules.inherits`).
    """
    admitted = request.admit_fields(fields, rules)
    if parent is None or not (parent.brought or rules.inherits):
        return admitted, _NOTHING
    named = {name for name, _ in fields}
    brought = parent.brought - named
    wanted = brought | rules.inherits - named
    return admitted + [(name, value) for name, value in parent.settings.fields if name in wanted], brought


def check_calls(heads: Sequence[Head], before: Transcript) -> None:
    """Look for the calls that outputs among some items answer.

    Raises:
        ToolCallNotFound: one is neither among them nor in the transcript before them.
    """
    calls = {head.call_id for head in heads if not transcript.is_call_output(head)}
    for head in heads:
        if head.type not in _CHECKED_OUTPUTS or head.call_id is None or head.call_id in calls:
            continue
        if not transcript.has_call(before, head.call_id):
            raise ToolCallNotFound(head.call_id)


def entry(
    expanded: Expanded,
    response_id: str,
    items: Sequence[bytes],
    heads: Sequence[Head],
    response: bytes,
    *,
    created_at: int,
    upstream_id: str | None,
) -> Entry:
    """What is stored of a response.

    Args:
        expanded: What it answers.
        response_id: Its id.
        items: Its output items as the backend sent them.
        heads: The head of each.
        response: The rest of its object, trimmed.
        created_at: Unix seconds at which it was asked for.
        upstream_id: Its id where the backend keeps it too.
    """
    parent = expanded.parent
    return Entry(
        response_id=response_id,
        lane=None,
        transcript=transcript.extend(
            parent.transcript if parent else None, [*expanded.items, *items], [*expanded.heads, *heads]
        ),
        settings=chain.settings_like(expanded.fields, parent.settings if parent else None),
        depth=parent.depth + 1 if parent else 1,
        is_warmup=False,
        brought=expanded.brought,
        response=response,
        output_items=len(items),
        created_at=created_at,
        may_be_stored=True,
        upstream_id=upstream_id,
    )
