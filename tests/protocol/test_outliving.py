"""Responses that outlive their client (proxy.protocol.outliving)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.protocol.effects import CancelUpstream, Effect, Observe, OpenUpstream, SendFrames
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
from proxy.protocol.records import TurnEnded
from proxy.protocol.terminals import Usage
from proxy.protocol.upstream_errors import UpstreamTimeout
from tests.playbook import Playbook, answer, cancels, create, message, observes, opens, play_turn, sends, sse, user

SPENT = {"input_tokens": 7, "output_tokens": 5, "total_tokens": 12}
ANSWER = answer("resp_1", message("hi"), usage=SPENT, model="m2")
GONE = ClientGone(may_outlive=True)


def test_response_ends_and_its_usage_is_known() -> None:
    """The stream is read on, nobody is sent anything, and the end is counted; then the exchange is over."""
    with Playbook() as book:
        book >> create(input="a", model="m1") << opens()
        book >> UpstreamOpened(1) >> UpstreamBytes(1, ANSWER[:200]) << sends("response.created")
        book >> GONE
        (
            book
            >> UpstreamBytes(1, ANSWER[200:])
            << observes(
                turn=1,
                outcome="client_gone",
                usage=Usage(input_tokens=7, output_tokens=5),
                model="m1",
                answered_by="m2",
            )
        )
        book << cancels(1)
        book >> UpstreamEnded(1) >> ClientGone()
    assert book.session.state.is_closed


def test_what_was_said_until_then_is_counted() -> None:
    """Events that nobody heard are none that were relayed."""
    begun = sse({"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}})
    with Playbook() as book:
        book >> create(input="a") << opens()
        book >> UpstreamOpened(1)
        book >> UpstreamBytes(1, begun) << sends("response.created")
        book >> GONE
        book >> UpstreamBytes(1, ANSWER) << observes(turn=1, events=1, response_id="resp_1") << cancels(1)


def test_only_what_the_backend_works_on_may_end() -> None:
    """Turns that wait end at once; what is remembered is given back at once."""
    book = Playbook()
    play_turn(book, 1, create(input=[user("a")]), answer("resp_1"))
    with book:
        book >> create(input="b") << opens()
        book >> create(input="queued")
        book >> GONE << observes(turn=3, outcome="client_gone")
    assert book.budget.used == 0
    with book:
        book >> UpstreamOpened(2)
        book >> UpstreamBytes(2, ANSWER) << observes(turn=2, usage=Usage(7, 0, 5)) << cancels(2)


def test_there_is_an_end_to_it() -> None:
    """The second time it is said there is no more time: everything is stopped, with what is known."""
    with Playbook() as book:
        book >> create(input="a") << opens()
        book >> create(input="b", stream_id="x") << opens()
        book >> UpstreamOpened(1) >> UpstreamBytes(1, ANSWER[:200]) << sends("response.created")
        book >> GONE
        book >> ClientGone()
        book << observes(turn=1, outcome="client_gone", usage=Usage()) << cancels(1)
        book << observes(turn=2, outcome="client_gone", usage=Usage()) << cancels(2)
        book >> UpstreamBytes(1, ANSWER[200:])


def test_nothing_may_outlive_an_idle_client() -> None:
    """The session is closed at once."""
    with Playbook() as book:
        book >> GONE >> ClientGone()
    assert book.session.state.is_closed


@pytest.mark.parametrize("end", [UpstreamEnded(1), UpstreamFailed(1, UpstreamTimeout("idle", 1))])
def test_backend_that_fails_ends_it(end: Event) -> None:
    """There is nothing to cancel then, and nothing to ask again."""
    with Playbook() as book:
        book >> create(input="a") << opens()
        book >> UpstreamOpened(1) >> UpstreamBytes(1, ANSWER[:200]) << sends("response.created")
        book >> GONE
        book >> end << observes(turn=1, outcome="client_gone", usage=Usage(), error_code=None)
    assert book.session.state.is_closed


def test_summary_does_not_outlive_its_client() -> None:
    """What would have come of it will not be asked for."""
    with Playbook(profile="vllm") as book:
        trigger = {"type": "compaction_trigger"}
        book >> create(input=[user("a"), trigger]) << opens()
        book >> GONE << observes(turn=1, outcome="client_gone") << cancels(1)


@settings(max_examples=150, deadline=None)
@given(
    before=st.lists(st.integers(1, 4), max_size=6),
    after=st.lists(
        st.one_of(
            st.tuples(st.integers(1, 4), st.integers(1, 400)),
            st.sampled_from([LifetimeReached(), DrainStarted()]),
            st.builds(SilenceReached, st.integers(1, 5)),
            st.builds(UpstreamEnded, st.integers(1, 5)),
            st.builds(lambda turn: UpstreamFailed(turn, UpstreamTimeout("idle", 1)), st.integers(1, 5)),
            st.builds(lambda turn: Recalled(turn, None, {}), st.integers(1, 5)),
        ),
        max_size=20,
    ),
)
def test_whatever_happens_each_turn_ends_once(before: list[int], after: list[tuple[int, int] | Event]) -> None:
    """Nothing is sent to nobody, and no exchange is left open: each was cancelled, or has ended by itself."""
    book = Playbook()
    effects: list[Effect] = []
    rest = dict.fromkeys(range(1, 5), ANSWER)
    for number in range(1, 5):
        effects += book.session.receive(create(input="a", stream_id=f"lane{number}"))
        effects += book.session.receive(UpstreamOpened(number))
    for number in before:
        effects += book.session.receive(UpstreamBytes(number, rest[number][:100]))
        rest[number] = rest[number][100:]
    done = {one.record.turn for one in effects if isinstance(one, Observe) and isinstance(one.record, TurnEnded)}
    opened = {effect.turn for effect in effects if isinstance(effect, OpenUpstream)}
    effects = book.session.receive(GONE)
    ended: set[int] = set()
    for event in after:
        if isinstance(event, tuple):
            number, size = event
            piece, rest[number] = rest[number][:size], rest[number][size:]
            effects += book.session.receive(UpstreamBytes(number, piece))
            continue
        if isinstance(event, UpstreamEnded | UpstreamFailed):
            if event.turn in ended:
                continue
            ended.add(event.turn)
        effects += book.session.receive(event)
    effects += book.session.receive(ClientGone())
    observed = [effect.record for effect in effects if isinstance(effect, Observe)]
    turns = [record.turn for record in observed if isinstance(record, TurnEnded)]
    assert sorted(turns) == sorted(set(range(1, 5)) - done)
    assert not [effect for effect in effects if isinstance(effect, SendFrames | OpenUpstream)]
    cancelled = [effect.turn for effect in effects if isinstance(effect, CancelUpstream)]
    assert len(cancelled) == len(set(cancelled))
    assert opened - ended <= set(cancelled) | done
    assert book.session.state.is_closed
    assert book.budget.used == 0
