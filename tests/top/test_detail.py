"""One turn in detail."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.top import detail
from proxy.top.rows import Line
from proxy.top.updates import Part, Said, Side
from tests.top.pictures import turn

HOSTILE = "\x1b[2J\u202e[b]"
CANARY = "xylophone-quartz-7731"


def plain(lines: list[Line]) -> list[str]:
    """Without tones."""
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def test_turn_is_told_in_full() -> None:
    """What was sent on both sides and would be over plain HTTP, where the time went, and facts."""
    found = turn(
        7,
        total=1.0,
        queue=0.25,
        first=0.5,
        own=0.002,
        connect=0.003,
        status=200,
        reused=True,
        retries=1,
        blocked=0.5,
        outcome="completed",
        model="m",
        new_items=1,
        replayed_items=3,
        input_tokens=200,
        cached_tokens=150,
        output_tokens=7,
        tools="changed",
        tools_changed_at=2,
        depth=4,
        events=12,
        relayed_bytes=900,
        response="resp_2",
        previous="resp_1",
        lane="review",
    )
    assert plain(detail.turn_lines(found, "codex")) == [
        "Turn 7  hit  codex",
        "Next in its lane: 3 items remembered, 1 new.",
        "",
        "What was sent",
        "client     ██████                   1.0 kB",
        "upstream   ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓██████ 4.0 kB, 3.0 kB of it remembered",
        "plain HTTP ░░░░░░░░░░░░░░░░░░░░░░░░ 4.0 kB",
        "3.0 kB spared: 2.4 ms of upload at 10 Mbit/s.",
        "",
        "Time",
        "1.00 s     ░░░░░░▓▓▓▓▓▓████████████ in all, first event after 500 ms",
        "░ in the queue  ▓ until the first event  █ streaming",
        "",
        "Outcome       completed",
        "Lane          review",
        "Model         m",
        "Items         1 new, 3 remembered",
        "Tokens        200 in (75 % cached), 7 out",
        "Tools         changed at index 2",
        "Chain         4 turns",
        "Proxy's own   2.0 ms",
        "Backend       200 over a kept connection",
        "Connect       3.0 ms",
        "Sent again    1 time",
        "Held up       500 ms by the client",
        "Relayed       12 events, 900 B",
        "Response      resp_2",
        "Continues     resp_1",
        "Connection    conn_a",
    ]


def test_turn_that_was_refused_is_short() -> None:
    """The backend was not asked; there is an error."""
    found = turn(
        1, word="error", kind="bad", upstream_bytes=0, error_code="invalid", error_status=400, error_source="downstream"
    )
    lines = plain(detail.turn_lines(found, "c"))
    assert lines[detail.HEAD : detail.HEAD + 3] == [
        "What was sent",
        "client     ██████                   1.0 kB",
        "The backend was not asked.",
    ]
    assert "Error         invalid (400, downstream)" in lines
    assert not any(line.startswith(("Backend", "Proxy's own", "plain HTTP")) for line in lines)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"status": None, "own": 0.1}, "Backend       no answer"),
        ({"status": 500, "own": 0.1}, "Backend       500 over a new connection"),
        ({"tools": "same"}, "Tools         same as before"),
        ({"tools": "changed"}, "Tools         changed"),
        ({"tools": "new"}, "Tools         given"),
        ({"error_source": "upstream", "error_code": "x"}, "Error         x (upstream)"),
        ({"client_bytes": 1}, "client     ▏                        1 B"),
        ({"total": 0.0}, "0.00 ms                             in all"),
    ],
)
def test_facts(members: dict[str, Any], expected: str) -> None:
    """One by one."""
    assert expected in plain(detail.turn_lines(turn(1, **members), "c"))


def test_what_was_said_is_shown_on_both_sides() -> None:
    """With sizes, roles, how many parts were left out, and whether it is masked."""
    sent = Side((Part("field", "model", None, 3, '"•"'), Part("item", "message", "user", 90, "•\n•")), 2)
    assert plain(detail.said_lines(Said(masked=True, sent=sent, upstream=None))) == [
        "What was said, letters and digits are masked",
        "",
        "The client sent: 4 parts, the first 2 left out",
        "> model  3 B",
        '  "•"',
        "> message user  90 B",
        "  •",
        "  •",
        "",
        "Went upstream: nothing",
    ]
    side = Side((Part("item", "message", "user", 90, CANARY),))
    lines = detail.said_lines(Said(masked=False, sent=Side(()), upstream=side))
    assert plain(lines)[0] == "What was said, as it was said"
    assert plain(lines)[-1] == f"  {CANARY} …"


def test_nothing_in_it_is_obeyed() -> None:
    """No text of a client or backend reaches the terminal as it is."""
    texts = dict.fromkeys(
        ("why", "word", "lane", "outcome", "tools", "response", "previous", "model", "error_code"), HOSTILE
    )
    lines = detail.turn_lines(turn(1, **texts, error_source=HOSTILE), "c")
    side = Side((Part("item", HOSTILE, HOSTILE, 9, f"{HOSTILE}\n{HOSTILE}"),))
    lines += detail.said_lines(Said(masked=False, sent=side, upstream=side))
    text = "".join(plain(lines))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert text.count("\ufffd[2J\ufffd[b]") >= 15
