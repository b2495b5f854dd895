"""The picture in rows and lines."""

from __future__ import annotations

from importlib import resources
from typing import Any

import pytest

from proxy.top import rows
from proxy.top.mirror import LATEST
from proxy.top.rows import ALL, CONNECTIONS, TURNS, TURNS_OF_ALL, Row
from proxy.top.text import width
from proxy.top.updates import Backend, Totals
from tests.top.pictures import NOW, connection, mirror, running, turn

HOSTILE = "\x1b[2J[bold]x\n\u202e"
SHOWN = "\ufffd[2J[bold]x \ufffd"


def words(row: Row) -> list[str]:
    """The texts of a row's cells."""
    return [text for text, _ in row.cells]


def test_totals_say_what_was_saved() -> None:
    """Bytes and time, hits, tokens, and the proxy's own time; each fits a half of 80 columns."""
    sums = Totals(
        connections=4,
        turns=22,
        hits=14,
        misses=1,
        new=7,
        errors=1,
        asked=20,
        client_bytes=1_000_000,
        plain_bytes=5_000_000,
        input_tokens=20_000,
        cached_tokens=15_000,
        output_tokens=400,
        own=0.02,
        http_requests=3,
        refused=2,
    )
    assert dict(rows.totals(mirror(totals=sums), 0.0)) == {
        "turns": "22, 1 error",
        "sent": "1.0 MB; plain HTTP: 5.0 MB",
        "saved": "4.0 MB, 5.0x less",
        "time": "3.20 s upload (10 Mbit/s)",
        "hits": "93 % of 15; 7 new",
        "tokens": "20 k, 75 % cached; 400 out",
        "proxy": "1.0 ms a turn are its own",
        "clients": "4, 2 refused; 3 over HTTP",
    }


def test_totals_of_nothing_are_dashes() -> None:
    """Nothing is divided by nothing, and a client that sent more has saved nothing."""
    assert dict(rows.totals(mirror(), 2.0)) == {
        "turns": "0, 0.0/s, 0 errors",
        "sent": "0 B; plain HTTP: 0 B",
        "saved": "-",
        "time": "-",
        "hits": "- of 0; 0 new",
        "tokens": "0, - cached; 0 out",
        "proxy": "- a turn are its own",
        "clients": "0; 0 over HTTP",
    }
    assert dict(rows.totals(mirror(totals=Totals(client_bytes=9, plain_bytes=8)), 0.0))["saved"] == "-"


@pytest.mark.parametrize("count", [10**6 - 1, 10**9 - 1, 10**12 - 1])
def test_totals_have_bounded_widths(count: int) -> None:
    """However much it was."""
    everything: dict[str, Any] = dict.fromkeys(Totals.__struct_fields__, count)
    sums = Totals(**(everything | {"own": 1.0, "asked": 7, "client_bytes": count // 9, "refused": 0, "errors": 9}))
    assert max(width(text) for _, text in rows.totals(mirror(totals=sums), 0.0)) <= 30


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, "● http://b  not asked yet"),
        (
            {"health": "good", "good": 9, "recent": 9, "statuses": {"2xx": 1234, "4xx": 0}},
            " healthy, 9 of the last 9 good  2xx 1,234",
        ),
        (
            {"health": "bad", "good": 1, "recent": 2, "statuses": {"5xx": 1}, "connect": 0.002},
            "failing, 1 of the last 2 good  5xx 1  connect 2.0 ms",
        ),
        ({"health": "recovering"}, "recovering"),
        ({"health": HOSTILE}, SHOWN),
    ],
)
def test_backend_is_one_line(members: dict[str, Any], expected: str) -> None:
    """Its name, its health, and what it answered."""
    line = rows.backend(Backend("http://b", **members))
    assert "".join(text for text, _ in line).endswith(expected)
    assert ("  5xx 1", "bad") in line or "5xx" not in expected


def test_health_has_the_words_of_the_page() -> None:
    """Whoever looks at both reads the same."""
    html = resources.files("proxy").joinpath("live.html").read_text(encoding="utf-8")
    for health, (word, _) in rows.HEALTH.items():
        assert f'{health}: "{word}"' in html


def test_connections_begin_with_all_of_them() -> None:
    """Then the newest that is open; what has ended says why if it was not the client."""
    found = mirror(
        open=2,
        totals=Totals(turns=30, hits=3, misses=1, client_bytes=10, plain_bytes=34),
        connections=(
            connection("aaaaaaa", turns=20, hits=19, client_bytes=10, plain_bytes=67, lanes=3, running=(running(1),)),
            connection("bbbbbbb", client=None, opened=NOW - 20, misses=1),
            connection("ccccccc", closed=NOW - 1, cause="client"),
            connection("ddddddd", closed=NOW - 2, cause="slow_client"),
        ),
    )
    assert [words(row) for row in rows.connection_rows(found, "", 0.0)] == [
        ["all connections", "", "30", "", "1", "75 %", "3.4x", ""],
        ["client aaaaaaa", "aaaaaa", "20", "3", "1", "100 %", "6.7x", "open 10 s"],
        ["unnamed client", "bbbbbb", "0", "", "", "0 %", "-", "open 20 s"],
        ["client ccccccc", "cccccc", "0", "", "", "-", "-", "ended"],
        ["client ddddddd", "dddddd", "0", "", "", "-", "-", "slow_client"],
    ]
    assert [row.key for row in rows.connection_rows(found, "ddd", 0.0)] == [ALL, "conn_ddddddd"]
    assert rows.connections_title(found) == "Connections: 2 open, 2 ended"
    assert rows.name_of(found, "conn_bbbbbbb") == rows.name_of(found, "nobody") == "unnamed client"


def test_turns_of_a_connection() -> None:
    """Those that run, the newest first, then those that have ended: what was sent, what went upstream, and why."""
    found = mirror(
        connections=(connection("a", running=(running(3), running(4, lane="review"))),),
        turns=(
            turn(1, word="new", kind="new", upstream_bytes=0, first=0.25),
            turn(2, word="error", kind="bad", error_code="bad_id", why="Not looked up: x. More."),
            turn(9, "b"),
        ),
    )
    listed = rows.turn_rows(found, "conn_a", "", 1.0)
    assert [words(row) for row in listed] == [
        ["4", "review", "runs", "Running in lane review", "", "", "", "3.00 s"],
        ["3", "", "runs", "Running", "", "", "", "3.00 s"],
        ["2", "", "error", "bad_id · Not looked up: x.", "1.0 kB", "4.0 kB", "-", "500 ms"],
        ["1", "", "new", "Next in its lane: 3 items remembered, 1 new.", "1.0 kB", "-", "250 ms", "500 ms"],
    ]
    assert [row.turn and row.turn.number for row in listed] == [None, None, 2, 1]
    assert [row.cells[2][1] for row in listed] == ["soft", "soft", "bad", "muted"]
    assert rows.turn_rows(found, "conn_nobody", "", 0.0) == []


def test_turn_that_ends_is_the_same_row() -> None:
    """Whoever has chosen it while it ran sees how it ended."""
    found = mirror(connections=(connection("a", running=(running(7),)),))
    ended = mirror(connections=(connection("a"),), turns=(turn(99, turn=7),))
    for chosen in (ALL, "conn_a"):
        (before,), (after,) = (rows.turn_rows(one, chosen, "", 0.0) for one in (found, ended))
        assert before.key == after.key


def test_turns_of_all_connections() -> None:
    """With whose they are, and only those of connections that a filter lets through; never more than fit a list."""
    found = mirror(
        connections=(connection("a", running=(running(3),)), connection("b")),
        turns=(turn(1), turn(2, "b")),
    )
    listed = rows.turn_rows(found, ALL, "", 0.0)
    assert [(row.key, *words(row)[:3]) for row in listed] == [
        ("conn_a 3", "3", "conn_a", "client a"),
        ("conn_b 2", "2", "conn_b", "client b"),
        ("conn_a 1", "1", "conn_a", "client a"),
    ]
    assert [row.key for row in rows.turn_rows(found, ALL, "client b", 0.0)] == ["conn_b 2"]
    many = mirror(connections=tuple(connection(str(name), running=(running(1),)) for name in range(500)))
    assert len(rows.turn_rows(many, ALL, "", 0.0)) == LATEST


def test_lanes_have_a_column_if_there_are_any() -> None:
    """Else its room is the reason's."""
    for name, lane in (("a", None), ("b", "review")):
        found = mirror(connections=(connection(name),), turns=(turn(1, name, lane=lane),))
        for chosen in (ALL, f"conn_{name}"):
            columns = rows.turn_columns(chosen, rows.turn_rows(found, chosen, "", 0.0))
            titles = [columns[at].title for at, _ in rows.layout(columns, 200)]
            assert ("Lane" in titles) == (name == "b")
            assert len(columns) == len(TURNS_OF_ALL if chosen == ALL else TURNS)


def test_texts_of_others_are_clean() -> None:
    """Whatever a client or a backend calls itself or anything."""
    found = mirror(
        connections=(connection("a", client=HOSTILE, running=(running(2, lane=HOSTILE),)),),
        turns=(turn(1, lane=HOSTILE, error_code=HOSTILE, why=HOSTILE, word=HOSTILE),),
    )
    texts = [text for row in rows.connection_rows(found, "", 0.0) for text in words(row)]
    for chosen in (ALL, "conn_a"):
        texts += [text for row in rows.turn_rows(found, chosen, "", 0.0) for text in words(row)]
    texts.append(rows.name_of(found, "conn_a"))
    assert not any("\x1b" in text or "\n" in text or "\u202e" in text for text in texts)
    assert SHOWN in texts


@pytest.mark.parametrize("columns", [CONNECTIONS, TURNS, TURNS_OF_ALL], ids=["connections", "turns", "all"])
@pytest.mark.parametrize("cells", [38, 40, 50, 78, 100, 118, 200])
def test_columns_fill_a_table(columns: tuple[rows.Column, ...], cells: int) -> None:
    """Those that are shown take its width exactly; the one that matters most has room on every common terminal."""
    found = rows.layout(columns, cells)
    if columns is CONNECTIONS or cells > 60:
        assert sum(size for _, size in found) + len(found) - 1 == cells
        assert all(size > 0 for _, size in found)
    assert len(found) <= len(columns)
    for row in (rows.connection_rows if columns is CONNECTIONS else _turns)(
        mirror(connections=(connection("a"),)), "", 0.0
    ):
        assert len(row.cells) == len(columns)


def _turns(*_: object) -> list[Row]:
    return []
