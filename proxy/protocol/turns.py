"""What a turn is made of: its parent, its fields, its items, and what is remembered of it.

:func:`prepare` resolves all that a create refers to before anything runs; the rest turns a prepared turn into a request,
into the answer to a warm-up, or into an entry of the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.protocol import chain, rawjson, relay, request, responses, transcript
from proxy.protocol.chain import ChainCache, Entry
from proxy.protocol.errors import ItemNotFound, PreviousResponseNotFound, ToolCallNotFound
from proxy.protocol.lanes import Lane, Turn
from proxy.protocol.messages import Create
from proxy.protocol.profiles import RequestRules
from proxy.protocol.rawjson import Head, Pairs
from proxy.protocol.records import TurnEnded
from proxy.protocol.request import UpstreamRequest
from proxy.protocol.responses import RequestEcho

#: Outputs whose calls the API looks for.
_CHECKED_OUTPUTS = ("function_call_output", "custom_tool_call_output")


def prepare(turn: Turn, create: Create, lane: Lane, cache: ChainCache, rules: RequestRules) -> None:
    """Resolve what a create refers to.

    Args:
        turn: The turn; its parent, fields, items and heads are set, and its record is begun.
        create: What the client asked for.
        lane: The turn's lane.
        cache: What the connection remembers.
        rules: How the backend wants its requests.

    Raises:
        PreviousResponseNotFound: it continues a response that is not remembered.
        ItemNotFound: an `item_reference` names an item that is not remembered.
        ToolCallNotFound: it holds an output for a call that was never made.
    """
    record = turn.record
    if create.previous_response_id is None:
        record.lookup = "new"
    else:
        record.previous_response_id = create.previous_response_id
        turn.parent = _resolve(create.previous_response_id, record, lane, cache)
    record.depth = turn.parent.depth + 1 if turn.parent else 1
    turn.fields, turn.brought = _fields(create, turn.parent, rules)
    names = dict(turn.fields)
    record.model = rawjson.string(names.get("model", b""))
    items, heads = _dereference(create, cache, rules)
    if names.get("conversation", b"null") == b"null":  # else the calls may stand in what only the backend knows
        _check_calls(heads, turn.parent)
    turn.items, turn.heads = request.admit_items(items, heads, rules)
    record.new_items = len(turn.items)


def build_request(turn: Turn) -> UpstreamRequest:
    """The upstream request of a prepared turn."""
    body = request.build(turn.fields, _transcript(turn.parent), turn.items)
    record = turn.record
    record.upstream_bytes = body.size
    record.replayed_bytes, record.replayed_items = body.replayed_bytes, body.replayed_items
    return body


def echo(turn: Turn) -> RequestEcho:
    """What the turn's Response objects say about its request."""
    return RequestEcho(dict(turn.fields), turn.created_at, turn.record.previous_response_id)


def warmup_frames(turn: Turn, response_id: str, stream_id: str | None) -> list[bytes]:
    """The answer to a warm-up: a response with an id, no output, and nothing spent.

    The API's own has these two events at least (CLIProxyAPI#6006, agentic-api#124); both are whole, since some clients
    read the first and some the last.
    """
    said = echo(turn)
    created = responses.compose(said, response_id, "in_progress")
    completed = responses.compose(
        said, response_id, "completed", completed_at=b"%d" % turn.created_at, usage=responses.ZERO_USAGE
    )
    lane = relay.lane_member(stream_id)
    return [
        b'{"type":"response.created",' + lane + b'"sequence_number":0,"response":' + created + b"}",
        b'{"type":"response.completed",' + lane + b'"sequence_number":1,"response":' + completed + b"}",
    ]


def entry(
    turn: Turn, lane: Lane, response_id: str, items: Sequence[bytes], heads: Sequence[Head], response: bytes
) -> Entry:
    """What is remembered of a turn.

    Args:
        turn: The turn.
        lane: Its lane.
        response_id: The id the client knows its response by.
        items: Its output items as the backend sent them.
        heads: The head of each.
        response: The rest of its response object.
    """
    return Entry(
        response_id=response_id,
        lane=lane.name,
        transcript=transcript.extend(_transcript(turn.parent), [*turn.items, *items], [*turn.heads, *heads]),
        settings=chain.settings_like(turn.fields, turn.parent.settings if turn.parent else None),
        depth=turn.record.depth,
        is_warmup=isinstance(turn.asked, Create) and turn.asked.is_warmup,
        brought=turn.brought,
        response=response,
    )


def _transcript(parent: Entry | None) -> transcript.Transcript:
    return parent.transcript if parent else None


def _resolve(response_id: str, record: TurnEnded, lane: Lane, cache: ChainCache) -> Entry:
    try:
        parent = cache.resolve(response_id)
    except PreviousResponseNotFound as error:
        record.lookup, record.reason = "miss", error.reason
        raise
    record.lookup = "hit"
    record.reason = "warmup" if parent.is_warmup else "tip" if lane.tip == response_id else "branch"
    return parent


def _fields(create: Create, parent: Entry | None, rules: RequestRules) -> tuple[Pairs, frozenset[str]]:
    """The fields a turn runs with, and those of them that no create has named but a warm-up brought.

    The API does not carry fields over from the previous response. A warm-up is the exception: it exists to bring them
    (WebSocket guide, "Warm up"), so they stay with its chain until a create names them itself.
    """
    fields = request.admit_fields(create.fields, rules)
    named = {name for name, _ in create.fields}
    brought = frozenset(named) if create.is_warmup else frozenset()
    if parent is not None and parent.brought - named:
        kept = parent.brought - named
        fields = fields + [(name, value) for name, value in parent.settings.fields if name in kept]
        brought |= kept
    return fields, brought


def _dereference(create: Create, cache: ChainCache, rules: RequestRules) -> tuple[list[bytes], list[Head]]:
    """The new items, each `item_reference` replaced by the item it names (the AI SDK sends them)."""
    wanted = {head.id for head in create.heads if head.type == "item_reference" and head.id is not None}
    if not wanted:
        return create.items, create.heads
    found = cache.find_items(wanted)
    items, heads = [], []
    for item, head in zip(create.items, create.heads, strict=True):
        if head.type == "item_reference" and head.id is not None:
            if head.id not in found and not rules.profile.resolves_references:
                raise ItemNotFound(head.id)
            item, head = found.get(head.id, (item, head))
        items.append(item)
        heads.append(head)
    return items, heads


def _check_calls(heads: Sequence[Head], parent: Entry | None) -> None:
    calls = {head.call_id for head in heads if not transcript.is_call_output(head)}
    for head in heads:
        if head.type not in _CHECKED_OUTPUTS or head.call_id is None or head.call_id in calls:
            continue
        if not transcript.has_call(_transcript(parent), head.call_id):
            raise ToolCallNotFound(head.call_id)
