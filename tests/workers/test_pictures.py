"""The live pictures of several workers as one (:mod:`proxy.workers.pictures`); the workers' are real ones."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import orjson
import pytest

from proxy.live import MAX_TURNS_OF_CONNECTION, Live
from proxy.observe import ConnectionRecord, Exchange, TurnRecord, TurnStarted
from proxy.protocol.records import TurnEnded
from proxy.watchers import Watcher
from proxy.workers import pictures
from proxy.workers.pictures import Pictures

QUICK = 0.02


class Worker:
    """A worker's picture, sent as the worker sends it.

    Args:
        number: Its own.
        to: Where its picture goes.
    """

    def __init__(self, number: int, to: Pictures) -> None:
        self.live = Live([("upstream", "http://backend/v1")], interval=QUICK / 4)
        self._number = number
        self._to = to
        self._sending: asyncio.Task[None] | None = None

    def connect(self, name: str) -> None:
        """Somebody connects."""
        self.live.connection_opened(ConnectionRecord(name, "client", 0.0))

    def turn(self, name: str, number: int = 1, status: int = 200) -> None:
        """Somebody has a turn."""
        self.live.turn_started(TurnStarted(name, number, None, 0.0, 0.0))
        facts = TurnEnded(number, None, 10, 0.0, "completed", lookup="new")
        self.live.turn_ended(
            TurnRecord(name, facts, 0.0, Exchange(status=status, reused=True, backend="upstream", replica=0))
        )

    def watch(self, is_on: bool) -> None:  # noqa: FBT001
        """Send the picture, or stop."""
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        if is_on:
            self._sending = asyncio.get_running_loop().create_task(self._send())

    def report(self) -> None:
        """Say what was counted."""
        self._to.report(self._number, orjson.dumps(self.live.general()))

    def end(self) -> None:
        """Die."""
        self.watch(False)
        self._to.end(self._number)

    async def _send(self) -> None:
        with self.live.watch() as watcher:
            while (update := await watcher.next()) is not None:
                self._to.update(self._number, update)


class Fleet:
    """Two workers, and their picture."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, bool]] = []
        self.picture = Pictures(inspects=True, watch=self._watch, inspect=self._inspect, interval=QUICK)
        self.workers = [Worker(number, self.picture) for number in (1, 2)]

    def _watch(self, is_on: bool) -> None:  # noqa: FBT001
        for worker in self.workers:
            worker.watch(is_on)

    async def _inspect(self, connection_id: str, turn: int, shows_text: bool) -> bytes | None:  # noqa: FBT001
        self.asked.append((connection_id, turn, shows_text))
        return b"{}"


class Page:
    """What a page has, from the updates that it got.

    Args:
        watcher: Where they come from.
    """

    def __init__(self, watcher: Watcher) -> None:
        self.state: dict[str, Any] = {}
        self.rows: dict[str, dict[str, Any]] = {}
        self.turns: list[dict[str, Any]] = []
        self._watcher = watcher

    async def until(self, connections: int, turns: int) -> None:
        """Take updates until it shows so much."""
        async with asyncio.timeout(5):
            while (len(self.rows), len(self.turns)) != (connections, turns) or not self.state:
                await self.take()

    async def take(self) -> dict[str, Any]:
        """Take one update, as the page does."""
        data = await self._watcher.next()
        assert data is not None
        self.state = json.loads(data)
        if self.state["kind"] == "snapshot":
            self.rows, self.turns = {}, []
        self.rows |= {row["id"]: row for row in self.state["connections"]}
        for turn in self.state["turns"]:
            if not self.turns or turn["number"] > self.turns[-1]["number"]:  # else it was in the snapshot already
                self.turns.append(turn)
        for name in self.state.get("gone", ()):
            self.rows.pop(name, None)
            self.turns = [turn for turn in self.turns if turn["connection"] != name]
        return self.state


@pytest.fixture
def fleet() -> Fleet:
    """Two workers."""
    return Fleet()


async def test_page_shows_all_workers(fleet: Fleet) -> None:
    """Connections and turns of each, those from before somebody looked too, and what comes then."""
    one, other = fleet.workers
    one.connect("conn_a")
    one.turn("conn_a")
    other.connect("conn_b")
    with fleet.picture.watch() as watcher:
        page = Page(watcher)
        await page.until(2, 1)
        other.turn("conn_b")
        one.turn("conn_a", 2)
        await page.until(2, 3)
        assert {turn["connection"] for turn in page.turns} == {"conn_a", "conn_b"}
        assert page.state["open"] == 2
        assert (page.state["totals"]["turns"], page.state["totals"]["connections"]) == (3, 2)
        (backend,) = page.state["backends"]
        assert (backend["name"], backend["health"], backend["statuses"]["2xx"]) == ("http://backend/v1", "good", 3)
        assert (backend["good"], backend["recent"], backend["reused"]) == (3, 3, 3)


async def test_workers_send_nothing_that_nobody_watches(fleet: Fleet) -> None:
    """And what comes late is not kept."""
    one, _ = fleet.workers
    one.connect("conn_a")
    assert not fleet.picture.is_watched
    with fleet.picture.watch() as watcher:
        assert fleet.picture.is_watched
        await Page(watcher).until(1, 0)
    assert one._sending is None
    fleet.picture.update(1, one.live.snapshot())
    assert fleet.picture._parts[1].connections == {}
    with fleet.picture.watch() as watcher:
        await Page(watcher).until(1, 0)


async def test_dead_worker_leaves_its_totals(fleet: Fleet) -> None:
    """Its connections go, while somebody looks or not; what it had counted when it last reported stays."""
    one, other = fleet.workers
    one.connect("conn_a")
    other.connect("conn_b")
    for number in range(1, 4):
        one.turn("conn_a", number)
    with fleet.picture.watch() as watcher:
        page = Page(watcher)
        await page.until(2, 3)
        one.end()
        await page.until(1, 0)
        assert (page.state["open"], page.state["totals"]["turns"]) == (1, 3)
    other.turn("conn_b")
    other.report()
    other.end()
    with fleet.picture.watch() as watcher:
        page = Page(watcher)
        await page.until(0, 0)
        assert (page.state["open"], page.state["totals"]["turns"], page.state["totals"]["connections"]) == (0, 4, 2)
        assert page.state["backends"][0]["statuses"]["2xx"] == 4


async def test_every_page_sees_the_same(fleet: Fleet) -> None:
    """Whoever comes later too."""
    one, other = fleet.workers
    one.connect("conn_a")
    other.connect("conn_b")
    with fleet.picture.watch() as first:
        early = Page(first)
        await early.until(2, 0)
        one.turn("conn_a")
        other.turn("conn_b")
        await early.until(2, 2)
        with fleet.picture.watch() as second:
            late = Page(second)
            await late.until(2, 2)
            assert (late.rows, late.turns) == (early.rows, early.turns)
            one.turn("conn_a", 2)
            await late.until(2, 3)
            await early.until(2, 3)
            assert late.turns == early.turns


async def test_turns_stand_in_order_of_time(fleet: Fleet) -> None:
    """Whichever worker's picture comes first."""
    one, other = fleet.workers
    one.connect("conn_a")
    other.connect("conn_b")
    for number in range(1, 6):
        one.turn("conn_a", number)
        await asyncio.sleep(0.002)  # ends are told apart by the millisecond
        other.turn("conn_b", number)
        await asyncio.sleep(0.002)
    with fleet.picture.watch() as watcher:
        page = Page(watcher)
        await page.until(2, 10)
    assert [turn["connection"] for turn in page.turns] == ["conn_a", "conn_b"] * 5


async def test_connections_that_end_go_with_their_turns(fleet: Fleet) -> None:
    """As on a worker's own picture; and a connection shows so many turns only."""
    one, _ = fleet.workers
    one.connect("conn_a")
    with fleet.picture.watch() as watcher:
        page = Page(watcher)
        await page.until(1, 0)
        for number in range(1, MAX_TURNS_OF_CONNECTION + 11):
            one.turn("conn_a", number)
        await page.until(1, MAX_TURNS_OF_CONNECTION)
        with fleet.picture.watch() as other:
            late = Page(other)
            await late.take()
            assert len(late.turns) == MAX_TURNS_OF_CONNECTION
        one.live._forget("conn_a")
        one.live._changed()
        await page.until(0, 0)
    assert fleet.picture._turns == {}


async def test_inspection_is_asked_of_the_workers(fleet: Fleet) -> None:
    """One of them has it."""
    assert await fleet.picture.inspection("conn_a", 3, shows_text=True) == b"{}"
    assert fleet.asked == [("conn_a", 3, True)]
    assert fleet.picture.inspects


async def test_page_is_let_go_at_the_end(fleet: Fleet) -> None:
    """No more updates come."""
    with fleet.picture.watch() as watcher:
        fleet.picture.close()
        assert await watcher.next() is None


BACKEND = {
    "name": "b",
    "health": "good",
    "good": 1,
    "recent": 1,
    "statuses": {"2xx": 1, "5xx": 0},
    "last_status": 200,
    "last_at": 5.0,
    "connect": 0.5,
    "reused": 1,
    "retries": 0,
}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("good", "good", "good"),
        ("unknown", "good", "good"),
        ("good", "recovering", "recovering"),
        ("bad", "recovering", "bad"),
        ("unknown", "unknown", "unknown"),
    ],
)
def test_backend_is_as_bad_as_any_worker_sees_it(one: str, other: str, expected: str) -> None:
    """Whichever worker comes first."""
    for healths in ((one, other), (other, one)):
        parts = [{"backends": [{**BACKEND, "health": health}]} for health in healths]
        assert pictures._combine(parts)["backends"][0]["health"] == expected


def test_last_moments_of_a_backend_are_the_latest() -> None:
    """A worker that has never asked it says nothing of them."""
    never = {**BACKEND, "last_at": None, "last_status": None, "connect": None, "recent": 0, "good": 0}
    late = {**BACKEND, "last_at": 9.0, "last_status": 503, "connect": None, "statuses": {"2xx": 2, "5xx": 1}}
    (row,) = pictures._combine([{"backends": [part]} for part in (late, never, BACKEND)])["backends"]
    assert (row["last_at"], row["last_status"], row["connect"]) == (9.0, 503, 0.5)
    assert row["statuses"] == {"2xx": 4, "5xx": 1}
    assert (row["good"], row["recent"], row["reused"]) == (2, 2, 3)
