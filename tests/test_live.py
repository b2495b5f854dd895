"""The picture of what goes on: its bounds, and what those who watch are told of it and when."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from proxy import live
from proxy.live import Live
from proxy.observe import ConnectionRecord, Exchange, PassThroughRecord, TurnRecord, TurnStarted
from proxy.protocol.inspection import Inspection, Part, Side
from proxy.protocol.records import ResponseEvicted, TurnEnded
from proxy.watchers import Watcher

INTERVAL = 0.02


@pytest.fixture
def picture() -> Live:
    """A picture that is told about quickly."""
    return Live([("upstream", "http://backend/v1")], inspects=True, interval=INTERVAL)


def connection(number: int = 1) -> ConnectionRecord:
    """A connection of this number."""
    return ConnectionRecord(f"conn_{number}", "client\ud83d", 0.0)


def end(picture: Live, number: int = 1, turn: int = 1, **members: Any) -> None:
    """A turn of a connection ends."""
    facts = TurnEnded(turn, None, 10, 0.0, "completed", lookup="new", **members)
    picture.turn_ended(TurnRecord(f"conn_{number}", facts, 0.5, Exchange(status=200, backend="upstream", replica=0)))


def start(picture: Live, number: int = 1, turn: int = 1, lane: str | None = None) -> None:
    """A turn of a connection starts."""
    picture.turn_started(TurnStarted(f"conn_{number}", turn, lane, 0.0, 0.1))


def seen(picture: Live) -> dict[str, Any]:
    """All there is."""
    found: dict[str, Any] = json.loads(picture.snapshot())
    return found


async def update(watcher: Watcher) -> dict[str, Any]:
    """The next update of a watcher."""
    async with asyncio.timeout(5):
        data = await watcher.next()
    assert data is not None
    found: dict[str, Any] = json.loads(data)
    return found


# The picture


def test_picture_begins_empty(picture: Live) -> None:
    """There is nothing yet but a backend of which nothing is known."""
    found = seen(picture)
    assert (found["open"], found["connections"], found["turns"]) == (0, [], [])
    assert found["backends"][0]["name"] == "http://backend/v1"


def test_picture_follows_a_connection(picture: Live) -> None:
    """It opens, turns run in its lanes and end, it closes, and is still shown then."""
    record = connection()
    picture.connection_opened(record)
    start(picture, lane="a")
    start(picture, turn=2)
    (row,) = seen(picture)["connections"]
    assert (row["client"], row["lanes"], [turn["turn"] for turn in row["running"]]) == ("client?", 2, [1, 2])
    assert seen(picture)["open"] == 1
    end(picture)
    found = seen(picture)
    assert [turn["turn"] for turn in found["connections"][0]["running"]] == [2]
    assert [(turn["connection"], turn["turn"], turn["why"]) for turn in found["turns"]] == [
        ("conn_1", 1, "A new conversation: it names no response before it.")
    ]
    record.cause = "drain"
    picture.connection_closed(record)
    (row,) = seen(picture)["connections"]
    assert (row["running"], row["cause"], seen(picture)["open"]) == ([], "drain", 0)


def test_picture_takes_whatever_it_is_told(picture: Live) -> None:
    """Facts about connections that it does not know are no harm, and others are counted only."""
    start(picture, number=9)
    end(picture, number=9)
    picture.connection_closed(connection(9))
    picture.connection_refused("draining")
    picture.response_evicted(ResponseEvicted("process_bytes"))
    picture.passed_through(PassThroughRecord("GET", "/v1/models", 200, "upstream", 0.1))
    totals = seen(picture)["totals"]
    assert (totals["turns"], totals["refused"], totals["http_requests"]) == (1, 1, 1)


def test_turns_of_one_connection_are_bounded(picture: Live) -> None:
    """The last ones are kept."""
    picture.connection_opened(connection())
    for turn in range(1, 121):
        end(picture, turn=turn)
    assert [turn["turn"] for turn in seen(picture)["turns"]] == list(range(71, 121))
    assert seen(picture)["connections"][0]["turns"] == 120


def test_turns_of_all_connections_are_bounded(picture: Live) -> None:
    """However many connections there are; the oldest turns go first."""
    for number in range(100):
        picture.connection_opened(connection(number))
    for turn in range(1, 41):
        for number in range(100):
            end(picture, number, turn)
    turns = seen(picture)["turns"]
    assert len(turns) == live.MAX_TURNS
    assert {turn["turn"] for turn in turns} == set(range(21, 41))
    for number in range(100):
        picture.connection_closed(connection(number))
    found = seen(picture)
    assert len(found["connections"]) == live.MAX_CLOSED
    assert len(found["turns"]) == live.MAX_CLOSED * 20
    assert len(picture._finished) == live.MAX_CLOSED * 20


async def test_what_was_said_is_bounded_and_apart(picture: Live) -> None:
    """It is in no update, only the last turns have it, and it is not kept with the others."""
    picture.connection_opened(connection())
    for turn in range(1, live.MAX_INSPECTED + 3):
        said = Inspection(Side((Part("item", "message", "user", 6, "canary"),)))
        end(picture, turn=turn, inspection=said)
    assert b"canary" not in picture.snapshot()
    assert await picture.inspection("conn_1", 2, shows_text=True) is None
    assert await picture.inspection("conn_1", 99, shows_text=True) is None
    found = await picture.inspection("conn_1", 3, shows_text=True)
    assert found is not None
    assert json.loads(found)["sent"]["parts"][0]["text"] == "canary"
    assert len(picture._inspected) == live.MAX_INSPECTED
    assert all(turn.record.facts.inspection is None for turn in picture._finished.values())


# Those who watch


async def test_rows_are_made_a_few_at_a_time_and_once(picture: Live) -> None:
    """What streams goes on while a page is opened; and a row stays what it was."""
    for number in range(10):
        picture.connection_opened(connection(number))
        for turn in range(1, 41):
            end(picture, number, turn)
    steps = 0

    async def count() -> None:
        nonlocal steps
        while True:
            steps += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        other = tasks.create_task(count())
        await picture.prepare()
        other.cancel()
    assert steps >= 8
    rows = [turn._row for turn in picture._finished.values()]
    assert len(seen(picture)["turns"]) == len(rows) == 400
    assert all(
        one is other for one, other in zip(rows, (turn._row for turn in picture._finished.values()), strict=True)
    )


async def test_watcher_gets_a_snapshot_then_what_changes(picture: Live) -> None:
    """An update has the connections that changed, and turns that have ended since."""
    picture.connection_opened(connection(1))
    picture.connection_opened(connection(2))
    end(picture)
    with picture.watch() as watcher:
        first = await update(watcher)
        assert (first["kind"], len(first["connections"]), len(first["turns"])) == ("snapshot", 2, 1)
        start(picture, number=2)
        assert [row["id"] for row in (await update(watcher))["connections"]] == ["conn_2"]
        end(picture, number=2, turn=1)
        second = await update(watcher)
    assert second["kind"] == "delta"
    assert [row["id"] for row in second["connections"]] == ["conn_2"]
    assert [turn["connection"] for turn in second["turns"]] == ["conn_2"]


async def test_updates_come_together(picture: Live) -> None:
    """Many facts are one update, and it is at least an interval until the next."""
    picture.connection_opened(connection())
    loop = asyncio.get_running_loop()
    with picture.watch() as watcher:
        await update(watcher)
        began = loop.time()
        for turn in range(1, 31):
            start(picture, turn=turn)
            end(picture, turn=turn)
        assert len((await update(watcher))["turns"]) == 30
        assert loop.time() - began >= INTERVAL * 0.9
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(INTERVAL * 4):
                await watcher.next()


async def test_slow_watcher_starts_anew(picture: Live) -> None:
    """It has no backlog: what waits for it is bounded, and then it gets all there is at once."""
    picture.connection_opened(connection())
    with picture.watch() as slow, picture.watch() as quick:
        await update(slow)
        await update(quick)
        for turn in range(1, 21):
            end(picture, turn=turn)
            assert (await update(quick))["kind"] == "delta"
            assert len(slow._waiting) <= 8
        kinds = [await update(slow)]
        assert (kinds[0]["kind"], len(kinds[0]["turns"])) == ("snapshot", 20)
        end(picture, turn=21)
        following = await update(slow)
        assert (following["kind"], [turn["turn"] for turn in following["turns"]]) == ("delta", [21])


async def test_nothing_is_prepared_while_nobody_watches(picture: Live) -> None:
    """No timer runs before the first has come and after the last has gone."""
    picture.connection_opened(connection())
    assert picture._watchers._timer is None
    with picture.watch() as watcher:
        await update(watcher)
        end(picture)
        assert picture._watchers._timer is not None
    assert picture._watchers._timer is None
    end(picture, turn=2)
    assert picture._watchers._timer is None
    with picture.watch() as watcher:
        assert len((await update(watcher))["turns"]) == 2
        end(picture, turn=3)
        assert [turn["turn"] for turn in (await update(watcher))["turns"]] == [3]


async def test_watchers_hear_of_connections_that_are_forgotten(picture: Live) -> None:
    """Those that ended long ago are taken off the page."""
    with picture.watch() as watcher:
        await update(watcher)
        for number in range(live.MAX_CLOSED + 2):
            picture.connection_opened(connection(number))
            picture.connection_closed(connection(number))
        assert (await update(watcher))["gone"] == ["conn_0", "conn_1"]
