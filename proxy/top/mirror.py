"""The proxy's picture, seen from afar: a snapshot and what has changed since, put together.

No clock is read here: `tick` is the time of a monotonic clock, in seconds. Ages are counted from it by the proxy's own
clock, of which each update tells the time.
"""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Iterable
from typing import Final

from proxy.top.updates import Backend, Connection, Totals, Turn, Update

KEPT: Final = 50
"""Turns that are kept of a connection, as in the proxy itself."""
ENDED: Final = 50
"""Connections that the proxy tells of after they have ended, at least if there were as many."""
LATEST: Final = 200
"""Turns that are shown of all connections together."""
_WINDOW: Final = 10.0
"""Seconds over which turns are counted for their rate."""


class Mirror:
    """What is known of a proxy.

    Attributes:
        totals: Its sums.
        backends: How its backends do.
        open: How many connections are.
        connections: Those that are open or ended just now, by their ids.
        inspects: Whether what turns said may be looked at.
    """

    def __init__(self) -> None:
        self.totals = Totals()
        self.backends: tuple[Backend, ...] = ()
        self.open = 0
        self.connections: dict[str, Connection] = {}
        self.inspects = False
        self._turns: dict[str, deque[Turn]] = {}
        self._latest: deque[Turn] = deque(maxlen=LATEST)
        self._samples: deque[tuple[float, int]] = deque()
        self._skew = 0.0

    def take(self, update: Update, tick: float) -> None:
        """Put an update in.

        Args:
            update: What the feed said.
            tick: When it did.
        """
        if update.kind == "snapshot":
            self.connections.clear()
            self._turns.clear()
            self._latest.clear()
            self._samples.clear()
            self.inspects = update.inspects
        self._skew = update.now - tick
        self.totals, self.backends, self.open = update.totals, update.backends, update.open
        self.connections |= {row.id: row for row in update.connections}
        for turn in update.turns:
            self._keep(turn)
        if update.gone:
            self._forget(update.gone)
        self._sample(tick)

    def frozen(self) -> Mirror:
        """A copy that stays as it is."""
        other = copy.copy(self)
        other.connections = self.connections.copy()
        other._turns = {name: turns.copy() for name, turns in self._turns.items()}  # noqa: SLF001 - its own kind
        other._latest = self._latest.copy()  # noqa: SLF001
        other._samples = self._samples.copy()  # noqa: SLF001
        return other

    @property
    def is_whole(self) -> bool:
        """Whether the rows are there that the sums tell of: several workers' come a moment later than those."""
        ended = max(0, self.totals.connections - self.open)
        return len(self.connections) >= self.open + min(ended, ENDED)

    def now(self, tick: float) -> float:
        """The proxy's time, in Unix seconds."""
        return tick + self._skew

    def rate(self, tick: float) -> float | None:
        """Turns per second, over the last ten seconds; None before there was one."""
        self._sample(tick)
        then, before = self._samples[0]
        return (self.totals.turns - before) / (tick - then) if tick - then >= 1 else None

    def listed(self, wanted: str = "") -> list[Connection]:
        """The connections whose client or id has a text in it: open ones first, newest first."""
        wanted = wanted.strip().lower()
        rows = [row for row in self.connections.values() if wanted in f"{row.client or ''} {row.id}".lower()]
        rows.sort(key=lambda row: (row.closed is not None, -(row.opened if row.closed is None else row.closed)))
        return rows

    def turns_of(self, connection_id: str) -> list[Turn]:
        """Those of a connection that have ended, newest first."""
        return list(reversed(self._turns.get(connection_id, ())))

    def latest(self) -> list[Turn]:
        """The last ones of all connections, newest first."""
        return list(reversed(self._latest))

    def _keep(self, turn: Turn) -> None:
        turns = self._turns.setdefault(turn.connection, deque(maxlen=KEPT))
        if turns and turns[-1].number >= turn.number:
            return  # the snapshot had it already
        turns.append(turn)
        self._latest.append(turn)

    def _forget(self, gone: Iterable[str]) -> None:
        names = set(gone)
        for name in names:
            self.connections.pop(name, None)
            self._turns.pop(name, None)
        self._latest = deque(itertools.filterfalse(lambda turn: turn.connection in names, self._latest), maxlen=LATEST)

    def _sample(self, tick: float) -> None:
        self._samples.append((tick, self.totals.turns))
        while len(self._samples) > 2 and tick - self._samples[1][0] > _WINDOW:
            self._samples.popleft()
