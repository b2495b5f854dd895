"""WebSocket frames of a server: headers in front of payloads (RFC 6455 section 5.2).

A server's frames are not masked, so a frame is its header and its payload as they are, and any number of them can be
joined into one write. Text only: Codex and opencode take a binary frame for a stream error.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

MAX_FRAME_BYTES: Final = 8 * 2**20
"""Longer messages are sent in fragments: Codex refuses a frame of 16 MiB or more, though not a message."""

PING: Final = b"\x89\x00"

_FIN: Final = 0x80
_TEXT: Final = 0x1
_CONTINUATION: Final = 0x0
_HEADER_16: Final = Struct("!BBH").pack
_HEADER_64: Final = Struct("!BBQ").pack


def encode(payloads: Sequence[bytes]) -> bytes:
    """One buffer with a text message for each payload, in order."""
    if len(payloads) == 1 and len(payloads[0]) < len(_TEXT_HEADERS):
        return _TEXT_HEADERS[len(payloads[0])] + payloads[0]
    parts: list[bytes] = []
    for payload in payloads:
        size = len(payload)
        if size < len(_TEXT_HEADERS):
            parts += (_TEXT_HEADERS[size], payload)
        elif size <= MAX_FRAME_BYTES:
            parts += (_header(_FIN | _TEXT, size), payload)
        else:
            _fragment(payload, parts)
    return b"".join(parts)


def _fragment(payload: bytes, parts: list[bytes]) -> None:
    """A message in several frames, none of them longer than allowed (section 5.4)."""
    opcode = _TEXT
    for start in range(0, len(payload), MAX_FRAME_BYTES):
        piece = payload[start : start + MAX_FRAME_BYTES]
        last = start + MAX_FRAME_BYTES >= len(payload)
        parts += (_header((_FIN if last else 0) | opcode, len(piece)), piece)
        opcode = _CONTINUATION


def _header(first: int, size: int) -> bytes:
    if size < 126:
        return bytes((first, size))
    if size < 65536:
        return _HEADER_16(first, 126, size)
    return _HEADER_64(first, 127, size)


#: Headers of whole text messages, for the sizes that most events have.
_TEXT_HEADERS: Final = tuple(_header(_FIN | _TEXT, size) for size in range(2048))
