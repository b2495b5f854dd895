"""Who watches a random dialogue: it carries out what a session orders, and checks each order against the model.

A client, a backend and a store see no more of it than they could (`test_session_controls_stateful.py` moves them).
"""

from __future__ import annotations

import json
from typing import Any

from proxy.protocol.chain import CacheBudget, Entry
from proxy.protocol.effects import (
    CancelUpstream,
    CloseConnection,
    Effect,
    FinishUpstream,
    Observe,
    OpenUpstream,
    Recall,
    SendFrames,
    StoreResponse,
)
from proxy.protocol.events import Event
from proxy.protocol.records import TurnEnded
from proxy.protocol.session import Session
from proxy.protocol.settings import SessionSettings
from tests.playbook import user
from tests.protocol.dialogues import PROMPT, Asked, Backend, Exchange, Open, Steering, is_same

ENDS = {"response.completed", "response.incomplete", "response.failed", "response.done", "error"}
OUT_OF_ORDER = {"websocket_queue_full", "websocket_stream_limit_reached"}
REPLIES = ("response.steer.", "response.inject.")


class Witness:
    """What is known of one dialogue."""

    def attend(self, settings: SessionSettings, budget: CacheBudget, backend: Backend) -> None:
        """Begin.

        Args:
            settings: The session's.
            budget: What may be remembered in all.
            backend: How it answers.
        """
        self.backend, self.budget = backend, budget
        self.rollout, self.stores, self.keeps = (
            settings.rollout,
            settings.stores,
            settings.routes.default.rules.keeps_responses,
        )
        self.side_by_side = settings.lanes.side_by_side
        self.session = Session(settings, budget, self.new_id)
        self.ids = 0
        self.frames = 0
        self.is_over = False
        self.turns: dict[int, Asked] = {}
        self.ended: dict[int, str] = {}
        self.exchanges: dict[int, Exchange] = {}
        self.opened = 0
        self.recalls: dict[int, str | None] = {}
        self.store: dict[str, Entry] = {}
        self.transcripts: dict[str, list[Any]] = {}
        self.may_be_stored: dict[str, bool] = {}
        self.kept: dict[str, list[Any]] = {}
        self.tips: dict[str | None, str] = {}
        self.running: dict[str | None, int] = {}
        self.open: dict[str | None, Open] = {}
        self.seen: set[str] = set()
        self.ends = dict.fromkeys((None, "a", "b"), 0)
        self.steers: dict[str, Steering] = {}
        self.saying: Any = None
        self.just_ended: set[str | None] = set()

    def new_id(self, kind: str) -> str:
        """An id nobody had before."""
        self.ids += 1
        return f"{kind}_{self.ids}"

    def order(self, lane: str | None) -> str | None:
        """The lane in whose order a turn runs."""
        return lane if self.side_by_side else None

    # What is said

    def tell(self, event: Event, saying: Any = None) -> None:
        """Tell the session, and carry out what it orders, as a driver would."""
        self.saying = saying
        self.just_ended.clear()
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
                assert request.size == len(request.body())
                self.see_request(turn, json.loads(request.body()))
            case FinishUpstream(turn):
                self.exchanges[turn].is_finished = True
            case CancelUpstream(turn):
                del self.exchanges[turn]  # only what runs is cancelled
            case Recall(turn, response_id):
                assert self.stores
                assert turn not in self.recalls
                self.begin(turn)
                self.recalls[turn] = response_id
            case StoreResponse(entry):
                assert self.stores
                self.store[entry.response_id] = entry
            case CloseConnection():
                assert not self.open
                self.is_over = True
            case Observe(record):
                if isinstance(record, TurnEnded):
                    self.see_end(record)

    # What the backend sees

    def begin(self, number: int) -> Asked:
        """A turn begins: what it is made of is settled, input that steered its parent included."""
        turn = self.turns.get(number)
        if turn is None:  # a successor: nobody asked for it
            lane = self.session.lanes.lane_of(number)
            assert lane is not None
            assert lane.turn is not None
            parent = getattr(lane.turn.asked, "previous_response_id", None)
            turn = self.turns[number] = Asked(lane.turn.record.lane, parent)
            assert [one for one in self.steers.values() if one.response_id == parent and one.state == "accepted"]
            self.begin_with(number, turn, "accepted")
        elif turn.history is None:
            lane_name = self.order(turn.lane)
            late = [one for one in self.steers.values() if one.state == "accepted" and one.lane == lane_name]
            assert not late, "a successor comes first"
            if turn.appends:
                turn.previous = self.tips.get(self.order(turn.lane))
            self.begin_with(number, turn, "pending")
        self.running[self.order(turn.lane)] = number
        return turn

    def begin_with(self, number: int, turn: Asked, state: str) -> None:
        """Collect the history of a turn."""
        steers = [one for one in self.steers.values() if one.response_id == turn.previous and one.state == state]
        for one in steers:
            one.state, one.turn = "used", number
        before = self.transcripts.get(turn.previous, []) if turn.previous else []
        turn.history = [*before, *(one.item for one in steers), *turn.items]

    def see_request(self, number: int, body: dict[str, Any]) -> None:
        """The backend knows all that was said: from this body, or from what it keeps and this body."""
        assert number not in self.exchanges, "one exchange a turn"
        assert number not in self.ended
        assert not {"generate", "type", "stream_id", "context_management"} & body.keys()
        turn = self.begin(number)
        history = turn.history
        assert history is not None
        previous = body.get("previous_response_id")
        assert previous is None or self.keeps
        known = [*(self.kept[previous] if previous else []), *body["input"]]
        is_summary = bool(known) and known[-1] == PROMPT
        self.opened += 1
        if is_summary:
            assert previous is None
            sizes = [size for size in range(len(history) + 1) if is_same(known[:-1], history[:size])]
            assert sizes
            turn.absorbed = sizes[0]
            assert all(item.get("role") == "user" for item in history[turn.absorbed :])
            assert turn.absorbed, "a summary stands for something"
        else:
            if turn.summary is not None:
                turn.shorten()
            else:
                turn.history, turn.said, turn.injected = turn.whole, [], []
            assert turn.history is not None
            assert is_same(known, turn.history)
        backend_id = self.new_id("theirs") if self.keeps or self.opened % 3 else "theirs"
        self.exchanges[number] = Exchange([], backend_id, known, is_summary, previous is not None)

    # What the client sees

    def see_frame(self, event: dict[str, Any]) -> None:
        """A frame reaches the client: within a lane nothing stands between the turns."""
        kind, lane = event["type"], self.order(event.get("stream_id"))
        response = self.open.get(lane)
        if kind == "keepalive" or (kind == "error" and event["error"]["code"] in OUT_OF_ORDER):
            return
        if kind.startswith(REPLIES):
            self.see_reply(event, lane, response)
        elif kind == "response.created":
            assert response is None
            assert event["response"]["id"] not in self.seen, "an id is given once"
            self.seen.add(event["response"]["id"])
            self.open[lane] = Open(event["response"]["id"], event["sequence_number"])
            if (number := self.running.get(lane)) is not None:
                self.turns[number].began = True
        elif kind == "error":
            self.open.pop(lane, None)
        else:
            assert response is not None, "nothing comes behind a turn's end"
            self.see_number(event, response)
            if kind == "response.output_item.done" and event["item"]["type"] == "function_call":
                response.calls.append(event["item"]["call_id"])
            assert event.get("response", {}).get("id", response.response_id) == response.response_id
        if kind in ENDS:
            assert kind != "response.done" or self.rollout
            self.ends[lane] += 1
            self.open.pop(lane, None)
            self.just_ended.add(lane)

    def see_number(self, event: dict[str, Any], response: Open) -> None:
        """Numbers go up; where the backend gives them, they are not shifted for what the proxy says in between."""
        response.is_disturbed |= event["type"].startswith(REPLIES)
        if not (self.backend.numbers and response.is_disturbed):
            assert event["sequence_number"] > response.last, event
        response.last = event["sequence_number"]

    def see_reply(self, event: dict[str, Any], lane: str | None, response: Open | None) -> None:
        """A word about input for a response that runs."""
        kind = event["type"]
        if kind == "response.steer.failed" and "id" in event["steer"]:
            steer = self.steers[event["steer"]["id"]]
            assert steer.state != "back", "handed back once"
            assert steer.turn is None or not self.turns[steer.turn].began, "what has begun is not handed back"
            assert event["steer"]["input"] == steer.item["content"]
            steer.state = "back"
        elif kind in ("response.steer.failed", "response.inject.failed"):
            assert self.saying is not None, "a refusal answers at once"
            return
        elif kind == "response.steer.pending":
            assert response is None
            assert lane in self.just_ended
            steer = self.steers[event["steer"]["id"]]
            assert steer.state == "accepted"
            assert event["required_input"]
            steer.state = "pending"
        elif kind == "response.steer.accepted":
            assert response is not None
            assert event["steer"]["previous_response_id"] == response.response_id
            self.steers[event["steer"]["id"]] = Steering(lane, response.response_id, user(self.saying))
        else:
            assert response is not None
            names = [item["call_id"] for item in self.saying]
            assert set(names) <= set(response.calls) - set(response.answered), "only what is owed"
            response.answered += names
            self.turns[self.running[lane]].injected += self.saying
        if response is not None:
            self.see_number(event, response)

    def see_end(self, record: TurnEnded) -> None:
        """A turn is over: the model keeps what stays, and nothing of what does not."""
        assert record.turn not in self.ended
        self.ended[record.turn] = record.outcome
        if record.error_code in OUT_OF_ORDER or record.outcome == "client_gone":
            return
        lane = self.order(record.lane)
        is_successor = record.turn not in self.turns
        if is_successor:
            assert not self.ends[lane] or record.outcome == "cancelled", "nobody asked for it"
            self.turns[record.turn] = Asked(record.lane, record.previous_response_id)
        turn = self.turns[record.turn]
        # Of a successor that never began nothing is said but that its input is handed back.
        assert self.ends[lane] == 1 or (not self.ends[lane] and record.outcome in ("error", "refused"))
        assert self.ends[lane] or (not turn.items and not turn.began)
        self.ends[lane] = 0
        assert lane not in self.open
        self.running.pop(lane, None)
        if record.outcome in ("failed", "error", "refused"):
            assert (record.response_id or "") not in self.session.cache
            assert record.response_id not in self.store
            return
        assert record.response_id is not None
        if turn.history is None:
            if turn.appends:
                turn.previous = self.tips.get(lane)
            self.begin_with(record.turn, turn, "accepted" if is_successor else "pending")
        if turn.summary is not None:
            turn.shorten()
        self.transcripts[record.response_id] = turn.whole
        self.tips[lane] = record.response_id
        may_be_stored = turn.store and self.may_be_stored.get(turn.previous or "", True)
        self.may_be_stored[record.response_id] = may_be_stored
        assert (record.response_id in self.store) is (may_be_stored and self.stores)
