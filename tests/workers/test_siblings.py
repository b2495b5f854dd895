"""A store for responses that knows of the other workers' (:mod:`proxy.workers.siblings`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar

import msgspec
import pytest

from proxy.protocol import rawjson
from proxy.protocol.chain import Entry, Settings
from proxy.protocol.store import MemoryStore
from proxy.protocol.transcript import extend, items_of
from proxy.workers import siblings
from proxy.workers.channel import ChannelLost
from proxy.workers.messages import Delete, Deleted, Find, Found, Load, Loaded
from proxy.workers.siblings import Siblings, StoreQuestion

A = TypeVar("A", bound=msgspec.Struct)

MINE, OTHERS = b"m" * 32, b"o" * 32


def entry(response_id: str = "resp_1", item_id: str = "msg_1") -> Entry:
    """A response with one item."""
    item = rawjson.dumps({"type": "message", "id": item_id})
    transcript = extend(None, [item], [rawjson.head(item)])
    return Entry(response_id, None, transcript, Settings([]), 1, is_warmup=False, brought=frozenset(), response=b"{}")


class Workers:
    """Several workers, and their way to each other.

    Args:
        count: How many.

    Attributes:
        stores: What each of them stores.
        failure: What asking the others ends in; None if it works.
    """

    def __init__(self, count: int = 3) -> None:
        self.stores = [MemoryStore(time.monotonic, max_bytes=10**6, max_age=60) for _ in range(count)]
        self.failure: Exception | None = None

    def __getitem__(self, number: int) -> Siblings:
        async def ask(question: StoreQuestion, expected: type[A]) -> A:
            if self.failure is not None:
                raise self.failure
            others: Sequence[MemoryStore] = [store for at, store in enumerate(self.stores) if at != number]
            answers = [await siblings.answer(store, question) for store in others]
            combined = siblings.combine(answers, question)
            assert isinstance(combined, expected)
            assert isinstance(combined, siblings.answer_type(question))
            return combined

        return Siblings(self.stores[number], ask)


@pytest.fixture
def workers() -> Workers:
    """Three workers."""
    return Workers()


async def test_response_is_found_from_everywhere(workers: Workers) -> None:
    """By its owner, wherever it was stored."""
    workers[1].save(MINE, entry())
    for number in range(3):
        found = await workers[number].load(MINE, "resp_1")
        assert found is not None
        assert items_of(found.transcript) == items_of(entry().transcript)
        assert await workers[number].load(OTHERS, "resp_1") is None
        assert await workers[number].load(MINE, "resp_2") is None


@pytest.mark.parametrize("places", [(0, 1), (1, 2), (0, 0), (1, 1), (1, 1, 2), (0, 0, 1)])
async def test_id_that_two_responses_have_is_worthless(workers: Workers, places: tuple[int, ...]) -> None:
    """On one worker or on two, whoever asks: nobody knows which is meant."""
    for place in places:
        workers[place].save(MINE, entry())
    for number in range(3):
        assert await workers[number].load(MINE, "resp_1") is None


async def test_items_are_found_from_everywhere(workers: Workers) -> None:
    """One's own first; of what nobody has there is nothing."""
    workers[0].save(MINE, entry("resp_a", "msg_a"))
    workers[1].save(MINE, entry("resp_b", "msg_b"))
    workers[2].save(MINE, entry("resp_c", "msg_c"))
    workers[2].save(OTHERS, entry("resp_d", "msg_d"))
    found = await workers[0].find_items(MINE, ["msg_a", "msg_b", "msg_c", "msg_d", "msg_e"])
    assert set(found) == {"msg_a", "msg_b", "msg_c"}
    item, head = found["msg_c"]
    assert rawjson.head(item) == head == rawjson.Head("message", "msg_c", None)


async def test_response_is_forgotten_everywhere(workers: Workers) -> None:
    """Whoever is told to; and it says whether there was anything."""
    workers[1].save(MINE, entry())
    assert not await workers[0].delete(OTHERS, "resp_1")
    assert await workers[0].delete(MINE, "resp_1")
    assert not await workers[2].delete(MINE, "resp_1")
    assert await workers[1].load(MINE, "resp_1") is None
    workers[2].save(MINE, entry())
    assert await workers[2].delete(MINE, "resp_1")


@pytest.mark.parametrize("failure", [ChannelLost(), TimeoutError()])
async def test_others_that_do_not_answer_have_nothing(workers: Workers, failure: Exception) -> None:
    """What is here is still found; but nobody is told that something is forgotten that may not be."""
    workers[0].save(MINE, entry())
    workers.failure = failure
    assert await workers[0].load(MINE, "resp_1") is not None
    assert await workers[1].load(MINE, "resp_1") is None
    assert set(await workers[0].find_items(MINE, ["msg_1", "msg_2"])) == {"msg_1"}
    with pytest.raises(type(failure)):
        await workers[1].delete(MINE, "resp_1")


async def test_id_that_is_no_text_is_nobodys(workers: Workers) -> None:
    """JSON can hold half a surrogate pair; no message between processes can."""
    for number in range(3):
        assert await workers[number].load(MINE, "resp_\ud800") is None
        assert await workers[number].find_items(MINE, ["msg_\ud800"]) == {}
        assert not await workers[number].delete(MINE, "resp_\ud800")


async def test_worker_without_a_store_has_nothing() -> None:
    """As when storing is off."""
    questions: list[StoreQuestion] = [
        Load(MINE, "x"),
        Find(MINE, ["x"]),
        Delete(MINE, "x"),
    ]
    answers = [await siblings.answer(None, question) for question in questions]
    assert answers == [Loaded(0, None), Found({}), Deleted(was_there=False)]
    for question, answer in zip(questions, answers, strict=True):
        assert siblings.combine([], question) == answer
