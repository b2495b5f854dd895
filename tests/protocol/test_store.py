"""What outlives a connection: whose it is, how long it stays, and what it takes."""

from __future__ import annotations

from proxy.protocol.chain import Entry, Settings
from proxy.protocol.rawjson import Head
from proxy.protocol.store import MemoryStore
from proxy.protocol.transcript import Transcript, extend


class Clock:
    """Time that a test moves on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """What time it is."""
        return self.now


def entry(response_id: str, transcript: Transcript = None, settings: Settings | None = None) -> Entry:
    """A response to be stored."""
    return Entry(
        response_id, None, transcript, settings or Settings([]), 1, is_warmup=False, brought=frozenset(), response=b"{}"
    )


def item(text: bytes) -> Transcript:
    """A transcript of one item."""
    return extend(None, [text], [Head("message", text.decode())])


async def test_what_is_saved_is_there_for_its_owner_only() -> None:
    """Another owner's question is answered like one about an id that never was."""
    store = MemoryStore(Clock(), max_bytes=2**20, max_age=60)
    saved = entry("a")
    store.save(b"one", saved)
    assert await store.load(b"one", "a") is saved
    assert await store.load(b"two", "a") is None
    assert await store.load(b"one", "b") is None
    assert not await store.delete(b"two", "a")
    assert await store.delete(b"one", "a")
    assert not await store.delete(b"one", "a")
    assert len(store) == 0
    assert store.used == 0


async def test_items_are_found_by_their_own_ids() -> None:
    """An item of any of the owner's responses, the newest first; nobody else's."""
    store = MemoryStore(Clock(), max_bytes=2**20, max_age=60)
    store.save(b"one", entry("a", item(b"x")))
    store.save(b"two", entry("b", item(b"y")))
    assert await store.find_items(b"one", {"x", "y"}) == {"x": (b"x", Head("message", "x"))}
    assert await store.find_items(b"three", {"x"}) == {}


async def test_age_counts_from_the_last_use() -> None:
    """A chain that goes on stays; what nobody asked for goes."""
    clock = Clock()
    evicted: list[str] = []
    store = MemoryStore(clock, max_bytes=2**20, max_age=10, on_evict=evicted.append)
    store.save(b"one", entry("old"))
    store.save(b"one", entry("used"))
    clock.now += 9
    assert await store.load(b"one", "used") is not None
    clock.now += 2
    assert await store.load(b"one", "old") is None
    assert await store.load(b"one", "used") is not None
    assert evicted == ["age"]


async def test_no_age_means_no_age_limit() -> None:
    """0 keeps what the bytes allow."""
    clock = Clock()
    store = MemoryStore(clock, max_bytes=2**20, max_age=0)
    store.save(b"one", entry("a"))
    clock.now += 1e9
    assert await store.load(b"one", "a") is not None


async def test_bytes_are_bounded_and_shared_ones_count_once() -> None:
    """The response used longest ago makes room; a shared past takes its bytes once, and gives them back once."""
    evicted: list[str] = []
    store = MemoryStore(Clock(), max_bytes=20_000, max_age=0, on_evict=evicted.append)
    past = item(b"p" * 9_000)
    settings = Settings([("tools", b"t" * 1_000)])
    store.save(b"one", entry("a", past, settings))
    alone = store.used
    store.save(b"one", entry("b", extend(past, [b"x"], [Head()]), settings))
    assert store.used < alone + 5_000
    store.save(b"one", entry("c", item(b"q" * 9_000)))
    assert set(evicted) == {"bytes"}
    assert store.used <= 20_000
    assert await store.load(b"one", "a") is None
    assert await store.load(b"one", "c") is not None
    for response_id in ("b", "c"):
        await store.delete(b"one", response_id)
    assert store.used == 0


async def test_id_that_two_responses_have_is_worthless() -> None:
    """A backend that counts from one again: rather nothing than another conversation; and nothing is held for it."""
    store = MemoryStore(Clock(), max_bytes=2**20, max_age=0)
    for text in (b"x", b"y", b"z"):
        store.save(b"one", entry("a", item(text)))
    store.save(b"two", entry("a", item(b"mine")))
    assert await store.load(b"one", "a") is None
    assert await store.find_items(b"one", {"x", "y", "z"}) == {}
    assert not await store.delete(b"one", "a")
    assert await store.load(b"two", "a") is not None
    await store.delete(b"two", "a")
    assert store.used == 0
