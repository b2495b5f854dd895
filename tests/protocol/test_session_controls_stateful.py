"""Any order of facts, with all that a client can say while a response runs.

Beside `test_session_stateful.py`, whose client only asks: here it also cancels, interrupts, steers, injects, appends and
talks nonsense; the backend may keep responses and forget them, conversations are compacted, and a store answers late.
After every fact the invariants are checked: each exchange ends once, each turn has one end, frames stay in their lane's
order, accepted input ends as it must, and a backend is told what a client that always says everything would have said.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.protocol.chain import CacheBudget
from proxy.protocol.events import (
    ClientGone,
    DrainStarted,
    Event,
    LifetimeReached,
    Recalled,
    SilenceReached,
    UpstreamBytes,
    UpstreamEnded,
    UpstreamFailed,
    UpstreamOpened,
)
from proxy.protocol.lanes import LaneLimits
from proxy.protocol.profiles import PROFILES, Compaction, RequestRules
from proxy.protocol.routes import Route, RoutingTable
from proxy.protocol.settings import SessionSettings
from proxy.protocol.upstream_errors import UpstreamRefused
from tests.playbook import create, frame, output, user
from tests.protocol.dialogues import Asked, Backend, Exchange, said
from tests.protocol.witness import Witness

LANES = st.sampled_from([None, "a", "b"])
MAX_BYTES = 200_000
THRESHOLD = [{"type": "compaction", "compact_threshold": 1000}]
FORGOTTEN = UpstreamRefused("Response with id 'resp_x' not found.", status=404, type="invalid_request_error")
BROKEN = UpstreamRefused("no", status=500, type="server_error")
TOO_LONG = UpstreamRefused("too long", status=400, type="x", code="context_length_exceeded")
HOW = ["plain", "plain", "plain", "long", "long", "append", "warm-up", "trigger", "unstored"]
NONSENSE = [
    b"{",
    b'{"type":"x"}',
    b'{"type":"response.append","input":7}',
    b'{"type":"response.interrupt"}',
    b'{"type":"response.cancel","response_id":7}',
    b'{"type":"response.inject","response_id":"x","input":7}',
    b'{"type":"response.interrupt","response_id":"resp_never","mode":"discard_partial_items"}',
]


class ControlsMachine(Witness, RuleBasedStateMachine):
    """A client that says all it can, a backend, a store and a clock, at random."""

    @initialize(data=st.data(), flags=st.lists(st.booleans(), min_size=6, max_size=6))
    def start(self, data: st.DataObject, flags: list[bool]) -> None:
        """Begin with small bounds, so that they are met, and any kind of backend."""
        rollout, stores, keeps, side_by_side, numbers, lists = flags
        limits = LaneLimits(
            named=2,
            in_flight=data.draw(st.integers(1, 3)),
            queued=data.draw(st.sampled_from([2, 6, 6])),
            side_by_side=side_by_side,
        )
        self.settings = SessionSettings(
            RoutingTable(
                Route(
                    "default", RequestRules.of(PROFILES["generic"], keeps_responses=keeps, compaction=Compaction.PROXY)
                )
            ),
            lanes=limits,
            max_entries=data.draw(st.sampled_from([2, 4, 8, 8])),
            max_bytes=MAX_BYTES,
            rollout=rollout,
            stores=stores,
        )
        self.attend(self.settings, CacheBudget(MAX_BYTES * 2), Backend(numbers, lists))

    # The client

    @precondition(lambda self: not self.is_over and len(self.turns) - len(self.ended) < 3)
    @rule(data=st.data(), lane=LANES, how=st.sampled_from(HOW))
    def ask(self, data: st.DataObject, lane: str | None, how: str) -> None:
        """A create or an append: a new chain, or from any response there ever was, or from one there never was."""
        self.frames += 1
        tip = self.tips.get(self.order(lane))
        known = [*[tip] * 8, *list(self.transcripts)[-3:], None] if tip else [*list(self.transcripts)[-3:], None]
        previous = data.draw(st.sampled_from(known)) if self.frames % 9 else "resp_never"
        items = [user(f"{self.frames}")]
        if how == "append":
            previous = None
        if data.draw(st.sampled_from([True, True, False])):
            before = self.transcripts.get(previous or self.tips.get(self.order(lane)) or "", [])
            calls = {
                item["call_id"] for item in before if isinstance(item, dict) and item.get("type") == "function_call"
            }
            calls -= {item["call_id"] for item in before if isinstance(item, dict) and "output" in item}
            items = [*map(output, sorted(calls)), *items[: data.draw(st.integers(0, 1))]] or items
        asked = Asked(lane, previous, items, how == "append", how == "warm-up", how != "unstored")
        fields: dict[str, Any] = {"input": items} if lane is None else {"input": items, "stream_id": lane}
        number = self.session.state.turns + 1
        self.turns[number] = asked
        if how == "append":
            if self.rollout or self.may_be_first_generation():
                self.tell(frame({"type": "response.append", **fields}))
            else:
                del self.turns[number]
            return
        if how == "trigger":
            fields["input"] = [*items, {"type": "compaction_trigger"}]
        if how == "warm-up":
            fields["generate"] = False
        if how == "unstored":
            fields["store"] = False
        if how == "long":
            fields["context_management"] = THRESHOLD
        self.tell(create(previous_response_id=previous, **fields))

    def may_be_first_generation(self) -> bool:
        """Whether a client that chose nothing appends here all the same."""
        return self.frames % 4 == 0

    @precondition(lambda self: not self.is_over and self.transcripts and self.frames % 3 == 0)
    @rule(data=st.data(), lane=LANES, kind=st.sampled_from(["cancel", "cancel lane", "interrupt", "processed"]))
    def stop(self, data: st.DataObject, lane: str | None, kind: str) -> None:
        """The client wants no more of a response that runs, that has ended, or that waits."""
        if kind == "cancel lane":
            self.tell(frame({"type": "response.cancel", **({"stream_id": lane} if lane else {})}))
            return
        ids = [*(one.response_id for one in self.open.values()), list(self.transcripts)[-1]]
        self.tell(frame({"type": f"response.{kind}", "response_id": data.draw(st.sampled_from(ids))}))

    @precondition(lambda self: self.open and self.frames % 3)
    @rule(data=st.data(), text=st.sampled_from(["good", "good", "good", 7]))
    def steer(self, data: st.DataObject, text: Any) -> None:
        """Input for the response after one that runs, or for one that does not."""
        ids = [one.response_id for one in self.open.values()]
        name = data.draw(st.sampled_from([*ids, *ids, *ids, *list(self.transcripts)[-1:], "resp_never"]))
        self.frames += 1
        said = text if text == 7 else f"steer {self.frames}"
        self.tell(frame({"type": "response.steer", "previous_response_id": name, "input": said}), said)

    @precondition(lambda self: any(one.calls for one in self.open.values()))
    @rule(data=st.data())
    def inject(self, data: st.DataObject) -> None:
        """Outputs for a response that runs: those that it owes, or others."""
        one = data.draw(st.sampled_from([one for one in self.open.values() if one.calls]))
        calls = data.draw(st.lists(st.sampled_from([*one.calls, one.calls[-1]]), min_size=1, max_size=2))
        items = list(map(output, calls))
        self.tell(frame({"type": "response.inject", "response_id": one.response_id, "input": items}), items)

    @precondition(lambda self: self.frames % 6 == 5 and not self.is_over)
    @rule(data=st.sampled_from(NONSENSE))
    def say_nonsense(self, data: bytes) -> None:
        """A frame that cannot be understood, or names what never was."""
        self.frames += 1
        self.turns[self.session.state.turns + 1] = Asked(None, items=[None])
        self.tell(frame(data))

    @rule()
    @precondition(lambda self: self.opened > 15 and not self.is_over)
    def leave(self) -> None:
        """The client goes away."""
        self.tell(ClientGone())
        self.is_over = True

    @rule(number=st.integers(1, 30))
    @precondition(lambda self: self.is_over)
    def be_late(self, number: int) -> None:
        """What was on its way when the connection ended is passed over."""
        self.tell(UpstreamEnded(number))
        self.tell(Recalled(number, None, {}))
        self.tell(create(input="x"))

    # The backend and the store

    @rule(data=st.data(), cut=st.booleans())
    @precondition(lambda self: self.exchanges)
    def answer_in_full(self, data: st.DataObject, *, cut: bool) -> None:
        """The backend sends all that is left, to its last event."""
        number = data.draw(st.sampled_from(sorted(self.exchanges)))
        exchange = self.exchanges[number]
        if not exchange.is_open:
            self.answer(number, 1, data, cut=cut)
        if exchange.events:
            self.answer(number, len(exchange.events), data, cut=cut)

    @rule(data=st.data(), count=st.sampled_from([1, 3, 4, 5]))
    @precondition(lambda self: self.exchanges)
    def answer_a_little(self, data: st.DataObject, count: int) -> None:
        """The backend sends its head and some events, or its end."""
        number = data.draw(st.sampled_from(sorted(self.exchanges)))
        if not self.exchanges[number].is_open:
            self.answer(number, 1, data, cut=False)
        self.answer(number, count, data, cut=False)

    def answer(self, number: int, count: int, data: st.DataObject, *, cut: bool) -> None:
        """The backend sends its head, some events, or its end."""
        exchange = self.exchanges[number]
        if not exchange.is_open:
            self.answer_with(number, exchange, data)
            self.tell(UpstreamOpened(number))
        elif exchange.events:
            events, exchange.events = exchange.events[:count], exchange.events[count:]
            payload = b"".join(event for event, _ in events)
            exchange.is_cut = cut and not exchange.events
            self.hear(number, exchange, [item for _, item in events if item is not None])
            self.tell(UpstreamBytes(number, payload[:-2] if exchange.is_cut else payload))
        else:
            del self.exchanges[number]
            if exchange.is_cut:
                self.hear(number, exchange, [])
            self.tell(UpstreamEnded(number))

    def answer_with(self, number: int, exchange: Exchange, data: st.DataObject) -> None:
        """Settle the whole answer."""
        exchange.is_open = True
        wishes = (
            ["text"]
            if exchange.is_summary
            else data.draw(st.lists(st.sampled_from(["call", "call", "text"]), max_size=2))
        )
        kind = data.draw(st.sampled_from(["completed"] * 8 + ["incomplete", "failed"]))
        items = said(number, self.opened, wishes)
        tokens = data.draw(st.sampled_from([None, 10, 2000]))
        exchange.events = self.backend.answer(exchange.backend_id, items, kind, tokens)
        if exchange.is_summary and kind == "failed":
            exchange.backend_id = ""
        self.kept[exchange.backend_id] = [*exchange.known, *items]

    def hear(self, number: int, exchange: Exchange, items: list[Any]) -> None:
        """What the session is about to be told."""
        turn = self.turns[number]
        if number in self.ended:
            return
        if not exchange.is_summary:
            turn.said += items
        elif not exchange.events and not (exchange.is_cut and number in self.exchanges) and exchange.backend_id:
            turn.summary = "so"

    @rule(data=st.data(), error=st.sampled_from([None, BROKEN, TOO_LONG, FORGOTTEN]))
    @precondition(lambda self: self.exchanges and self.opened % 5 == 4)
    def break_off(self, data: st.DataObject, error: UpstreamRefused | None) -> None:
        """The exchange fails, or its stream ends early."""
        number = data.draw(st.sampled_from(sorted(self.exchanges)))
        exchange = self.exchanges.pop(number)
        if error is None and exchange.is_open:
            if exchange.is_cut:
                self.hear(number, exchange, [])
            self.tell(UpstreamEnded(number))
        else:
            self.tell(UpstreamFailed(number, error or BROKEN))

    @rule(data=st.data())
    @precondition(lambda self: any(one.continues and not one.is_open for one in self.exchanges.values()))
    def forget(self, data: st.DataObject) -> None:
        """A backend that was told an id does not know it any more: it is told everything, once, and nobody notices."""
        numbers = sorted(n for n, one in self.exchanges.items() if one.continues and not one.is_open)
        number = data.draw(st.sampled_from(numbers))
        del self.exchanges[number]
        self.tell(UpstreamFailed(number, FORGOTTEN))
        assert number in self.exchanges
        assert not self.exchanges[number].continues

    @rule(data=st.data(), is_there=st.booleans())
    @precondition(lambda self: self.recalls and not self.is_over)
    def recall(self, data: st.DataObject, *, is_there: bool) -> None:
        """The store answers, sooner or later, with what it has or without."""
        number = data.draw(st.sampled_from(sorted(self.recalls)))
        entry = self.store.get(self.recalls.pop(number) or "")
        self.tell(Recalled(number, entry if is_there else None, {}))

    @rule(data=st.data())
    @precondition(lambda self: self.exchanges and self.opened % 5 == 0)
    def be_silent(self, data: st.DataObject) -> None:
        """Nothing happens for a while."""
        self.tell(SilenceReached(data.draw(st.sampled_from(sorted(self.exchanges)))))

    @rule(event=st.sampled_from([LifetimeReached(), DrainStarted()]))
    @precondition(lambda self: self.opened > 10 and not self.is_over)
    def grow_old(self, event: Event) -> None:
        """The connection has to end."""
        self.tell(event)

    # What always holds

    @invariant()
    def bounds_hold(self) -> None:
        """What is remembered, and what runs, stays within its bounds."""
        cache, lanes = self.session.cache, self.session.lanes
        assert cache.used <= MAX_BYTES
        assert len(cache) <= self.settings.max_entries
        assert self.budget.used == cache.used
        assert self.budget.entries == len(cache)
        if not self.is_over:
            busy = sum(number not in self.ended for number in self.exchanges)
            waiting = sum(number not in self.ended for number in self.recalls)
            assert busy <= lanes.in_flight <= min(self.settings.lanes.in_flight, busy + waiting)
        assert self.side_by_side or len(self.open) <= 1
        assert all(one.is_finished for number, one in self.exchanges.items() if number in self.ended)

    @invariant()
    def nothing_is_left_when_it_is_over(self) -> None:
        """A closed session has no exchange, and remembers nothing."""
        if self.is_over:
            assert not self.exchanges
            assert self.budget.used == 0

    @invariant()
    def accepted_input_is_accounted_for(self) -> None:
        """When nothing runs or waits, all input that was accepted is in a conversation, handed back, or pending."""
        if not self.is_over and self.session.lanes.is_idle:
            assert all(one.state != "accepted" for one in self.steers.values())
            waiting = sum(map(len, self.session.state.waiting.values()))
            assert waiting == sum(one.state == "pending" for one in self.steers.values())


ControlsMachine.TestCase.settings = settings(max_examples=90, stateful_step_count=60, deadline=None)
TestControls = pytest.mark.timeout(300)(ControlsMachine.TestCase)
