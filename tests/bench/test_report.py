"""What the bench says is what was measured; it claims nothing where the noise is larger."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest

from proxy.bench import report
from proxy.bench.link import Link
from proxy.bench.run import Plan, Results
from proxy.bench.workload import PRESETS
from proxy.rollout.measure import Measured, Turn
from proxy.rollout.meter import Meter

SIMULATED = Plan(
    upstream=None,
    proxy=None,
    model="m",
    sizes=PRESETS["codex"],
    turns=21,
    output_tokens=100,
    rounds=6,
    timeout=600,
    token_rate=1000,
    link=Link(0.05, 12_500_000),
)
PLAN = replace(SIMULATED, upstream="http://h/v1", link=None, headers={"Authorization": "secret"})

USAGE = {"input_tokens": 100, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 80}}


def rollout(
    seconds: float, *, sent: int = 1_000, connections: int = 1, requests: int = 2, usage: Any = None
) -> Measured:
    """A rollout of two turns: a tenth of the time in set-up, half of it waiting, the rest in its stream."""
    meter = Meter()
    meter.sent_bytes, meter.connections, meter.requests = sent, connections, requests
    turn = Turn(seconds / 20, seconds / 4, seconds / 5, USAGE if usage is None else usage)
    return Measured(meter, [turn, turn], seconds, [])


def results(fresh: Sequence[float], kept: Sequence[float], websocket: Sequence[float]) -> Results:
    """Rounds that took so long."""
    rounds = [
        {"fresh": rollout(one, connections=2), "kept": rollout(two), "websocket": rollout(three, sent=100)}
        for one, two, three in zip(fresh, kept, websocket, strict=True)
    ]
    return Results(rounds)


CLEAR = results([4.0] * 6, [1.0, 1.1, 1.0, 0.9, 1.0, 1.0], [1.0] * 6)


def cells(text: str, label: str) -> list[str]:
    """What stands behind a label in its line."""
    (line,) = [line for line in text.splitlines() if line.strip().startswith(label)]
    return line.strip().removeprefix(label).split()


def test_table_has_each_way() -> None:
    """Times with their parts, bytes, connections and tokens: medians of the rollouts."""
    text = report.comparison(PLAN, CLEAR)
    assert cells(text, "time in total (s)") == ["4.00", "1.00", "1.00"]
    assert cells(text, "lowest to highest") == ["4.0-4.0", "0.9-1.1", "1.0-1.0"]
    assert cells(text, "from there to the first event (s)") == ["2.00", "0.50", "0.50"]
    assert cells(text, "from first event to last (s)") == ["1.60", "0.40", "0.40"]
    assert cells(text, "TCP connections") == ["2", "1", "1"]
    assert cells(text, "bytes sent") == ["1,000", "1,000", "100"]
    assert cells(text, "input tokens, as the backend says") == ["200", "200", "200"]
    assert cells(text, "of these from its prefix cache") == ["160", "160", "160"]


def test_difference_is_told_from_noise() -> None:
    """One way is told to be faster, the other not to differ."""
    text = " ".join(report.comparison(PLAN, CLEAR).split())
    assert "Against HTTP, new connections: 75.0% less time in WebSocket mode (saved +75.0% to +75.0%" in text
    assert "Against HTTP, kept alive: saved +0.0%, -11.1% to +9.1%: NO difference that can be told from noise" in text


def test_slower_is_said_to_be_slower() -> None:
    """A WebSocket that takes longer is not praised."""
    text = " ".join(report.comparison(PLAN, results([1.0] * 6, [1.0] * 6, [1.5] * 6)).split())
    assert text.count("50.0% MORE time in WebSocket mode") == 2


def test_few_rounds_tell_nothing() -> None:
    """Before there are enough, no difference is claimed, however large."""
    text = report.comparison(PLAN, results([9.0] * 3, [9.0] * 3, [1.0] * 3))
    assert text.count("too few rounds to tell it from noise; 6 are needed") == 2
    assert "less time" not in text


def test_sources_are_differences_of_the_table() -> None:
    """In seconds, each part of the time by itself."""
    text = report.comparison(PLAN, CLEAR).partition("By how much less")[2]
    assert cells(text, "connections set up") == ["+0.30", "+0.00"]
    assert cells(text, "to first events: link, upload, prompt") == ["+1.50", "+0.00"]
    assert cells(text, "from first events to last") == ["+1.20", "+0.00"]


@pytest.mark.parametrize(
    ("usage", "words"),
    [
        (USAGE, ["asked the same each way", "had 80.0% of the prompts each way: no difference"]),
        ({}, ["does not say how many tokens there were", "does not say what its prefix cache had"]),
        ({**USAGE, "input_tokens_details": {}}, ["asked the same each way", "does not say what its prefix cache had"]),
        (
            {**USAGE, "input_tokens": 101},
            ["Prompts differ by 1.0% of their tokens from way to way, answers by 0.0%", "words differ. -"],
        ),
        ({**USAGE, "input_tokens": 110}, ["NOT quite the same rollouts"]),
        ({**USAGE, "output_tokens": 6}, ["answers by 16.7%", "NOT quite the same rollouts"]),
        (
            {**USAGE, "input_tokens_details": {"cached_tokens": 10}},
            ["had 80.0%, 80.0%, 10.0% of the prompts: some of the difference"],
        ),
    ],
)
def test_backends_say_is_compared(usage: Any, words: list[str]) -> None:
    """Whether it was asked the same, and what its cache had to do with it."""
    measured = results([4.0] * 6, [1.0] * 6, [1.0] * 6)
    for one in measured.rounds:
        one["websocket"] = rollout(1, usage=usage)
    text = " ".join(report.comparison(PLAN, measured).split())
    assert all(word in text for word in words), text


def test_closed_connections_are_told() -> None:
    """A backend that does not keep connections makes the comparison with kept ones another one."""
    assert "closed connections" not in report.comparison(PLAN, CLEAR)
    measured = results([4.0], [1.0], [1.0])
    measured.rounds[0]["kept"] = rollout(1, connections=2, requests=3)
    text = report.comparison(PLAN, measured)
    assert "to be kept: 2 were set up in a rollout, and 1 requests tried twice." in text


def test_simulations_are_called_so() -> None:
    """Before and after; and nothing is where nothing was simulated."""
    for text in (report.introduction(SIMULATED), report.comparison(SIMULATED, CLEAR)):
        assert text.count("SIMULAT") == 2
    for text in (report.introduction(PLAN), report.comparison(PLAN, CLEAR)):
        assert "SIMULAT" not in text


def test_what_ended_early_says_so() -> None:
    """With no round there is no table, with some there is, and it says how many."""
    assert "nothing to compare" in report.comparison(PLAN, Results(is_stopped=True))
    stopped = Results(CLEAR.rounds[:2], is_stopped=True)
    assert "ended early: 2 of 6 rounds" in report.comparison(PLAN, stopped)


def test_texts_fit_a_terminal() -> None:
    """Tables and verdicts fit into 80 columns of ASCII, and no key is in any text."""
    text = report.introduction(PLAN) + report.introduction(SIMULATED) + report.comparison(SIMULATED, CLEAR)
    for line in text.splitlines():
        assert line.isascii()
        assert len(line) < 80 or line.startswith(("- ", "  backend", "  link")), line
    assert "secret" not in text + repr(PLAN)


def test_json_has_all_that_was_measured() -> None:
    """Each rollout's numbers, and what comes of them; no key, and what is no number is null."""
    text = orjson.dumps(report.as_json(PLAN, CLEAR))
    value = json.loads(text)
    assert b"secret" not in text
    assert [one["fresh"]["total_seconds"] for one in value["rounds"]] == [4.0] * 6
    assert value["rounds"][0]["websocket"]["bytes_sent"] == 100
    assert value["time_saved"]["fresh"]["median"] == pytest.approx(0.75)
    assert [value["time_saved"][way]["told_from_noise"] for way in ("fresh", "kept")] == [True, False]
    assert value["simulated_link"] is None
    assert json.loads(orjson.dumps(report.as_json(SIMULATED, Results())))["simulated_link"]["rtt_seconds"] == 0.05
