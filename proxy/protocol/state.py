"""What a session knows, and how it says what it wants done.

Shared by the modules that decide (:mod:`~proxy.protocol.session`, :mod:`~proxy.protocol.intake`,
:mod:`~proxy.protocol.endings`, :mod:`~proxy.protocol.steering`); nothing is decided here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from proxy.protocol import rescue, turns
from proxy.protocol.chain import ChainCache, Entry, Eviction
from proxy.protocol.controls import Steer
from proxy.protocol.effects import CloseConnection, Effect, Observe, SendFrames, StoreResponse
from proxy.protocol.errors import ProxyError
from proxy.protocol.lanes import Lane, Lanes, Turn
from proxy.protocol.records import Outcome, ResponseEvicted, TurnEnded
from proxy.protocol.relay import Relay
from proxy.protocol.reply import Reply, Unheard
from proxy.protocol.settings import SessionSettings

_REMEMBERED_ENDS: Final = 256

NewId = Callable[[str], str]
"""Makes a fresh id of a kind: `resp`, `steer`, `cmp`."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """The connection is to end once nothing runs.

    Attributes:
        close: How.
        error: What creates are answered from now on.
        is_announced: Whether the error is also said right before the close. Nothing else may stand there: a client that
            reads it later would take it for the answer to its next create.
    """

    close: CloseConnection
    error: ProxyError
    is_announced: bool


@dataclass(slots=True)
class State:
    """What a session knows.

    Attributes:
        settings: The operator's choices.
        new_id: Makes a fresh id.
        cache: What the connection remembers.
        lanes: What runs and what waits.
        exchanges: Those that are open, by turn number; None for the tail behind a response that is complete.
        streams: Those of them that have begun to stream and have no outcome yet.
        waiting: Steering input that waits for outputs of tools, by the response that it steered.
        ended: Whether the responses that ended last were completed, by their ids.
        leaving: How the connection is to end, once it is.
        outliving: Turns that may end although the client is gone, by their numbers.
        is_closed: Nothing matters any more.
        is_first_generation: The client has shown, or said, that it speaks the protocol's first generation.
        turns: How many there were.
        effects: What is to be done.
    """

    settings: SessionSettings
    new_id: NewId
    cache: ChainCache
    lanes: Lanes
    exchanges: dict[int, Lane | None] = field(default_factory=dict)
    streams: dict[int, Relay] = field(default_factory=dict)
    waiting: dict[str, list[Steer]] = field(default_factory=dict)
    ended: OrderedDict[str, bool] = field(default_factory=OrderedDict)
    leaving: Leaving | None = None
    outliving: dict[int, Turn] = field(default_factory=dict)
    is_closed: bool = False
    is_first_generation: bool = False
    turns: int = 0
    effects: list[Effect] = field(default_factory=list)

    def ordered(self) -> list[Effect]:
        """What is to be done, once."""
        effects, self.effects = self.effects, []
        return effects

    def send(self, frames: list[bytes]) -> None:
        """Frames for the client."""
        if frames:
            self.effects.append(SendFrames(frames))

    def reply_to(self, turn: Turn) -> Reply:
        """Begin the answer to a turn."""
        turn.stream = Reply(
            turns.echo(turn),
            stream_id=turn.record.lane,
            claim_id=self._claim_id,
            max_event_bytes=self.settings.max_event_bytes,
            says_done=self.settings.rollout,
        )
        return turn.stream

    def unheard(self, turn: Turn) -> Unheard:
        """An answer to a question of the proxy's own."""
        return Unheard(
            turns.echo(turn),
            stream_id=None,
            claim_id=lambda own: own or "",
            max_event_bytes=self.settings.max_event_bytes,
        )

    def _claim_id(self, response_id: str | None) -> str:
        """The id a response is known by: the backend's own, unless it has none or gave it to another one too."""
        if response_id is None or response_id in self.cache or response_id in self.ended:
            return self.new_id("resp")
        return self.new_id("resp") if self.lanes.running(response_id) else response_id

    def refuse(self, record: TurnEnded, error: ProxyError) -> None:
        """Answer what gets no place in its lane's order."""
        self.send([rescue.error_frame(error, stream_id=record.lane)])
        self.observe_end(record, "refused", error)

    def is_stored(self, turn: Turn) -> bool:
        """Whether what comes of a turn goes into the store."""
        return turn.may_be_stored and self.settings.stores

    def remember(self, entry: Entry) -> None:
        """Keep a response: before its last frame goes out, since the client may continue the moment it reads that."""
        self.observe_evictions(self.cache.commit(entry))
        if entry.may_be_stored and self.settings.stores:
            self.effects.append(StoreResponse(entry))

    def evict_parent(self, lane: Lane, turn: Turn) -> None:
        """A continuation that fails takes its parent with it, unless the parent belongs to another lane.

        (WebSocket guide, "Errors and recovery"; Open Responses: a failed continuation must evict the referenced id.)
        """
        if turn.parent is not None and turn.parent.lane == lane.name:
            eviction = self.cache.evict(turn.parent.response_id, "failed_continuation")
            self.observe_evictions([eviction] if eviction else [])

    def end(self, lane: Lane, turn: Turn, outcome: Outcome, error: ProxyError | None = None) -> None:
        """A turn is over; all that it had to say was said."""
        record = turn.record
        self.note_reply(turn)
        if record.response_id is not None:
            self.ended[record.response_id] = outcome in ("completed", "warmup")
            if len(self.ended) > _REMEMBERED_ENDS:
                self.ended.popitem(last=False)
        self.streams.pop(record.turn, None)
        self.observe_end(record, outcome, error)
        self.lanes.release(lane)

    def observe_gone(self, turn: Turn) -> None:
        """A turn whose client is gone."""
        self.note_reply(turn)
        self.observe_end(turn.record, "client_gone", None)

    def note_reply(self, turn: Turn) -> None:
        """Put into a turn's record what was said to its client."""
        if turn.stream is not None:
            turn.record.response_id = turn.stream.response_id
            turn.record.events, turn.record.relayed_bytes = turn.stream.events, turn.stream.size

    def observe_end(self, record: TurnEnded, outcome: Outcome, error: ProxyError | None) -> None:
        """Say how a turn ended."""
        record.outcome = outcome
        if error is not None:
            record.error_code, record.error_status, record.error_source = error.code, error.status, error.source
        self.effects.append(Observe(record))

    def observe_evictions(self, evictions: Sequence[Eviction]) -> None:
        """Say what was forgotten."""
        self.effects += [Observe(ResponseEvicted(eviction.reason)) for eviction in evictions]
