"""Turns that compact their conversation first, where the backend cannot.

A create asks for it with `context_management` and a threshold, or with an item `compaction_trigger` at the end of its
input, which wants nothing else (Codex, "remote compaction"). The backend is asked for a summary in the form in which it
would have been asked for the answer, so that it finds the prompt in its cache; the summary becomes the first item of the
response, and stands for what came before it from then on.
"""

from __future__ import annotations

from typing import Final

from proxy.protocol import compaction, rawjson, request
from proxy.protocol.lanes import Turn
from proxy.protocol.messages import Create
from proxy.protocol.profiles import Compaction, RequestRules
from proxy.protocol.rawjson import Head
from proxy.protocol.request import UpstreamRequest
from proxy.protocol.transcript import COMPACTION, extend, items_of

TRIGGER: Final = "compaction_trigger"

_BYTES_PER_TOKEN: Final = 4
"""Of JSON, about; only what the backend has not counted yet is estimated."""


def plan(turn: Turn, create: Create, rules: RequestRules) -> None:
    """See whether a prepared turn is to compact first; `turn.absorbed` then says how many of its items go into the summary.

    Args:
        turn: The turn.
        create: What the client asked for.
        rules: Who compacts.

    Raises:
        InvalidMessage: `context_management` is malformed.
    """
    if rules.compaction is Compaction.BACKEND or create.is_warmup:
        return
    threshold = compaction.threshold(dict(turn.fields).get(compaction.FIELD))
    if turn.heads and turn.heads[-1].type == TRIGGER:
        turn.items, turn.heads = turn.items[:-1], turn.heads[:-1]
        turn.only_compacts = True
        turn.absorbed = len(turn.items)
    elif threshold is not None and _tokens(turn) > threshold:
        turn.absorbed = _absorbed(turn)


def _tokens(turn: Turn) -> int:
    """Tokens of the turn's prompt, about."""
    known, size = 0, sum(map(len, turn.items))
    if turn.base is not None:
        known = turn.parent.tokens if turn.parent is not None else 0
        size += turn.base.size if not known else 0
    return known + size // _BYTES_PER_TOKEN


def _absorbed(turn: Turn) -> int | None:
    """What was said and done goes into the summary, and what was asked after that stays; None if nothing was."""
    for index in range(len(turn.heads) - 1, -1, -1):
        if not _is_asked(turn.items[index], turn.heads[index]):
            return index + 1
    return None if turn.base is None else 0


def _is_asked(item: bytes, head: Head) -> bool:
    """Whether an item is a message, and none of the model's."""
    return head.type in (None, "message") and dict(rawjson.split_object(item)).get("role") != b'"assistant"'


def summary_request(turn: Turn) -> UpstreamRequest:
    """The request for the summary."""
    assert turn.absorbed is not None
    items, _ = compaction.admit(turn.items[: turn.absorbed], turn.heads[: turn.absorbed])
    body = request.build(
        compaction.summary_fields(turn.route.address(turn.fields)), turn.base, [*items, compaction.PROMPT_ITEM]
    )
    turn.record.upstream_bytes += body.size
    return body


def shorten(turn: Turn, summary: str, item_id: str) -> tuple[bytes, Head]:
    """Put the summary in the place of what it stands for.

    Args:
        turn: The turn.
        summary: What the backend has written.
        item_id: For the item that holds it.

    Returns:
        The compaction item and its head; the response begins with it.
    """
    assert turn.absorbed is not None
    before = items_of(turn.base)
    items = [*(item for item, _ in before), *turn.items[: turn.absorbed]]
    heads = [*(head for _, head in before), *turn.heads[: turn.absorbed]]
    item, head = compaction.make_item(item_id, summary), Head(COMPACTION, item_id)
    window = compaction.window(items, heads, item)
    turn.base = extend(None, window, [*[Head("message")] * (len(window) - 1), head])
    turn.items, turn.heads = turn.items[turn.absorbed :], turn.heads[turn.absorbed :]
    turn.said, turn.absorbed, turn.continues = 1, None, None
    return item, head
