"""Server-sent events, cut from a byte stream without decoding it (WHATWG HTML, "Parsing an event stream").

Lines end in LF, CRLF or CR and in nothing else: U+2028 and its like are legal inside JSON text, which is why
``str.splitlines`` is of no use here. However the bytes are cut on their way, the same blocks come out.
"""

from __future__ import annotations

_BOM = b"\xef\xbb\xbf"
_LF = 0x0A
_CR = 0x0D
"""As numbers: whether a number is in bytes is asked of memchr at once, while bytes are first taken for one in vain."""


class Splitter:
    """Cuts a stream into the blocks between blank lines.

    A block is what stands between two blank lines, its line ends unified to LF. Nothing else is looked at: a stream of
    well-formed events costs one ``bytes.split`` a read. :func:`parse_block` reads one block in full.

    Args:
        max_block_bytes: How long one event may get.

    Attributes:
        overflow: An event got longer than allowed; it and whatever came behind it is not given out.
    """

    def __init__(self, max_block_bytes: int) -> None:
        self._max = max_block_bytes
        self._pending = bytearray()
        self._searched = 0
        self._after_cr = False
        self.overflow = False

    def feed(self, data: bytes) -> list[bytes]:
        """Take some bytes; the blocks that are complete with them, empty ones among them."""
        if self._pending or self._after_cr or _CR in data:
            data = self._join(data)
        blocks = data.split(b"\n\n")
        tail = blocks.pop()
        if tail:
            self._pending += tail
            self._searched = len(tail)
        return self._within_limit(blocks) if len(data) > self._max else blocks

    def end(self) -> bytes:
        """The stream has ended: what is left without a blank line behind it."""
        return bytes(self._pending)

    def _join(self, data: bytes) -> bytes:
        """Put bytes behind what is pending; nothing comes back, and all is pending, while no blank line is in it."""
        if self._after_cr or _CR in data:
            data = self._unify_line_ends(data)
        if not self._pending:
            return data
        self._pending += data
        # The blank line may lie across the border of two reads.
        if self._pending.find(b"\n\n", max(self._searched - 1, 0)) < 0:
            self._searched = len(self._pending)
            self.overflow = self.overflow or self._searched > self._max
            return b""
        data = bytes(self._pending)
        self._pending.clear()
        return data

    def _within_limit(self, blocks: list[bytes]) -> list[bytes]:
        for index, block in enumerate(blocks):
            if len(block) > self._max:
                self.overflow = True
                return blocks[:index]
        self.overflow = len(self._pending) > self._max
        return blocks

    def _unify_line_ends(self, data: bytes) -> bytes:
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]  # the second half of a CRLF whose first half was taken for a line end
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def parse_block(block: bytes) -> tuple[bytes, bytes] | None:
    """Read one block by the rules.

    Args:
        block: Lines with LF between them.

    Returns:
        The event's name (empty if it has none) and its data, or None for a block without data (comments, keepalives).
    """
    head, mark, text = block.partition(b"\ndata: ")
    if mark and head[:7] == b"event: " and _LF not in head and _LF not in text:
        return head[7:], text  # what nearly all look like
    name, data = b"", []
    for line in block.removeprefix(_BOM).split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    return (name, b"\n".join(data)) if data else None
