"""A model of a network path: when do bytes arrive that are sent at a time. Pure: time is passed in.

It is TCP in slow start on a path without loss, in one direction at a time:

* a sender may have a congestion window of bytes on their way, at first 10 segments (RFC 6928, section 2);
* each byte that is acknowledged lets the window grow by one (RFC 5681, section 3.1), so it doubles every round trip for as
  long as it is the limit; it ends at what the path holds, bandwidth times round trip;
* after an idle time longer than the retransmission timeout the window is back at its first size (RFC 5681, section 4.1).
  Linux halves it for each such time instead (its `tcp_cwnd_restart`), which is milder to connections that are kept alive;
* that timeout is the round trip and 200 ms, as on Linux where round trips hardly vary (its `TCP_RTO_MIN`; RFC 6298 has one
  second at the least, with which windows would be lost more seldom).

What it leaves out: loss, other traffic, queues that overflow, receive windows, delayed acknowledgements, TCP and IP headers,
the bytes of a TLS handshake (its round trips are there), and the real network below, which comes on top.
"""

from __future__ import annotations

import collections
import math
from dataclasses import dataclass
from typing import Final

MSS: Final = 1460
"""Bytes of a segment on Ethernet."""

INITIAL_WINDOW: Final = 10 * MSS

_MIN_RTO: Final = 0.2


@dataclass(frozen=True, slots=True)
class Link:
    """A simulated network path.

    Attributes:
        rtt: Seconds for a round trip, above 0.
        bandwidth: Bytes a second in each direction; `math.inf` for no limit.
        tls_round_trips: Of a TLS handshake: 1 for TLS 1.3 (RFC 8446, section 2), 2 for TLS 1.2, 0 for none.
        halves_when_idle: Idle senders do as Linux does, rather than as RFC 5681 says.
    """

    rtt: float
    bandwidth: float = math.inf
    tls_round_trips: int = 1
    halves_when_idle: bool = False

    @property
    def handshake_seconds(self) -> float:
        """Until a new connection can carry a request: TCP's round trip (RFC 9293, section 3.5) and TLS's."""
        return self.rtt * (1 + self.tls_round_trips)

    @property
    def retransmission_timeout(self) -> float:
        """Seconds."""
        return self.rtt + _MIN_RTO

    @property
    def largest_window(self) -> float:
        """What the path holds, and a segment that is leaving; never less than a new connection may send."""
        return max(self.bandwidth * self.rtt + MSS, INITIAL_WINDOW)


class Direction:
    """One direction of one connection.

    Args:
        link: The path.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._window: float = INITIAL_WINDOW
        self._on_their_way = 0
        self._acknowledgements: collections.deque[tuple[float, int]] = collections.deque()  # when, of how many bytes
        self._free = -math.inf  # when the last byte has left
        self._last = -math.inf  # when the newest was given

    def send(self, now: float, size: int) -> list[tuple[float, int]]:
        """Send bytes.

        Args:
            now: The time in seconds, not before that of the last call.
            size: How many, 1 or more.

        Returns:
            When they arrive and how many at that time, in order, none of them later changed by what is sent next.
        """
        self._acknowledge(now)
        if not self._on_their_way:
            self._rest(now - self._last)
        arrivals: list[tuple[float, int]] = []
        may_leave = now
        while size:
            segment = min(size, MSS)
            # What is on its way was all sent before, so that the next acknowledgement is known already.
            while self._on_their_way and self._on_their_way + segment > self._window:
                may_leave = max(may_leave, self._acknowledgements[0][0])
                self._acknowledge(may_leave)
            self._free = max(may_leave, self._free) + segment / self._link.bandwidth
            arrival = self._free + self._link.rtt / 2
            self._acknowledgements.append((arrival + self._link.rtt / 2, segment))
            self._on_their_way += segment
            if arrivals and arrivals[-1][0] == arrival:
                arrivals[-1] = (arrival, arrivals[-1][1] + segment)
            else:
                arrivals.append((arrival, segment))
            size -= segment
        self._last = max(self._free, now)
        return arrivals

    def end(self, now: float) -> float:
        """When the end of the stream arrives, behind all that was sent."""
        return max(now, self._free) + self._link.rtt / 2

    def _rest(self, idle: float) -> None:
        """Lose what an idle time costs of the window."""
        while idle > self._link.retransmission_timeout and self._window > INITIAL_WINDOW:
            idle -= self._link.retransmission_timeout
            self._window = max(self._window / 2 if self._link.halves_when_idle else 0, INITIAL_WINDOW)

    def _acknowledge(self, now: float) -> None:
        """Take the acknowledgements that have come by now."""
        while self._acknowledgements and self._acknowledgements[0][0] <= now:
            _, size = self._acknowledgements.popleft()
            self._on_their_way -= size
            self._window = min(self._window + size, self._link.largest_window)
