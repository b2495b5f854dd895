"""Dialogues with a session, written down and played.

A :class:`Playbook` drives one :class:`~proxy.protocol.session.Session`: ``book >> fact`` tells it something, ``book << order``
says what must come of it next. Orders are described, not spelt out: :func:`sends` looks at frames as JSON, :func:`opens` at
the body that goes upstream. A play that ends with orders nobody spoke of fails, and a failure shows the dialogue so far.
Records are only looked at where :func:`observes` asks for one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

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
from proxy.protocol.events import Event, FrameReceived, UpstreamBytes, UpstreamEnded, UpstreamOpened
from proxy.protocol.profiles import PROFILES, RequestRules
from proxy.protocol.records import ResponseEvicted, TurnEnded
from proxy.protocol.routes import Route, RoutingTable
from proxy.protocol.session import Session
from proxy.protocol.settings import SessionSettings

NOW = 1_700_000_000


class Expectation:
    """One order that must come, described.

    Args:
        text: How it reads in a failure.
        fits: Whether an order is the one.
        kind: The kind of order it speaks of.
    """

    def __init__(self, text: str, kind: type[Effect], fits: Callable[[Any], bool]) -> None:
        self.text = text
        self.kind = kind
        self.fits = fits


def sends(*frames: str | dict[str, Any] | bytes) -> Expectation:
    """Frames go out together: each given by its type, by some of its members, or byte for byte."""

    def fits(effect: SendFrames) -> bool:
        return len(effect.frames) == len(frames) and all(map(_frame_fits, effect.frames, frames))

    return Expectation(f"sends {frames}", SendFrames, fits)


def opens(body: dict[str, Any] | None = None, **members: Any) -> Expectation:
    """A request goes upstream: with just this body, or with at least these members."""

    def fits(effect: OpenUpstream) -> bool:
        actual = json.loads(effect.request.body())
        if body is not None:
            return bool(actual == {**body, "stream": True})
        return _contains(actual, members)

    return Expectation(f"opens {body if body is not None else members}", OpenUpstream, fits)


def finishes(turn: int) -> Expectation:
    """The exchange may read what is left."""
    return Expectation(f"finishes {turn}", FinishUpstream, lambda effect: bool(effect.turn == turn))


def cancels(turn: int) -> Expectation:
    """The exchange is stopped."""
    return Expectation(f"cancels {turn}", CancelUpstream, lambda effect: bool(effect.turn == turn))


def closes(code: int) -> Expectation:
    """The connection is closed."""
    return Expectation(f"closes {code}", CloseConnection, lambda effect: bool(effect.code == code))


def observes(**facts: Any) -> Expectation:
    """A turn's record says at least this."""

    def fits(effect: Observe) -> bool:
        record = effect.record
        return isinstance(record, TurnEnded) and all(getattr(record, name) == value for name, value in facts.items())

    return Expectation(f"observes {facts}", Observe, fits)


def evicts(reason: str) -> Expectation:
    """A response is forgotten."""

    def fits(effect: Observe) -> bool:
        return isinstance(effect.record, ResponseEvicted) and effect.record.reason == reason

    return Expectation(f"evicts {reason}", Observe, fits)


class Playbook:
    """One dialogue with a fresh session.

    Args:
        budget: What may be remembered in all.
        profile: The kind of backend.
        settings: Settings of the session, by name.
    """

    def __init__(self, *, budget: CacheBudget | None = None, profile: str = "generic", **settings: Any) -> None:
        self.budget = budget or CacheBudget(2**30)
        self.ids = 0
        rules = settings.pop("rules", None) or RequestRules.of(PROFILES[profile])
        route = Route("default", rules, overflow_fails=settings.pop("overflow_fails", True))
        routes = settings.pop("routes", None) or RoutingTable(route)
        self.session = Session(SessionSettings(routes, **settings), self.budget, self._new_id)
        self._left: list[Effect] = []
        self._log: list[str] = []

    def _new_id(self, kind: str) -> str:
        self.ids += 1
        return f"{kind}_new{self.ids}"

    def __rshift__(self, event: Event) -> Self:
        self._log.append(f">> {_show(event)}")
        self._left += self.session.receive(event)
        return self

    def __lshift__(self, expected: Expectation) -> Self:
        self._log.append(f"<< {expected.text}")
        while self._left:
            effect = self._left.pop(0)
            if isinstance(effect, expected.kind) and expected.fits(effect):
                return self
            if not isinstance(effect, Observe):
                self._fail(f"came instead: {_show(effect)}")
        self._fail("nothing more came")
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.nothing_more()

    def nothing_more(self) -> None:
        """No order is left that nobody spoke of."""
        left = [effect for effect in self._left if not isinstance(effect, Observe)]
        self._left.clear()
        if left:
            self._fail("nobody expected: " + "; ".join(map(_show, left)))

    def _fail(self, reason: str) -> None:
        raise AssertionError("\n".join([*self._log, f"!! {reason}"]))


def create(**fields: Any) -> FrameReceived:
    """A client's `response.create`, with a model unless one is given."""
    return frame({"type": "response.create", "model": "m", **fields})


def frame(message: Any) -> FrameReceived:
    """Any message of a client; bytes as they are, all else as JSON."""
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    return FrameReceived(data, NOW, 0.0)


def sse(*events: dict[str, Any] | bytes) -> bytes:
    """A backend's stream: events with their names, as OpenAI writes them."""
    return b"".join(
        event
        if isinstance(event, bytes)
        else b"event: %s\ndata: %s\n\n" % (event["type"].encode(), json.dumps(event, separators=(",", ":")).encode())
        for event in events
    )


def message(text: str, item_id: str = "msg_1") -> dict[str, Any]:
    """A finished assistant message."""
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": item_id, "role": "assistant", "status": "completed", "content": [part]}


def call(call_id: str, item_id: str | None = None) -> dict[str, Any]:
    """A finished call of a function."""
    item_id = item_id or f"fc_{call_id}"
    return {
        "type": "function_call",
        "id": item_id,
        "call_id": call_id,
        "name": "f",
        "arguments": "{}",
        "status": "completed",
    }


def output(call_id: str, text: str = "ok") -> dict[str, Any]:
    """The output of a call."""
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def user(text: str) -> dict[str, Any]:
    """A user's message."""
    return {"type": "message", "role": "user", "content": text}


def response(response_id: str, status: str = "completed", items: Sequence[Any] = (), **members: Any) -> dict[str, Any]:
    """A response object, complete but for what a test adds."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": 1,
        "status": status,
        "model": "m",
        "output": list(items),
        **members,
    }


def answer(response_id: str, *items: dict[str, Any], kind: str = "completed", **members: Any) -> bytes:
    """A whole stream: created, each item done, terminal with a full snapshot."""
    numbers = iter(range(1000))
    events: list[dict[str, Any] | bytes] = [
        {"type": "response.created", "sequence_number": next(numbers), "response": response(response_id, "in_progress")}
    ]
    events += [
        {"type": "response.output_item.done", "sequence_number": next(numbers), "output_index": i, "item": item}
        for i, item in enumerate(items)
    ]
    final = response(response_id, kind, items, **members)
    events.append({"type": f"response.{kind}", "sequence_number": next(numbers), "response": final})
    return sse(*events)


def streams(turn: int, data: bytes) -> list[Event]:
    """The facts of an exchange that goes well."""
    return [UpstreamOpened(turn), UpstreamBytes(turn, data), UpstreamEnded(turn)]


def play_turn(book: Playbook, turn: int, asked: FrameReceived, data: bytes) -> OpenUpstream:
    """Play a whole turn whose orders need no looking at; the request that it sent upstream."""
    orders: list[Effect] = []
    for event in [asked, *streams(turn, data)]:
        orders += book.session.receive(event)
    (opened,) = [effect for effect in orders if isinstance(effect, OpenUpstream)]
    return opened


def begun(response_id: str = "resp_1", *done: dict[str, Any]) -> bytes:
    """A stream so far: created, some finished items, and a message that is not finished."""
    events: list[dict[str, Any] | bytes] = [
        {"type": "response.created", "sequence_number": 0, "response": response(response_id, "in_progress")}
    ]
    for index, item in enumerate(done):
        events += [
            {"type": "response.output_item.added", "sequence_number": 1, "output_index": index, "item": item},
            {"type": "response.output_item.done", "sequence_number": 2, "output_index": index, "item": item},
        ]
    partial = {"type": "message", "id": "msg_part", "role": "assistant", "status": "in_progress", "content": []}
    events.append(
        {"type": "response.output_item.added", "sequence_number": 3, "output_index": len(done), "item": partial}
    )
    return sse(*events)


def running(*done: dict[str, Any], **settings: Any) -> Playbook:
    """A dialogue in whose default lane a response runs, named resp_1, as turn 1."""
    book = Playbook(**settings)
    for event in (create(input="hi"), UpstreamOpened(1), UpstreamBytes(1, begun("resp_1", *done))):
        book.session.receive(event)
    return book


def said(book: Playbook, event: Any) -> list[dict[str, Any]]:
    """The frames that a fact leads to."""
    return [json.loads(payload) for payload in frames_of(book.session.receive(event))]


def frames_of(effects: Sequence[Effect]) -> list[bytes]:
    """All frames among some orders."""
    return [payload for effect in effects if isinstance(effect, SendFrames) for payload in effect.frames]


def _frame_fits(actual: bytes, expected: str | dict[str, Any] | bytes) -> bool:
    if isinstance(expected, bytes):
        return actual == expected
    return _contains(json.loads(actual), {"type": expected} if isinstance(expected, str) else expected)


def _contains(actual: Any, expected: Any) -> bool:
    if isinstance(expected, dict) and isinstance(actual, dict):
        return all(name in actual and _contains(actual[name], value) for name, value in expected.items())
    return bool(actual == expected)


def _show(thing: object) -> str:
    if isinstance(thing, SendFrames):
        return f"SendFrames({[payload[:300] for payload in thing.frames]})"
    if isinstance(thing, OpenUpstream):
        return f"OpenUpstream({thing.turn}, {thing.request.body()[:600]!r})"
    return repr(thing)[:600]
