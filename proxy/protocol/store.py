"""Responses that outlive their connection: what a client let be stored (`store` not false), for a while.

:class:`ResponseStore` is what a store has to be, so that one that processes share can take the place of
:class:`MemoryStore`. Whatever is in it belongs to an owner, who is whoever showed one credential; another owner is told
the same as for an id that never was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from proxy.protocol.chain import Entry, Ledger
from proxy.protocol.rawjson import Head
from proxy.protocol.transcript import find_items

Owner = bytes
"""A keyed hash of a client's whole credential."""

StoredItem = tuple[bytes, Head]
StoreEviction = Literal["age", "bytes", "deleted"]


class ResponseStore(Protocol):
    """Where responses are kept beyond their connection."""

    async def load(self, owner: Owner, response_id: str) -> Entry | None:
        """A response of this owner's; None if there is none of this id."""

    async def find_items(self, owner: Owner, item_ids: Collection[str]) -> Mapping[str, StoredItem]:
        """Items of this owner's responses by their own ids; what is not there is left out."""

    def save(self, owner: Owner, entry: Entry) -> None:
        """Keep a response; from now on `load` finds it."""

    async def delete(self, owner: Owner, response_id: str) -> bool:
        """Forget a response.

        Returns:
            Whether it was there.
        """


@dataclass(frozen=True, slots=True)
class _Kept:
    """One response; no entry where its id has become worthless."""

    entry: Entry | None
    expires: float


class MemoryStore:
    """A store in this process, with bounds in bytes and age. What was used longest ago goes first.

    Args:
        clock: Seconds, never going back.
        max_bytes: Bytes, at most, about.
        max_age: Seconds for which a response is kept, counted from when it was last used; 0 for no limit.
        on_evict: Told why, whenever one is forgotten.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        max_bytes: int,
        max_age: float,
        on_evict: Callable[[StoreEviction], object] = bool,
    ) -> None:
        self.max_bytes = max_bytes
        self._clock = clock
        self._max_age = max_age
        self._kept: OrderedDict[tuple[Owner, str], _Kept] = OrderedDict()
        self._ledger = Ledger()
        self._on_evict = on_evict

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def used(self) -> int:
        """Bytes in use, about."""
        return self._ledger.used

    def knows(self, owner: Owner, response_id: str) -> bool:
        """Whether an id was taken by one of this owner's responses, be it that two had it and it means neither."""
        return (owner, response_id) in self._kept

    async def load(self, owner: Owner, response_id: str) -> Entry | None:
        self._forget_old()
        kept = self._kept.get((owner, response_id))
        if kept is None:
            return None
        if kept.entry is not None:
            self._put((owner, response_id), kept.entry)
        return kept.entry

    async def find_items(self, owner: Owner, item_ids: Collection[str]) -> Mapping[str, StoredItem]:
        self._forget_old()
        mine = (kept.entry for (whose, _), kept in reversed(self._kept.items()) if whose == owner)
        return find_items((entry.transcript for entry in mine if entry is not None), item_ids)

    def save(self, owner: Owner, entry: Entry) -> None:
        key = (owner, entry.response_id)
        if self._drop(key):
            # A backend gave two responses one id. Whoever asks for it means one of them, and nobody knows which.
            self._put(key, None)
        else:
            self._ledger.hold(entry)
            self._put(key, entry)
        self._forget_old()
        while self._ledger.used > self.max_bytes:
            self._drop(next(iter(self._kept)))
            self._on_evict("bytes")

    async def delete(self, owner: Owner, response_id: str) -> bool:
        self._forget_old()
        is_there = await self.load(owner, response_id) is not None
        self._drop((owner, response_id))
        if is_there:
            self._on_evict("deleted")
        return is_there

    def _put(self, key: tuple[Owner, str], entry: Entry | None) -> None:
        """At the end of the order, which is that of their use and so that of their ends."""
        self._kept[key] = _Kept(entry, self._clock() + self._max_age)
        self._kept.move_to_end(key)

    def _drop(self, key: tuple[Owner, str]) -> bool:
        kept = self._kept.pop(key, None)
        if kept is not None and kept.entry is not None:
            self._ledger.release(kept.entry)
        return kept is not None

    def _forget_old(self) -> None:
        now = self._clock()
        while self._max_age and self._kept:
            key, kept = next(iter(self._kept.items()))
            if kept.expires > now:
                return
            self._drop(key)
            self._on_evict("age")
