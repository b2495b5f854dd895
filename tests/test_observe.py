"""The observer protocol, and several observers as one."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.observe import ConnectionRecord, Exchange, Observer, Observers, PassThroughRecord, TurnRecord, TurnStarted
from proxy.protocol.records import ResponseEvicted, TurnEnded

CONNECTION = ConnectionRecord("conn_1", "client", 0.0)

#: Every method of the protocol, with what it is told.
CALLS: dict[str, tuple[Any, ...]] = {
    "connection_opened": (CONNECTION,),
    "connection_refused": ("draining",),
    "connection_closed": (CONNECTION,),
    "turn_started": (TurnStarted("conn_1", 1, None, 0.0, 0.0),),
    "turn_ended": (TurnRecord("conn_1", TurnEnded(1, None, 10), 1.0, Exchange()),),
    "response_evicted": (ResponseEvicted("process_bytes"),),
    "passed_through": (PassThroughRecord("GET", "/v1/models", 200, "upstream", 0.1),),
}


class Recorder:
    """An observer that keeps what it is told, in one list with others.

    Args:
        name: Its own name.
        told: Where it writes.
    """

    def __init__(self, name: str, told: list[tuple[Any, ...]]) -> None:
        self._name = name
        self._told = told

    def __getattr__(self, method: str) -> Any:
        return lambda *record: self._told.append((self._name, method, *record))


def test_table_of_calls_is_complete() -> None:
    """The table of this test has every method of the protocol."""
    assert set(CALLS) == {name for name in vars(Observer) if not name.startswith("_")}


@pytest.mark.parametrize("method", list(CALLS))
def test_observers_tell_each_one_in_order(method: str) -> None:
    """Each observer hears each fact once, the first one first, with the very same record."""
    told: list[tuple[Any, ...]] = []
    observers = Observers([Recorder("first", told), Recorder("second", told)])
    getattr(observers, method)(*CALLS[method])
    assert told == [("first", method, *CALLS[method]), ("second", method, *CALLS[method])]


def test_observers_may_be_none() -> None:
    """Nobody has to listen."""
    observers: Observer = Observers([])
    for method, record in CALLS.items():
        getattr(observers, method)(*record)


def test_what_arrived_never_goes_back() -> None:
    """A socket that is closed no longer tells (0): what is known stays."""
    record = ConnectionRecord("conn_1", "", 0.0)
    assert [record.note_arrived(arrived) for arrived in (100, 100, 250, 0, 260)] == [100, 0, 150, 0, 10]
    assert record.arrived == 260
