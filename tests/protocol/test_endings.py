"""How turns end where the backend's words are not the last: prompts that are too long, and state that it has forgotten.

(:mod:`proxy.protocol.endings`; the other ends are in the dialogues of `test_session.py` and `test_intake.py`.)
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.protocol.events import UpstreamBytes, UpstreamEnded, UpstreamFailed, UpstreamOpened
from proxy.protocol.profiles import PROFILES, RequestRules
from proxy.protocol.upstream_errors import UpstreamRefused
from tests import openresponses
from tests.playbook import (
    Playbook,
    answer,
    begun,
    call,
    cancels,
    create,
    evicts,
    finishes,
    frame,
    message,
    observes,
    opens,
    output,
    play_turn,
    response,
    said,
    sends,
    sse,
    streams,
    user,
)

STATEFUL = RequestRules.of(PROFILES["generic"], keeps_responses=True)
TOO_LONG = UpstreamRefused(
    "request (9000 tokens) exceeds the available context size (4096 tokens), try increasing it",
    status=400,
    type="exceed_context_size_error",
    code="400",
)
FORGOTTEN = UpstreamRefused("Response with id 'resp_1' not found.", status=404, type="invalid_request_error")


# Prompts that are too long


def test_overflow_is_a_failed_response_with_the_code_that_clients_compact_on() -> None:
    """Codex dies of a plain 400; the response is whole, and what it continued is forgotten like after any failure."""
    book = Playbook()
    play_turn(book, 1, create(input="hi"), answer("resp_1"))
    book.session.receive(create(previous_response_id="resp_1", input="more"))
    frames = said(book, UpstreamFailed(2, TOO_LONG))
    for event in frames:
        assert openresponses.problems(event) == []
    assert [event["type"] for event in frames] == ["response.created", "response.failed"]
    failed = frames[1]["response"]
    assert failed["error"]["code"] == "context_length_exceeded"
    assert failed["error"]["message"] == str(TOO_LONG)
    assert failed["status"] == "failed"
    assert failed["previous_response_id"] == "resp_1"
    assert "resp_1" not in book.session.cache


def test_overflow_is_counted_as_the_backends() -> None:
    """The record says what it was."""
    with Playbook() as book:
        book >> create(input="hi", stream_id="a")
        book << opens()
        book >> UpstreamFailed(1, TOO_LONG)
        book << sends(
            {"type": "response.created", "stream_id": "a", "sequence_number": 0},
            {"type": "response.failed", "stream_id": "a", "sequence_number": 1},
        )
        book << observes(
            outcome="failed", error_code="context_length_exceeded", error_status=400, error_source="upstream"
        )


def test_overflow_inside_a_stream_counts_too() -> None:
    """llama.cpp finds out in the middle of a response; its beginning is not said twice."""
    created = {"type": "response.created", "sequence_number": 0, "response": response("resp_1", "in_progress")}
    error = {"type": "error", "code": 500, "message": "Context size has been exceeded."}
    with Playbook(profile="llamacpp") as book:
        book >> create(input="hi")
        book << opens()
        book >> UpstreamOpened(1)
        book >> UpstreamBytes(1, sse(created, error))
        book << sends("response.created")
        book << cancels(1)
        book << sends(
            {
                "type": "response.failed",
                "sequence_number": 1,
                "response": {"id": "resp_1", "error": {"code": "context_length_exceeded"}},
            }
        )


def test_overflow_can_be_left_as_it_is() -> None:
    """By a setting: then the backend's own error is handed on."""
    with Playbook(overflow_fails=False) as book:
        book >> create(input="hi")
        book << opens()
        book >> UpstreamFailed(1, TOO_LONG)
        book << sends({"type": "error", "status": 400, "error": {"message": str(TOO_LONG)}})


def test_other_refusals_stay_errors() -> None:
    """A 400 for anything else is no overflow."""
    with Playbook() as book:
        book >> create(input="hi")
        book << opens()
        book >> UpstreamFailed(1, UpstreamRefused("Unknown field 'x'.", status=400, type="invalid_request_error"))
        book << sends({"type": "error", "status": 400})


# Backends that remember


def stateful() -> Playbook:
    """A dialogue with a backend that keeps responses, after its first turn."""
    book = Playbook(rules=STATEFUL)
    play_turn(book, 1, create(input="hi", instructions="i"), answer("resp_1", message("hello")))
    return book


def test_newest_response_is_continued_by_the_backends_own_id() -> None:
    """Only what is new goes upstream."""
    with stateful() as book:
        book >> create(previous_response_id="resp_1", input="more", instructions="i")
        book << opens({"model": "m", "instructions": "i", "previous_response_id": "resp_1", "input": [user("more")]})
        book >> UpstreamOpened(2)
        book >> UpstreamBytes(2, answer("resp_2", message("again", "msg_2")))
        book << sends("response.created", "response.output_item.done", "response.completed")
        book << finishes(2)
        book << observes(turn=2, replayed_bytes=0, replayed_items=0, lookup="hit", reason="tip")


def test_backends_id_is_used_where_the_client_knows_another() -> None:
    """A backend that gives one id twice: to the client they are two."""
    with stateful() as book:
        play_turn(book, 2, create(input="other"), answer("resp_1", message("x")))
        book >> create(previous_response_id="resp_new1", input="more")
        book << opens(previous_response_id="resp_1", input=[user("more")])


@pytest.mark.parametrize("where", ["answer", "event"])
def test_forgotten_response_is_made_up_for_by_the_whole_transcript(where: str) -> None:
    """The same turn once more, unseen by the client, and nothing is evicted."""
    with stateful() as book:
        book >> create(previous_response_id="resp_1", input="more")
        book << opens(previous_response_id="resp_1")
        if where == "answer":
            book >> UpstreamFailed(2, FORGOTTEN)
        else:
            book >> UpstreamOpened(2)
            error = {"type": "error", "code": "previous_response_not_found", "message": "Previous response not found."}
            book >> UpstreamBytes(2, sse(error))
            book << cancels(2)
        book << opens({"model": "m", "input": [user("hi"), message("hello"), user("more")]})
        for event in streams(2, answer("resp_2")):
            book >> event
        book << sends("response.created", "response.completed")
        book << finishes(2)
        assert "resp_1" in book.session.cache


def test_whole_transcript_is_sent_once() -> None:
    """A backend that does not find what it was not asked for has another trouble."""
    with stateful() as book:
        book >> create(previous_response_id="resp_1", input="more")
        book << opens()
        book >> UpstreamFailed(2, FORGOTTEN)
        book << opens(input=[user("hi"), message("hello"), user("more")])
        book >> UpstreamFailed(2, FORGOTTEN)
        book << evicts("failed_continuation")
        book << sends({"type": "error", "status": 404})


def test_other_failures_are_not_tried_again() -> None:
    """Only what the whole transcript can cure."""
    with stateful() as book:
        book >> create(previous_response_id="resp_1", input="more")
        book << opens()
        book >> UpstreamFailed(2, UpstreamRefused("The model 'm' does not exist.", status=404, type="not_found_error"))
        book << evicts("failed_continuation")
        book << sends({"type": "error", "status": 404})


def test_what_the_backend_does_not_keep_is_replayed() -> None:
    """A branch, what was not to be stored, what the client stopped, and warm-ups."""
    parts: list[tuple[str, Any]] = []
    book = stateful()
    play_turn(book, 2, create(previous_response_id="resp_1", input="b"), answer("resp_2", message("two", "msg_2")))
    opened = play_turn(book, 3, create(previous_response_id="resp_1", input="c"), answer("resp_3"))
    parts.append(("branch", opened))
    play_turn(book, 4, create(input="x", store=False), answer("resp_4"))
    parts.append(("store", play_turn(book, 5, create(previous_response_id="resp_4", input="y"), answer("resp_5"))))
    book.session.receive(create(input="x", generate=False))
    warm = f"resp_new{book.ids}"
    parts.append(("warm-up", play_turn(book, 7, create(previous_response_id=warm, input="y"), answer("resp_7"))))
    for name, request in parts:
        assert b"previous_response_id" not in request.request.body(), name


def test_cut_stream_of_a_continuation_is_an_error_as_ever() -> None:
    """Once something reached the client nothing is tried again."""
    with stateful() as book:
        book >> create(previous_response_id="resp_1", input="more")
        book << opens()
        book >> UpstreamOpened(2)
        book >> UpstreamBytes(2, answer("resp_2", message("x"))[:150])
        book >> UpstreamEnded(2)
        book << evicts("failed_continuation")
        book << sends({"type": "error", "status": 502})


def test_injected_outputs_are_not_known_to_the_backend() -> None:
    """They came too late for its response: what follows is told all of it."""
    book = Playbook(rules=STATEFUL)
    for event in (create(input="hi"), UpstreamOpened(1), UpstreamBytes(1, begun("resp_1", call("c1"), call("c2")))):
        book.session.receive(event)
    book.session.receive(frame({"type": "response.inject", "response_id": "resp_1", "input": [output("c1")]}))
    final = response("resp_1", "completed", [call("c1"), call("c2")])
    book.session.receive(UpstreamBytes(1, sse({"type": "response.completed", "sequence_number": 9, "response": final})))
    with book:
        book >> create(previous_response_id="resp_1", input=[output("c2")])
        book << opens({"model": "m", "input": [user("hi"), call("c1"), call("c2"), output("c1"), output("c2")]})


def test_response_that_went_on_is_not_known_to_the_backend_by_one_id() -> None:
    """It was two there."""
    book = Playbook(rules=STATEFUL)
    for fact in (create(input="hi"), UpstreamOpened(1), UpstreamBytes(1, begun("resp_1", call("c1")))):
        book.session.receive(fact)
    book.session.receive(frame({"type": "response.inject", "response_id": "resp_1", "input": [output("c1")]}))
    final = response("resp_1", "completed", [call("c1")])
    with book:
        book >> UpstreamBytes(1, sse({"type": "response.completed", "sequence_number": 9, "response": final}))
        book << cancels(1)
        book << opens({"model": "m", "input": [user("hi"), call("c1"), output("c1")]})
        for event in streams(1, answer("resp_2", message("so"))):
            book.session.receive(event)
        book >> create(previous_response_id="resp_1", input="next")
        book << opens({"model": "m", "input": [user("hi"), call("c1"), output("c1"), message("so"), user("next")]})


def test_backend_that_forgets_in_the_middle_is_not_asked_again() -> None:
    """The client has seen the response begin; a second beginning would be another response."""
    created = {"type": "response.created", "sequence_number": 0, "response": response("resp_2", "in_progress")}
    error = {"type": "error", "code": "previous_response_not_found", "message": "Previous response not found."}
    with stateful() as book:
        book >> create(previous_response_id="resp_1", input="more")
        book << opens(previous_response_id="resp_1")
        book >> UpstreamOpened(2)
        book >> UpstreamBytes(2, sse(created, error))
        book << sends("response.created")
        book << cancels(2)
        book << evicts("failed_continuation")
        book << sends("error")


def test_compacted_conversation_is_not_continued_by_the_backends_id() -> None:
    """What it keeps is the long one."""
    book = Playbook(rules=STATEFUL)
    usage = {"input_tokens": 1990, "output_tokens": 10, "total_tokens": 2000}
    play_turn(book, 1, create(input="hi"), answer("resp_1", message("hello"), usage=usage))
    threshold = [{"type": "compaction", "compact_threshold": 1000}]
    for event in (create(previous_response_id="resp_1", input="more", context_management=threshold), UpstreamOpened(2)):
        book.session.receive(event)
    orders = book.session.receive(UpstreamBytes(2, answer("resp_s", message("It went so."))))
    (opened,) = [order for order in orders if hasattr(order, "request")]
    body = json.loads(opened.request.body())
    assert "previous_response_id" not in body
    assert len(body["input"]) == 3
