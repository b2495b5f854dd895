"""What is written to a terminal, and what to a file."""

from __future__ import annotations

import pytest

from proxy.rollout.meter import Meter
from proxy.rollout.screen import Screen


def sent(count: int) -> Meter:
    """A meter that has counted so many bytes."""
    made = Meter()
    made.sent_bytes = count
    return made


class Paper:
    """What was written to a screen."""

    def __init__(self, *, is_terminal: bool) -> None:
        self.text = ""
        self.screen = Screen(self._write, is_terminal=is_terminal)

    def _write(self, text: str) -> None:
        self.text += text


@pytest.mark.parametrize(("done", "lines"), [(1, 0), (5, 1), (7, 1), (20, 1), (21, 1)])
def test_screen_writes_few_lines_into_a_file(done: int, lines: int) -> None:
    """Without a terminal progress is a line for every fifth turn, and one at the end."""
    paper = Paper(is_terminal=False)
    total = 21 if done > 7 else 7
    paper.screen.progress("plain HTTP", total, done, sent(1_000))
    assert paper.text == f"  plain HTTP: turn {done} of {total}, 1,000 bytes sent\n" * lines


def test_screen_writes_over_its_line_on_a_terminal() -> None:
    """On a terminal progress is one line, and what is said next stands below it."""
    paper = Paper(is_terminal=True)
    paper.screen.progress("plain HTTP", 4, 1, sent(1_000_000))
    paper.screen.progress("plain HTTP", 4, 2, sent(1))
    first, second = paper.text.split("\r")[1:]
    assert first == "  plain HTTP     [#####...............] turn 1 of 4, 1,000,000 bytes sent"
    assert second.rstrip() == "  plain HTTP     [##########..........] turn 2 of 4, 1 bytes sent"
    assert len(second) == len(first)
    paper.screen.say("next")
    paper.screen.say("last")
    assert paper.text.endswith(" \nnext\nlast\n")


def test_screen_ends_the_line_of_a_rollout_that_is_over() -> None:
    """After the last turn there is nothing left to write over."""
    paper = Paper(is_terminal=True)
    paper.screen.progress("plain HTTP", 1, 1, sent(0))
    paper.screen.progress("WebSocket mode", 1, 1, sent(0))
    assert paper.text.count("\n") == 2


@pytest.mark.parametrize(("is_terminal", "text"), [(True, "\nStopped.\n"), (False, "Stopped.\n")])
def test_screen_says_that_it_stopped(is_terminal: bool, text: str) -> None:  # noqa: FBT001 - a parameter of a test
    """The last word stands in a line of its own, behind the ^C that a terminal shows."""
    paper = Paper(is_terminal=is_terminal)
    paper.screen.stopped()
    assert paper.text == text
