"""The list and the lines that the screen is made of, on a screen of their own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
from textual.app import App, ComposeResult
from textual.geometry import Region

from proxy.top import widgets
from proxy.top.rows import Column, Row, Span, Tone
from proxy.top.widgets import Lines, Table
from tests.top.pictures import turn
from tests.top.stage import Viewer

COLUMNS = (Column("Name", 0), Column("Number", 6, is_right=True), Column("Wide", 10, wants=60))


def row(number: int, name: str = "row", *, has_ended: bool = True) -> Row:
    """A row that is known by its number."""
    cells: tuple[Span, ...] = ((f"{name} {number}", "" if has_ended else "soft"), (str(number), ""), ("wide", "bad"))
    return Row(str(number), cells, turn(number) if has_ended else None)


class Bench(App[None]):
    """A list, some lines, and what the list told of."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def compose(self) -> ComposeResult:
        """One above the other."""
        yield Table(COLUMNS, empty="Nothing yet.", id="table")
        yield Lines(id="lines")
        yield Lines(id="prose", wraps=True)

    def on_table_chosen(self, message: Table.Chosen) -> None:
        """Another row."""
        self.told.append(f"chosen {message.table.chosen and message.table.chosen.key}")

    def on_table_entered(self, message: Table.Entered) -> None:
        """Into a row."""
        self.told.append(f"entered {message.table.chosen and message.table.chosen.key}")


@contextlib.asynccontextmanager
async def bench(count: int = 0, size: tuple[int, int] = (40, 12)) -> AsyncIterator[tuple[Viewer[Bench], Table, Bench]]:
    """A list of so many rows on a screen of a size."""
    app = Bench()
    async with app.run_test(size=size) as pilot:
        table = app.query_one(Table)
        table.focus()
        table.styles.height = 8
        await pilot.pause()
        table.show(COLUMNS, [row(number) for number in range(count)])
        await pilot.pause()
        app.told.clear()
        yield Viewer(app, pilot), table, app


def chosen(table: Table) -> str | None:
    """The key of the row that is chosen."""
    return None if table.chosen is None else table.chosen.key


async def test_list_shows_what_fits() -> None:
    """A head, rows, numbers to the right; a column that needs more room is left out."""
    async with bench(100) as (seen, _, _):
        lines = seen.lines
        assert lines[0] == "Name                             Number"
        assert lines[1] == "row 0                                 0"
        assert [line.split()[1] for line in lines[1:8]] == [str(number) for number in range(7)]
        await seen.resize(80, 12)
        await seen.until(lambda: "Wide" in seen.lines[0] and "wide" in seen.lines[1])


async def test_empty_list_says_so() -> None:
    """And has nothing to choose."""
    async with bench() as (seen, table, app):
        assert seen.lines[2].strip() == "Nothing yet."
        await seen.press("down", "up", "enter", "end", "pagedown")
        assert (chosen(table), table.shown, app.told) == (None, None, [])
        table.hold()
        table.choose_first()


async def test_list_is_moved_in_by_keys() -> None:
    """The chosen row is told of, and in sight."""
    async with bench(100) as (seen, table, app):
        for keys, expected in (
            (["down", "j", "j", "up"], 2),
            (["k", "k", "k"], 0),
            (["end"], 99),
            (["G", "up"], 98),
            (["home"], 0),
            (["end", "g"], 0),
            (["pagedown", "pagedown", "pageup"], 6),
        ):
            await seen.press(*keys)
            assert chosen(table) == str(expected)
            assert app.told[-1] == f"chosen {expected}"
            assert any(line.split()[:2] == ["row", str(expected)] for line in seen.lines[1:8])


async def test_row_is_looked_into() -> None:
    """With a key, or with two clicks."""
    async with bench(5) as (seen, _, app):
        await seen.press("down", "enter", "right")
        assert app.told == ["chosen 1", "entered 1", "entered 1"]
        await seen.pilot.click("#table", offset=(3, 4))
        assert app.told[3:] == ["chosen 3"]
        await seen.pilot.double_click("#table", offset=(3, 4))
        assert app.told[-1] == "entered 3"
        for offset in ((3, 0), (3, 7)):  # the head, and below the last row
            await seen.pilot.click("#table", offset=offset)
        assert app.told[-1] == "entered 3"


async def test_first_row_is_followed() -> None:
    """What comes in front of it is chosen then; once held, or another is chosen, that stays."""
    async with bench(3) as (seen, table, app):
        table.show(COLUMNS, [row(9), row(0), row(1)])
        assert chosen(table) == "9"
        table.hold()
        table.show(COLUMNS, [row(10), row(9), row(0)])
        assert chosen(table) == "9"
        await seen.press("down")
        table.show(COLUMNS, [row(11), row(10), row(9), row(0)])
        assert chosen(table) == "0"
        await seen.press("home")
        table.show(COLUMNS, [row(12), row(11)])
        assert chosen(table) == "12"
        await seen.pilot.pause()
        assert app.told == ["chosen 9", "chosen 0", "chosen 11", "chosen 12"]


async def test_row_that_has_gone_is_replaced() -> None:
    """By the one that stands there now, or by the last."""
    async with bench(10) as (seen, table, app):
        await seen.press("end")
        table.show(COLUMNS, [row(number) for number in range(8)])
        await seen.pilot.pause()
        assert (chosen(table), app.told[-1]) == ("7", "chosen 7")
        table.show(COLUMNS, [])
        await seen.pilot.pause()
        assert (chosen(table), app.told[-1]) == (None, "chosen None")


async def test_turn_that_runs_is_not_looked_into_first() -> None:
    """While the first row is followed, the first that has ended is shown; and held, once the user wants to read."""
    async with bench(1) as (_, table, _):
        table.show(COLUMNS, [row(3, has_ended=False), row(2), row(1)])
        assert (chosen(table), table.shown and table.shown.key) == ("3", "2")
        table.hold()
        assert (chosen(table), table.shown and table.shown.key) == ("2", "2")
        table.show(COLUMNS, [row(4, has_ended=False)])
        table.choose_first()
        assert (table.shown and table.shown.key) == "4"


async def test_only_what_changed_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 500 rows those in sight that are not what they were; nothing if all are."""
    async with bench(500) as (seen, table, _):
        drawn: list[int] = []
        refresh = Table.refresh

        def count(
            self: Table, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
        ) -> Table:
            drawn.extend(region.y for region in regions)
            if not regions:
                drawn.append(-1)
            return refresh(self, *regions, repaint=repaint, layout=layout, recompose=recompose)

        monkeypatch.setattr(Table, "refresh", count)
        rows = [row(number) for number in range(500)]
        rows[3], rows[400] = row(3, "other"), row(400, "other")
        table.show(COLUMNS, rows)
        assert sorted(set(drawn)) == [1, 4]  # the chosen one may look different
        monkeypatch.undo()
        await seen.pilot.pause()
        assert "other 3" in seen.text


async def test_lines_are_text() -> None:
    """Markup is no markup; a line is cut where it does not wrap, and nothing is drawn anew if nothing changed."""
    async with bench(1) as (seen, _, app):
        lines, prose = app.query_one("#lines", Lines), app.query_one("#prose", Lines)
        lines.show([(("[bold red]x[/]", "bad"), (" y" * 40, ""))])
        prose.show([(("word " * 10, ""),), (("end", "strong"),)])
        await seen.pilot.pause()
        assert seen.lines[8].startswith("[bold red]x[/] y y")
        assert seen.lines[8].endswith("…")
        assert [line.strip() for line in seen.lines[9:12]] == ["word " * 7 + "word", "word word", "end"]
        before = lines.render()
        lines.show([(("[bold red]x[/]", "bad"), (" y" * 40, ""))])
        assert lines.render() == before


async def test_ground_stays_under_a_tone() -> None:
    """A tone is a colour of letters: where a row is chosen, that is seen under all of them; and tones differ."""
    async with bench(3, size=(80, 12)) as (_, table, _):
        chosen, other = table.render_line(1), table.render_line(2)
        grounds = {segment.style.bgcolor for segment in chosen if segment.style and segment.text.strip()}
        assert len(grounds) == 1
        assert grounds != {segment.style.bgcolor for segment in other if segment.style and segment.text.strip()}
        tones: tuple[Tone, ...] = ("", "muted", "good", "bad", "soft", "wait")
        assert len({widgets._look(table, tone).color for tone in tones}) == len(tones)
        assert widgets._look(table, "strong").bold
