"""Compaction where the backend has none: a conversation becomes the user's messages and one item that holds a summary.

The backend itself writes the summary: it is asked once more (:func:`summary_fields`, :data:`PROMPT_ITEM`), and what it
answers becomes a `compaction` item (:func:`make_item`). Clients keep such an item as they keep those of the API, whose
content only the API can read, and send it back; on its way to the backend it becomes a user's message with the summary in
it (:func:`admit`), since no backend but OpenAI's knows the type.

The content of our items is no secret: it holds what the client's own conversation held, in a form that says what it is
and of which version. So any replica reads it, after a restart too, and nothing has to be kept for it. A client that forges
one says no more with it than with a message of its own.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Sequence
from typing import Final

from proxy.protocol import rawjson
from proxy.protocol.errors import InvalidMessage
from proxy.protocol.rawjson import Head, InvalidJSON, Pairs
from proxy.protocol.transcript import COMPACTION

MAX_SUMMARY: Final = 4 * 2**20
"""Bytes of a summary in UTF-8. Longer ones are cut; what inflates to more was not made here."""

DEFAULT_THRESHOLD: Final = 200_000
"""Tokens, where `context_management` asks for compaction and leaves its threshold out: the API's documents name no
default, and use this number throughout."""

MIN_THRESHOLD: Final = 1000
"""Tokens; the API refuses less (OpenAPI description, `ContextManagementParam`)."""

FIELD: Final = "context_management"
"""The field of a create that asks for compaction."""

_PREFIX: Final = "slipstream-summary-1."
_MAX_ENCODED: Final = 2 * MAX_SUMMARY  # base64 takes 4/3 of what zlib cannot make smaller
_ENCODED: Final = re.compile(r"[A-Za-z0-9_-]+")  # no padding: some JSON writers escape it

_PREFACE: Final = (
    "The earlier part of this conversation was replaced by the following summary, which the assistant wrote. "
    "Take it as the record of what has happened so far, and go on with the work from there.\n\n"
)
_PROMPT: Final = (
    "This conversation is about to be shortened: of all before this message, only the user's own messages and what you "
    "answer now will be kept. Write the summary from which the work can go on without anything else. State: "
    "(1) the user's goal; "
    "(2) all constraints, preferences and rules in force, and each decision taken, with its reason; "
    "(3) what has been done, with exact names, paths, ids, commands and values; "
    "(4) the results of tools that still matter, quoted where the wording matters; "
    "(5) what is unfinished or failed, and the next steps. "
    "Leave out what no longer matters. Answer with plain text only, and do not call any tools."
)

#: Fields of a turn that a summary is asked for without: they shape or bound an answer for the client, say how it is
#: handed over, or name what the proxy sets itself.
_DROPPED: Final = frozenset(
    {
        *("type", "stream", "stream_id", "stream_options", "background", "background_options", "generate"),
        *("input", "previous_response_id", "conversation", "store", "include", "metadata"),
        *("text", "max_output_tokens", "max_tool_calls", "tool_choice", "top_logprobs", "truncation"),
        "context_management",
    }
)
_NULL: Final = b"null"


def _message(text: str) -> bytes:
    part = rawjson.join_object([("type", b'"input_text"'), ("text", rawjson.dumps(text))])
    return b'{"type":"message","role":"user","content":[' + part + b"]}"


PROMPT_ITEM: Final = _message(_PROMPT)
"""The user message that asks for the summary: the last item of the summarising request."""


# Items


def make_item(item_id: str, summary: str) -> bytes:
    """A compaction item: `{"type":"compaction","id":…,"encrypted_content":…}`.

    Args:
        item_id: Its id, `cmp_…`.
        summary: What it is to hold; what goes beyond :data:`MAX_SUMMARY` is cut off.
    """
    data = summary.encode(errors="surrogatepass")
    if len(data) > MAX_SUMMARY:
        end = MAX_SUMMARY
        while data[end] & 0xC0 == 0x80:  # inside a character
            end -= 1
        data = data[:end]
    content = _PREFIX + base64.urlsafe_b64encode(zlib.compress(data)).rstrip(b"=").decode()
    members = (("type", COMPACTION), ("id", item_id), ("encrypted_content", content))
    return rawjson.join_object((name, rawjson.dumps(value)) for name, value in members)


def read_item(item: bytes) -> str | None:
    """The summary in a compaction item of ours; None for any other item."""
    members = dict(rawjson.split_object(item))
    if rawjson.string(members.get("type", b"")) != COMPACTION:
        return None
    content = rawjson.string(members.get("encrypted_content", b"")) or ""
    encoded = content.removeprefix(_PREFIX)
    if encoded == content or len(encoded) > _MAX_ENCODED or not _ENCODED.fullmatch(encoded):
        return None
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)), MAX_SUMMARY + 1)
        if len(data) > MAX_SUMMARY or not inflater.eof or inflater.unused_data:
            return None
        return data.decode(errors="surrogatepass")
    except (ValueError, zlib.error):  # no base64, no UTF-8, no zlib
        return None


def as_message(item: bytes) -> bytes | None:
    """A compaction item of ours as the user message that a backend understands, the same bytes each time; else None."""
    summary = read_item(item)
    return None if summary is None else _message(_PREFACE + summary)


def admit(items: Sequence[bytes], heads: Sequence[Head]) -> tuple[list[bytes], list[Head]]:
    """Items with each compaction item of ours replaced by its message; all others as they are.

    Args:
        items: The raw items.
        heads: The head of each.
    """
    admitted, admitted_heads = [], []
    for item, head in zip(items, heads, strict=True):
        message = as_message(item) if head.type == COMPACTION else None
        admitted.append(item if message is None else message)
        admitted_heads.append(head if message is None else Head("message"))
    return admitted, admitted_heads


def admit_body(body: bytes) -> bytes:
    """The same for the `input` of a whole request; the very same bytes if no item of ours is in it, or it is no request."""
    if _PREFIX.encode() not in body or not rawjson.is_utf8(body):
        return body
    try:
        pairs = rawjson.split_object(body)
        items, heads = rawjson.split_items(dict(pairs).get("input", _NULL))
    except InvalidJSON:
        return body
    admitted, _ = admit(items, heads)
    if admitted == items:
        return body
    whole = b"[" + b",".join(admitted) + b"]"
    return rawjson.join_object((name, whole if name == "input" else value) for name, value in pairs)


def replayed(items: Sequence[bytes], heads: Sequence[Head]) -> tuple[list[bytes], list[Head]]:
    """What stands for a conversation: all from the last compaction item of ours on, and the user's messages before it.

    That is what :func:`window` had returned for it, with what was said since; a window itself stays as it is.

    Args:
        items: The whole conversation.
        heads: The head of each item.
    """
    for index in range(len(items) - 1, -1, -1):
        if heads[index].type == COMPACTION and read_item(items[index]) is not None:
            break
    else:
        return list(items), list(heads)
    before = [at for at in range(index) if _is_users_own(items[at], heads[at])]
    return [*(items[at] for at in before), *items[index:]], [*(heads[at] for at in before), *heads[index:]]


# The summarising request


def summary_fields(fields: Pairs) -> Pairs:
    """The body fields of the request for a summary, from those of a turn; `input` and `stream` are not among them.

    Model, instructions, tools, reasoning and whatever else shapes the prompt stay as they are, so that the prompt begins
    as the turn's did and the backend finds that in its cache.

    Args:
        fields: A turn's body fields, raw.
    """
    kept = [(name, value) for name, value in fields if name not in _DROPPED]
    has_tools = b"".join(dict(kept).get("tools", _NULL).split()) not in (_NULL, b"[]")
    return [*kept, *([("tool_choice", b'"none"')] if has_tools else []), ("store", b"false")]


def summary_text(output_items: Sequence[bytes]) -> str | None:
    """What the answer to the summarising request says: its text without white space around it; None if there is none.

    Args:
        output_items: The `output` of the response, raw.
    """
    texts: list[str] = []
    for item in output_items:
        members = dict(rawjson.split_object(item))
        if rawjson.string(members.get("type", b"")) == "message":
            texts += _texts(members.get("content", _NULL), "output_text")
    return "".join(texts).strip() or None


def window(items: Sequence[bytes], heads: Sequence[Head], compaction_item: bytes) -> list[bytes]:
    """The compacted window: all messages of the user, in order, and the compaction item behind them.

    A message is returned as it came if it has all that the API returns: `type`, `id`, `status`, and `content` as a list.
    What it lacks of that is added, and its text is not altered; the ids that are added derive from the item's. Messages in
    front of an earlier compaction item stay too. An earlier summary, as an item or as a message, is no message of the
    user's: the new one stands for it.

    Args:
        items: The whole conversation.
        heads: The head of each item.
        compaction_item: The item that stands for the rest.
    """
    stem = (rawjson.head(compaction_item).id or "").removeprefix("cmp_")
    kept: list[bytes] = []
    for item, head in zip(items, heads, strict=True):
        if _is_users_own(item, head):
            kept.append(_completed(item, f"msg_{stem}_{len(kept)}"))
    return [*kept, compaction_item]


def _is_users_own(item: bytes, head: Head) -> bool:
    """Whether an item is a message of the user's, and none that :func:`as_message` made."""
    if head.type not in (None, "message"):
        return False
    members = dict(rawjson.split_object(item))
    if rawjson.string(members.get("role", b"")) != "user":
        return False
    return not "".join(_texts(members.get("content", _NULL), "input_text")[:1]).startswith(_PREFACE)


def _texts(content: bytes, part_type: str) -> list[str]:
    """The texts of a message's content: of its parts of one type, or the one string that it is."""
    if content[:1] != b"[":
        text = rawjson.string(content)
        return [] if text is None else [text]
    try:
        parts, heads = rawjson.split_items(content)
    except InvalidJSON:  # not only objects
        return []
    texts = (
        rawjson.string(dict(rawjson.split_object(part)).get("text", b""))
        for part, head in zip(parts, heads, strict=True)
        if head.type == part_type
    )
    return [text for text in texts if text is not None]


def _completed(item: bytes, new_id: str) -> bytes:
    """A message with all members that the API's output items have."""
    pairs = rawjson.split_object(item)
    members = dict(pairs)
    added: Pairs = []
    defaults = (("type", b'"message"'), ("id", rawjson.dumps(new_id)), ("status", b'"completed"'))
    for name, value in defaults:
        if members.get(name, _NULL) == _NULL:
            added.append((name, value))
    content = members.get("content", _NULL)
    if content[:1] == b'"':
        added.append(("content", b'[{"type":"input_text","text":' + content + b"}]"))
    if not added:
        return item
    replaced = {name for name, _ in added}
    return rawjson.join_object([*added, *(pair for pair in pairs if pair[0] not in replaced)])


# context_management


def threshold(context_management: bytes | None) -> int | None:
    """Above how many tokens of input a create asks for compaction; None if it does not ask for it.

    Args:
        context_management: The raw field, `[{"type":"compaction","compact_threshold":N}]`; None if it is absent.

    Raises:
        InvalidMessage: it is not a list of objects, or a threshold is no integer of at least :data:`MIN_THRESHOLD`.
    """
    if context_management is None or context_management == _NULL:
        return None
    try:
        entries, heads = rawjson.split_items(context_management)
    except InvalidJSON:
        raise _invalid("Invalid type for 'context_management': expected a list of objects.", "invalid_type") from None
    found = [_entry_threshold(entry) for entry, head in zip(entries, heads, strict=True) if head.type == COMPACTION]
    return min(found, default=None)


def _entry_threshold(entry: bytes) -> int:
    raw = dict(rawjson.split_object(entry)).get("compact_threshold", _NULL)
    if raw == _NULL:
        return DEFAULT_THRESHOLD
    if not re.fullmatch(rb"-?[0-9]{1,15}", raw):
        raise _invalid(
            "Invalid type for 'context_management[].compact_threshold': expected an integer.", "invalid_type"
        )
    if int(raw) < MIN_THRESHOLD:
        raise _invalid(
            f"Invalid 'context_management[].compact_threshold': expected a value >= {MIN_THRESHOLD}.",
            "integer_below_min_value",
        )
    return int(raw)


def _invalid(reason: str, code: str) -> InvalidMessage:
    return InvalidMessage(reason, param="context_management", code=code)
