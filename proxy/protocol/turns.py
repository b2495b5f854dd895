"""What a turn is made of: its parent, its fields, its items, and what is remembered of it.

:func:`prepare` resolves all that a create refers to before anything runs; the rest turns a prepared turn into a request,
into the answer to a warm-up, or into an entry of the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Final

from proxy.protocol import chain, compaction, controls, expand, kept, rawjson, relay, request, responses, transcript
from proxy.protocol.chain import ChainCache, Entry
from proxy.protocol.errors import PreviousResponseNotFound, RolloutNotStarted
from proxy.protocol.events import Recalled
from proxy.protocol.lanes import Lane, Turn
from proxy.protocol.messages import Create
from proxy.protocol.profiles import Compaction, RequestRules
from proxy.protocol.rawjson import Head, InvalidJSON, Pairs
from proxy.protocol.records import Prefix, ToolsLookup, TurnEnded
from proxy.protocol.request import UpstreamRequest
from proxy.protocol.responses import RequestEcho
from proxy.protocol.routes import Placement, RouteLookup, RoutingTable
from proxy.protocol.terminals import Terminal, Usage
from proxy.protocol.transcript import Transcript

_PREFIXES: Final[dict[str, Prefix]] = {"tools": "tools", "instructions": "instructions", "model": "model"}
_SEALED: Final = ("reasoning", transcript.COMPACTION)
"""Items that may hold what only the deployment can read that made them."""


def previous_of(create: Create, lane: Lane) -> str | None:
    """The response that a create continues when it starts; None for a new chain."""
    return lane.tip if create.appends else create.previous_response_id


def missing(create: Create, lane: Lane, cache: ChainCache) -> tuple[str | None, frozenset[str]]:
    """What a create refers to and the connection does not remember: a response, and items by their ids."""
    previous = previous_of(create, lane)
    wanted = expand.references(create.heads)
    found = cache.find_items(wanted) if wanted else {}
    return (None if previous is None or previous in cache else previous), frozenset(wanted - found.keys())


def prepare(
    turn: Turn, create: Create, lane: Lane, cache: ChainCache, routes: RoutingTable, recalled: Recalled | None = None
) -> None:
    """Resolve what a create refers to.

    Args:
        turn: The turn; its parent, placement, fields, items and heads are set, and its record is begun.
        create: What the client asked for.
        lane: The turn's lane.
        cache: What the connection remembers.
        routes: Which backend serves a model, and how it wants its requests.
        recalled: What the store knows of what the connection does not remember.

    Raises:
        RolloutNotStarted: it appends, and there is nothing to append to.
        PreviousResponseNotFound: it continues a response that is not remembered.
        ItemNotFound: an `item_reference` names an item that is not remembered.
        ToolCallNotFound: it holds an output for a call that was never made.
    """
    record = turn.record
    turn.parent = parent = _resolve(create, record, lane, cache, recalled)
    turn.base = _transcript(parent)
    record.depth = parent.depth + 1 if parent else 1
    turn.placement, record.route = _place(turn, create, parent, routes)
    rules = turn.route.rules
    turn.fields, turn.brought = _fields(turn, create, parent, rules)
    names = dict(turn.fields)
    record.tools, record.tools_changed_at = _compare_tools(names.get("tools"), parent)
    record.model = rawjson.string(names.get("model", b""))
    turn.may_be_stored = _may_be_stored(create, parent, names)
    items, heads = _dereference(create, cache, rules, recalled)
    if create.appends:
        items, heads = _without_repeated(items, heads, parent)
    items = [*(item for steer in turn.committing for item in steer.items), *items]
    heads = [*(head for steer in turn.committing for head in steer.heads), *heads]
    if names.get("conversation", b"null") == b"null":  # else the calls may stand in what only the backend knows
        expand.check_calls(heads, turn.base)
    turn.items, turn.heads = request.admit_items(items, heads, rules)
    _note_sealed(turn)
    _start_at_compaction(turn)
    record.prefix = _compare_prefix(turn)
    record.new_items = len(turn.items)
    if rules.keeps_responses and turn.base is not None and record.reason != "branch":
        turn.continues = _kept_by(turn.route.backend, parent)


def build_request(turn: Turn) -> UpstreamRequest:
    """The upstream request of a prepared turn: all of it, or what is new to a backend that knows the rest."""
    items, _ = compaction.admit(turn.items, turn.heads)
    is_known = turn.route.rules.compaction is Compaction.BACKEND
    fields = [field for field in turn.route.address(turn.fields) if is_known or field[0] != compaction.FIELD]
    if turn.continues is not None:
        whole = request.size(fields, turn.base, items)
        fields.append(("previous_response_id", rawjson.dumps(turn.continues)))
        body = request.build(fields, None, items)
    else:
        body = request.build(fields, turn.base, items)
        whole = body.size
    record = turn.record
    record.plain_bytes = record.plain_bytes or whole
    record.upstream_bytes += body.size
    record.replayed_bytes, record.replayed_items = body.replayed_bytes, body.replayed_items
    return body


def go_on(turn: Turn, terminal: Terminal) -> None:
    """A response goes on after the backend has ended it: with all that was said, and the outputs of tools that came."""
    items, heads = terminal.items[turn.said :], terminal.heads[turn.said :]
    turn.base = transcript.extend(
        turn.base, [*turn.items, *items, *turn.injected], [*turn.heads, *heads, *turn.injected_heads]
    )
    turn.said = len(terminal.items)
    turn.items, turn.heads, turn.injected, turn.injected_heads, turn.continues = [], [], [], [], None
    turn.reply.go_on(terminal)


def owed(turn: Turn, heads: Sequence[Head]) -> list[Head]:
    """The calls of a response that nothing has answered that came while it ran; `heads` are its finished items."""
    return transcript.unanswered([*heads[turn.said :], *turn.injected_heads])


def echo(turn: Turn) -> RequestEcho:
    """What the turn's Response objects say about its request."""
    return RequestEcho(dict(turn.fields), turn.created_at, turn.record.previous_response_id)


def warmup_frames(turn: Turn, terminal: Terminal) -> list[bytes]:
    """The answer to a warm-up: a response with an id, no output, and nothing spent.

    The API's own has these two events at least (CLIProxyAPI#6006, agentic-api#124); both are whole, since some clients
    read the first and some the last.
    """
    created = responses.compose(echo(turn), terminal.response_id, "in_progress")
    lane = relay.lane_member(turn.record.lane)
    return [
        controls.event("response.created", lane, 0, [("response", created)]),
        controls.event("response.completed", lane, 1, [("response", terminal.response)]),
    ]


def warmup_terminal(turn: Turn, response_id: str) -> Terminal:
    """How a warm-up ends."""
    response = responses.compose(
        echo(turn), response_id, "completed", completed_at=b"%d" % turn.created_at, usage=responses.ZERO_USAGE
    )
    return Terminal("completed", response_id, [], [], response, Usage(), responses.ZERO_USAGE)


def entry(turn: Turn, lane: Lane, terminal: Terminal, *, is_stored: bool) -> Entry:
    """What is remembered of a turn.

    Args:
        turn: The turn.
        lane: Its lane.
        terminal: How it ended.
        is_stored: Whether it goes into the store, so that its response object may be asked for.
    """
    items = [*terminal.items[turn.said :], *turn.injected]
    heads = [*terminal.heads[turn.said :], *turn.injected_heads]
    at = transcript.last_compaction(heads)
    if at is None:
        whole = transcript.extend(turn.base, [*turn.items, *items], [*turn.heads, *heads])
    else:
        items, heads = items[at:], heads[at:]
        whole = transcript.extend(None, items, heads)
    ends_whole = not turn.injected and len(items) == len(terminal.items)
    return Entry(
        response_id=terminal.response_id,
        lane=lane.name,
        transcript=whole,
        settings=chain.settings_like(turn.fields, turn.parent.settings if turn.parent else None),
        depth=turn.record.depth,
        is_warmup=isinstance(turn.asked, Create) and turn.asked.is_warmup,
        brought=turn.brought,
        response=_rest(turn, terminal, lists_output=not ends_whole) if is_stored else b"{}",
        output_items=len(items),
        created_at=turn.created_at,
        may_be_stored=turn.may_be_stored,
        upstream_id=terminal.backend_id if turn.may_be_stored and not turn.injected else None,
        tokens=terminal.tokens,
        placement=_after(turn, terminal),
    )


def _rest(turn: Turn, terminal: Terminal, *, lists_output: bool) -> bytes:
    """What of a response object stands nowhere else; its output too where that is not the end of the transcript."""
    try:
        rest = kept.trim(terminal.response, turn.stream.echo if turn.stream else echo(turn))
        if not lists_output:
            return rest
        output = dict(rawjson.split_object(terminal.response))["output"]
        return rawjson.join_object([*rawjson.split_object(rest), ("output", output)])
    except InvalidJSON:  # more members than can be looked at
        return b"{}"


def _transcript(parent: Entry | None) -> Transcript:
    return parent.transcript if parent else None


def _resolve(
    create: Create, record: TurnEnded, lane: Lane, cache: ChainCache, recalled: Recalled | None
) -> Entry | None:
    response_id = previous_of(create, lane)
    if response_id is None and create.appends:
        raise RolloutNotStarted
    if response_id is None:
        record.lookup = "new"
        return None
    record.previous_response_id = response_id
    if recalled is not None and recalled.entry is not None and response_id not in cache:
        record.lookup, record.reason = "hit", "stored"
        return recalled.entry
    try:
        parent = cache.resolve(response_id)
    except PreviousResponseNotFound as error:
        record.lookup, record.reason = "miss", error.reason
        raise
    record.lookup = "hit"
    record.reason = "warmup" if parent.is_warmup else "tip" if lane.tip == response_id else "branch"
    return parent


def _place(turn: Turn, create: Create, parent: Entry | None, routes: RoutingTable) -> tuple[Placement, RouteLookup]:
    """Where a turn goes, and how that was found: a chain stays where it is as long as its model does."""
    before = parent.placement if parent is not None else None
    names = dict(create.fields)
    if parent is not None and (create.appends or turn.succeeds or "model" not in names):
        names = dict(parent.settings.fields) | names
    placement = routes.follow(names.get("model"), names, before)
    if before is None:
        return placement, "new" if parent is None else "unplaced"
    return placement, "same" if placement is before else "model_changed"


def _kept_by(backend: str, parent: Entry | None) -> str | None:
    """The id under which this backend keeps the response before."""
    if parent is None or (parent.placement is not None and parent.placement.route.backend != backend):
        return None
    return parent.upstream_id


def _note_sealed(turn: Turn) -> None:
    """A client that brings what a deployment has encrypted is to be sent there."""
    assert turn.placement is not None
    if turn.parent is None and turn.route.replicas > 1:
        sealed = _sealed(turn.items, turn.heads)
        turn.placement = replace(turn.placement, sealed=sealed) if sealed else turn.placement


def _after(turn: Turn, terminal: Terminal) -> Placement | None:
    """Where the chain is after a turn: what a deployment has encrypted, no other one can read."""
    placement = turn.placement
    if placement is None or turn.route.replicas == 1:
        return placement
    turn.record.sealed = _sealed(terminal.items[turn.said :], terminal.heads[turn.said :])
    return placement.bound() if turn.record.sealed or placement.sealed else placement


def _sealed(items: Sequence[bytes], heads: Sequence[Head]) -> bytes:
    """What stands for the last of some items that only who made it can read; our own anybody can."""
    for item, head in zip(reversed(items), reversed(heads), strict=True):
        if head.type in _SEALED and compaction.read_item(item) is None and (seal := request.seal(item)):
            return seal
    return b""


def _compare_tools(tools: bytes | None, parent: Entry | None) -> tuple[ToolsLookup, int | None]:
    if tools is None or tools in (b"null", b"[]"):
        return "none", None
    before = dict(parent.settings.fields).get("tools") if parent is not None else None
    if before is None:
        return "new", None
    return ("same", None) if before == tools else ("changed", _first_difference(before, tools))


def _compare_prefix(turn: Turn) -> Prefix:
    """Whether the request begins with that of the response which it continues."""
    parent = turn.parent
    if parent is None or parent.is_warmup:
        return "none"
    differing = request.first_difference(parent.settings.fields, turn.fields)
    if differing is not None:
        return _PREFIXES.get(differing, "fields")
    return "kept" if turn.base is parent.transcript else "compaction"


def _first_difference(before: bytes, after: bytes) -> int | None:
    """Where two lists of tools part; None for what is no list of objects, or differs between them only."""
    try:
        pairs = zip_longest(rawjson.split_items(before)[0], rawjson.split_items(after)[0])
    except InvalidJSON:
        return None
    return next((index for index, (one, other) in enumerate(pairs) if one != other), None)


def _may_be_stored(create: Create, parent: Entry | None, names: Mapping[str, bytes]) -> bool:
    """Whether the client lets it be stored, as it does unless it says otherwise, and all that it would bring along."""
    asked = dict(create.fields).get("store", names.get("store"))
    return asked != b"false" and (parent is None or parent.may_be_stored)


def _start_at_compaction(turn: Turn) -> None:
    """In a continuation a new compaction item stands for all before it.

    In a new chain it is part of a window that the client was told to send unmodified (compaction guide); only what one
    of our own stands for is left out, which that window never holds.
    """
    at = transcript.last_compaction(turn.heads)
    if at is None:
        return
    if turn.parent is not None:
        turn.base = None
        turn.items, turn.heads = turn.items[at:], turn.heads[at:]
    else:
        turn.items, turn.heads = compaction.replayed(turn.items, turn.heads)


def _fields(turn: Turn, create: Create, parent: Entry | None, rules: RequestRules) -> tuple[Pairs, frozenset[str]]:
    """The fields a turn runs with, and those of them that no create has named but a warm-up brought."""
    if create.appends or turn.succeeds:
        assert parent is not None
        return list(parent.settings.fields), parent.brought
    fields, brought = expand.inherit(create.fields, parent, rules)
    own = {name for name, _ in create.fields} if create.is_warmup else set()
    return fields, brought | own if own else brought


def _dereference(
    create: Create, cache: ChainCache, rules: RequestRules, recalled: Recalled | None
) -> tuple[list[bytes], list[Head]]:
    """The new items, each `item_reference` replaced by the item it names."""
    wanted = expand.references(create.heads)
    if not wanted:
        return create.items, create.heads
    found = {**(recalled.items if recalled is not None else {}), **cache.find_items(wanted)}
    return expand.dereference(create.items, create.heads, found, asks_backend=rules.profile.resolves_references)


def _without_repeated(items: list[bytes], heads: list[Head], parent: Entry | None) -> tuple[list[bytes], list[Head]]:
    """What a client appends, without the output of the response before, which Codex 0.98 sends again first."""
    known = parent.output_items if parent else 0
    first = 0
    while first < min(known, len(heads)) and _is_output(items[first], heads[first]):
        first += 1
    return items[first:], heads[first:]


def _is_output(item: bytes, head: Head) -> bool:
    """Whether an item can only be what a model said."""
    if head.type in ("message", None):
        return dict(rawjson.split_object(item)).get("role") == b'"assistant"'
    return head.type == "reasoning" or str(head.type).endswith("_call")
