"""What the bench says: a table, what can be told from it and what cannot, and the same as JSON.

Plain ASCII. Each number was measured in this run, by the client or by what the backend says it used; what is simulated is
called so. A difference is claimed only where it is larger than the noise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Final

from proxy.bench import samples
from proxy.bench.link import Link
from proxy.bench.run import NAMES, WAYS, Plan, Results
from proxy.bench.samples import Interval
from proxy.rollout.measure import Measured

_BASELINES: Final = ("fresh", "kept")
_SAME: Final = 0.01
"""Up to this share of tokens two rollouts were the same: models that answer in other words make prompts of other lengths."""

Pick = Callable[[Measured], float | None]


def introduction(plan: Plan) -> str:
    """What is about to happen."""
    sizes = plan.sizes
    backend = (
        plan.upstream
        or f"a SIMULATION without a model, {_rate(plan.token_rate)}, answers of {plan.output_tokens} tokens"
    )
    tools = f"\n  tools     take {plan.pause * 1000:g} ms between two turns" if plan.pause else ""
    proxy = plan.proxy or "Slipstream, started for this in a process of its own"
    return f"""\
Slipstream bench: a rollout of {plan.turns} turns, {len(WAYS)} ways, {_count(plan.rounds, "round")}.

  HTTP, new connections   client --> backend   a connection for each turn
  HTTP, kept alive        client --> backend   one connection
  WebSocket mode          client --> proxy --> backend

  backend   {backend}
  proxy     {proxy}
  link      {_link(plan.link)}
  bytes     tools {sizes.tools:,} and instructions {sizes.instructions:,} in each turn, history {sizes.history:,},
            a tool's output {sizes.tool_output:,}{", WebSocket messages compressed" if plan.compresses else ""}{tools}
"""


def comparison(plan: Plan, results: Results) -> str:
    """The table, and what it says; with fewer rounds than planned, what there is."""
    if not results.rounds:
        return "No round was finished, so there is nothing to compare."
    verdicts = [_verdict(baseline, _saving(results, baseline)) for baseline in _BASELINES]
    return "\n".join([*_table(results), "", *verdicts, "", *_sources(results), "", *_limits(plan, results)])


def as_json(plan: Plan, results: Results) -> dict[str, Any]:
    """All that was measured, and what comes of it; times in seconds, shares of 1."""
    link = plan.link
    return {
        "upstream": plan.upstream,
        "backend_is_simulated": plan.upstream is None,
        "proxy": plan.proxy,
        "model": plan.model,
        "turns": plan.turns,
        "output_tokens": plan.output_tokens,
        "token_rate": plan.token_rate if plan.upstream is None else None,
        "pause_seconds": plan.pause,
        "compression": plan.compresses,
        "sizes": asdict(plan.sizes),
        "simulated_link": link
        and {
            "rtt_seconds": link.rtt,
            "bytes_per_second": link.bandwidth if math.isfinite(link.bandwidth) else None,
            "tls_round_trips": link.tls_round_trips,
            "halves_when_idle": link.halves_when_idle,
        },
        "rounds_planned": plan.rounds,
        "stopped": results.is_stopped,
        "error": results.error,
        "rounds": [{way: _numbers(measured) for way, measured in one.items()} for one in results.rounds],
        "time_saved": {baseline: _saved(results, baseline) for baseline in _BASELINES if results.rounds},
    }


def _saved(results: Results, baseline: str) -> dict[str, Any]:
    saved = _saving(results, baseline)
    return {**asdict(saved), "told_from_noise": saved.is_told}


def _numbers(measured: Measured) -> dict[str, Any]:
    return {name: pick(measured) for name, pick in {**_TIMES, **_COUNTS, **_TOKENS}.items()}


_TIMES: Final[dict[str, Pick]] = {
    "total_seconds": lambda one: one.total_seconds,
    "setup_seconds": lambda one: sum(turn.setup for turn in one.turns),
    "first_event_seconds": lambda one: sum(turn.wait for turn in one.turns),
    "stream_seconds": lambda one: sum(turn.stream for turn in one.turns),
}
_COUNTS: Final[dict[str, Pick]] = {
    "bytes_sent": lambda one: one.meter.sent_bytes,
    "bytes_received": lambda one: one.meter.received_bytes,
    "connections": lambda one: one.meter.connections,
}
_TOKENS: Final[dict[str, Pick]] = {
    "input_tokens": lambda one: one.tokens("input_tokens"),
    "cached_tokens": lambda one: one.tokens("input_tokens", "cached_tokens"),
    "output_tokens": lambda one: one.tokens("output_tokens"),
}


# The table


def _table(results: Results) -> list[str]:
    def row(label: str, pick: Pick, form: str) -> str:
        return _row(label, *(_cell(_median(results, way, pick), form) for way in WAYS))

    def spread(pick: Pick) -> str:
        values = [[pick(one) or 0 for one in results.of(way)] for way in WAYS]
        return _row("  lowest to highest", *(f"{min(each):.1f}-{max(each):.1f}" for each in values))

    return [
        _row(f"Medians of {_count(len(results.rounds), 'rollout')}", "HTTP, new", "HTTP, kept", "WebSocket"),
        row("time in total (s)", _TIMES["total_seconds"], ".2f"),
        spread(_TIMES["total_seconds"]),
        row("  connections set up (s)", _TIMES["setup_seconds"], ".2f"),
        row("  from there to the first event (s)", _TIMES["first_event_seconds"], ".2f"),
        row("  from first event to last (s)", _TIMES["stream_seconds"], ".2f"),
        row("TCP connections", _COUNTS["connections"], ",.0f"),
        row("bytes sent", _COUNTS["bytes_sent"], ",.0f"),
        row("bytes received", _COUNTS["bytes_received"], ",.0f"),
        row("input tokens, as the backend says", _TOKENS["input_tokens"], ",.0f"),
        row("  of these from its prefix cache", _TOKENS["cached_tokens"], ",.0f"),
        row("output tokens", _TOKENS["output_tokens"], ",.0f"),
    ]


def _row(label: str, *cells: str) -> str:
    return f"{label:<41}" + "".join(f"{cell:>12}" for cell in cells)


def _cell(value: float | None, form: str) -> str:
    return "not said" if value is None else f"{value:{form}}"


def _median(results: Results, way: str, pick: Pick) -> float | None:
    values = [pick(one) for one in results.of(way)]
    said = [value for value in values if value is not None]
    return statistics.median(said) if len(said) == len(values) else None


# What it says


def _saving(results: Results, baseline: str) -> Interval:
    before, after = ([one.total_seconds for one in results.of(way)] for way in (baseline, "websocket"))
    return samples.saving(before, after)


def _verdict(baseline: str, saved: Interval) -> str:
    against = f"Against {NAMES[baseline]}:"
    bounds = f"{saved.low:+.1%} to {saved.high:+.1%}"
    if saved.is_told:
        kind = "less" if saved.median > 0 else "MORE"
        return f"{against} {abs(saved.median):.1%} {kind} time in WebSocket mode\n  (saved {bounds}, at {saved.confidence:.0%} confidence)."
    if saved.confidence < samples.CONFIDENCE:
        why = f"too few rounds to tell it from noise; {samples.ENOUGH} are needed"
    else:
        why = f"NO difference that can be told from noise, at {saved.confidence:.0%} confidence"
    return f"{against} saved {saved.median:+.1%}, {bounds}:\n  {why}."


def _sources(results: Results) -> list[str]:
    """Where the differences come from, in seconds of the medians."""
    lines = [_row("By how much less WebSocket mode took (s)", "HTTP, new", "HTTP, kept")]
    for label, name in (
        ("  connections set up", "setup_seconds"),
        ("  to first events: link, upload, prompt", "first_event_seconds"),
        ("  from first events to last", "stream_seconds"),
    ):
        cells = [
            (_median(results, way, _TIMES[name]) or 0) - (_median(results, "websocket", _TIMES[name]) or 0)
            for way in _BASELINES
        ]
        lines.append(_row(label, *(f"{cell:+.2f}" for cell in cells)))
    return lines


def _limits(plan: Plan, results: Results) -> list[str]:
    """What a reader has to know before believing it."""
    lines = [_same_questions(results), _cache(results), *_reconnects(results)]
    if plan.upstream is None:
        lines.append("The backend is SIMULATED: it takes no time to read a prompt, and answers at a fixed pace.")
    if plan.link:
        lines.append("The link is SIMULATED: TCP slow start without loss; no packet left this machine.")
    if results.is_stopped or results.error:
        lines.append(f"It ended early: {len(results.rounds)} of {plan.rounds} rounds are in these numbers.")
    return [f"- {line}" for line in lines]


def _same_questions(results: Results) -> str:
    """Whether each way asked the same, and got as much, by what the backend says."""
    spreads = []
    for name in ("input_tokens", "output_tokens"):
        counts = [_median(results, way, _TOKENS[name]) for way in WAYS]
        if None in counts:
            return "The backend does not say how many tokens there were, so whether it was asked the same is not known."
        spreads.append(_spread(count or 0 for count in counts))
    if not any(spreads):
        return "The backend was asked the same each way: prompts and answers have the same numbers of tokens."
    prompts, answers = spreads
    words = f"Prompts differ by {prompts:.1%} of their tokens from way to way, answers by {answers:.1%}"
    is_same = max(spreads) <= _SAME
    return f"{words}: no two begin alike, and a model's words differ.{'' if is_same else ' These are NOT quite the same rollouts.'}"


def _cache(results: Results) -> str:
    """Whether the backend's prefix cache has to do with it."""
    shares = []
    for way in WAYS:
        cached, asked = (_median(results, way, _TOKENS[name]) for name in ("cached_tokens", "input_tokens"))
        if cached is None or not asked:
            return "The backend does not say what its prefix cache had."
        shares.append(cached / asked)
    words = ", ".join(f"{share:.1%}" for share in shares)
    if max(shares) - min(shares) <= _SAME:
        return f"Its prefix cache had {shares[-1]:.1%} of the prompts each way: no difference comes from there."
    return f"Its prefix cache had {words} of the prompts: some of the difference comes from there."


def _reconnects(results: Results) -> list[str]:
    """Whether the backend let connections be kept."""
    connections, requests = (
        _median(results, "kept", pick) or 0 for pick in (_COUNTS["connections"], lambda one: one.meter.requests)
    )
    if connections <= 1:
        return []
    again = requests - len(results.of("kept")[0].turns)
    closed = f"{connections:.0f} were set up in a rollout, and {again:.0f} requests tried twice"
    return [f"The backend closed connections that were to be kept: {closed}."]


def _spread(values: Iterable[float]) -> float:
    low, *_, high = sorted(values)
    return (high - low) / high if high else 0


# Words


def _link(link: Link | None) -> str:
    if link is None:
        return "none simulated"
    bandwidth = f"{link.bandwidth * 8 / 1e6:g} Mbit/s" if math.isfinite(link.bandwidth) else "any bandwidth"
    idle = " (Linux's when idle)" if link.halves_when_idle else ""
    return f"SIMULATED: {link.rtt * 1000:g} ms RTT, {bandwidth}, slow start{idle}, {_count(link.tls_round_trips, 'TLS round trip')}"


def _rate(rate: float) -> str:
    return f"{rate:g} tokens/s" if rate else "any number of tokens/s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
