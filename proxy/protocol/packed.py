"""A remembered response as bytes, for another process: with all of its transcript, and what it ran with.

Where its chain is stays behind: which replica has its prefix is for each process to find out.
"""

from __future__ import annotations

from typing import Final

import msgspec

from proxy.protocol import rawjson
from proxy.protocol.chain import Entry, Settings
from proxy.protocol.transcript import Transcript, extend, walk


class _Packed(msgspec.Struct, array_like=True):
    """An :class:`~proxy.protocol.chain.Entry`; its segments are lists of raw items, oldest first."""

    response_id: str
    lane: str | None
    segments: list[list[bytes]]
    settings: list[tuple[str, bytes]]
    depth: int
    is_warmup: bool
    brought: list[str]
    response: bytes
    output_items: int
    created_at: int
    may_be_stored: bool
    upstream_id: str | None
    tokens: int


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Packed)


def pack(entry: Entry) -> bytes:
    """An entry as bytes; :func:`unpack` makes its equal of them."""
    segments = [[segment.data[start:end] for _, start, end in segment.spans] for segment in walk(entry.transcript)]
    segments.reverse()
    packed = _Packed(
        entry.response_id,
        entry.lane,
        segments,
        list(entry.settings.fields),
        entry.depth,
        entry.is_warmup,
        sorted(entry.brought),
        entry.response,
        entry.output_items,
        entry.created_at,
        entry.may_be_stored,
        entry.upstream_id,
        entry.tokens,
    )
    return _encoder.encode(packed)


def unpack(data: bytes) -> Entry:
    """What :func:`pack` made bytes of; it shares nothing with any other entry.

    Raises:
        msgspec.DecodeError: it is nothing that `pack` made.
    """
    packed = _decoder.decode(data)
    transcript: Transcript = None
    for items in packed.segments:
        transcript = extend(transcript, items, [rawjson.head(item) for item in items])
    return Entry(
        packed.response_id,
        packed.lane,
        transcript,
        Settings(packed.settings),
        packed.depth,
        packed.is_warmup,
        frozenset(packed.brought),
        packed.response,
        packed.output_items,
        packed.created_at,
        packed.may_be_stored,
        packed.upstream_id,
        packed.tokens,
    )
