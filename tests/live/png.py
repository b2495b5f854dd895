"""As much of PNG as a screenshot needs: how many colours it has."""

from __future__ import annotations

import struct
import zlib
from collections import Counter


def colours(png: bytes) -> tuple[int, int, Counter[bytes]]:
    """Width, height, and how often each colour is there, of a picture with 8 bits a channel."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    width = height = channels = 0
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        data = png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", data[:10])
            assert depth == 8
            channels = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            packed += data
        at += 12 + length
    raw = zlib.decompress(packed)
    found: Counter[bytes] = Counter()
    stride = width * channels
    before = bytes(stride)
    for row in range(height):
        start = row * (stride + 1)
        before = _unfilter(raw[start], raw[start + 1 : start + 1 + stride], before, channels)
        found.update(before[x : x + 3] for x in range(0, stride, channels))
    return width, height, found


def _unfilter(kind: int, line: bytes, above: bytes, channels: int) -> bytes:
    if kind == 0:
        return line
    out = bytearray(line)
    for at, value in enumerate(line):
        left = out[at - channels] if at >= channels else 0
        up = above[at]
        corner = above[at - channels] if at >= channels else 0
        guess = (0, left, up, (left + up) // 2, _paeth(left, up, corner))[kind]
        out[at] = (value + guess) & 255
    return bytes(out)


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    distances = abs(guess - left), abs(guess - up), abs(guess - corner)
    return (left, up, corner)[distances.index(min(distances))]
