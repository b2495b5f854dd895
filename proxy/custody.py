"""A response store in the hands of a proxy that has to go on without it.

A store may be another process one day: it can fail, and it can hang. Whatever happens to a lookup, the response is not
there, and the client sends its conversation again; whatever happens to a response that is handed in, it is not kept. Only
a deletion is not passed over: whoever asks for one has to know whether it was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Mapping
from typing import Final, TypeVar

import structlog

from proxy.protocol.chain import Entry
from proxy.protocol.errors import InternalError
from proxy.protocol.store import Owner, ResponseStore, StoredItem

_log: Final = structlog.get_logger("slipstream")

_LIMIT: Final = 5.0
"""Seconds for one question."""

T = TypeVar("T")


class Custody:
    """A :class:`~proxy.protocol.store.ResponseStore` that does not fail, apart from deletions.

    Args:
        store: The store that may.
    """

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def load(self, owner: Owner, response_id: str) -> Entry | None:
        """A response of this owner's; None if there is none of this id, or nobody can tell."""
        try:
            return await _in_time(self._store.load(owner, response_id))
        except Exception:  # noqa: BLE001 - whatever a store runs into
            _log.exception("response store failed", during="load")
            return None

    async def find_items(self, owner: Owner, item_ids: Collection[str]) -> Mapping[str, StoredItem]:
        """Items of this owner's responses by their own ids; what is not there is left out."""
        try:
            return await _in_time(self._store.find_items(owner, item_ids))
        except Exception:  # noqa: BLE001
            _log.exception("response store failed", during="find_items")
            return {}

    def save(self, owner: Owner, entry: Entry) -> None:
        """Keep a response, if that can be done."""
        try:
            self._store.save(owner, entry)
        except Exception:  # noqa: BLE001
            _log.exception("response store failed", during="save")

    async def delete(self, owner: Owner, response_id: str) -> bool:
        """Forget a response.

        Returns:
            Whether it was there.

        Raises:
            InternalError: nobody can tell whether it is forgotten.
        """
        try:
            return await _in_time(self._store.delete(owner, response_id))
        except Exception as exc:
            _log.exception("response store failed", during="delete")
            raise InternalError from exc


async def _in_time(answer: Awaitable[T]) -> T:
    async with asyncio.timeout(_LIMIT):
        return await answer
