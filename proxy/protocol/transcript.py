"""Transcripts: all items behind a response, as a linked list that branches share.

A transcript is a linked list of segments, newest first, each the raw items of one turn. A turn adds one segment; two
responses that branch from the same parent share all before it, so memory grows with what was said and not with the
square of the turns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from proxy.protocol.rawjson import Head

#: What the objects around a segment's bytes take, measured with tracemalloc on CPython 3.11 to 3.13.
SEGMENT_OVERHEAD: Final = 500
ITEM_OVERHEAD: Final = 180

COMPACTION: Final = "compaction"
"""The type of an item that stands for all before it (compaction guide)."""


class Segment:
    """The items of one turn, and the way back to those before them.

    Attributes:
        parent: The segment before this one, or None at the start of a chain.
        data: The raw items, joined by commas; never empty.
        spans: For each item its head and where its bytes lie in `data` (start, end).
        items: Items in this segment and all before it.
        size: Bytes of `data` in this segment and all before it, commas between segments included.
        holds_compaction: Whether a compaction item is among the items.
        is_literal: No compaction item is in this segment or before it, so that every backend gets them as they stand.
        buffers: What :func:`buffers_of` says, if that is known; only where it is likely to be asked for.
    """

    __slots__ = ("buffers", "data", "holds_compaction", "is_literal", "items", "parent", "size", "spans")

    def __init__(self, parent: Segment | None, items: Sequence[bytes], heads: Sequence[Head]) -> None:
        self.parent = parent
        self.data = b",".join(items)
        self.items: int = len(items) + (parent.items if parent else 0)
        self.size: int = len(self.data) + (parent.size + 1 if parent else 0)
        spans, at = [], 0
        for item, head in zip(items, heads, strict=True):
            spans.append((head, at, at + len(item)))
            at += len(item) + 1
        self.spans = tuple(spans)
        self.holds_compaction = last_compaction(heads) is not None
        self.is_literal: bool = not self.holds_compaction and (parent is None or parent.is_literal)
        self.buffers: list[bytes] | None = None
        if parent is not None and parent.buffers is not None:
            # A list is never copied: the newest segment of a chain has it, so that a turn costs what is new.
            self.buffers, parent.buffers = parent.buffers, None
            self.buffers += (self.data, b",")

    @property
    def cost(self) -> int:
        """Bytes of memory that this segment alone takes, about."""
        return len(self.data) + SEGMENT_OVERHEAD + ITEM_OVERHEAD * len(self.spans)


Transcript = Segment | None
"""The newest segment of a transcript, or None for the empty one."""


def extend(transcript: Transcript, items: Sequence[bytes], heads: Sequence[Head]) -> Transcript:
    """The transcript with items added at its end; itself if there are none."""
    return Segment(transcript, items, heads) if items else transcript


def walk(transcript: Transcript) -> Iterator[Segment]:
    """The segments of a transcript, newest first."""
    while transcript is not None:
        yield transcript
        transcript = transcript.parent


def buffers_of(transcript: Segment) -> list[bytes]:
    """The items of a transcript, oldest first, a buffer a turn and a comma behind each; the list is not to be changed.

    Who goes on from a segment that is not the newest of its chain walks back once.
    """
    if transcript.buffers is None:
        found = [buffer for segment in walk(transcript) for buffer in (b",", segment.data)]
        found.reverse()
        transcript.buffers = found
    return transcript.buffers


def items_of(transcript: Transcript) -> list[tuple[bytes, Head]]:
    """The items of a transcript, oldest first, each with its head."""
    found = [
        (segment.data[start:end], head) for segment in walk(transcript) for head, start, end in reversed(segment.spans)
    ]
    found.reverse()
    return found


def find_items(transcripts: Iterable[Transcript], item_ids: Collection[str]) -> dict[str, tuple[bytes, Head]]:
    """Items by their own ids; the first transcript that has one wins, what is in none is left out."""
    found: dict[str, tuple[bytes, Head]] = {}
    seen: set[Segment] = set()
    for transcript in transcripts:
        if len(found) == len(item_ids):
            break
        for segment in walk(transcript):
            if segment in seen:
                break  # all before it were seen with it
            seen.add(segment)
            for head, start, end in segment.spans:
                if head.id is not None and head.id in item_ids and head.id not in found:
                    found[head.id] = segment.data[start:end], head
    return found


def has_call(transcript: Transcript, call_id: str) -> bool:
    """Whether a tool call with this id stands in the transcript; the newest turns are looked at first."""
    return any(
        head.call_id == call_id and not is_call_output(head)
        for segment in walk(transcript)
        for head, _, _ in segment.spans
    )


def is_call_output(head: Head) -> bool:
    """Whether an item is the output of a tool call (`function_call_output`, `custom_tool_call_output`, …)."""
    return head.type is not None and head.type.endswith("_output")


def is_call(head: Head) -> bool:
    """Whether an item is a tool call that whoever reads it has to answer: those that a server runs have no `call_id`."""
    return head.type is not None and head.type.endswith("_call") and head.call_id is not None


def unanswered(heads: Iterable[Head]) -> list[Head]:
    """The tool calls among some items for which there is no output among them."""
    heads = list(heads)
    answered = {head.call_id for head in heads if is_call_output(head)}
    return [head for head in heads if is_call(head) and head.call_id not in answered]


def last_compaction(heads: Sequence[Head]) -> int | None:
    """Where the last compaction item stands among some items; None if there is none."""
    for index in range(len(heads) - 1, -1, -1):
        if heads[index].type == COMPACTION:
            return index
    return None
