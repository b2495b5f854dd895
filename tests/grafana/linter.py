"""The rules of Grafana's dashboard-linter, and what one more makes a board usable: each says what is wrong with it.

https://github.com/grafana/dashboard-linter/blob/main/docs/index.md names and explains them. Totals over the whole time
range are the exception that it leaves to the author: there, and in instant queries only, `$__range` is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Final

from tests.grafana.boards import Board, metric_names, panels, selectors, targets, variable

Rule = Callable[[Board], Iterator[str]]

#: Of Grafana's units those that fit what there is to show.
UNITS: Final = {
    "none",
    "short",
    "percentunit",
    "s",
    "dtdurations",
    "bytes",
    "decbytes",
    "Bps",
    "reqps",
    "ops",
    "bool_yes_no",
}

_VARIABLE: Final = ("$datasource", "${datasource}")


def datasource_is_a_variable(board: Board) -> Iterator[str]:
    """template-datasource-rule."""
    source = variable(board, "datasource")
    if (source.get("type"), source.get("query"), source.get("label")) != ("datasource", "prometheus", "Data source"):
        yield "no Prometheus data source variable `datasource` with the label `Data source`"
    if sum(entry["type"] == "datasource" for entry in board["templating"]["list"]) != 1:
        yield "not one data source variable"


def _template(board: Board, name: str) -> Iterator[str]:
    entry = variable(board, name)
    if entry.get("type") != "query" or entry.get("label") != name.title():
        yield f"no query variable `{name}` with the label `{name.title()}`"
    if not (entry.get("multi") and entry.get("includeAll") and entry.get("allValue") == ".+"):
        yield f"`{name}` does not select several, or all by `.+`"
    if entry.get("datasource", {}).get("uid") not in _VARIABLE:
        yield f"`{name}` does not ask the data source of the variable"


def job_is_a_variable(board: Board) -> Iterator[str]:
    """template-job-rule."""
    yield from _template(board, "job")


def instance_is_a_variable(board: Board) -> Iterator[str]:
    """template-instance-rule."""
    yield from _template(board, "instance")


def variables_follow_the_time(board: Board) -> Iterator[str]:
    """template-on-time-change-reload-rule."""
    for entry in board["templating"]["list"]:
        if entry["type"] == "query" and entry["refresh"] != 2:
            yield f"`{entry['name']}` is not refreshed with the time range"


def variables_ask_what_there_is(board: Board) -> Iterator[str]:
    """template-label-promql-rule."""
    for entry in board["templating"]["list"]:
        if entry["type"] == "query":
            match = re.fullmatch(r"label_values\((\w+)(?:\{[^}]*\})?, \w+\)", entry["definition"])
            if match is None or match[1] not in metric_names() or entry["query"]["query"] != entry["definition"]:
                yield f"`{entry['name']}` asks {entry['definition']!r}"


def panels_use_the_variable(board: Board) -> Iterator[str]:
    """panel-datasource-rule, for queries and annotations too."""
    named = [(panel["title"], panel) for panel in panels(board)]
    named += [(entry["name"], entry) for entry in board["annotations"]["list"]]
    for title, holder in [*named, *targets(board)]:
        if holder.get("datasource", {}).get("uid") not in _VARIABLE:
            yield f"{title}: its data source is not the variable"


def panels_have_words(board: Board) -> Iterator[str]:
    """panel-title-description-rule; no two titles of one kind are the same."""
    seen = set()
    for panel in board["panels"]:
        if not panel.get("title"):
            yield f"panel {panel['id']} has no title"
        if panel["type"] != "row" and not panel.get("description", "").endswith("."):
            yield f"{panel.get('title')}: no description"
        if (key := (panel["type"], panel.get("title"))) in seen:
            yield f"{panel.get('title')}: twice"
        seen.add(key)


def panels_have_units(board: Board) -> Iterator[str]:
    """panel-units-rule."""
    for panel in panels(board):
        if panel["fieldConfig"]["defaults"].get("unit") not in UNITS:
            yield f"{panel['title']}: no unit that Grafana knows"


def panels_have_targets(board: Board) -> Iterator[str]:
    """panel-no-targets-rule; each query has a letter of its own."""
    for panel in panels(board):
        letters = [target.get("refId") for target in panel.get("targets", [])]
        if not letters or not all(letters) or len(set(letters)) != len(letters):
            yield f"{panel['title']}: no queries, or not each with its own letter"


def targets_select_job_and_instance(board: Board) -> Iterator[str]:
    """target-job-rule and target-instance-rule."""
    for title, target in _queries(board):
        found = selectors(target["expr"])
        if not found:
            yield f"{title}: selects nothing"
        for selector in found:
            for name in ("job", "instance"):
                if f'{name}=~"${name}"' not in selector.matchers:
                    yield f"{title}: {selector.name} without {name}"


def targets_ask_for_what_there_is(board: Board) -> Iterator[str]:
    """target-promql-rule, as far as names go; a real Prometheus reads the rest."""
    for title, target in _queries(board):
        for selector in selectors(target["expr"]):
            if selector.name not in metric_names():
                yield f"{title}: there is no {selector.name}"


def rates_use_the_rate_interval(board: Board) -> Iterator[str]:
    """target-rate-interval-rule."""
    for title, target in _queries(board):
        for selector in selectors(target["expr"]):
            wanted = "$__range" if target.get("instant") else "$__rate_interval"
            if selector.range and selector.range != wanted:
                yield f"{title}: [{selector.range}] in place of [{wanted}]"


def counters_are_rated(board: Board) -> Iterator[str]:
    """target-counter-agg-rule."""
    for title, target in _queries(board):
        for selector in selectors(target["expr"]):
            is_counter = re.search(r"_(total|bucket|sum|count)$", selector.name) is not None
            if is_counter and selector.function not in ("rate", "irate", "increase"):
                yield f"{title}: {selector.name} outside of rate() and increase()"
            if not is_counter and selector.function in ("rate", "irate", "increase"):
                yield f"{title}: {selector.function}() of {selector.name}, which is no counter"


def board_is_not_edited(board: Board) -> Iterator[str]:
    """uneditable-dashboard-rule: it is a file, and changes in the browser would be lost."""
    if board.get("editable") is not False:
        yield "it can be edited"


def board_can_be_provisioned(board: Board) -> Iterator[str]:
    """What Grafana 10 and newer take from a file: a fixed uid, no id of a database, a schema that they migrate."""
    if "id" in board or "__inputs" in board:
        yield "it was exported"
    if not re.fullmatch(r"slipstream-[a-z]+", board.get("uid", "")) or not board.get("title"):
        yield "no uid or title"
    if "slipstream" not in board.get("tags", []):
        yield "no tag: the boards find each other by it"
    if not 36 <= board.get("schemaVersion", 0) <= 41:
        yield "a schema that Grafana 10 does not have, or 13 not any more"


def panels_do_not_overlap(board: Board) -> Iterator[str]:
    """Each has a place on the grid of 24 columns, and a number, for itself."""
    places = [(panel["title"], panel["gridPos"]) for panel in board["panels"]]
    for title, place in places:
        if place["x"] + place["w"] > 24:
            yield f"{title}: beyond the edge"
    for (one, a), (other, b) in combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        if not beside and a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"]:
            yield f"{one} and {other} overlap"
    if len({panel["id"] for panel in board["panels"]}) != len(board["panels"]):
        yield "two panels have one id"


def board_says_where_help_is(board: Board) -> Iterator[str]:
    """Links to the other boards and the runbook, and marks where versions changed."""
    kinds = {link["type"] for link in board["links"]}
    if kinds != {"dashboards", "link"} or not any("grafana/README.md#" in link["url"] for link in board["links"]):
        yield "no link to the other boards or to the runbook"
    if not any("slipstream_build_info" in entry["expr"] for entry in board["annotations"]["list"]):
        yield "no annotations of versions"


def _queries(board: Board) -> Iterator[tuple[str, Board]]:
    yield from targets(board)


RULES: Final[tuple[Rule, ...]] = (
    datasource_is_a_variable,
    job_is_a_variable,
    instance_is_a_variable,
    variables_follow_the_time,
    variables_ask_what_there_is,
    panels_use_the_variable,
    panels_have_words,
    panels_have_units,
    panels_have_targets,
    targets_select_job_and_instance,
    targets_ask_for_what_there_is,
    rates_use_the_rate_interval,
    counters_are_rated,
    board_is_not_edited,
    board_can_be_provisioned,
    panels_do_not_overlap,
    board_says_where_help_is,
)
