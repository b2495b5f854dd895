"""Snapshots and what changes after them, put together."""

from __future__ import annotations

import pytest

from proxy.live import MAX_CLOSED, MAX_TURNS_OF_CONNECTION
from proxy.top import mirror as module
from proxy.top.mirror import Mirror
from proxy.top.updates import Totals
from tests.top.pictures import NOW, connection, mirror, turn, update


def numbers(found: Mirror, name: str = "a") -> list[int]:
    """The turns of a connection."""
    return [one.number for one in found.turns_of(f"conn_{name}")]


def test_mirror_begins_empty() -> None:
    """There is nothing to see before the first update."""
    found = Mirror()
    assert (found.open, found.listed(), found.latest(), found.turns_of("conn_a")) == (0, [], [], [])
    assert found.rate(1.0) is None


def test_changes_are_added_to_a_snapshot() -> None:
    """Connections are replaced, turns come behind, and those that are gone take their turns with them."""
    found = mirror(open=2, connections=(connection("a"), connection("b")), turns=(turn(1), turn(2, "b")))
    found.take(update(open=1, connections=(connection("a", turns=2),), turns=(turn(3),), gone=("conn_b",)), 1.0)
    assert [row.turns for row in found.listed()] == [2]
    assert (numbers(found), numbers(found, "b")) == ([3, 1], [])
    assert [one.number for one in found.latest()] == [3, 1]
    assert found.open == 1


def test_snapshot_starts_anew() -> None:
    """Nothing of what was before it stays, whatever its numbers: the proxy may be another one."""
    found = mirror(open=1, connections=(connection("a"),), turns=(turn(7),), inspects=True)
    found.take(update("snapshot", connections=(connection("b"),), turns=(turn(1, "b"),)), 1.0)
    assert [row.id for row in found.listed()] == ["conn_b"]
    assert [one.number for one in found.latest()] == [1]
    assert (found.open, found.inspects) == (0, False)


def test_turn_is_taken_once() -> None:
    """A change may tell what the snapshot had already."""
    found = mirror(connections=(connection("a"),), turns=(turn(1), turn(2)))
    found.take(update(turns=(turn(2), turn(3))), 1.0)
    assert numbers(found) == [3, 2, 1]
    assert [one.number for one in found.latest()] == [3, 2, 1]


def test_turns_are_bounded() -> None:
    """Of each connection, and of all together."""
    assert module.KEPT == MAX_TURNS_OF_CONNECTION
    found = mirror(connections=tuple(connection(str(name)) for name in range(10)))
    for number in range(1000):
        found.take(update(turns=(turn(number, str(number % 10)),)), 1.0)
    assert numbers(found, "3") == list(range(993, 993 - 500, -10))
    assert [one.number for one in found.latest()] == list(range(999, 799, -1))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("", ["d", "b", "c", "a"]),
        ("client", ["d", "b", "c", "a"]),
        (" CLIENT b ", ["b"]),
        ("conn_c", ["c"]),
        ("[a-z]", []),
    ],
)
def test_connections_are_listed(wanted: str, expected: list[str]) -> None:
    """Open ones first, the newest of each first; a filter looks for a text in the client's name or the id."""
    found = mirror(
        connections=(
            connection("a", closed=NOW - 2),
            connection("b", opened=NOW - 9),
            connection("c", closed=NOW - 1),
            connection("d", opened=NOW - 1),
        )
    )
    assert [row.id.removeprefix("conn_") for row in found.listed(wanted)] == expected


def test_unnamed_clients_can_be_filtered() -> None:
    """They have an id."""
    found = mirror(connections=(connection("a", client=None),))
    assert len(found.listed("conn_a")) == 1
    assert found.listed("none") == []


def test_picture_is_whole_once_its_rows_are_there() -> None:
    """Sums may come first; of what has ended long ago there is no row."""
    rows = tuple(connection(str(name), closed=NOW) for name in range(50))
    for sums, is_open, count, expected in (
        (Totals(), 0, 0, True),
        (Totals(connections=3), 1, 3, True),
        (Totals(connections=3), 1, 2, False),
        (Totals(connections=3), 3, 0, False),
        (Totals(connections=1000), 0, 49, False),
        (Totals(connections=1000), 0, 50, True),
    ):
        assert mirror(totals=sums, open=is_open, connections=rows[:count]).is_whole == expected
    assert module.ENDED == MAX_CLOSED


def test_clock_is_the_proxys() -> None:
    """Whatever the difference to ours is."""
    found = mirror()
    assert found.now(0.0) == NOW
    assert found.now(2.5) == NOW + 2.5
    found.take(update(now=NOW + 100), 3.0)
    assert found.now(4.0) == NOW + 101


def test_rate_is_that_of_the_last_seconds() -> None:
    """Turns per second over ten seconds, none before one has passed."""
    found = mirror(totals=Totals(turns=100))
    assert found.rate(0.5) is None
    for tick in range(1, 31):
        found.take(update(totals=Totals(turns=100 + 2 * tick)), float(tick))
    assert found.rate(30.0) == pytest.approx(2.0)
    assert found.rate(100.0) == pytest.approx(0.0, abs=0.3)
    assert len(found._samples) <= 14
    assert found.rate(200.0) == 0.0


def test_frozen_copy_stays() -> None:
    """What comes later does not change it."""
    found = mirror(open=1, connections=(connection("a"),), turns=(turn(1),))
    copy = found.frozen()
    found.take(update(open=2, connections=(connection("b"),), turns=(turn(2),), totals=Totals(turns=9)), 5.0)
    assert (copy.open, copy.totals.turns, len(copy.listed()), numbers(copy)) == (1, 0, 1, [1])
    assert [one.number for one in copy.latest()] == [1]
    assert copy.now(0.0) == NOW
    assert numbers(found) == [2, 1]
