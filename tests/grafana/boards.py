"""The files of `grafana/`, and what there is to be found in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml
from prometheus_client import CollectorRegistry

from proxy.metrics import Metrics
from proxy.protocol.chain import CacheBudget
from tests.rig.install import CHECKOUT

Board = dict[str, Any]
"""A dashboard in Grafana's classic JSON."""

FOLDER: Final = CHECKOUT / "grafana"
NAMES: Final = ("overview", "savings", "backends", "resources")

#: What the client library tells of a process; on Linux only, so that a look would find nothing on other systems.
_PROCESS: Final = {
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
}

_SELECTOR: Final = re.compile(
    r"""
    (?<![\w:"$])
    (?P<name>(?:slipstream|process)_\w+|up|\w+:slipstream_\w+:\w+)\b
    (?P<matchers>\{[^}]*\})?
    (?P<range>\[[^]]*\])?
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class Selector:
    """One series selector of an expression.

    Attributes:
        name: The metric.
        matchers: What stands in braces; empty for none.
        range: What stands in brackets; empty for none.
        function: The function that it is the first argument of; empty for none.
    """

    name: str
    matchers: str
    range: str
    function: str


def selectors(expression: str) -> list[Selector]:
    """The series selectors of an expression that is written as those here are: one metric's name before each."""
    found = []
    for match in _SELECTOR.finditer(expression):
        function = re.search(r"(\w+)\s*\($", expression[: match.start()])
        matchers, span = match["matchers"] or "", match["range"] or ""
        found.append(Selector(match["name"], matchers[1:-1], span[1:-1], function[1] if function else ""))
    return found


def load(name: str) -> Board:
    """One dashboard."""
    board: Board = json.loads((FOLDER / f"{name}.json").read_text())
    return board


def panels(board: Board) -> list[Board]:
    """The panels that show something."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def targets(board: Board) -> Iterator[tuple[str, Board]]:
    """Each query with the title of its panel."""
    for panel in panels(board):
        for target in panel["targets"]:
            yield panel["title"], target


def variable(board: Board, name: str) -> Board:
    """A variable; empty if there is none of this name."""
    return next((entry for entry in board["templating"]["list"] if entry["name"] == name), {})


def rules(file: str) -> list[dict[str, Any]]:
    """The rules of all groups of a file."""
    document = yaml.safe_load((FOLDER / file).read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def metric_names() -> set[str]:
    """The series that a proxy has, by name."""
    registry = CollectorRegistry()
    Metrics(registry, CacheBudget(1), lambda: True, replicas=[("upstream", "http://backend/v1")])
    return _PROCESS | {sample.name for family in registry.collect() for sample in family.samples}
