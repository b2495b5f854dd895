"""Steering: the response ends, or waits for what the client owes, and its successor begins by itself."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.protocol import steering
from proxy.protocol.events import (
    DrainStarted,
    LifetimeReached,
    UpstreamBytes,
    UpstreamEnded,
    UpstreamFailed,
    UpstreamOpened,
)
from proxy.protocol.lanes import LaneLimits
from proxy.protocol.upstream_errors import UpstreamUnreachable
from tests.playbook import (
    Playbook,
    answer,
    begun,
    call,
    cancels,
    create,
    finishes,
    frame,
    message,
    observes,
    opens,
    output,
    play_turn,
    response,
    running,
    said,
    sends,
    sse,
    streams,
    user,
)


def steer(text: Any = "rather this", response_id: str = "resp_1", **members: Any) -> Any:
    """A client's `response.steer`."""
    return frame({"type": "response.steer", "previous_response_id": response_id, "input": text, **members})


def test_steering_ends_the_response_and_begins_its_successor() -> None:
    """The successor inherits the settings and begins with what is finished and what is new; no create is needed."""
    done = message("done", "msg_done")
    book = Playbook()
    first = create(input="hi", temperature=0, tools=[{"type": "function", "name": "f"}])
    for fact in (first, UpstreamOpened(1), UpstreamBytes(1, begun("resp_1", done))):
        book.session.receive(fact)
    with book:
        book >> steer()
        book << sends(
            {
                "type": "response.steer.accepted",
                "sequence_number": 4,
                "steer": {"id": "steer_new1", "previous_response_id": "resp_1"},
            }
        )
        book << cancels(1)
        book << sends(
            {
                "type": "response.incomplete",
                "sequence_number": 5,
                "response": {"id": "resp_1", "incomplete_details": {"reason": "steered"}},
            }
        )
        book << observes(turn=1, outcome="cancelled")
        book << opens(
            input=[user("hi"), done, user("rather this")], temperature=0, tools=[{"type": "function", "name": "f"}]
        )
        for event in streams(2, answer("resp_2", message("so"))):
            book >> event
        book << sends(
            {"type": "response.created", "response": {"id": "resp_2", "previous_response_id": "resp_1"}},
            "response.output_item.done",
            "response.completed",
        )
        book << finishes(2)
        book << observes(turn=2, outcome="completed", previous_response_id="resp_1", lookup="hit", reason="tip")


@pytest.mark.parametrize(
    "text",
    [
        5,
        None,
        [],
        [{"role": "assistant", "content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}],
        [{"role": "user", "content": [5]}],
        [{"role": "user", "content": "x", "more": 1}],
        [{"type": "function_call_output", "call_id": "c", "output": ""}],
    ],
)
def test_bad_steering_input_is_handed_back(text: Any) -> None:
    """With the code for it, the input as it came, and the response goes on."""
    with running() as book:
        book >> steer(text)
        book << sends(
            {
                "type": "response.steer.failed",
                "error": {"type": "invalid_request_error", "code": "invalid_input"},
                "steer": {"input": text, "previous_response_id": "resp_1"},
            }
        )


def test_steering_input_may_be_messages() -> None:
    """Text, images and files of the user's."""
    parts = [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "data:,"}]
    book = running()
    frames = said(
        book, steer([{"role": "user", "content": parts}, {"type": "message", "role": "user", "content": "y"}])
    )
    assert [event["type"] for event in frames] == ["response.steer.accepted", "response.incomplete"]


@pytest.mark.parametrize(
    ("response_id", "code"),
    [
        ("resp_never", "response_not_found"),
        ("resp_done", "response_already_completed"),
        ("resp_cut", "response_not_active"),
        ("resp_failed", "response_not_active"),
    ],
)
def test_steering_what_does_not_run(response_id: str, code: str) -> None:
    """Each case has its code; nothing else happens."""
    with Playbook() as book:
        play_turn(book, 1, create(input="hi"), answer("resp_done"))
        play_turn(book, 2, create(input="hi"), answer("resp_failed", kind="failed"))
        for event in (create(input="hi"), UpstreamOpened(3), UpstreamBytes(3, begun("resp_cut"))):
            book.session.receive(event)
        book.session.receive(frame({"type": "response.cancel"}))
        book >> steer(response_id=response_id)
        book << sends({"type": "response.steer.failed", "sequence_number": 0, "error": {"code": code}})


def test_steering_can_be_forbidden() -> None:
    """By a setting, and then with the code that says so."""
    with running(steering=False) as book:
        book >> steer()
        book << sends({"type": "response.steer.failed", "error": {"code": "steering_not_supported"}})


def test_steering_without_an_id_is_handed_back() -> None:
    """No response can be meant."""
    with running() as book:
        book >> frame({"type": "response.steer", "input": "x"})
        book << sends({"type": "response.steer.failed", "error": {"code": "invalid_input"}, "steer": {"input": "x"}})


def test_steering_waits_for_outputs_that_the_client_owes() -> None:
    """A response that has called tools runs on to its end; the create that brings the outputs begins with the input."""
    with running(call("c1")) as book:
        book >> steer("one")
        book << sends({"type": "response.steer.accepted", "steer": {"id": "steer_new1"}})
        book >> steer("two")
        book << sends({"type": "response.steer.accepted", "steer": {"id": "steer_new2"}})
        final = {
            "type": "response.completed",
            "sequence_number": 7,
            "response": response("resp_1", "completed", [call("c1")]),
        }
        book >> UpstreamBytes(1, sse(final))
        book << sends("response.completed")
        book << finishes(1)
        stub = {"type": "function_call_output", "call_id": "c1", "name": "f"}
        for number in (1, 2):
            book << sends(
                {
                    "type": "response.steer.pending",
                    "reason": "waiting_for_required_input",
                    "required_input": [stub],
                    "steer": {"id": f"steer_new{number}", "previous_response_id": "resp_1"},
                }
            )
        book >> create(previous_response_id="resp_1", input=[output("c1")], temperature=1)
        book << opens(input=[user("hi"), call("c1"), user("one"), user("two"), output("c1")], temperature=1)


def test_steering_after_a_response_that_completes_by_itself() -> None:
    """A call came first and was answered meanwhile; so the successor begins at the end."""
    with running(call("c1")) as book:
        book >> steer("one")
        book << sends("response.steer.accepted")
        book >> frame({"type": "response.inject", "response_id": "resp_1", "input": [output("c1")]})
        book << sends({"type": "response.inject.created", "response_id": "resp_1"})
        book >> steer("two")
        book << sends("response.steer.accepted")
        book << cancels(1)
        book << sends("response.incomplete")
        book << opens(input=[user("hi"), call("c1"), output("c1"), user("one"), user("two")])


def test_steering_input_is_handed_back_when_the_response_fails() -> None:
    """It could not be committed, and says so under its own id, before the last word of the response."""
    with running(call("c1")) as book:
        book >> steer("one")
        book << sends("response.steer.accepted")
        book >> UpstreamEnded(1)
        book << sends(
            {
                "type": "response.steer.failed",
                "error": {"code": "successor_creation_failed"},
                "steer": {"id": "steer_new1", "input": "one", "previous_response_id": "resp_1"},
            }
        )
        book << sends({"type": "error", "status": 502})


def test_pending_steers_are_bounded() -> None:
    """A flood of them is refused by its code."""
    book = running(call("c1"))
    for _ in range(16):
        assert said(book, steer())[0]["type"] == "response.steer.accepted"
    (refused,) = said(book, steer())
    assert refused["error"]["code"] == "too_many_pending_steers"


def test_steering_comes_before_what_waits_in_the_lane() -> None:
    """The successor belongs to the response that runs; a create that came earlier waits for both."""
    with running() as book:
        book >> create(input="other")
        book >> steer()
        book << sends("response.steer.accepted")
        book << cancels(1)
        book << sends("response.incomplete")
        book << opens(input=[user("hi"), user("rather this")])
        for event in streams(3, answer("resp_3")):
            book >> event
        book << sends("response.created", "response.completed")
        book << finishes(3)
        book << opens(input=[user("other")])


def test_successor_that_cannot_begin_hands_the_input_back() -> None:
    """Nobody asked for it with a create, so there is no error but this one; the lane is free again."""
    with running() as book:
        book >> steer()
        book << sends("response.steer.accepted")
        book << cancels(1)
        book << sends("response.incomplete")
        book << opens()
        book >> UpstreamFailed(2, UpstreamUnreachable())
        book << sends(
            {
                "type": "response.steer.failed",
                "error": {"code": "successor_creation_failed"},
                "steer": {"id": "steer_new1", "input": "rather this"},
            }
        )
        book << observes(turn=2, outcome="error")
        book >> create(input="again")
        book << opens(input=[user("again")])


def test_create_that_fails_hands_the_input_back_that_it_began_with() -> None:
    """The client may carry it into its next create."""
    with running(call("c1")) as book:
        book >> steer()
        book << sends("response.steer.accepted")
        final = response("resp_1", "completed", [call("c1")])
        book >> UpstreamBytes(1, sse({"type": "response.completed", "sequence_number": 7, "response": final}))
        book << sends("response.completed")
        book << finishes(1)
        book << sends("response.steer.pending")
        book >> create(previous_response_id="resp_1", input=[output("c1")])
        book << opens()
        book >> UpstreamFailed(2, UpstreamUnreachable())
        book << sends({"type": "response.steer.failed", "steer": {"id": "steer_new1"}})
        book << sends({"type": "error", "status": 502})


def test_limit_of_pending_steers_is_the_modules() -> None:
    """The number that the flood above runs into."""
    assert steering.MAX_PENDING == 16


def pending(**settings: Any) -> Playbook:
    """A dialogue in which input waits for the output of a call of resp_1."""
    book = running(call("c1"), **settings)
    final = response("resp_1", "completed", [call("c1")])
    for event in (steer(), UpstreamBytes(1, sse({"type": "response.completed", "response": final}))):
        book.session.receive(event)
    return book


def test_append_brings_the_outputs_too() -> None:
    """It names no response, but it goes on from one; what it repeats of that is left out all the same."""
    with pending(rollout=True) as book:
        book >> frame({"type": "response.append", "input": [call("c1"), output("c1")]})
        book << opens(input=[user("hi"), call("c1"), user("rather this"), output("c1")])


def test_successor_that_cannot_begin_is_silent_in_the_first_generation() -> None:
    """Nobody asked for it there either."""
    with running(rollout=True) as book:
        book >> steer()
        book << sends("response.steer.accepted")
        book << cancels(1)
        book << sends("response.incomplete")
        book << opens()
        book >> UpstreamFailed(2, UpstreamUnreachable())
        book << sends({"type": "response.steer.failed", "steer": {"id": "steer_new1"}})


def test_successor_inherits_what_a_warm_up_brought() -> None:
    """And so does what follows it."""
    tools = [{"type": "function", "name": "f"}]
    with Playbook() as book:
        book.session.receive(create(tools=tools, generate=False))
        warm = "resp_new1"
        for fact in (create(previous_response_id=warm, input="hi"), UpstreamOpened(2), UpstreamBytes(2, begun())):
            book.session.receive(fact)
        book >> steer()
        book << sends("response.steer.accepted")
        book << cancels(2)
        book << sends("response.incomplete")
        book << opens(input=[user("hi"), user("rather this")], tools=tools)
        for event in streams(3, answer("resp_3")):
            book.session.receive(event)
        book >> create(previous_response_id="resp_3", input="next")
        book << opens(input=[user("hi"), user("rather this"), user("next")], tools=tools)


@pytest.mark.parametrize("event", [DrainStarted(), LifetimeReached()])
def test_response_that_is_the_last_one_is_not_steered(event: Any) -> None:
    """No successor would begin: the response goes on to its end, and the input is the client's again."""
    with running() as book:
        book >> event
        book >> steer()
        book << sends({"type": "response.steer.failed", "error": {"code": "successor_creation_failed"}})
        book >> UpstreamBytes(1, sse({"type": "response.completed", "sequence_number": 5, "response": {}}))
        book << sends("response.completed")
        book << finishes(1)
        book._left.clear()


def unnumbered(*events: dict[str, Any]) -> bytes:
    """A stream whose events have no numbers."""
    return sse(*({name: value for name, value in event.items() if name != "sequence_number"} for event in events))


@pytest.mark.parametrize("ending", ["failed", "leaving"])
def test_input_is_handed_back_before_the_last_word(ending: str) -> None:
    """Behind it the client would take it for something of its next response; the numbers go up."""
    book = Playbook()
    created = {"type": "response.created", "response": response("resp_1", "in_progress")}
    done = {"type": "response.output_item.done", "output_index": 0, "item": call("c1")}
    kind = "failed" if ending == "failed" else "completed"
    final = {"type": f"response.{kind}", "response": response("resp_1", kind, [call("c1")])}
    frames = [
        event
        for fact in (create(input="hi"), UpstreamOpened(1), UpstreamBytes(1, unnumbered(created, done)), steer())
        for event in said(book, fact)
    ]
    if ending == "leaving":
        book.session.receive(DrainStarted())
    frames += said(book, UpstreamBytes(1, unnumbered(final)))
    assert [event["type"] for event in frames] == [
        "response.created",
        "response.output_item.done",
        "response.steer.accepted",
        "response.steer.failed",
        f"response.{kind}",
    ]
    assert [event["sequence_number"] for event in frames] == list(range(5))


def test_pending_steers_are_bounded_over_all_lanes() -> None:
    """What was accepted in one lane counts in the other."""
    book = Playbook(lanes=LaneLimits(queued=2))
    for turn, lane in ((1, "a"), (2, "b")):
        name = f"resp_{turn}"
        for event in (
            create(input="hi", stream_id=lane),
            UpstreamOpened(turn),
            UpstreamBytes(turn, begun(name, call("c1"))),
        ):
            book.session.receive(event)
    kinds = [said(book, steer(response_id=name))[0]["type"] for name in ("resp_1", "resp_2", "resp_1")]
    assert kinds == ["response.steer.accepted", "response.steer.accepted", "response.steer.failed"]


def test_input_that_waits_for_a_response_that_is_forgotten_is_handed_back() -> None:
    """By the create that wanted to go on from it, before its error."""
    with pending(max_entries=1) as book:
        book.session.receive(create(input="other", generate=False))
        book >> create(previous_response_id="resp_1", input=[output("c1")])
        book << sends({"type": "response.steer.failed", "steer": {"id": "steer_new1"}})
        book << sends({"type": "error", "error": {"code": "previous_response_not_found"}})


def test_bytes_of_pending_steers_are_bounded() -> None:
    """As those of creates that wait."""
    book = running(call("c1"), lanes=LaneLimits(queued_bytes=1000))
    kinds = [said(book, steer("x" * 600))[0]["type"] for _ in range(2)]
    assert kinds == ["response.steer.accepted", "response.steer.failed"]
