"""A turn in words that a person understands: why it was a hit or a miss, and what it took.

What comes out is plain data for the live page. Texts are made here, from values of closed sets, so that they can be
tested; what a client chose (names, ids, its model) is cut to a bearable length. Nothing here has seen what was said.
"""

from __future__ import annotations

import re
from typing import Any, Final

from proxy.observe import TurnRecord
from proxy.protocol.inspection import Inspection, Side
from proxy.protocol.records import LookupReason, TurnEnded

_MAX_TEXT: Final = 200

_REASONS: Final[dict[LookupReason, str]] = {
    "warmup": "Continues a warm-up",
    "tip": "Next in its lane",
    "branch": "Branches off an older response",
    "stored": "Continues a stored response of another connection",
    "unknown": "The response it names was never known here",
    "evicted_limit": "The response it names was forgotten to stay within the cache's limits",
    "evicted_failed": "The response it names was forgotten when a turn that continued it failed",
}

_WORD: Final = re.compile(r"[^\W_]")


def why(facts: TurnEnded) -> str:
    """Why a turn was a hit or a miss, for a person."""
    if facts.lookup is None:
        return f"Not looked up: {_ending(facts)}."
    if facts.lookup == "miss":
        return f"{_REASONS.get(facts.reason, facts.reason)}; the client has to send its conversation again."
    if facts.lookup == "new":
        return "A new conversation: it names no response before it."
    if not facts.upstream_bytes:
        text = f"{_REASONS[facts.reason]}; the backend was not asked."
    elif not facts.replayed_items:
        text = f"{_REASONS[facts.reason]}; nothing had to be put in front."
    else:
        text = f"{_REASONS[facts.reason]}: {_count(facts.replayed_items, 'item')} remembered, {facts.new_items} new."
    if facts.tools != "changed":
        return text
    place = "" if facts.tools_changed_at is None else f" at index {facts.tools_changed_at}"
    return f"Full replay: tools changed{place}, so the request does not begin like the one before. {text}"


def label(facts: TurnEnded) -> tuple[str, str]:
    """How a turn went, for whoever looks at many of them.

    Returns:
        One word, and what kind of word it is: hit, miss, new, replay, bad, or empty for what is neither good nor bad.
    """
    if facts.error_source is not None or facts.outcome == "failed":
        return "error", "bad"
    if facts.lookup is None:
        return facts.outcome, ""
    if facts.tools == "changed":
        return "replay", "replay"
    return ("warm-up" if facts.outcome == "warmup" else facts.lookup), facts.lookup


def turn_row(record: TurnRecord, ended_at: float) -> dict[str, Any]:
    """One finished turn.

    Args:
        record: It.
        ended_at: When it ended, in Unix seconds.
    """
    facts, exchange = record.facts, record.exchange
    total = max(0.0, record.ended - facts.received)
    word, kind = label(facts)
    row: dict[str, Any] = {
        "connection": record.connection_id,
        "turn": facts.turn,
        "lane": facts.lane,
        "outcome": facts.outcome,
        "verdict": facts.lookup or "none",
        "word": word,
        "kind": kind,
        "reason": facts.reason,
        "why": why(facts),
        "tools": facts.tools,
        "tools_changed_at": facts.tools_changed_at,
        "response": cut(facts.response_id),
        "previous": cut(facts.previous_response_id),
        "model": cut(facts.model),
        "depth": facts.depth,
        "began": round(ended_at - total, 3),
        "total": round(total, 4),
        "client_bytes": facts.frame_bytes,
        "upstream_bytes": facts.upstream_bytes,
        "replayed_bytes": facts.replayed_bytes,
        "plain_bytes": facts.plain_bytes,
        "replayed_items": facts.replayed_items,
        "new_items": facts.new_items,
        "events": facts.events,
        "relayed_bytes": facts.relayed_bytes,
        "input_tokens": facts.usage.input_tokens,
        "cached_tokens": facts.usage.cached_tokens,
        "output_tokens": facts.usage.output_tokens,
    }
    if exchange is not None:
        first = exchange.first_bytes
        row |= {
            "queue": round(max(0.0, exchange.started - facts.received), 4),
            "first": None if first is None else round(min(first - facts.received, total), 4),
            "own": round(exchange.own, 5),
            "connect": None if exchange.connect is None else round(exchange.connect, 4),
            "blocked": round(exchange.blocked, 4),
            "status": exchange.status,
            "reused": exchange.reused,
            "retries": exchange.retries,
        }
    if facts.error_source is not None:
        row |= {
            "error_code": cut(facts.error_code),
            "error_status": facts.error_status,
            "error_source": facts.error_source,
        }
    return row


def inspection_rows(inspection: Inspection, *, shows_text: bool) -> dict[str, Any]:
    """What a turn said; letters and digits become dots unless the text was asked for."""
    sent, upstream = inspection.sent, inspection.upstream
    return {
        "masked": not shows_text,
        "sent": _side_rows(sent, shows_text=shows_text),
        "upstream": None if upstream is None else _side_rows(upstream, shows_text=shows_text),
    }


def mask(text: str) -> str:
    """The same text with a dot for each letter and digit."""
    return _WORD.sub("•", text)


def cut(text: str | None) -> str | None:
    """A value that somebody else chose, at a bearable length and without what is no Unicode."""
    return None if text is None else text[:_MAX_TEXT].encode(errors="replace").decode()


def _side_rows(side: Side, *, shows_text: bool) -> dict[str, Any]:
    parts = [
        {
            "kind": part.kind,
            "name": cut(part.name),
            "role": cut(part.role),
            "size": part.size,
            "text": part.text if shows_text else mask(part.text),
        }
        for part in side.parts
    ]
    return {"parts": parts, "omitted": side.omitted}


def _ending(facts: TurnEnded) -> str:
    match facts.outcome:
        case "refused":
            return "the request was refused before its turn came"
        case "client_gone":
            return "the client left first"
        case "cancelled":
            return "the client cancelled it first"
        case _:
            return "it ended first"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
