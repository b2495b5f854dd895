"""A guard on what events and turns cost, in calls and allocations: a count is the same on every machine, a time is not.

The budget stands in `budget.json`; how to read and to change it, in `README.md`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import tracemalloc
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import proxy
from proxy.protocol.chain import CacheBudget
from proxy.protocol.effects import OpenUpstream
from proxy.protocol.events import FrameReceived, UpstreamBytes, UpstreamEnded, UpstreamOpened
from proxy.protocol.session import Session
from proxy.server import session_settings
from tests.fakes import (
    END,
    STREAM_HEAD,
    TEXT,
    RawClient,
    ScriptedUpstream,
    chunk,
    configure,
    create,
    created,
    delta,
    event,
    read,
    response,
    send,
    serving,
    stall,
    stream,
)

BUDGET: dict[str, float] = json.loads((Path(__file__).parent / "budget.json").read_text())
TOLERANCE = 1.1
OURS = str(Path(proxy.__file__).parent)


class Calls:
    """How often a function of the proxy was entered, or a coroutine of it went on."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, frame: FrameType, what: str, _: Any) -> None:
        """Look at one event of the interpreter's."""
        if what == "call" and frame.f_code.co_filename.startswith(OURS):
            self.count += 1


@contextlib.contextmanager
def counted() -> Iterator[Calls]:
    """Count calls, for as long as the context lasts."""
    calls = Calls()
    sys.setprofile(calls.note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def check(what: str, cost: float) -> None:
    """Compare with the budget: no more, and not so much less that the guard would sleep."""
    assert cost <= BUDGET[what] * TOLERANCE, f"{what}: {cost:.1f}, and the budget is {BUDGET[what]}"
    assert cost >= BUDGET[what] / 2, f"{what}: {cost:.1f}, far below {BUDGET[what]}: set the budget anew"


class Dialogue:
    """A session, and the turns of one chain."""

    def __init__(self) -> None:
        settings = session_settings(configure("http://127.0.0.1:1"))
        ids = count()
        self.session = Session(settings, CacheBudget(2**30), lambda kind: f"{kind}_{next(ids)}")
        self.turns = 0

    def ask(self, text: str) -> OpenUpstream:
        """A create that continues the newest response; what goes to the backend."""
        more = {"previous_response_id": f"resp_{self.turns}"} if self.turns else {}
        frame = create(text, store=False, tools=[], **more).encode()
        self.turns += 1
        (order,) = self.session.receive(FrameReceived(frame, 0.0, 0.0))
        assert isinstance(order, OpenUpstream)
        return order

    def answer(self) -> None:
        """The backend says a message of one word."""
        item = {"id": f"msg_{self.turns}", "type": "message", "role": "assistant", "status": "completed"}
        item["content"] = [{"type": "output_text", "text": "word", "annotations": []}]  # type: ignore[assignment]
        last = response(f"resp_{self.turns}", "completed", [item])
        data = created(f"resp_{self.turns}") + delta("word", 1)
        data += event("response.output_item.done", sequence_number=2, output_index=0, item=item)
        data += event("response.completed", sequence_number=3, response=last)
        self.session.receive(UpstreamOpened(self.turns))
        self.session.receive(UpstreamBytes(self.turns, data))
        self.session.receive(UpstreamEnded(self.turns))
        assert f"resp_{self.turns}" in self.session.cache


async def test_streamed_event_costs_no_more_calls() -> None:
    """From the read to the write, the adapters included: one event a read, which is what most streams are."""
    costs = []
    async with (
        ScriptedUpstream([read, send(STREAM_HEAD + chunk(created())), stall]) as upstream,
        serving(upstream) as product,
    ):
        with await RawClient.upgrade(product.address) as client:
            await client.send_frame(TEXT, create().encode())
            await client.read_frame()
            peer = await upstream.peer()
            for _ in range(4):
                with counted() as calls:
                    for number in range(32):  # two of them are timed
                        await peer.send(chunk(delta("word", number)))
                        await client.read_frame()
                costs.append(calls.count / 32)
    check("calls per streamed event", min(costs))  # a timer may run in the others, and the first one is examined


async def test_turn_costs_no_more_calls() -> None:
    """From the client's frame to the last one back, what is counted and logged included."""
    costs = []
    answers = [chunk(stream("word", response_id=f"resp_{number}")) for number in range(8)]
    steps = [step for data in answers for step in (read, send(STREAM_HEAD + data + END))]
    async with ScriptedUpstream(steps) as upstream, serving(upstream) as product:
        with await RawClient.upgrade(product.address) as client:
            for number in range(8):
                more = {"previous_response_id": f"resp_{number - 1}"} if number else {}
                with counted() as calls:
                    await client.send_frame(TEXT, create(store=False, **more).encode())
                    for _ in range(3):
                        await client.read_frame()
                costs.append(calls.count)
    check("calls per turn", min(costs[2:]))


def test_turn_of_the_core_costs_the_same_however_long_the_chain_is() -> None:
    """The splice and the relay alone; behind 150 turns as behind five."""
    dialogue = Dialogue()
    costs = {}
    for number in range(151):
        with counted() as calls:
            dialogue.ask("hi")
            dialogue.answer()
        costs[number] = calls.count
    assert costs[150] == costs[5]
    check("calls of the core per turn", costs[150])


def test_transcript_takes_little_more_than_its_bytes() -> None:
    """A chain of 200 turns and 1 MB, with all that is kept of each turn."""
    Dialogue().ask("hi")  # what is made once and stays
    tracemalloc.start()
    try:
        dialogue = Dialogue()
        for _ in range(200):
            dialogue.ask("x" * 5000)
            dialogue.answer()
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 < dialogue.session.cache.used / taken < 1.2  # what it says of itself is about right
    size = dialogue.ask("hi").request.replayed_bytes
    assert size > 10**6
    assert taken / size <= BUDGET["bytes of memory per byte of a transcript"]


def test_turn_behind_a_long_history_does_not_copy_it() -> None:
    """The request goes out in the pieces that are kept."""
    dialogue = Dialogue()
    dialogue.ask("x" * 2**20)
    dialogue.answer()
    tracemalloc.start()
    try:
        dialogue.ask("hi")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    check("bytes allocated per turn behind 1 MB", peak)
