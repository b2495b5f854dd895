"""WebSocket frames of a server: headers by size, fragments for what is long."""

from __future__ import annotations

import pytest

from proxy.protocol import frames
from proxy.protocol.frames import MAX_FRAME_BYTES, encode


@pytest.mark.parametrize(
    ("size", "header"),
    [
        (0, b"\x81\x00"),
        (125, b"\x81\x7d"),
        (126, b"\x81\x7e\x00\x7e"),
        (2047, b"\x81\x7e\x07\xff"),
        (2048, b"\x81\x7e\x08\x00"),
        (65535, b"\x81\x7e\xff\xff"),
        (65536, b"\x81\x7f\x00\x00\x00\x00\x00\x01\x00\x00"),
    ],
)
def test_header_has_the_shortest_form_for_the_size(size: int, header: bytes) -> None:
    """7, 16 or 64 bits of length, unmasked, final, text (RFC 6455 section 5.2)."""
    payload = b"x" * size
    assert encode([payload]) == header + payload


def test_several_messages_come_in_one_buffer() -> None:
    """All that is ready leaves together."""
    assert encode([b"a", b"bc"]) == b"\x81\x01a\x81\x02bc"


def test_message_of_just_the_limit_is_whole() -> None:
    """Only what is longer is cut."""
    assert encode([b"x" * MAX_FRAME_BYTES]).startswith(b"\x81\x7f")


@pytest.mark.parametrize("size", [MAX_FRAME_BYTES + 1, 2 * MAX_FRAME_BYTES, 2 * MAX_FRAME_BYTES + 5])
def test_long_message_is_sent_in_fragments(size: int) -> None:
    """Codex refuses a frame of 16 MiB: a text frame, continuations, the last one final."""
    payload = b"x" * size
    data = encode([payload])
    opcodes, pieces = [], b""
    while data:
        first, length = data[0], int.from_bytes(data[2:10], "big")
        start = 10
        if data[1] < 126:
            length, start = data[1], 2
        elif data[1] == 126:
            length, start = int.from_bytes(data[2:4], "big"), 4
        opcodes.append(first)
        assert length <= MAX_FRAME_BYTES
        pieces += data[start : start + length]
        data = data[start + length :]
    assert pieces == payload
    assert opcodes[0] == 0x01
    assert opcodes[-1] == 0x80
    assert set(opcodes[1:-1]) <= {0x00}


def test_ping_is_an_empty_control_frame() -> None:
    """Opcode 9, no payload."""
    assert frames.PING == b"\x89\x00"
