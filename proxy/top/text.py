"""Text for a terminal: numbers with their units, and what somebody else chose without what a terminal would obey."""

from __future__ import annotations

import unicodedata
from typing import Final

_UNITS: Final = ("kB", "MB", "GB", "TB")
_LARGE: Final = ("k", "M", "G", "T")
_TABULATOR: Final = "    "
_STAND_IN: Final = "\ufffd"
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of Unicode that move the cursor, turn the writing round, or have no width that terminals agree on."""


def clean(text: str) -> str:
    """A text in one line that is only shown: no control characters, no escapes, nothing that changes direction."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def clean_lines(text: str) -> list[str]:
    """The same of a text that may have lines; tabulators become spaces."""
    return [clean(line) for line in text.replace("\r\n", "\n").replace("\t", _TABULATOR).split("\n")]


def width(text: str) -> int:
    """The cells of a terminal that a clean text takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def fit(text: str, cells: int, *, is_right: bool = False) -> str:
    """A clean text in exactly so many cells: filled up, on the left if it goes to the right, or cut with an ellipsis."""
    room = cells - width(text)
    if room >= 0:
        return " " * room + text if is_right else text + " " * room
    kept, used = [], 1
    for character in text:
        used += _cells(character)
        if used > cells:
            used -= _cells(character)
            break
        kept.append(character)
    return "".join(kept) + "…" + " " * (cells - used) if cells else ""


def size(number: int) -> str:
    """Bytes: `512 B`, `1.5 kB`, `23 MB`."""
    return f"{number} B" if number < 1000 else _scaled(number, _UNITS, 99.95)


def large(number: int) -> str:
    """A count, cut to a few digits once it has many: `1,234`, `12 k`, `1.2 M`."""
    return f"{number:,}" if number < 10_000 else _scaled(number, _LARGE, 9.95)


def duration(seconds: float | None) -> str:
    """A time span: `0.52 ms`, `34 ms`, `1.20 s`, `3 m 05 s`, `2 h 10 m`; a dash for None."""
    if seconds is None:
        return "-"
    if seconds < 0.001:
        return f"{seconds * 1000:.2f} ms"
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.{2 if seconds < 10 else 1}f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} m {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} m"


def age(seconds: float) -> str:
    """A time span of which nobody needs to know the fractions."""
    if seconds < 1:
        return "< 1 s"
    return f"{int(seconds)} s" if seconds < 60 else duration(seconds)


def percent(part: int, all_: int) -> str:
    """A share; a dash of nothing."""
    return f"{round(100 * part / all_)} %" if all_ else "-"


def ratio(all_: int, part: int) -> str:
    """How many times more one is than the other: `3.4x`; a dash where it is not more."""
    if not part or all_ <= part:
        return "-"
    times = all_ / part
    return f"{times:.{1 if times < 9.95 else 0}f}x"


def plural(number: int, thing: str) -> str:
    """`1 turn`, `2 turns`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _scaled(number: float, units: tuple[str, ...], exact: float) -> str:
    for unit in units:
        number /= 1000
        if number < 999.5 or unit == units[-1]:
            break
    return f"{number:.{1 if number < exact else 0}f} {unit}"


def _visible(character: str) -> str:
    if character.isspace():
        return " "
    if unicodedata.category(character) in _UNSEEN:
        return _STAND_IN
    # What chooses how the character before is drawn: terminals do not agree on how wide that is then.
    return "" if "\ufe00" <= character <= "\ufe0f" else character


def _cells(character: str) -> int:
    if unicodedata.east_asian_width(character) in "WF":
        return 2
    return 0 if unicodedata.category(character) in ("Mn", "Me") else 1
