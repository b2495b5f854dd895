"""What the page shows in numbers: the backend's health, and sums."""

from __future__ import annotations

from proxy.observe import Exchange, TurnRecord
from proxy.picture import Backend, Totals
from proxy.protocol.records import Outcome, TurnEnded
from proxy.protocol.terminals import Usage


def turn(status: int | None = 200, outcome: Outcome = "completed", connect: float | None = None) -> TurnRecord:
    """A turn that the backend was asked for."""
    facts = TurnEnded(1, None, 10, 0.0, outcome, lookup="hit", plain_bytes=90, usage=Usage(10, 5, 1))
    return TurnRecord("conn_1", facts, 1.0, Exchange(status=status, connect=connect, own_relay=0.5))


def test_backend_is_as_healthy_as_its_last_answers() -> None:
    """Unknown before the first, bad after a failure, recovering with the next success, good once that is long ago."""
    backend = Backend("http://backend/v1")
    assert backend.row()["health"] == "unknown"
    backend.count(turn(connect=0.25))
    assert (backend.row()["health"], backend.row()["connect"]) == ("good", 0.25)
    backend.count(turn(503))
    assert backend.row()["health"] == "bad"
    backend.count(turn(429))
    assert backend.row()["health"] == "recovering"
    for _ in range(60):
        backend.count(turn())
    row = backend.row()
    assert (row["health"], row["good"], row["recent"]) == ("good", 50, 50)
    assert row["statuses"] == {"2xx": 61, "3xx": 0, "4xx": 1, "5xx": 1, "none": 0}


def test_backend_is_not_to_blame_for_clients_that_leave() -> None:
    """A turn that was stopped before an answer says nothing about it; one that got none does."""
    backend = Backend("http://backend/v1")
    backend.count(turn(None, "client_gone"))
    backend.count(turn(None, "cancelled"))
    assert backend.row()["recent"] == 0
    backend.count(turn(None, "error"))
    assert (backend.row()["health"], backend.row()["statuses"]["none"]) == ("bad", 1)
    backend.count(turn(999))
    assert backend.row()["statuses"]["none"] == 2


def test_totals_add_up() -> None:
    """Turns that never reached the backend count as turns only."""
    totals = Totals()
    totals.count(turn())
    totals.count(TurnRecord("conn_1", TurnEnded(2, None, 10), 1.0, None))
    assert (totals.turns, totals.hits, totals.asked, totals.client_bytes) == (2, 1, 1, 20)
    assert (totals.plain_bytes, totals.input_tokens, totals.cached_tokens, totals.own) == (90, 10, 5, 0.5)
