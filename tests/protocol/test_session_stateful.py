"""Any order of facts: what must always hold of a session.

A random client, a random backend and a random clock talk to one session while a naive model keeps the whole dialogue as
plain lists. After every fact the invariants are checked: an exchange that was opened ends once, a turn has one end, a turn
that did not complete leaves nothing behind, what is remembered stays within its bounds, and the body that goes upstream is
the one that a client which always sends everything would have sent.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.protocol.chain import CacheBudget
from proxy.protocol.effects import (
    CancelUpstream,
    CloseConnection,
    Effect,
    FinishUpstream,
    Observe,
    OpenUpstream,
    SendFrames,
)
from proxy.protocol.events import (
    ClientGone,
    DrainStarted,
    Event,
    LifetimeReached,
    SilenceReached,
    UpstreamBytes,
    UpstreamEnded,
    UpstreamFailed,
    UpstreamOpened,
)
from proxy.protocol.lanes import LaneLimits
from proxy.protocol.profiles import PROFILES, RequestRules
from proxy.protocol.records import TurnEnded
from proxy.protocol.routes import Route, RoutingTable
from proxy.protocol.session import Session
from proxy.protocol.settings import SessionSettings
from proxy.protocol.upstream_errors import UpstreamRefused
from tests.playbook import answer, create, frame, message, response, sse, user

LANES = st.sampled_from([None, "a", "b"])
TERMINALS = {"response.completed", "response.incomplete", "response.failed", "error"}
OUT_OF_ORDER = {"websocket_queue_full", "websocket_stream_limit_reached"}
MAX_BYTES = 40_000


@dataclass
class Asked:
    """A create as the model knows it.

    Attributes:
        previous: The id it names.
        items: Its input.
    """

    previous: str | None
    items: list[Any]


@dataclass
class Exchange:
    """An exchange as the backend knows it.

    Attributes:
        data: What is still to be sent.
        response_id: The id of what it answers.
        output: The items it answers with.
        is_open: Its head was sent.
    """

    data: bytes
    response_id: str
    output: list[Any]
    is_open: bool = False


class SessionMachine(RuleBasedStateMachine):
    """A client, a backend and a clock, at random."""

    @initialize(max_entries=st.integers(2, 8), in_flight=st.integers(1, 3), queued=st.integers(1, 4))
    def start(self, max_entries: int, in_flight: int, queued: int) -> None:
        """Begin with small bounds, so that they are met."""
        self.budget = CacheBudget(MAX_BYTES * 2)
        self.max_entries = max_entries
        self.session = Session(
            SessionSettings(
                RoutingTable(Route("default", RequestRules.of(PROFILES["generic"]))),
                lanes=LaneLimits(named=2, in_flight=in_flight, queued=queued),
                max_entries=max_entries,
                max_bytes=MAX_BYTES,
            ),
            self.budget,
            lambda kind: f"{kind}_{self.new_id()}",
        )
        self.in_flight = in_flight
        self.ids = 0
        self.turns = 0
        self.pending = 0
        self.is_over = False
        self.asked: dict[int, Asked] = {}
        self.exchanges: dict[int, Exchange] = {}
        self.opened: set[int] = set()
        self.ended: set[int] = set()
        self.answers: dict[int, list[Any]] = {}
        self.transcripts: dict[str, list[Any]] = {}
        self.has_begun: dict[str | None, bool] = {}

    def new_id(self) -> str:
        """An id nobody had before."""
        self.ids += 1
        return f"resp_{self.ids}"

    # What is said

    def tell(self, event: Event) -> None:
        """Tell the session, and carry out what it orders, as a driver would."""
        effects = self.session.receive(event)
        assert not (self.is_over and effects), "a closed session gives no orders"
        for effect in effects:
            self.carry_out(effect)

    def carry_out(self, effect: Effect) -> None:
        """Note an order and check it against what is known."""
        assert not self.is_over or isinstance(effect, CancelUpstream | Observe)
        match effect:
            case SendFrames(frames):
                assert frames
                for payload in frames:
                    self.see_frame(json.loads(payload))
            case OpenUpstream(turn, request):
                assert turn not in self.opened
                self.opened.add(turn)
                self.expect_body(turn, json.loads(request.body()))
                assert request.size == len(request.body())
            case FinishUpstream(turn):
                assert turn in self.exchanges
                assert turn not in self.ended
            case CancelUpstream(turn):
                assert turn in self.exchanges, "only what runs is cancelled"
                self.end(turn)
            case CloseConnection():
                self.is_over = True
            case Observe(record):
                if isinstance(record, TurnEnded):
                    self.see_end(record)

    def end(self, turn: int) -> None:
        """An exchange ends, and does so once."""
        assert turn not in self.ended
        self.ended.add(turn)
        del self.exchanges[turn]

    def see_frame(self, event: dict[str, Any]) -> None:
        """A frame reaches the client: within a lane a response begins only after the one before it has ended."""
        lane = event.get("stream_id")
        if event["type"] == "error" and event["error"]["code"] in OUT_OF_ORDER:
            return
        if event["type"] in TERMINALS:
            self.has_begun[lane] = False
        elif event["type"] == "response.created":
            assert not self.has_begun.get(lane)
            self.has_begun[lane] = True
        elif event["type"] != "keepalive":
            assert self.has_begun.get(lane), "nothing comes behind a turn's end"

    def see_end(self, record: TurnEnded) -> None:
        """A turn is over: the model keeps what completed, and nothing of what did not."""
        self.pending -= 1
        if record.outcome in ("completed", "incomplete", "warmup"):
            assert record.response_id is not None
            asked = self.asked[record.turn]
            before = self.transcripts[asked.previous] if asked.previous else []
            self.transcripts[record.response_id] = [*before, *asked.items, *self.answers.get(record.turn, [])]

    def expect_body(self, turn: int, body: dict[str, Any]) -> None:
        """The body is the one that a client sending everything would have sent."""
        assert not {"previous_response_id", "generate", "type", "stream_id"} & body.keys()
        asked = self.asked[turn]
        assert body["input"] == [*(self.transcripts[asked.previous] if asked.previous else []), *asked.items]
        response_id = self.new_id()
        self.answers[turn] = [message(f"answer {turn}", f"msg_{turn}")]
        self.exchanges[turn] = Exchange(answer(response_id, *self.answers[turn]), response_id, self.answers[turn])

    # The client

    @precondition(lambda self: self.pending < 5 and not self.is_over)
    @rule(
        lane=LANES, data=st.data(), text=st.text(max_size=300), is_warmup=st.sampled_from([False, False, False, True])
    )
    def ask(self, lane: str | None, data: st.DataObject, text: str, *, is_warmup: bool) -> None:
        """A create: a new chain, or from any response there ever was, or from one there never was."""
        self.turns += 1
        self.pending += 1
        known = list(self.transcripts)[-4:]
        previous = data.draw(st.sampled_from([*known, *known, None, "resp_never"]))
        asked = self.asked[self.turns] = Asked(previous, [user(f"{self.turns}: {text}")])
        fields: dict[str, Any] = {"input": asked.items, "previous_response_id": previous}
        if lane is not None:
            fields["stream_id"] = lane
        if is_warmup:
            fields["generate"] = False
        self.tell(create(**fields))

    @precondition(lambda self: self.turns % 5 == 4 and not self.is_over)
    @rule(data=st.sampled_from([b"{", b"[]", b'{"type":"x"}', b'{"type":"response.create","input":7}']))
    def say_nonsense(self, data: bytes) -> None:
        """A frame that cannot be understood."""
        self.turns += 1
        self.pending += 1
        self.tell(frame(data))

    @rule()
    @precondition(lambda self: len(self.opened) > 15)
    def leave(self) -> None:
        """The client goes away."""
        self.tell(ClientGone())
        self.is_over = True

    # The backend

    def some(self, data: st.DataObject) -> int:
        """Any exchange that is open."""
        return data.draw(st.sampled_from(sorted(self.exchanges)))

    @rule(data=st.data())
    @precondition(lambda self: self.exchanges)
    def answer_a_little(self, data: st.DataObject) -> None:
        """The backend sends its head, some bytes, or its end: cut anywhere."""
        turn = self.some(data)
        exchange = self.exchanges[turn]
        if not exchange.is_open:
            exchange.is_open = True
            self.tell(UpstreamOpened(turn))
        elif exchange.data:
            size = data.draw(st.integers(1, len(exchange.data)))
            piece, exchange.data = exchange.data[:size], exchange.data[size:]
            self.tell(UpstreamBytes(turn, piece))
        else:
            self.end(turn)
            self.tell(UpstreamEnded(turn))

    @rule(data=st.data())
    @precondition(lambda self: any(one.data for one in self.exchanges.values()))
    def answer_in_full(self, data: st.DataObject) -> None:
        """The backend sends all that is left of an answer; the end of its stream comes later."""
        turn = data.draw(st.sampled_from(sorted(turn for turn, one in self.exchanges.items() if one.data)))
        exchange = self.exchanges[turn]
        if not exchange.is_open:
            exchange.is_open = True
            self.tell(UpstreamOpened(turn))
        piece, exchange.data = exchange.data, b""
        self.tell(UpstreamBytes(turn, piece))

    @rule(data=st.data(), cut=st.booleans())
    @precondition(lambda self: self.exchanges and len(self.opened) % 4 == 0)
    def break_off(self, data: st.DataObject, *, cut: bool) -> None:
        """The exchange fails, or its stream ends early."""
        turn = self.some(data)
        is_open = self.exchanges[turn].is_open
        self.end(turn)
        failed = UpstreamFailed(turn, UpstreamRefused("no", status=500, type="server_error"))
        self.tell(UpstreamEnded(turn) if cut and is_open else failed)

    @rule(data=st.data())
    @precondition(lambda self: self.exchanges)
    def be_silent(self, data: st.DataObject) -> None:
        """Nothing happens for a while."""
        self.tell(SilenceReached(self.some(data)))

    # The clock

    @rule(event=st.sampled_from([LifetimeReached(), DrainStarted()]))
    @precondition(lambda self: len(self.opened) > 12)
    def grow_old(self, event: Event) -> None:
        """The connection has to end."""
        self.tell(event)

    # What always holds

    @invariant()
    def bounds_hold(self) -> None:
        """What is remembered, and what runs, stays within its bounds."""
        assert self.session.cache.used <= MAX_BYTES
        assert len(self.session.cache) <= self.max_entries
        assert self.budget.used == self.session.cache.used
        assert self.budget.entries == len(self.session.cache)
        assert 0 <= self.session.lanes.in_flight <= self.in_flight

    @invariant()
    def nothing_is_left_when_it_is_over(self) -> None:
        """A closed session has no exchange, and remembers nothing."""
        if self.is_over:
            assert not self.exchanges
            assert self.budget.used == 0

    @invariant()
    def only_what_completed_is_remembered(self) -> None:
        """A response whose terminal event has not come is not remembered."""
        for exchange in self.exchanges.values():
            if exchange.data:
                assert exchange.response_id not in self.session.cache


SessionMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestSession = pytest.mark.timeout(300)(SessionMachine.TestCase)


@given(
    cuts=st.lists(st.integers(0, 2000), max_size=12),
    texts=st.lists(st.text(max_size=40), min_size=1, max_size=5),
    style=st.sampled_from(["named", "unnamed", "crlf", "comments"]),
)
@settings(max_examples=80, deadline=None)
def test_cutting_the_bytes_anywhere_gives_the_same_frames(cuts: list[int], texts: list[str], style: str) -> None:
    """However a stream is written and cut into reads, the frames are the same."""
    deltas = [{"type": "response.output_text.delta", "item_id": "m", "delta": text} for text in texts]
    data = sse(
        {"type": "response.created", "response": response("resp_1", "in_progress")},
        {"type": "response.output_item.added", "item": message("", "m")},
        *deltas,
        {"type": "response.output_item.done", "item": message("".join(texts), "m")},
        {"type": "response.completed", "response": response("resp_1", items=[message("".join(texts), "m")])},
    )
    if style == "unnamed":
        data = b"".join(line + b"\n" for line in data.split(b"\n")[:-1] if not line.startswith(b"event:"))
    elif style == "crlf":
        data = data.replace(b"\n", b"\r\n")
    elif style == "comments":
        data = data.replace(b"\n\n", b"\n\n: ping\n\n")
    assert frames_for(data, cuts) == frames_for(data, [])


def frames_for(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """The frames of a stream that is cut at some places."""
    session = Session(
        SessionSettings(RoutingTable(Route("default", RequestRules.of(PROFILES["generic"])))),
        CacheBudget(2**20),
        lambda kind: f"{kind}_new",
    )
    session.receive(create(input="hi"))
    effects = session.receive(UpstreamOpened(1))
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, end in itertools.pairwise(places):
        effects += session.receive(UpstreamBytes(1, data[start:end]))
    effects += session.receive(UpstreamEnded(1))
    return [payload for effect in effects if isinstance(effect, SendFrames) for payload in effect.frames]
