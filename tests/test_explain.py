"""Turns in words, as plain rows, and masked."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from proxy import explain
from proxy.observe import Exchange, TurnRecord
from proxy.protocol.inspection import Inspection, Part, Side
from proxy.protocol.records import LookupReason, Outcome, TurnEnded
from proxy.protocol.terminals import Usage

TIP = "Next in its lane: 12 items remembered, 1 new."


def facts(**members: Any) -> TurnEnded:
    """A turn that went well."""
    asked: dict[str, Any] = {"outcome": "completed", "upstream_bytes": 900, "replayed_items": 12, "new_items": 1}
    return TurnEnded(3, None, 100, 10.0, **{**asked, **members})


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"lookup": "new"}, "A new conversation: it names no response before it."),
        ({"lookup": "hit", "reason": "tip"}, TIP),
        (
            {"lookup": "hit", "reason": "branch", "replayed_items": 1, "new_items": 2},
            "Branches off an older response: 1 item remembered, 2 new.",
        ),
        (
            {"lookup": "hit", "reason": "warmup", "replayed_items": 0},
            "Continues a warm-up; nothing had to be put in front.",
        ),
        (
            {"lookup": "hit", "reason": "stored", "upstream_bytes": 0},
            "Continues a stored response of another connection; the backend was not asked.",
        ),
        (
            {"lookup": "hit", "reason": "tip", "tools": "changed", "tools_changed_at": 3},
            f"Full replay: tools changed at index 3, so the request does not begin like the one before. {TIP}",
        ),
        (
            {"lookup": "hit", "reason": "tip", "tools": "changed"},
            f"Full replay: tools changed, so the request does not begin like the one before. {TIP}",
        ),
        (
            {"lookup": "miss", "reason": "evicted_limit"},
            (
                "The response it names was forgotten to stay within the cache's limits; "
                "the client has to send its conversation again."
            ),
        ),
        ({"outcome": "refused"}, "Not looked up: the request was refused before its turn came."),
        ({"outcome": "client_gone"}, "Not looked up: the client left first."),
    ],
)
def test_turn_is_explained(members: dict[str, Any], text: str) -> None:
    """A sentence or two, from the record alone."""
    assert explain.why(facts(**members)) == text


def test_every_reason_and_ending_has_words() -> None:
    """No value of the closed sets is shown as such."""
    assert {*explain._REASONS, "none"} == set(get_args(LookupReason))
    for outcome in get_args(Outcome):
        assert explain.why(facts(outcome=outcome)).startswith("Not looked up: ")


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"lookup": "hit"}, ("hit", "hit")),
        ({"lookup": "miss"}, ("miss", "miss")),
        ({"lookup": "new"}, ("new", "new")),
        ({"lookup": "new", "outcome": "warmup"}, ("warm-up", "new")),
        ({"lookup": "hit", "tools": "changed"}, ("replay", "replay")),
        ({"lookup": "hit", "outcome": "failed"}, ("error", "bad")),
        ({"lookup": "miss", "error_source": "downstream"}, ("error", "bad")),
        ({"outcome": "client_gone"}, ("client_gone", "")),
    ],
)
def test_turn_has_a_word(members: dict[str, Any], expected: tuple[str, str]) -> None:
    """One that is seen among many; the page and the terminal show the same."""
    assert explain.label(facts(**members)) == expected


def test_row_has_bytes_and_times() -> None:
    """What a page shows of a turn, in seconds and bytes, on the clock of the wall."""
    exchange = Exchange(
        10.25, first_bytes=10.5, own_dispatch=0.001, own_relay=0.002, connect=0.01, blocked=0.125, status=200, retries=1
    )
    ended = facts(lookup="hit", reason="tip", plain_bytes=950, replayed_bytes=800, usage=Usage(1000, 900, 50))
    row = explain.turn_row(TurnRecord("conn_1", ended, 12.0, exchange), 1000.0)
    assert row | {"why": ""} == row | {
        "why": "",
        "connection": "conn_1",
        "turn": 3,
        "verdict": "hit",
        "word": "hit",
        "kind": "hit",
        "began": 998.0,
        "total": 2.0,
        "queue": 0.25,
        "first": 0.5,
        "own": 0.003,
        "connect": 0.01,
        "blocked": 0.125,
        "status": 200,
        "retries": 1,
        "client_bytes": 100,
        "upstream_bytes": 900,
        "plain_bytes": 950,
        "replayed_bytes": 800,
        "input_tokens": 1000,
        "cached_tokens": 900,
    }


def test_row_of_a_refused_turn_says_what_was_wrong() -> None:
    """It has no times of an exchange, but an error; names of somebody else's choice are cut and are Unicode."""
    ended = facts(outcome="refused", model="m" * 1000, error_code="x\ud83d", error_status=400)
    ended.error_source = "downstream"
    row = explain.turn_row(TurnRecord("conn_1", ended, 12.0, None), 1000.0)
    assert (row["error_code"], row["error_status"], row["error_source"]) == ("x?", 400, "downstream")
    assert len(row["model"]) == 200
    assert "queue" not in row


def test_mask_keeps_the_shape_of_a_text() -> None:
    """Letters and digits of any script become dots; lengths and punctuation stay."""
    assert explain.mask('{"a": "Né 12, 世界_x\\n"}') == '{"•": "•• ••, ••_•\\•"}'


def test_inspection_is_masked_unless_asked_otherwise() -> None:
    """Sizes, types and roles are always there."""
    part = Part("item", "message", "user", 40, '"secret"')
    found = Inspection(Side((part,), 2), None)
    masked = explain.inspection_rows(found, shows_text=False)
    assert masked == {
        "masked": True,
        "sent": {
            "parts": [{"kind": "item", "name": "message", "role": "user", "size": 40, "text": '"••••••"'}],
            "omitted": 2,
        },
        "upstream": None,
    }
    assert explain.inspection_rows(found, shows_text=True)["sent"]["parts"][0]["text"] == '"secret"'
