"""Records as bytes in a file: each with its length and a checksum, so that a torn one is seen.

A process that is killed, or a disk that is full, may leave a part of a record at a file's end. What is read ends there.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_HEAD: Final = struct.Struct("<IIQ")
"""Length of the payload, CRC-32 of what follows the CRC, and the time in milliseconds since 1970."""
_BEFORE_SUM: Final = 8

MAX_RECORD: Final = 64 * 2**10
"""Bytes of one record; a length above it is none."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One record.

    Attributes:
        milliseconds: When it was made, since 1970.
        payload: It, as JSON.
    """

    milliseconds: int
    payload: bytes

    @property
    def size(self) -> int:
        """Bytes that it takes in a segment."""
        return _HEAD.size + len(self.payload)


def pack(entries: Iterable[Entry]) -> bytes:
    """Records as they stand in a segment."""
    out = bytearray()
    for entry in entries:
        head = _HEAD.pack(len(entry.payload), 0, entry.milliseconds)
        checksum = zlib.crc32(entry.payload, zlib.crc32(head[_BEFORE_SUM:]))
        out += _HEAD.pack(len(entry.payload), checksum, entry.milliseconds) + entry.payload
    return bytes(out)


def unpack(data: bytes) -> Iterator[Entry]:
    """Records from the start of some bytes, up to the first that is not whole."""
    position = 0
    while position + _HEAD.size <= len(data):
        length, checksum, milliseconds = _HEAD.unpack_from(data, position)
        end = position + _HEAD.size + length
        if length > MAX_RECORD or end > len(data):
            return
        payload = data[position + _HEAD.size : end]
        head = data[position + _BEFORE_SUM : position + _HEAD.size]
        if zlib.crc32(payload, zlib.crc32(head)) != checksum:
            return
        yield Entry(milliseconds, payload)
        position = end
