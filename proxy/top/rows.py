"""The picture in lines and rows of tables, for a screen and for plain text alike.

A span is a text with a tone, which says what the text is (good, bad, of less weight), not how that looks. All texts are
clean: nothing in them moves a cursor. Widths are in cells of a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from proxy.top.mirror import LATEST, Mirror
from proxy.top.text import age, clean, duration, large, percent, plural, ratio, size
from proxy.top.updates import Backend, Connection, Running, Turn

Tone = Literal["", "muted", "good", "bad", "strong", "soft", "wait"]
Span = tuple[str, Tone]
Line = tuple[Span, ...]

ALL: Final = ""
"""The key of the row that stands for all connections."""
UPLINK: Final = 10e6
"""Bits per second of the uplink for which the time that is saved is told, as on the page."""

_NEVER: Final = 10**6
"""Cells that no terminal has."""

HEALTH: Final[dict[str, Span]] = {
    "good": ("healthy", "good"),
    "recovering": ("recovering", "good"),
    "bad": ("failing", "bad"),
    "unknown": ("not asked yet", "muted"),
}
TONES: Final[dict[str, Tone]] = {"hit": "good", "miss": "bad", "bad": "bad", "replay": "strong", "new": "muted"}
"""The tone of a turn's word, by its kind (:func:`proxy.explain.label`)."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        title: What stands above it.
        width: Of its cells; 0 for the one that takes what the others leave.
        is_right: Whether it is a number's.
        wants: How wide the table has to be for it to be shown.
    """

    title: str
    width: int
    is_right: bool = False
    wants: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table.

    Attributes:
        key: What it is known by while the rows around it change.
        cells: One for each column.
        turn: The turn that it shows, if it is of one that has ended.
    """

    key: str
    cells: tuple[Span, ...]
    turn: Turn | None = None


CONNECTIONS: Final = (
    Column("Client", 0),
    Column("Id", 6, wants=66),
    Column("Turns", 6, is_right=True),
    Column("Lanes", 5, is_right=True, wants=60),
    Column("Now", 4, is_right=True),
    Column("Hits", 5, is_right=True, wants=56),
    Column("Less", 5, is_right=True),
    Column("State", 14, wants=50),
)
TURNS: Final = (
    Column("Turn", 4, is_right=True),
    Column("Lane", 10, wants=92),
    Column("", 9),
    Column("Why", 0),
    Column("Sent", 7, is_right=True),
    Column("Upstream", 8, is_right=True),
    Column("First", 7, is_right=True, wants=72),
    Column("Total", 7, is_right=True),
)
TURNS_OF_ALL: Final = (
    TURNS[0],
    Column("Id", 6),
    Column("Client", 13, wants=100),
    Column("Lane", 10, wants=110),
    *TURNS[2:6],
    Column("First", 7, is_right=True, wants=84),
    TURNS[7],
)


def totals(mirror: Mirror, tick: float) -> list[tuple[str, str]]:
    """The sums: what each is called in a word, and what there is to say."""
    sums = mirror.totals
    saved = sums.plain_bytes - sums.client_bytes
    looked = sums.hits + sums.misses
    times = ratio(sums.plain_bytes, sums.client_bytes)
    cached = percent(sums.cached_tokens, sums.input_tokens)
    rate = mirror.rate(tick)
    pace = "" if rate is None else f", {rate:.1f}/s"
    refused = f", {large(sums.refused)} refused" if sums.refused else ""
    return [
        ("turns", f"{large(sums.turns)}{pace}, {plural(sums.errors, 'error')}"),
        ("sent", f"{size(sums.client_bytes)}; plain HTTP: {size(sums.plain_bytes)}"),
        ("saved", "-" if saved <= 0 else f"{size(saved)}, {times} less"),
        ("time", "-" if saved <= 0 else f"{duration(saved * 8 / UPLINK)} upload (10 Mbit/s)"),
        ("hits", f"{percent(sums.hits, looked)} of {large(looked)}; {large(sums.new)} new"),
        ("tokens", f"{large(sums.input_tokens)}, {cached} cached; {large(sums.output_tokens)} out"),
        ("proxy", f"{duration(sums.own / sums.asked if sums.asked else None)} a turn are its own"),
        ("clients", f"{large(sums.connections)}{refused}; {large(sums.http_requests)} over HTTP"),
    ]


def backend(row: Backend) -> Line:
    """One backend and how it does."""
    word, tone = HEALTH.get(row.health, (clean(row.health), ""))
    recent = f", {row.good} of the last {row.recent} good" if row.recent else ""
    spans: list[Span] = [("● ", tone), (clean(row.name), ""), (f"  {word}", tone), (recent, "muted")]
    for code, count in row.statuses.items():
        if count:
            spans.append((f"  {clean(code)} {count:,}", "bad" if code in ("5xx", "none") else "muted"))
    if row.connect is not None:
        spans.append((f"  connect {duration(row.connect)}", "muted"))
    return tuple(spans)


def connections_title(mirror: Mirror) -> str:
    """How many there are."""
    ended = len(mirror.connections) - mirror.open
    return f"Connections: {mirror.open:,} open" + (f", {ended:,} ended" if ended > 0 else "")


def name_of(mirror: Mirror, connection_id: str) -> str:
    """What a connection's client calls itself."""
    row = mirror.connections.get(connection_id)
    return "unnamed client" if row is None or not row.client else clean(row.client)


def connection_rows(mirror: Mirror, wanted: str, tick: float) -> list[Row]:
    """All connections, then each that a filter lets through."""
    listed = mirror.listed(wanted)
    return [_all(mirror), *(_connection(row, mirror.now(tick)) for row in listed)]


def turn_rows(mirror: Mirror, chosen: str, wanted: str, tick: float) -> list[Row]:
    """Turns of a connection, or of all that a filter lets through: those that run, then those that have ended.

    Args:
        mirror: The picture.
        chosen: The connection's id, or :data:`ALL`.
        wanted: What the filter looks for.
        tick: When they are shown.
    """
    now = mirror.now(tick)
    if chosen != ALL:
        own = mirror.connections.get(chosen)
        active = () if own is None else reversed(own.running)
        return [_running(chosen, turn, now) for turn in active] + [_turn(turn) for turn in mirror.turns_of(chosen)]
    listed = {row.id: row for row in mirror.listed(wanted)}
    running = [_of(row, _running(row.id, turn, now)) for row in listed.values() for turn in row.running]
    latest = (turn for turn in mirror.latest() if turn.connection in listed)
    return running[:LATEST] + [_of(listed[turn.connection], _turn(turn)) for turn in latest]


def layout(columns: Sequence[Column], cells: int) -> list[tuple[int, int]]:
    """Which columns are shown in a table of a width, and how wide each is; there is a blank between two.

    Returns:
        Their indices, and their cells.
    """
    shown = [(at, column.width) for at, column in enumerate(columns) if column.wants <= cells]
    rest = cells - sum(width for _, width in shown) - (len(shown) - 1)
    return [(at, width or max(0, rest)) for at, width in shown]


def turn_key(turn: Turn) -> str:
    """What a turn is known by: the same as while it ran, and whatever its number over all connections becomes."""
    return f"{turn.connection} {turn.turn}"


def turn_columns(chosen: str, rows: Sequence[Row]) -> tuple[Column, ...]:
    """The columns for turns of a connection, or of all; without the lanes if none of the turns is in one."""
    columns = TURNS if chosen != ALL else TURNS_OF_ALL
    at = [column.title for column in columns].index("Lane")
    if any(row.cells[at][0] for row in rows):
        return columns
    return (*columns[:at], replace(columns[at], wants=_NEVER), *columns[at + 1 :])


def brief(turn: Turn) -> str:
    """Why a turn went as it did, in its first sentence."""
    first, stop, _ = clean(turn.why).partition(". ")
    text = f"{first}." if stop else first
    return f"{clean(turn.error_code)} · {text}" if turn.error_code else text


def _all(mirror: Mirror) -> Row:
    sums = mirror.totals
    running = sum(len(row.running) for row in mirror.connections.values())
    return Row(
        ALL,
        (
            ("all connections", "strong"),
            ("", ""),
            (large(sums.turns), ""),
            ("", ""),
            (str(running or ""), "good"),
            (percent(sums.hits, sums.hits + sums.misses), ""),
            (ratio(sums.plain_bytes, sums.client_bytes), "good"),
            ("", ""),
        ),
    )


def _connection(row: Connection, now: float) -> Row:
    is_open = row.closed is None
    if is_open:
        state = f"open {age(now - row.opened)}"
    else:
        state = "ended" if row.cause in (None, "client") else clean(row.cause)
    return Row(
        row.id,
        (
            (_client(row), "" if is_open else "muted"),
            (_short(row.id), "muted"),
            (large(row.turns), ""),
            (str(row.lanes) if row.lanes > 1 else "", ""),
            (str(len(row.running) or ""), "good"),
            (percent(row.hits, row.hits + row.misses), "bad" if row.misses else ""),
            (ratio(row.plain_bytes, row.client_bytes), "good"),
            (state, "muted"),
        ),
    )


def _client(row: Connection) -> str:
    return clean(row.client) if row.client else "unnamed client"


def _short(connection_id: str) -> str:
    return clean(connection_id[-6:])


def _turn(turn: Turn) -> Row:
    return Row(
        turn_key(turn),
        (
            (str(turn.turn), ""),
            (_lane(turn.lane), "muted"),
            (clean(turn.word), TONES.get(turn.kind, "muted")),
            (brief(turn), ""),
            (size(turn.client_bytes), ""),
            (size(turn.upstream_bytes) if turn.upstream_bytes else "-", ""),
            (duration(turn.first), ""),
            (duration(turn.total), ""),
        ),
        turn,
    )


def _running(connection_id: str, turn: Running, now: float) -> Row:
    total = duration(max(0.0, now - turn.began))
    where = "" if turn.lane is None else f" in lane {clean(turn.lane)}"
    return Row(
        f"{connection_id} {turn.turn}",
        (
            (str(turn.turn), ""),
            (_lane(turn.lane), "muted"),
            ("runs", "soft"),
            (f"Running{where}", "muted"),
            ("", ""),
            ("", ""),
            ("", ""),
            (total, "soft"),
        ),
    )


def _lane(lane: str | None) -> str:
    return "" if lane is None else clean(lane)


def _of(connection: Connection, row: Row) -> Row:
    """A turn's row, with whose it is."""
    whose: tuple[Span, ...] = ((_short(connection.id), "muted"), (_client(connection), ""))
    return Row(row.key, (row.cells[0], *whose, *row.cells[1:]), row.turn)
