"""What a connection remembers: responses, and the transcripts behind them.

What several responses share is counted once (:class:`Ledger`) and given back when none of them needs it any more.
Bounded twice: per connection (:class:`ChainCache`) and for the process (:class:`CacheBudget`), in bytes and entries.
When something has to go, the response that was used longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Literal

from proxy.protocol.errors import MissReason, PreviousResponseNotFound
from proxy.protocol.rawjson import Head, Pairs
from proxy.protocol.routes import Placement
from proxy.protocol.transcript import Segment, Transcript, find_items, walk

EvictionReason = Literal["connection_entries", "connection_bytes", "process_bytes", "failed_continuation"]

#: What the objects around an entry's bytes take, measured with tracemalloc on CPython 3.11 to 3.13.
ENTRY_OVERHEAD: Final = 800

_REMEMBERED_EVICTIONS: Final = 128


class Settings:
    """The body fields a response ran with, shared by all responses that ran with the same.

    Attributes:
        fields: Raw, as sent; without input.
        size: Bytes of names and values.
    """

    __slots__ = ("fields", "size")

    def __init__(self, fields: Pairs) -> None:
        self.fields = tuple(fields)
        self.size = sum(len(name) + len(value) for name, value in fields)


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
        output_items: How many of the transcript's last items are its output, or outputs of tools that came meanwhile.
        created_at: Unix seconds at which it was asked for.
        may_be_stored: Whether the client let it, and all before it in its chain, outlive the connection.
        upstream_id: The id under which the backend keeps it; None if it does not.
        tokens: Tokens of all that it saw and said, as the backend counted them; 0 where it did not.
        placement: Where its chain is; None where nobody knows.
    """

    response_id: str
    lane: str | None
    transcript: Transcript
    settings: Settings
    depth: int
    is_warmup: bool
    brought: frozenset[str]
    response: bytes
    output_items: int = 0
    created_at: int = 0
    may_be_stored: bool = False
    upstream_id: str | None = None
    tokens: int = 0
    placement: Placement | None = None

    @property
    def size(self) -> int:
        """Bytes of memory that it takes without its transcript and its settings, about."""
        return ENTRY_OVERHEAD + len(self.response)


class Ledger:
    """The bytes that some entries take, with what they share counted once.

    Attributes:
        used: Bytes, about.
    """

    def __init__(self) -> None:
        self.used = 0
        self._holders: dict[Segment | Settings, int] = {}

    def hold(self, entry: Entry) -> int:
        """Count an entry.

        Returns:
            The bytes by which `used` has grown.
        """
        before = self.used
        self.used += entry.size
        if self._take(entry.settings):
            self.used += entry.settings.size
        for segment in walk(entry.transcript):
            if not self._take(segment):
                break  # all before it are held by it
            self.used += segment.cost
        return self.used - before

    def release(self, entry: Entry) -> int:
        """Count an entry no longer.

        Returns:
            The bytes by which `used` has shrunk.
        """
        before = self.used
        self.used -= entry.size
        if self._give(entry.settings):
            self.used -= entry.settings.size
        for segment in walk(entry.transcript):
            if not self._give(segment):
                break
            self.used -= segment.cost
        return before - self.used

    def _take(self, thing: Segment | Settings) -> bool:
        """Whether nobody held it before."""
        holders = self._holders.get(thing, 0)
        self._holders[thing] = holders + 1
        return not holders

    def _give(self, thing: Segment | Settings) -> bool:
        """Whether nobody holds it any more."""
        holders = self._holders[thing] - 1
        if holders:
            self._holders[thing] = holders
        else:
            del self._holders[thing]
        return not holders


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
        self._ledger = Ledger()

    @property
    def used(self) -> int:
        """Bytes in use, about."""
        return self._ledger.used

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
        return find_items((entry.transcript for entry in reversed(self._entries.values())), item_ids)

    def commit(self, entry: Entry) -> list[Eviction]:
        """Remember a response, in place of any of the same id; what has to go for it is returned."""
        self._drop(entry.response_id)
        self._entries[entry.response_id] = entry
        self._budget.entries += 1
        self._budget.used += self._ledger.hold(entry)
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
        self._budget.used -= self._ledger.release(entry)
        return True
