"""One turn in lines: what was sent, where its time went, facts, and what it said where that may be seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from proxy.top.rows import TONES, UPLINK, Line, Span, Tone
from proxy.top.text import clean, clean_lines, duration, large, percent, plural, size
from proxy.top.updates import Part, Said, Side, Turn

HEAD: Final = 3
"""The lines of a turn that say what it is and why, and a blank one."""
_BAR: Final = 24
_FILLING: Final[dict[Tone, str]] = {"good": "█", "soft": "▓", "wait": "░"}
"""What bars are filled with: told apart without colours too."""
_NAMES: Final = 14
"""Cells for the names of facts."""


def turn_lines(turn: Turn, client: str) -> list[Line]:
    """All that is known of a turn that has ended, but for what it said.

    Args:
        turn: It.
        client: Who asked for it.
    """
    head: Line = ((f"Turn {turn.turn}  ", "strong"), (clean(turn.word), TONES.get(turn.kind, "muted")))
    return [
        (*head, (f"  {client}", "muted")),
        ((clean(turn.why), ""),),
        (),
        *_amounts(turn),
        (),
        *_times(turn),
        (),
        *(_fact(name, value) for name, value in _facts(turn) if value),
    ]


def said_lines(said: Said) -> list[Line]:
    """What a turn said, on both sides."""
    state: Span = ("letters and digits are masked", "good") if said.masked else ("as it was said", "bad")
    lines: list[Line] = [(("What was said, ", "strong"), state)]
    for name, side in (("The client sent", said.sent), ("Went upstream", said.upstream)):
        lines += [(), ((f"{name}: {_parts(side)}", "strong"),)]
        lines += [line for part in (side.parts if side else ()) for line in _part_lines(part, is_masked=said.masked)]
    return lines


def _amounts(turn: Turn) -> Iterator[Line]:
    most = max(turn.client_bytes, turn.upstream_bytes, turn.plain_bytes)
    yield (("What was sent", "strong"),)
    yield _amount("client", size(turn.client_bytes), [(turn.client_bytes, "good")], most)
    if not turn.upstream_bytes:
        yield (("The backend was not asked.", "muted"),)
        return
    new = turn.upstream_bytes - turn.replayed_bytes
    told = f"{size(turn.upstream_bytes)}, {size(turn.replayed_bytes)} of it remembered"
    yield _amount("upstream", told, [(turn.replayed_bytes, "soft"), (new, "good")], most)
    yield _amount("plain HTTP", size(turn.plain_bytes), [(turn.plain_bytes, "wait")], most)
    spared = turn.plain_bytes - turn.client_bytes
    if spared > 0:
        yield ((f"{size(spared)} spared: {duration(spared * 8 / UPLINK)} of upload at 10 Mbit/s.", "muted"),)


def _times(turn: Turn) -> Iterator[Line]:
    first = turn.total if turn.first is None else turn.first
    parts: list[tuple[float, Tone]] = [
        (turn.queue, "wait"),
        (max(0.0, first - turn.queue), "soft"),
        (max(0.0, turn.total - first), "good"),
    ]
    yield (("Time", "strong"),)
    told = "" if turn.first is None else f", first event after {duration(turn.first)}"
    yield _amount(duration(turn.total), f"in all{told}", parts, turn.total)
    names = ("in the queue  ", "until the first event  ", "streaming")
    yield tuple(
        span
        for name, (_, tone) in zip(names, parts, strict=True)
        for span in ((f"{_FILLING[tone]} ", tone), (name, "muted"))
    )


def _amount(name: str, value: str, parts: Sequence[tuple[float, Tone]], most: float) -> Line:
    """A bar whose parts are to the scale of the largest of its kind, and what it says."""
    spans: list[Span] = [(f"{name:<11}", "muted")]
    used = 0
    sum_ = 0.0
    for amount, tone in parts:
        sum_ += amount
        end = round(_BAR * sum_ / most) if most else 0
        if end > used:
            spans.append((_FILLING[tone] * (end - used), tone))
            used = end
    if not used and sum_:
        spans.append(("▏", parts[-1][1]))
        used = 1
    return (*spans, (" " * (_BAR - used + 1), ""), (value, ""))


def _facts(turn: Turn) -> Iterator[tuple[str, str | None]]:
    yield "Outcome", turn.outcome
    if turn.error_source:
        status = "" if turn.error_status is None else f"{turn.error_status}, "
        yield "Error", f"{turn.error_code} ({status}{turn.error_source})"
    yield "Lane", "default" if turn.lane is None else turn.lane
    yield "Model", turn.model
    yield "Items", f"{turn.new_items:,} new, {turn.replayed_items:,} remembered"
    if turn.input_tokens:
        cached = percent(turn.cached_tokens, turn.input_tokens)
        yield "Tokens", f"{large(turn.input_tokens)} in ({cached} cached), {large(turn.output_tokens)} out"
    yield "Tools", _tools(turn)
    yield "Chain", plural(turn.depth, "turn") if turn.depth else None
    if turn.own is not None:
        yield "Proxy's own", duration(turn.own)
        over = "kept" if turn.reused else "new"
        yield "Backend", "no answer" if turn.status is None else f"{turn.status} over a {over} connection"
        yield "Connect", None if turn.connect is None else duration(turn.connect)
        yield "Sent again", plural(turn.retries, "time") if turn.retries else None
        yield "Held up", f"{duration(turn.blocked)} by the client" if turn.blocked >= 0.001 else None
    yield "Relayed", f"{plural(turn.events, 'event')}, {size(turn.relayed_bytes)}"
    yield "Response", turn.response
    yield "Continues", turn.previous
    yield "Connection", turn.connection


def _tools(turn: Turn) -> str:
    place = "" if turn.tools_changed_at is None else f" at index {turn.tools_changed_at}"
    words = {"none": "none", "new": "given", "same": "same as before", "changed": f"changed{place}"}
    return words.get(turn.tools, turn.tools)


def _fact(name: str, value: str | None) -> Line:
    return (f"{name:<{_NAMES}}", "muted"), (clean(value or ""), "")


def _parts(side: Side | None) -> str:
    if side is None:
        return "nothing"
    omitted = f", the first {side.omitted} left out" if side.omitted else ""
    return f"{plural(len(side.parts) + side.omitted, 'part')}{omitted}"


def _part_lines(part: Part, *, is_masked: bool) -> Iterator[Line]:
    role = f" {clean(part.role)}" if part.role else ""
    yield ("> ", "muted"), (clean(part.name), "soft"), (role, "muted"), (f"  {size(part.size)}", "muted")
    is_cut = not is_masked and part.size > len(part.text.encode(errors="replace"))
    lines = clean_lines(part.text)
    if is_cut:
        lines[-1] += " …"
    for line in lines:
        yield (("  ", ""), (line, "muted" if is_masked else ""))
