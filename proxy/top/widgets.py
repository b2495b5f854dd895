"""What the screen is made of: lines of text, and a list of any length of which only what is seen is drawn.

Texts reach the terminal as segments, so nothing in them is taken for markup; that they hold nothing that a terminal obeys
is up to whoever makes them (:mod:`proxy.top.text`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, get_args

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from proxy.top.rows import Column, Line, Row, Tone, layout
from proxy.top.text import fit

_TONES: Final = {f"tone--{tone or 'plain'}" for tone in get_args(Tone)}
_LOOKS: Final = """
    & > .tone--plain { color: $foreground; }
    & > .tone--muted { color: $foreground-muted; }
    & > .tone--good { color: $text-success; }
    & > .tone--bad { color: $text-error; }
    & > .tone--strong { text-style: bold; }
    & > .tone--soft { color: $text-accent; }
    & > .tone--wait { color: $foreground-disabled; }
"""


class Lines(Widget):
    """Lines of text, as many as there are."""

    COMPONENT_CLASSES: ClassVar[set[str]] = _TONES
    DEFAULT_CSS = "Lines { height: auto; text-overflow: ellipsis; &.-wraps { text-overflow: fold; } " + _LOOKS + "}"

    def __init__(self, *, id: str | None = None, wraps: bool = False) -> None:  # noqa: A002 - textual's name
        super().__init__(id=id, classes="-wraps" if wraps else "")
        self.styles.text_wrap = "wrap" if wraps else "nowrap"
        self._wraps = wraps
        self._lines: Sequence[Line] = ()

    def show(self, lines: Sequence[Line]) -> None:
        """Show these instead; nothing happens if they are the same."""
        if lines != self._lines:
            is_taller = self._wraps or len(lines) != len(self._lines)
            self._lines = lines
            self.refresh(layout=is_taller)

    def render(self) -> Text:
        """All of it, in the colours of now."""
        text = Text()
        for at, line in enumerate(self._lines):
            text.append("\n" if at else "")
            for words, tone in line:
                text.append(words, _look(self, tone))
        return text


class Table(ScrollView, can_focus=True):
    """Rows of which one is chosen.

    The first row stays chosen while it is the first, whatever comes before it; any other, or one that was held, stays
    chosen for as long as it is there.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)"),
        Binding("down,j", "move(1)"),
        Binding("pageup", "page(-1)"),
        Binding("pagedown", "page(1)"),
        Binding("home,g", "move(-1000000)"),
        Binding("end,G", "move(1000000)"),
        Binding("enter,right", "enter"),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = _TONES | {"table--head", "table--chosen"}
    DEFAULT_CSS = (
        "Table {"
        + _LOOKS
        + """
        overflow-x: hidden;
        scrollbar-size-vertical: 1;
        & > .table--head { color: $foreground-muted; text-style: bold; }
        & > .table--chosen { background: $surface-lighten-1; }
        &:focus > .table--chosen { background: $primary 50%; }
    }
    """
    )

    class Chosen(Message):
        """Another row is chosen, by the user or because it has gone."""

        def __init__(self, table: Table) -> None:
            super().__init__()
            self.table = table

        @property
        def control(self) -> Table:
            """Where."""
            return self.table

    class Entered(Chosen):
        """The user wants to look into the row that is chosen."""

    def __init__(self, columns: Sequence[Column], *, empty: str, id: str) -> None:  # noqa: A002 - textual's name
        super().__init__(id=id)
        self._columns = columns
        self._rows: Sequence[Row] = ()
        self._empty = empty
        self._title = ""
        self._at = 0
        self._is_held = False

    @property
    def chosen(self) -> Row | None:
        """The row that is chosen; None of no rows."""
        return self._rows[self._at] if self._rows else None

    @property
    def shown(self) -> Row | None:
        """The row to look into: the chosen one, or the first that has ended while the first is followed."""
        if self._at == 0 and not self._is_held:
            return next((row for row in self._rows if row.turn is not None), self.chosen)
        return self.chosen

    def entitle(self, title: str) -> None:
        """Set what stands above it."""
        if title != self._title:
            self._title = title
            self.border_title = Text(title)  # a string would be markup

    def show(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        """Show these instead; only lines that are not what they were are drawn again."""
        before, was_at, was_chosen = self._rows, self._at, self.chosen
        is_other = columns != self._columns
        self._columns, self._rows = columns, rows
        self._at = self._found(was_chosen)
        if len(rows) != len(before):
            self.virtual_size = Size(0, len(rows) + 1)
        if is_other or not rows or not before:
            self.refresh()
        else:
            top = self.scroll_offset.y
            for at in range(top, min(len(rows), top + self.size.height)):
                if at >= len(before) or rows[at] != before[at] or at in (self._at, was_at):
                    self.refresh_line(at + 1)
            if len(rows) < len(before):
                self.refresh()
        if (was_chosen and was_chosen.key) != (self.chosen and self.chosen.key):
            self.post_message(self.Chosen(self))
        if self._at != was_at:
            self._follow()

    def hold(self) -> None:
        """Choose the row that is shown, and keep it, though it be the first."""
        shown = self.shown
        if shown is not None:
            self._go(self._rows.index(shown))
            self._is_held = True

    def choose_first(self) -> None:
        """Choose the first row, whichever that is."""
        self._go(0)

    def render_line(self, y: int) -> Strip:
        """One line of what is seen (`y` from its top)."""
        cells = self.scrollable_content_region.width
        if y == 0:
            words = [(column.title, self.get_component_rich_style("table--head")) for column in self._columns]
            return self._strip(words, cells, self.rich_style)
        at = self.scroll_offset.y + y - 1
        if at >= len(self._rows):
            text = self._empty if not self._rows and y == 2 else ""
            return self._padded([Segment(fit(f"  {text}", cells), self.rich_style + _look(self, "muted"))], cells)
        ground = self.rich_style
        if at == self._at:
            ground += self.get_component_rich_style("table--chosen")
        return self._strip([(text, _look(self, tone)) for text, tone in self._rows[at].cells], cells, ground)

    def action_move(self, by: int) -> None:
        """Choose another row."""
        self._go(self._at + by)

    def action_page(self, by: int) -> None:
        """Choose a row that is a page away."""
        self._go(self._at + by * max(1, self.size.height - 2))

    def action_enter(self) -> None:
        """Look into the row that is chosen."""
        if self._rows:
            self.post_message(self.Entered(self))

    def on_click(self, event: events.Click) -> None:
        """Choose a row; look into it with a second click."""
        at = self.scroll_offset.y + event.get_content_offset_capture(self).y - 1
        if 0 <= at < len(self._rows) and event.get_content_offset_capture(self).y > 0:
            self._go(at)
            if event.chain == 2:
                self.action_enter()

    def _go(self, to: int) -> None:
        to = max(0, min(len(self._rows) - 1, to))
        self._is_held = False
        if to != self._at and self._rows:
            self.refresh_line(self._at + 1)
            self._at = to
            self.refresh_line(to + 1)
            self.post_message(self.Chosen(self))
        self._follow()

    def _found(self, was_chosen: Row | None) -> int:
        """Where what was chosen is now, or what takes its place."""
        if was_chosen is None or (self._at == 0 and not self._is_held):
            return 0
        for at, row in enumerate(self._rows):
            if row.key == was_chosen.key:
                return at
        self._is_held = False
        return max(0, min(len(self._rows) - 1, self._at))

    def _follow(self) -> None:
        """Bring the chosen row into sight."""
        top, seen = self.scroll_offset.y, self.size.height - 1
        if self._at < top:
            self.scroll_to(y=self._at, animate=False)
        elif self._at >= top + seen:
            self.scroll_to(y=self._at - seen + 1, animate=False)

    def _strip(self, words: Sequence[tuple[str, Style]], cells: int, ground: Style) -> Strip:
        segments: list[Segment] = []
        for at, size in layout(self._columns, cells):
            text, style = words[at]
            segments.append(Segment(" " if segments else "", ground))
            segments.append(Segment(fit(text, size, is_right=self._columns[at].is_right), ground + style))
        return self._padded(segments, cells)

    def _padded(self, segments: list[Segment], cells: int) -> Strip:
        return Strip(segments).adjust_cell_length(cells, self.rich_style)


def _look(widget: Widget, tone: Tone) -> Style:
    """How a tone looks: its letters alone, so that it can stand on any ground."""
    style = widget.get_component_rich_style(f"tone--{tone or 'plain'}")
    return Style(color=style.color, bold=style.bold)
