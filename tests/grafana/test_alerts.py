"""Rules and alerts: what is written about each, and that promtool finds nothing wrong."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.grafana.boards import FOLDER, NAMES, load, metric_names, rules, selectors
from tests.rig.prometheus import promtool

ALERTS = rules("alerts.yaml")
RECORDS = rules("rules.yaml")


def anchors() -> set[str]:
    """What links into README.md can end in."""
    headings = re.findall(r"^#+ (.+)$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def described(alert: dict[str, Any]) -> str:
    """An alert's name for ids; three share theirs."""
    return f"{alert['alert']}-{alert['labels'].get('window', '')}".rstrip("-")


@pytest.mark.parametrize("alert", ALERTS, ids=described)
def test_alert_says_what_to_do(alert: dict[str, Any]) -> None:
    """How urgent it is, what it means, where to look, and what to read."""
    assert alert["labels"]["severity"] in ("page", "ticket")
    assert alert["for"]
    notes = alert["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url", "dashboard_url"}
    assert len(notes["summary"]) < 60
    assert "{{" not in notes["summary"]  # one text for all of a group
    assert notes["description"].endswith(".")
    assert notes["runbook_url"] == f"grafana/README.md#{alert['alert'].lower()}"
    assert alert["alert"].lower() in anchors()
    assert notes["dashboard_url"].removeprefix("/d/") in {load(name)["uid"] for name in NAMES}


def test_alerts_have_sections_and_no_section_is_left_over() -> None:
    """The runbook speaks of what there is."""
    sections = set(re.findall(r"^### (Slipstream\w+)$", (FOLDER / "README.md").read_text(), re.MULTILINE))
    assert sections == {alert["alert"] for alert in ALERTS}


def test_boards_lead_to_their_sections() -> None:
    """The link at the top of each board has a heading to go to."""
    for name in NAMES:
        (link,) = [link for link in load(name)["links"] if link["type"] == "link"]
        assert link["url"].rpartition("#")[2] in anchors()


def test_rules_ask_for_what_there_is() -> None:
    """Every selector names a metric of the proxy, or what another rule records."""
    known = metric_names() | {rule["record"] for rule in RECORDS} | {"up"}
    for rule in [*ALERTS, *RECORDS]:
        found = selectors(rule["expr"])
        assert found
        assert {selector.name for selector in found} <= known, rule


def test_rules_keep_to_rates_of_counters() -> None:
    """A counter alone says only how long a process has lived."""
    for rule in [*ALERTS, *RECORDS]:
        for selector in selectors(rule["expr"]):
            if re.search(r"_(total|bucket|sum|count)$", selector.name):
                assert selector.function in ("rate", "increase"), rule


def test_error_budget_leaves_out_what_clients_did() -> None:
    """Its errors are those of the backend and the proxy."""
    ratios = [rule["expr"] for rule in RECORDS if "turn_errors" in rule["record"]]
    assert len(ratios) == 5
    assert all('source!="downstream"' in expression for expression in ratios)


def test_every_alert_has_a_case_and_a_near_miss() -> None:
    """In alerts_test.yaml each fires at least once, and is silent at least once."""
    tests = yaml.safe_load((FOLDER / "alerts_test.yaml").read_text())["tests"]
    checks = [check for test in tests for check in test["alert_rule_test"]]
    fired = {
        (check["alertname"], alert["exp_labels"].get("window")) for check in checks for alert in check["exp_alerts"]
    }
    silent = {check["alertname"] for check in checks if not check["exp_alerts"]}
    assert fired == {(alert["alert"], alert["labels"].get("window")) for alert in ALERTS}
    assert silent == {alert["alert"] for alert in ALERTS}


@pytest.mark.observability
def test_promtool_accepts_the_rules() -> None:
    """As Prometheus would load them, and without a complaint."""
    said = promtool("check", "rules", "--lint=all", "--lint-fatal", FOLDER / "rules.yaml", FOLDER / "alerts.yaml")
    assert said.count("SUCCESS") == 2


@pytest.mark.observability
def test_promtool_sees_alerts_fire() -> None:
    """The cases of alerts_test.yaml."""
    assert "SUCCESS" in promtool("test", "rules", FOLDER / "alerts_test.yaml")
