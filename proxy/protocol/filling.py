"""An answer over HTTP with what the backend left out filled in, and everything else untouched.

What is missing is found by :class:`~proxy.protocol.relay.Relay`, as for a socket: it is given one block of the stream at
a time, and where the frame that it makes of it says the same as the block, the block goes on with the bytes it came in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from msgspec import Raw

from proxy.protocol import rawjson, shapes
from proxy.protocol.rawjson import InvalidJSON
from proxy.protocol.relay import Relay
from proxy.protocol.responses import RequestEcho
from proxy.protocol.sse import parse_block
from proxy.protocol.terminals import Terminal
from proxy.protocol.upstream_errors import UpstreamRefused

ClaimId = Callable[[str | None], str]
"""Given the id that a backend gave a response (None if it gave none), the one it is to have."""

_LF_LF: Final = re.compile(rb"\n\n")
#: A CR behind a line end with LF is no line end yet: its own LF may be on the way.
_BLANK_LINE: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?=[^\n]))|\r\r(?!\n)")
_BORDER: Final = 3
"""So many bytes of a blank line may have come before the rest of it."""

_EVENTS: Final = {
    status: b"response." + status.encode() for status in ("completed", "incomplete", "failed", "in_progress", "queued")
}
"""The event in which a Response of some status would come."""


class StreamFiller:
    """A stream of events on its way, in the blocks in which the client gets it.

    What cannot be read is handed on as it is, with all that follows: this is a help, not a gate.

    Args:
        echo: What Response objects say about their request.
        claim_id: Says what id the response is to have.
        max_event_bytes: How long an event may be that is looked at.

    Attributes:
        terminal: How the response ended; None as long as it has not.
    """

    def __init__(self, echo: RequestEcho, claim_id: ClaimId, max_event_bytes: int) -> None:
        self.terminal: Terminal | None = None
        self._relay = Relay(echo, stream_id=None, claim_id=claim_id, max_event_bytes=max_event_bytes)
        self._max = max_event_bytes
        self._pending = bytearray()
        self._searched = 0
        self._is_over = False

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the stream; those that the client can have now. The start of a block waits for its end."""
        if self._is_over:
            return data
        if self._pending:
            self._pending += data
            if not _BLANK_LINE.search(self._pending, max(self._searched - _BORDER, 0)):
                return self._wait()
            data = bytes(self._pending)
            self._pending.clear()
        out: list[bytes] = []
        start = 0
        for blank in (_BLANK_LINE if b"\r" in data else _LF_LF).finditer(data):
            out.append(self._block(data[start : blank.start()], blank[0]))
            start = blank.end()
            if self._is_over:
                return b"".join((*out, data[start:]))
        self._pending += data[start:]
        return b"".join((*out, self._wait()))

    def end(self) -> bytes:
        """The stream has ended; what was left of it."""
        rest = bytes(self._pending)
        self._pending.clear()
        return self._block(rest, b"") if rest else b""

    def _wait(self) -> bytes:
        """What is pending waits, unless it is more than can be looked at."""
        self._searched = len(self._pending)
        if self._searched <= self._max:
            return b""
        self._is_over = True
        rest = bytes(self._pending)
        self._pending.clear()
        return rest

    def _block(self, block: bytes, blank: bytes) -> bytes:
        """One block and the blank line behind it."""
        text = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in block else block
        frames = self._relay.feed(text + b"\n\n")
        outcome = self._relay.outcome
        if isinstance(outcome, UpstreamRefused):
            self._relay.outcome = None  # an `error` event: for a socket the end, here `response.failed` may follow
        elif outcome is not None:
            self._is_over = True
        if not frames:
            return block + blank
        *added, frame = frames
        if isinstance(outcome, Terminal):
            self.terminal = outcome
        before = b"".join(b"event: %b\ndata: %b\n\n" % (str(shapes.event(one).type).encode(), one) for one in added)
        return before + (block if _says(text, frame) else _with_data(block, text, frame)) + blank


def fill_object(body: bytes, echo: RequestEcho, claim_id: ClaimId) -> tuple[bytes, Terminal | None]:
    """A Response that came in one piece, with what it lacks.

    Args:
        body: Whatever the backend answered.
        echo: What it says about its request.
        claim_id: Says what id it is to have.

    Returns:
        The body as it came if it lacks nothing or is no Response; and how the response ended, None if it has not.
    """
    status = _status_of(body)
    if status is None:
        return body, None
    # A line end between two values is as good as a blank, and inside a string there is none.
    flat = body.strip(b" \t\r\n").replace(b"\r", b" ").replace(b"\n", b" ")
    kind = _EVENTS.get(status, b"response.failed")  # a cancelled one: over, and not to be continued

    event = b'{"type":"%b","sequence_number":0,"response":%b}' % (kind, flat)
    relay = Relay(echo, stream_id=None, claim_id=claim_id, max_event_bytes=len(event) + 100)
    frames = relay.feed(b"data: " + event + b"\n\n")
    if not frames:
        return body, None
    terminal = relay.outcome if isinstance(relay.outcome, Terminal) else None
    return (body if frames[0] == event else _response_in(frames[0])), terminal


def _status_of(body: bytes) -> str | None:
    """The status of a Response, `completed` if it has none; None for what is no Response."""
    if not (body.isascii() or rawjson.is_utf8(body)):
        return None
    try:
        members = dict(rawjson.split_object(body))
    except InvalidJSON:
        return None
    if members.get("object") != b'"response"' and members.get("output", b"")[:1] != b"[":
        return None
    return rawjson.string(members.get("status", b"")) or "completed"


def _response_in(frame: bytes) -> bytes:
    found = shapes.event(frame).response
    assert isinstance(found, Raw), "the relay has put it there"
    return bytes(found)


def _says(text: bytes, frame: bytes) -> bool:
    """Whether a frame is what a block says."""
    if text.endswith(b"data: " + frame):
        return True
    parsed = parse_block(text)
    return parsed is not None and parsed[1].strip(b" \t\n") == frame


def _with_data(block: bytes, text: bytes, frame: bytes) -> bytes:
    """A block with other data; its other lines, comments among them, and its line ends stay."""
    end = b"\r\n" if b"\r\n" in block else b"\n" if b"\n" in block else b"\r" if b"\r" in block else b"\n"
    lines: list[bytes] = []
    data = b"data: " + frame.replace(b"\n", b" ")
    for line in text.split(b"\n"):
        if line.removeprefix(b"\xef\xbb\xbf").partition(b":")[0] != b"data":
            lines.append(line)
        elif data not in lines:
            lines.append(data)
    return end.join(lines)
