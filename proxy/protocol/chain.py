"""What a connection remembers: responses, and the transcripts behind them.

A transcript is a linked list of segments, newest first, each the raw items of one turn. A turn adds one segment; two
responses that branch from the same parent share all before it, so memory grows with what was said and not with the
square of the turns. Segments are counted by reference and given back when no remembered response needs them.

Bounded twice: per connection (:class:`ChainCache`) and for the process (:class:`CacheBudget`), in bytes and entries.
When something has to go, the response that was used longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from proxy.protocol.errors import MissReason, PreviousResponseNotFound
from proxy.protocol.rawjson import Head, Pairs

EvictionReason = Literal["connection_entries", "connection_bytes", "process_bytes", "failed_continuation"]

#: What the objects around a segment's or an entry's bytes take, measured with tracemalloc on CPython 3.11 to 3.13.
SEGMENT_OVERHEAD: Final = 400
ENTRY_OVERHEAD: Final = 700
ITEM_OVERHEAD: Final = 180

_REMEMBERED_EVICTIONS: Final = 128


class Segment:
    """The items of one turn, and the way back to those before them.

    Attributes:
        parent: The segment before this one, or None at the start of a chain.
        data: The raw items, joined by commas; never empty.
        spans: For each item its head and where its bytes lie in `data` (start, end).
        items: Items in this segment and all before it.
        size: Bytes of `data` in this segment and all before it, commas between segments included.
        refs: How many entries and younger segments need this one.
    """

    __slots__ = ("data", "items", "parent", "refs", "size", "spans")

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
        self.refs = 0

    @property
    def cost(self) -> int:
        """Bytes of memory that this segment alone takes, about."""
        return len(self.data) + SEGMENT_OVERHEAD + ITEM_OVERHEAD * len(self.spans)


Transcript = Segment | None
"""The newest segment of a transcript, or None for the empty one."""


def extend(transcript: Transcript, items: Sequence[bytes], heads: Sequence[Head]) -> Transcript:
    """The transcript with items added at its end; itself if there are none."""
    return Segment(transcript, items, heads) if items else transcript


def segments(transcript: Transcript) -> list[bytes]:
    """The raw items of a transcript, oldest first, as one buffer a turn."""
    buffers = [segment.data for segment in _walk(transcript)]
    buffers.reverse()
    return buffers


def has_call(transcript: Transcript, call_id: str) -> bool:
    """Whether a tool call with this id stands in the transcript; the newest turns are looked at first."""
    return any(
        head.call_id == call_id and not is_call_output(head)
        for segment in _walk(transcript)
        for head, _, _ in segment.spans
    )


def is_call_output(head: Head) -> bool:
    """Whether an item is the output of a tool call (`function_call_output`, `custom_tool_call_output`, …)."""
    return head.type is not None and head.type.endswith("_output")


def _walk(transcript: Transcript) -> Iterator[Segment]:
    while transcript is not None:
        yield transcript
        transcript = transcript.parent


class Settings:
    """The body fields a response ran with, shared by all responses that ran with the same.

    Attributes:
        fields: Raw, as sent; without input.
        size: Bytes of names and values.
        refs: How many entries need them.
    """

    __slots__ = ("fields", "refs", "size")

    def __init__(self, fields: Pairs) -> None:
        self.fields = tuple(fields)
        self.size = sum(len(name) + len(value) for name, value in fields)
        self.refs = 0


def settings_like(fields: Pairs, earlier: Settings | None) -> Settings:
    """Settings with these fields: the earlier ones if they are equal, else new ones that share each equal value."""
    if earlier is None:
        return Settings(fields)
    if tuple(fields) == earlier.fields:
        return earlier
    known = dict(earlier.fields)
    return Settings([(name, known[name] if known.get(name) == value else value) for name, value in fields])


@dataclass(slots=True, eq=False)
class Entry:
    """One remembered response.

    Attributes:
        response_id: Its id, as the client knows it.
        lane: The lane it ran in; None for the default lane.
        transcript: All items that it saw and said.
        settings: What it ran with.
        depth: Turns since the start of its chain, 1 for the first.
        is_warmup: It was never run: a client prepared it with `generate: false`.
        brought: Fields that a warm-up brought and that no create has named since; they reach the backend.
        response: The terminal response object without what the transcript and the settings hold already.
    """

    response_id: str
    lane: str | None
    transcript: Transcript
    settings: Settings
    depth: int
    is_warmup: bool
    brought: frozenset[str]
    response: bytes


@dataclass(frozen=True, slots=True)
class Eviction:
    """A fact: a response is no longer remembered.

    Attributes:
        reason: Why.
        freed: Bytes that were given back; 0 where others still share them.
    """

    reason: EvictionReason
    freed: int


class CacheBudget:
    """The bytes that all connections of a process may remember together.

    Args:
        max_bytes: The bound.

    Attributes:
        used: Bytes in use, about.
        entries: Responses remembered.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used = 0
        self.entries = 0
        self._caches: OrderedDict[ChainCache, None] = OrderedDict()

    def touch(self, cache: ChainCache) -> None:
        """Note that a connection was used just now."""
        self._caches[cache] = None
        self._caches.move_to_end(cache)

    def forget(self, cache: ChainCache) -> None:
        """A connection is gone."""
        self._caches.pop(cache, None)

    def enforce(self) -> list[Eviction]:
        """Evict until the bound holds: from the connection that was used longest ago, its oldest response first."""
        evictions = []
        while self.used > self.max_bytes and self._caches:
            cache = next(iter(self._caches))
            eviction = cache.evict_oldest("process_bytes")
            if eviction is None:
                del self._caches[cache]
            else:
                evictions.append(eviction)
        return evictions


class ChainCache:
    """The responses that one connection remembers.

    Args:
        budget: The process-wide bound.
        max_entries: Responses, at most.
        max_bytes: Bytes, at most, about.
    """

    def __init__(self, budget: CacheBudget, *, max_entries: int, max_bytes: int) -> None:
        self._budget = budget
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._evicted: OrderedDict[str, MissReason] = OrderedDict()
        self.used = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, response_id: str) -> bool:
        return response_id in self._entries

    def resolve(self, response_id: str) -> Entry:
        """Find a response to continue.

        Raises:
            PreviousResponseNotFound: it is not remembered; the error knows why.
        """
        entry = self._entries.get(response_id)
        if entry is None:
            raise PreviousResponseNotFound(response_id, self._evicted.get(response_id, "unknown"))
        self._entries.move_to_end(response_id)
        self._budget.touch(self)
        return entry

    def find_items(self, item_ids: set[str]) -> dict[str, tuple[bytes, Head]]:
        """Items of any remembered transcript by their own ids; the newest response wins, what is absent is left out."""
        found: dict[str, tuple[bytes, Head]] = {}
        seen: set[Segment] = set()
        for entry in reversed(self._entries.values()):
            for segment in _walk(entry.transcript):
                if segment in seen:
                    break  # all before it were seen with it
                seen.add(segment)
                for head, start, end in segment.spans:
                    if head.id in item_ids and head.id not in found:
                        found[head.id] = segment.data[start:end], head
        return found

    def commit(self, entry: Entry) -> list[Eviction]:
        """Remember a response, in place of any of the same id; what has to go for it is returned."""
        self._drop(entry.response_id)
        self._entries[entry.response_id] = entry
        self._budget.entries += 1
        self._charge(ENTRY_OVERHEAD + len(entry.response))
        if entry.settings.refs == 0:
            self._charge(entry.settings.size)
        entry.settings.refs += 1
        self._hold(entry.transcript)
        self._budget.touch(self)
        evictions = []
        while len(self._entries) > self._max_entries:
            evictions += self._evict_next("connection_entries")
        while self.used > self._max_bytes:
            evictions += self._evict_next("connection_bytes")
        return evictions + self._budget.enforce()

    def evict(self, response_id: str, reason: EvictionReason) -> Eviction | None:
        """Forget one response, if it is there."""
        before = self.used
        if not self._drop(response_id):
            return None
        self._evicted[response_id] = "evicted_failed" if reason == "failed_continuation" else "evicted_limit"
        if len(self._evicted) > _REMEMBERED_EVICTIONS:
            self._evicted.popitem(last=False)
        return Eviction(reason, before - self.used)

    def evict_oldest(self, reason: EvictionReason) -> Eviction | None:
        """Forget the response that was used longest ago, if there is any."""
        if not self._entries:
            return None
        return self.evict(next(iter(self._entries)), reason)

    def close(self) -> None:
        """Forget everything: the connection is gone."""
        for response_id in list(self._entries):
            self._drop(response_id)
        self._evicted.clear()
        self._budget.forget(self)

    def _evict_next(self, reason: EvictionReason) -> list[Eviction]:
        eviction = self.evict_oldest(reason)
        assert eviction is not None, "bytes are in use although nothing is remembered"
        return [eviction]

    def _drop(self, response_id: str) -> bool:
        entry = self._entries.pop(response_id, None)
        if entry is None:
            return False
        self._budget.entries -= 1
        self._charge(-ENTRY_OVERHEAD - len(entry.response))
        entry.settings.refs -= 1
        if entry.settings.refs == 0:
            self._charge(-entry.settings.size)
        self._release(entry.transcript)
        return True

    def _hold(self, transcript: Transcript) -> None:
        # Down to the first segment that is held already: what lies below it is held by it.
        while transcript is not None:
            transcript.refs += 1
            if transcript.refs > 1:
                return
            self._charge(transcript.cost)
            transcript = transcript.parent

    def _release(self, transcript: Transcript) -> None:
        while transcript is not None:
            transcript.refs -= 1
            if transcript.refs > 0:
                return
            self._charge(-transcript.cost)
            transcript = transcript.parent

    def _charge(self, size: int) -> None:
        self.used += size
        self._budget.used += size
