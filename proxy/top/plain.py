"""The picture once, in plain text: for scripts, and for where there is no terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from proxy.top.mirror import Mirror
from proxy.top.rows import (
    ALL,
    CONNECTIONS,
    TURNS_OF_ALL,
    Column,
    Row,
    backend,
    connection_rows,
    connections_title,
    layout,
    totals,
    turn_rows,
)
from proxy.top.text import fit

WIDTH: Final = 120
"""Cells of a line at most, but for the names of backends."""
_MAX_ROWS: Final = 20


def picture(mirror: Mirror, tick: float) -> str:
    """Totals, backends, and the first rows of connections and turns; lines that end in LF.

    Args:
        mirror: What is known.
        tick: When it is shown.
    """
    lines = [f"{name:<8} {text}" for name, text in totals(mirror, tick)]
    lines += ["", *("".join(text for text, _ in backend(row)) for row in mirror.backends)]
    lines += ["", connections_title(mirror)]
    lines += table(CONNECTIONS, connection_rows(mirror, "", tick)[1:], WIDTH)
    lines += ["", "Turns, the newest first"]
    lines += table(TURNS_OF_ALL, turn_rows(mirror, ALL, "", tick), WIDTH)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def table(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[str]:
    """A heading and the first rows, in columns that fit; those without a word in them are left out.

    Args:
        columns: All there are.
        rows: All there are.
        width: Cells of a line.
    """
    used = [at for at in range(len(columns)) if any(row.cells[at][0] for row in rows[:_MAX_ROWS])] or range(
        len(columns)
    )
    columns = [columns[at] for at in used]
    lines = [[column.title for column in columns]]
    lines += [[row.cells[at][0] for at in used] for row in rows[:_MAX_ROWS]]
    widths = layout(columns, width)
    texts = [" ".join(fit(line[at], cells, is_right=columns[at].is_right) for at, cells in widths) for line in lines]
    if len(rows) > _MAX_ROWS:
        texts.append(f"and {len(rows) - _MAX_ROWS:,} more")
    return texts
