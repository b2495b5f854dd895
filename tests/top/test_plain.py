"""The picture once, in plain text."""

from __future__ import annotations

from proxy.top import plain
from proxy.top.text import width
from proxy.top.updates import Totals
from tests.top.pictures import connection, mirror, turn


def test_picture_is_text() -> None:
    """Totals, backends, connections, turns; no line is too long, and none ends in blanks."""
    found = mirror(
        open=1,
        totals=Totals(turns=1, client_bytes=1000, plain_bytes=4000),
        connections=(connection("a", turns=1, client_bytes=1000, plain_bytes=4000),),
        turns=(turn(1),),
    )
    text = plain.picture(found, 0.0)
    lines = text.splitlines()
    assert lines[0] == "turns    1, 0 errors"
    assert "saved    3.0 kB, 4.0x less" in lines
    assert "● http://backend/v1  not asked yet" in lines
    assert "Connections: 1 open" in lines
    assert lines[-5].split() == ["client", "a", "conn_a", "1", "-", "4.0x", "open", "10", "s"]
    assert "Next in its lane: 3 items remembered, 1 new." in lines[-1]
    assert all(width(line) <= plain.WIDTH and line == line.rstrip() for line in lines)


def test_picture_of_nothing_has_its_headings() -> None:
    """A proxy that nobody has used yet."""
    lines = plain.picture(mirror(), 0.0).splitlines()
    assert lines[-5] == "Connections: 0 open"
    assert lines[-2] == "Turns, the newest first"


def test_picture_is_bounded() -> None:
    """Of many rows there are the first, and how many more there are."""
    found = mirror(
        open=500,
        connections=tuple(connection(str(name)) for name in range(500)),
        turns=tuple(turn(number, str(number)) for number in range(300)),
    )
    lines = plain.picture(found, 0.0).splitlines()
    assert lines.count("and 480 more") == 1
    assert lines[-1] == "and 180 more"
    assert len(lines) < 60
