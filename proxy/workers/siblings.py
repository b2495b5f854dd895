"""A store for responses that knows of the other workers'.

A response stays with the worker that stored it, so that storing costs what it costs with one worker; whoever continues it
elsewhere asks. The others are asked even for what is stored here: a backend may have given one id to two responses on two
workers, and then it means neither, as it does on one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping
from typing import Protocol, TypeVar

import msgspec

from proxy.protocol import packed, rawjson
from proxy.protocol.chain import Entry
from proxy.protocol.store import MemoryStore, Owner, StoredItem
from proxy.workers.channel import ChannelLost
from proxy.workers.messages import Delete, Deleted, Find, Found, Load, Loaded

StoreQuestion = Load | Find | Delete
StoreAnswer = Loaded | Found | Deleted

A = TypeVar("A", bound=msgspec.Struct)


class Ask(Protocol):
    """Asks all other workers."""

    def __call__(self, question: StoreQuestion, expected: type[A], /) -> Awaitable[A]:
        """Ask; raises ChannelLost or TimeoutError."""


class Siblings:
    """A :class:`~proxy.protocol.store.ResponseStore` of several workers.

    Args:
        own: What this worker stores.
        ask: Asks the others.
    """

    def __init__(self, own: MemoryStore, ask: Ask) -> None:
        self._own = own
        self._ask = ask

    async def load(self, owner: Owner, response_id: str) -> Entry | None:
        """A response of this owner's; None if there is none of this id, or more than one."""
        entry, known = await self._own.load(owner, response_id), self._own.knows(owner, response_id)
        if not _can_be_sent(response_id):
            return entry
        others = await self._others(Load(owner, response_id), Loaded(0, None))
        if known + others.known != 1:
            return None
        return entry if others.entry is None else packed.unpack(others.entry)

    async def find_items(self, owner: Owner, item_ids: Collection[str]) -> Mapping[str, StoredItem]:
        """Items of this owner's responses by their own ids; what is not there is left out."""
        found = dict(await self._own.find_items(owner, item_ids))
        missing = [item_id for item_id in item_ids if item_id not in found and _can_be_sent(item_id)]
        if missing:
            others = await self._others(Find(owner, missing), Found({}))
            found |= {item_id: (item, rawjson.head(item)) for item_id, item in others.items.items()}
        return found

    def save(self, owner: Owner, entry: Entry) -> None:
        """Keep a response, here."""
        self._own.save(owner, entry)

    async def delete(self, owner: Owner, response_id: str) -> bool:
        """Forget a response, wherever it is.

        Returns:
            Whether it was there.

        Raises:
            ChannelLost: nobody can tell whether the others have forgotten it.
            TimeoutError: likewise.
        """
        was_here = await self._own.delete(owner, response_id)
        if not _can_be_sent(response_id):
            return was_here
        return (await self._ask(Delete(owner, response_id), Deleted)).was_there or was_here

    async def _others(self, question: StoreQuestion, nothing: A) -> A:
        try:
            return await self._ask(question, type(nothing))
        except (ChannelLost, TimeoutError):
            return nothing


async def answer(own: MemoryStore | None, question: StoreQuestion) -> StoreAnswer:
    """What one worker says when another one asks."""
    match question:
        case Load(owner, response_id):
            entry = None if own is None else await own.load(owner, response_id)
            known = own is not None and own.knows(owner, response_id)
            return Loaded(int(known), None if entry is None else packed.pack(entry))
        case Find(owner, item_ids):
            found = {} if own is None else await own.find_items(owner, item_ids)
            return Found({item_id: item for item_id, (item, _) in found.items()})
        case Delete(owner, response_id):
            return Deleted(own is not None and await own.delete(owner, response_id))


def answer_type(question: StoreQuestion) -> type[StoreAnswer]:
    """The type of a question's answer."""
    match question:
        case Load():
            return Loaded
        case Find():
            return Found
        case Delete():
            return Deleted


def combine(answers: Collection[StoreAnswer], question: StoreQuestion) -> StoreAnswer:
    """What several workers say, as one answer."""
    match question:
        case Load():
            loaded = [one for one in answers if isinstance(one, Loaded)]
            entries = [one.entry for one in loaded if one.entry is not None]
            return Loaded(sum(one.known for one in loaded), entries[0] if entries else None)
        case Find():
            found: dict[str, bytes] = {}
            for one in answers:
                if isinstance(one, Found):
                    found |= one.items
            return Found(found)
        case Delete():
            return Deleted(any(isinstance(one, Deleted) and one.was_there for one in answers))


def _can_be_sent(name: str) -> bool:
    """Whether it is text in UTF-8: JSON can hold halves of surrogate pairs, of which no id is made."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
