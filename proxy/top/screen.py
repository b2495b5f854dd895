"""The screen of `slipstream top`: panes for connections, turns and one turn in detail, and the keys."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import ClassVar, Final

from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Input

from proxy.top.detail import HEAD, said_lines, turn_lines
from proxy.top.feed import CannotWatch, Feed, Lost, NotSaid
from proxy.top.mirror import Mirror
from proxy.top.rows import (
    ALL,
    CONNECTIONS,
    TURNS_OF_ALL,
    Line,
    Span,
    backend,
    connection_rows,
    connections_title,
    name_of,
    totals,
    turn_columns,
    turn_key,
    turn_rows,
)
from proxy.top.text import clean, fit
from proxy.top.updates import Said, Turn, Update
from proxy.top.widgets import Lines, Table

_EVERY: Final = 1.0
"""Seconds after which ages are shown anew though nothing has changed."""
_MAX_BACKENDS: Final = 3
_CELL: Final = 39
"""Cells for one of the totals at least."""

_KEYS: Final = (("q", "Quit"), ("?", "Help"), ("Enter", "Look into"), ("/", "Filter"), ("p", "Pause"), ("t", "Theme"))
_KEYS_OF_CONTENT: Final = (("i", "Items"), ("x", "Text"))
_HELP: Final = (
    ("up down j k", "another row"),
    ("PgUp PgDn Home End g G", "farther"),
    ("Tab Shift+Tab", "another pane"),
    ("Enter", "into a connection, into a turn"),
    ("Esc", "back"),
    ("/", "filter connections by client or id"),
    ("p", "pause: the picture stays, the feed goes on"),
    ("i", "what the turn said, masked (live.inspect)"),
    ("x", "then: as it was said, and masked again"),
    ("t", "dark or light"),
    ("q", "quit"),
)


class Help(ModalScreen[None]):
    """The keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,enter", "dismiss"),
        Binding("q,ctrl+c", "app.quit"),
    ]

    def compose(self) -> ComposeResult:
        """One box in the middle."""
        yield Lines(id="help")

    def on_mount(self) -> None:
        """Fill it."""
        lines: list[Line] = [(("Keys", "strong"),), ()]
        lines += [((f"{keys:<24}", "soft"), (what, "")) for keys, what in _HELP]
        self.query_one("#help", Lines).show(lines)


class Top(App[str]):
    """The program; what it returns is what went wrong.

    Args:
        feed: Where what turns said is asked for.
        updates: What it says, after what the mirror has.
        mirror: What is known.
    """

    TITLE = "slipstream top"
    CSS_PATH = "screen.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide"), (190, "-full")]  # noqa: RUF012 - as textual types it
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit"),
        Binding("ctrl+c", "quit", priority=True),
        Binding("question_mark", "help"),
        Binding("slash", "filter"),
        Binding("p", "pause"),
        Binding("i", "said"),
        Binding("x", "text"),
        Binding("t", "theme"),
        Binding("escape", "out"),
    ]

    def __init__(self, feed: Feed, updates: AsyncIterator[Update | Lost], mirror: Mirror) -> None:
        super().__init__()
        self._feed = feed
        self._updates = updates
        self._mirror = mirror
        self._held: Mirror | None = None
        self._stopped_at: float | None = None
        self._lost: Lost | None = None
        self._said: tuple[str, Said | str] | None = None

    def compose(self) -> ComposeResult:
        """All panes; the style sheet says which are seen."""
        yield Lines(id="state")
        yield Lines(id="totals")
        yield Lines(id="backends")
        with Container(id="panes"):
            with Vertical(id="left"):
                yield Input(id="filter", placeholder="client or id", compact=True)
                yield Table(CONNECTIONS, empty="No client has connected yet.", id="connections")
            yield Table(TURNS_OF_ALL, empty="Turns appear here as soon as a client asks for one.", id="turns")
            with VerticalScroll(id="detail"):
                yield Lines(id="turn", wraps=True)
        yield Lines(id="keys")

    def on_mount(self) -> None:
        """Begin to follow the feed."""
        self._panes.query_one("#detail").border_title = "The selected turn"
        self._connections.focus()
        self._draw()
        self.set_interval(_EVERY, self._draw)
        self._follow()

    # The feed

    @work
    async def _follow(self) -> None:
        try:
            async for news in self._updates:
                if isinstance(news, Lost):
                    self._lost = news
                else:
                    self._lost = None
                    self._mirror.take(news, time.monotonic())
                self._draw()
        except CannotWatch as exc:
            self.exit(str(exc))

    def _shown(self) -> tuple[Mirror, float]:
        """What is shown, and as of when: a picture that is out of date does not grow older."""
        now = time.monotonic()
        if self._held is None and self._lost is None:
            self._stopped_at = None
            return self._mirror, now
        if self._stopped_at is None:
            self._stopped_at = now
        return self._held or self._mirror, self._stopped_at

    # What is shown

    @property
    def _panes(self) -> Screen[object]:
        """Where all of it is, though the help may lie over it."""
        return self.screen_stack[0]

    @property
    def _connections(self) -> Table:
        return self._panes.query_one("#connections", Table)

    @property
    def _turns(self) -> Table:
        return self._panes.query_one("#turns", Table)

    def _draw(self) -> None:
        mirror, tick = self._shown()
        self._lines("state", [self._state()])
        self._lines("keys", [self._keys()])
        inner = self.size.width - 2
        across = max(1, min(4, inner // _CELL))
        cells: list[Line] = [((f"{name:<8}", "muted"), (text, "")) for name, text in totals(mirror, tick)]
        self._lines("totals", [_beside(cells[at : at + across], inner // across) for at in range(0, 8, across)])
        backends = [backend(row) for row in mirror.backends[:_MAX_BACKENDS]]
        if len(mirror.backends) > _MAX_BACKENDS:
            backends.append(((f"  and {len(mirror.backends) - _MAX_BACKENDS} more", "muted"),))
        self._lines("backends", backends)
        table = self._connections
        table.entitle(connections_title(mirror))
        table.show(CONNECTIONS, connection_rows(mirror, self._panes.query_one("#filter", Input).value, tick))
        self._draw_turns()

    def _draw_turns(self) -> None:
        mirror, tick = self._shown()
        chosen = self._connections.chosen
        key = ALL if chosen is None else chosen.key
        name = "all connections" if key == ALL else f"{name_of(mirror, key)} · {clean(key)}"
        self._turns.entitle(f"Turns of {name}")
        rows = turn_rows(mirror, key, self._panes.query_one("#filter", Input).value, tick)
        self._turns.show(turn_columns(key, rows), rows)
        self._draw_detail()

    def _draw_detail(self) -> None:
        turn = self._turn()
        mirror, _ = self._shown()
        if self._turns.shown is None:
            lines: list[Line] = [(("Choose a turn to see what it took, and why.", "muted"),)]
        elif turn is None:
            lines = [(("It runs; what it took can be seen once it has ended.", "muted"),)]
        else:
            lines = turn_lines(turn, name_of(mirror, turn.connection))
            lines[HEAD:HEAD] = self._saying(turn)
        self._lines("turn", lines)

    def _saying(self, turn: Turn) -> list[Line]:
        """What a turn said, if it was asked for, or how to ask for it."""
        if self._said is not None and self._said[0] == turn_key(turn):
            said = self._said[1]
            return [((said, "bad"),), ()] if isinstance(said, str) else [*said_lines(said), ()]
        if self._mirror.inspects:
            return [(("i", "soft"), (" shows what was said, masked", "muted")), ()]
        return []

    def _lines(self, name: str, lines: list[Line]) -> None:
        self._panes.query_one(f"#{name}", Lines).show(lines)

    def _state(self) -> Line:
        if self._lost is not None:
            text = f"● lost, asked again after {self._lost.pause:g} s: {clean(self._lost.reason)}"
            state: Span = (text, "bad")
        else:
            state = ("● paused", "wait") if self._held is not None else ("● live", "good")
        return ("Slipstream ", "strong"), ("top  ", "muted"), (clean(self._feed.place), ""), ("  ", ""), state

    def _keys(self) -> Line:
        """What can be pressed: textual's own footer is made anew, widget by widget, whenever the focus moves."""
        keys = _KEYS + _KEYS_OF_CONTENT if self._mirror.inspects else _KEYS
        return tuple(span for key, what in keys for span in ((key, "soft"), (f" {what}  ", "")))

    def _turn(self) -> Turn | None:
        row = self._turns.shown
        return None if row is None else row.turn

    # Keys

    @on(Table.Chosen, "#connections")
    def _other_connection(self) -> None:
        self._turns.choose_first()
        self._draw_turns()

    @on(Table.Chosen, "#turns")
    def _other_turn(self) -> None:
        self._panes.query_one("#detail").scroll_home(animate=False)
        self._draw_detail()

    @on(Table.Entered, "#connections")
    def _enter_connection(self) -> None:
        self._turns.focus()

    @on(Table.Entered, "#turns")
    def _enter_turn(self) -> None:
        self._turns.hold()
        self._panes.add_class("-reading")
        self._panes.query_one("#detail").focus()

    @on(Input.Changed, "#filter")
    def _filter_changed(self) -> None:
        self._draw()

    @on(Input.Submitted, "#filter")
    def _filtered(self) -> None:
        self._connections.focus()

    def action_out(self) -> None:
        """Out of what the user is in."""
        if self._panes.has_class("-reading"):
            self._panes.remove_class("-reading")
            self._turns.focus()
        elif self.focused is self._turns:
            self._connections.focus()
        else:
            wanted = self._panes.query_one("#filter", Input)
            wanted.value = ""
            wanted.remove_class("-used")
            self._connections.focus()

    def action_filter(self) -> None:
        """Ask what to look for among the connections."""
        self._panes.remove_class("-reading")
        wanted = self._panes.query_one("#filter", Input)
        wanted.add_class("-used")
        wanted.focus()

    def action_pause(self) -> None:
        """Let the picture stay as it is, or go on."""
        self._held = self._mirror.frozen() if self._held is None else None
        self._draw()

    def action_theme(self) -> None:
        """Dark or light."""
        self.theme = "textual-light" if self.current_theme.dark else "textual-dark"

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(Help())

    def action_said(self) -> None:
        """Show what the turn said, masked."""
        self._ask(shows_text=False)

    def action_text(self) -> None:
        """Show it as it was said; masked if it is shown so, or was not shown at all."""
        turn, said = self._turn(), self._said
        is_masked = turn is not None and said is not None and said[0] == turn_key(turn) and _is_masked(said[1])
        self._ask(shows_text=is_masked)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What turns said can be asked for only where the operator of the proxy allows it."""
        if isinstance(self.screen, ModalScreen):
            return action in ("quit", "dismiss")
        return self._mirror.inspects if action in ("said", "text") else True

    def _ask(self, *, shows_text: bool) -> None:
        turn = self._turn()
        if turn is not None:
            self._enter_turn()
            self._ask_for(turn, shows_text)

    @work(exclusive=True, group="said")
    async def _ask_for(self, turn: Turn, shows_text: bool) -> None:  # noqa: FBT001 - a worker's arguments have no names
        try:
            said: Said | str = await self._feed.said(turn, shows_text=shows_text)
        except NotSaid as exc:
            said = clean(str(exc))
        self._said = turn_key(turn), said
        self._panes.query_one("#detail").scroll_home(animate=False)
        self._draw_detail()


def _is_masked(said: Said | str) -> bool:
    return isinstance(said, Said) and said.masked


def _beside(cells: list[Line], width: int) -> Line:
    """Lines beside each other, each in as many cells."""
    return tuple(span for name, text in cells for span in (name, (fit(text[0], width - 9) + " ", text[1])))
