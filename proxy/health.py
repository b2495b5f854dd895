"""Which replicas of a backend can be asked: what happened to them goes in, with a clock that is passed in.

A replica that fails some times in a row is ejected for a while, each time for longer, and never the last one that is left. One
that cannot even be reached is back as soon as a probe reaches it; one that answers badly has to sit its time out, since a
probe asks it for nothing. One that says `Retry-After` is left alone until then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import mktime_tz, parsedate_tz
from typing import Final

MAX_RETRY_AFTER: Final = 300.0
"""Seconds for which a replica is left alone at most, whatever it says."""

_BURST: Final = 10.0


@dataclass(slots=True)
class _State:
    """One replica.

    Attributes:
        failures: In a row.
        ejections: In a row; what makes the next one longer.
        ejected_until: When it may be asked again.
        quiet_until: Until when it wants to be left alone.
        is_unreachable: The last failure was that nobody was there.
    """

    failures: int = 0
    ejections: int = 0
    ejected_until: float = 0.0
    quiet_until: float = 0.0
    is_unreachable: bool = False


class Health:
    """How the replicas of one backend do. All times are seconds on one clock.

    Args:
        count: How many there are.
        after: Failures in a row after which one is ejected.
        seconds: For how long, the first time; twice as long the next.
        longest: For how long at most.
    """

    def __init__(self, count: int, *, after: int, seconds: float, longest: float) -> None:
        self._states = [_State() for _ in range(count)]
        self._after = after
        self._seconds = seconds
        self._longest = longest

    def is_ejected(self, index: int, now: float) -> bool:
        """Whether a replica is not to be asked."""
        return self._states[index].ejected_until > now

    def is_up(self, index: int, now: float) -> bool:
        """Whether a replica does its work, as far as anybody knows; the last one can be down without being ejected."""
        return not self.is_ejected(index, now) and self._states[index].failures < self._after

    def is_usable(self, index: int, now: float) -> bool:
        """Whether a replica can be asked now."""
        return not self.is_ejected(index, now) and self._states[index].quiet_until <= now

    def usable(self, now: float) -> list[int]:
        """Those that can be asked; if all want to be left alone, those that are not ejected. Never none."""
        everyone = range(len(self._states))
        present = [index for index in everyone if not self.is_ejected(index, now)]
        return [index for index in present if self.is_usable(index, now)] or present

    def succeeded(self, index: int, now: float) -> bool:
        """A replica has answered as it should.

        Returns:
            Whether it is as good as new: nothing of what has been is remembered.
        """
        state = self._states[index]
        state.failures = 0
        if now >= state.ejected_until + self._term(state.ejections):
            state.ejections = 0  # it has been good for as long as it was away
        return not state.ejections

    def failed(self, index: int, now: float, *, is_unreachable: bool) -> bool:
        """A replica has failed.

        Returns:
            Whether it is ejected for that.
        """
        state = self._states[index]
        state.failures += 1
        state.is_unreachable = is_unreachable
        is_last = all(self.is_ejected(other, now) for other in range(len(self._states)) if other != index)
        if state.failures < self._after or is_last or self.is_ejected(index, now):
            return False
        state.ejections += 1
        state.ejected_until = now + self._term(state.ejections)
        state.failures = self._after - 1  # when it is back, one more is enough
        return True

    def probed(self, index: int, now: float, *, is_alive: bool) -> bool:
        """A probe was answered, or not.

        Returns:
            Whether the replica is ejected for that.
        """
        state = self._states[index]
        if not is_alive:
            return self.failed(index, now, is_unreachable=True)
        if state.is_unreachable:
            state.failures, state.ejected_until, state.is_unreachable = 0, min(state.ejected_until, now), False
        return False

    def leave_alone(self, index: int, until: float) -> None:
        """A replica said when it wants to be asked again."""
        self._states[index].quiet_until = until

    def _term(self, ejections: int) -> float:
        return min(self._seconds * 2.0 ** (ejections - 1), self._longest) if ejections else 0.0


class RetryBudget:
    """How many requests may be sent once more: a share of all, and a few at once.

    Args:
        share: Of all requests, from 0 to 1.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._left = _BURST if share else 0.0

    def asked(self) -> None:
        """A request was made."""
        self._left = min(self._left + self._share, _BURST)

    def take(self) -> bool:
        """Whether one may be sent once more; it counts."""
        if self._left < 1:
            return False
        self._left -= 1
        return True


def retry_after(headers: Mapping[str, str], wall: float) -> float | None:
    """Seconds for which an answer asks to be left alone (RFC 9110 section 10.2.3); None if it does not.

    Args:
        headers: Its headers, names in lower case.
        wall: The time, in Unix seconds.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        if text.isascii() and text.replace(".", "", 1).isdecimal():
            return min(float(text) * unit, MAX_RETRY_AFTER)
    then = parsedate_tz(headers.get("retry-after", ""))
    return None if then is None else min(max(mktime_tz(then) - wall, 0.0), MAX_RETRY_AFTER)
