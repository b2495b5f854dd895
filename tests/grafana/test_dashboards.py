"""Dashboards: each keeps the linter's rules, and each rule finds what it is for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.grafana import linter
from tests.grafana.boards import FOLDER, NAMES, Board, load, metric_names, panels, selectors, targets, variable
from tests.grafana.linter import RULES, Rule

Breakage = Callable[[Board], object]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_dashboard_keeps(rule: Rule, name: str) -> None:
    """Every rule holds for every board."""
    assert list(rule(load(name))) == []


def test_dashboards_are_these() -> None:
    """No file is left unchecked, and no two boards are one to Grafana."""
    assert {file.stem for file in FOLDER.glob("*.json")} == set(NAMES)
    assert len({load(name)["uid"] for name in NAMES}) == len({load(name)["title"] for name in NAMES}) == len(NAMES)


def rename(board: Board, old: str, new: str) -> None:
    """Change the text of the first query that has it."""
    target = next(target for _, target in targets(board) if old in target["expr"])
    target["expr"] = target["expr"].replace(old, new, 1)


def first(board: Board) -> Any:
    """The first panel that shows something."""
    return panels(board)[0]


#: What each rule must find: ways to break a board.
BREAKAGES: dict[Rule, list[Breakage]] = {
    linter.datasource_is_a_variable: [
        lambda board: variable(board, "datasource").update(label="Prometheus"),
        lambda board: variable(board, "datasource").update(name="source"),
        lambda board: board["templating"]["list"].append({"name": "other", "type": "datasource"}),
    ],
    linter.job_is_a_variable: [
        lambda board: variable(board, "job").update(multi=False),
        lambda board: variable(board, "job").update(allValue=".*"),
        lambda board: variable(board, "job").update(label="job"),
    ],
    linter.instance_is_a_variable: [
        lambda board: variable(board, "instance").update(name="host"),
        lambda board: variable(board, "instance").update(datasource={"uid": "prometheus"}),
    ],
    linter.variables_follow_the_time: [lambda board: variable(board, "job").update(refresh=1)],
    linter.variables_ask_what_there_is: [
        lambda board: variable(board, "job").update(definition="label_values(slipstream_info, job)"),
    ],
    linter.panels_use_the_variable: [
        lambda board: first(board).update(datasource={"type": "prometheus", "uid": "abc"}),
        lambda board: first(board)["targets"][0].pop("datasource"),
        lambda board: board["annotations"]["list"][0].pop("datasource"),
    ],
    linter.panels_have_words: [
        lambda board: first(board).pop("title"),
        lambda board: first(board).update(description=""),
        lambda board: board["panels"].append(copy.deepcopy(first(board))),
    ],
    linter.panels_have_units: [
        lambda board: first(board)["fieldConfig"]["defaults"].pop("unit"),
        lambda board: first(board)["fieldConfig"]["defaults"].update(unit="seconds"),
    ],
    linter.panels_have_targets: [
        lambda board: first(board).update(targets=[]),
        lambda board: first(board)["targets"].append(first(board)["targets"][0]),
    ],
    linter.targets_select_job_and_instance: [
        lambda board: rename(board, 'job=~"$job", ', ""),
        lambda board: rename(board, 'instance=~"$instance"', 'instance="$instance"'),
        lambda board: first(board)["targets"][0].update(expr="vector(1)"),
    ],
    linter.targets_ask_for_what_there_is: [lambda board: rename(board, "_total{", "s_total{")],
    linter.rates_use_the_rate_interval: [
        lambda board: rename(board, "$__rate_interval", "5m"),
        lambda board: rename(board, "$__rate_interval", "$__range"),
    ],
    linter.counters_are_rated: [
        lambda board: rename(board, "rate(", "avg_over_time("),
        lambda board: first(board)["targets"][0].update(expr="rate(slipstream_ready[$__rate_interval])"),
    ],
    linter.board_is_not_edited: [lambda board: board.update(editable=True), lambda board: board.pop("editable")],
    linter.board_can_be_provisioned: [
        lambda board: board.update(id=7),
        lambda board: board.pop("uid"),
        lambda board: board.update(tags=[]),
        lambda board: board.update(schemaVersion=16),
    ],
    linter.panels_do_not_overlap: [
        lambda board: first(board)["gridPos"].update(x=22),
        lambda board: first(board)["gridPos"].update(h=20),
        lambda board: first(board).update(id=panels(board)[1]["id"]),
    ],
    linter.board_says_where_help_is: [
        lambda board: board["links"].pop(),
        lambda board: board["annotations"]["list"].pop(0),
    ],
}


@pytest.mark.parametrize(
    ("rule", "breakage"),
    [pytest.param(rule, breakage, id=rule.__name__) for rule in RULES for breakage in BREAKAGES[rule]],
)
def test_linter_finds(rule: Rule, breakage: Breakage) -> None:
    """A board that is broken in this way is found out; what breaks it does not break the rule."""
    board = load("overview")
    breakage(board)
    assert list(rule(board))


def test_selectors_reads_expressions() -> None:
    """Names, matchers, ranges and functions, wherever they stand."""
    text = (
        'sum by (le) (rate(slipstream_a_bucket{job=~"$job"}[$__rate_interval])) / (up == 0) - job:slipstream_b:rate5m'
    )
    found = selectors(text)
    assert [(one.name, one.range, one.function) for one in found] == [
        ("slipstream_a_bucket", "$__rate_interval", "rate"),
        ("up", "", ""),
        ("job:slipstream_b:rate5m", "", ""),
    ]
    assert found[0].matchers == 'job=~"$job"'


def test_dashboards_show_every_metric() -> None:
    """What is counted can be seen: a family that no board shows is either forgotten here or not worth counting."""
    shown = {one.name for name in NAMES for _, target in targets(load(name)) for one in selectors(target["expr"])}
    families = {_family(name) for name in metric_names() if name.startswith("slipstream_")}
    assert families - {_family(name) for name in shown} == set()


def _family(name: str) -> str:
    for ending in ("_bucket", "_sum", "_count"):
        name = name.removesuffix(ending)
    return name
