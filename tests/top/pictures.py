"""Updates of a feed, made up."""

from __future__ import annotations

from typing import Any

from proxy.top.mirror import Mirror
from proxy.top.updates import Backend, Connection, Running, Totals, Turn, Update

NOW = 1_000_000.0
"""The proxy's time in what is made up."""


def connection(name: str, **members: Any) -> Connection:
    """A connection, open for ten seconds."""
    return Connection(**{"id": f"conn_{name}", "client": f"client {name}", "opened": NOW - 10, **members})


def turn(number: int, name: str = "a", **members: Any) -> Turn:
    """A turn that went well."""
    usual: dict[str, Any] = {
        "began": NOW - 5,
        "total": 0.5,
        "why": "Next in its lane: 3 items remembered, 1 new.",
        "word": "hit",
        "kind": "hit",
        "client_bytes": 1000,
        "upstream_bytes": 4000,
        "replayed_bytes": 3000,
        "plain_bytes": 4000,
    }
    return Turn(**{"number": number, "connection": f"conn_{name}", "turn": number, **usual, **members})


def running(number: int, **members: Any) -> Running:
    """A turn that has been running for two seconds."""
    return Running(**{"turn": number, "lane": None, "began": NOW - 2, "started": NOW - 2, **members})


def update(kind: str = "delta", **members: Any) -> Update:
    """An update."""
    usual: dict[str, Any] = {
        "now": NOW,
        "open": 0,
        "totals": Totals(),
        "backends": (Backend("http://backend/v1"),),
        "connections": (),
        "turns": (),
    }
    return Update(**{"kind": kind, **usual, **members})


def mirror(**members: Any) -> Mirror:
    """What is known after one snapshot at tick 0."""
    found = Mirror()
    found.take(update("snapshot", **members), 0.0)
    return found
