"""What a client says about a response that runs: it passes the queue, and nothing else is disturbed.

(:mod:`proxy.protocol.intake`; steering has its own dialogues.)
"""

from __future__ import annotations

from typing import Any

import pytest

from proxy.protocol.events import UpstreamBytes, UpstreamFailed, UpstreamOpened
from proxy.protocol.lanes import LaneLimits
from proxy.protocol.terminals import Usage
from proxy.protocol.upstream_errors import UpstreamUnreachable
from tests import openresponses
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

# Cancel and interrupt


@pytest.mark.parametrize("members", [{"response_id": "resp_1"}, {}, {"response_id": None}])
def test_cancel_ends_the_response_as_incomplete(members: dict[str, Any]) -> None:
    """The backend stops, what is finished stays, and the client may go on from there."""
    done = message("done", "msg_done")
    with running(done) as book:
        book >> frame({"type": "response.cancel", **members})
        book << cancels(1)
        book << sends({"type": "response.incomplete", "sequence_number": 4})
        book << observes(turn=1, outcome="cancelled", response_id="resp_1")
        book >> create(previous_response_id="resp_1", input="go on")
        book << opens(input=[user("hi"), done, user("go on")])


def test_cancelled_response_is_whole() -> None:
    """A strict client takes the last event: all members are there, the finished items and the reason too."""
    (frame_,) = said(running(message("done", "msg_done")), frame({"type": "response.cancel"}))
    assert openresponses.problems(frame_) == []
    assert frame_["response"]["status"] == "incomplete"
    assert frame_["response"]["incomplete_details"] == {"reason": "cancelled"}
    assert [item["id"] for item in frame_["response"]["output"]] == ["msg_done"]


def test_cancel_before_the_backend_answers_makes_a_response_of_its_own() -> None:
    """The client has asked, so it gets a response with an id, from its beginning to its end."""
    with Playbook() as book:
        book >> create(input="hi", stream_id="a")
        book << opens()
        book >> frame({"type": "response.cancel", "stream_id": "a"})
        book << cancels(1)
        book << sends(
            {"type": "response.created", "stream_id": "a", "sequence_number": 0},
            {"type": "response.incomplete", "stream_id": "a", "sequence_number": 1},
        )
        book >> UpstreamOpened(1)  # was on its way


@pytest.mark.parametrize("kind", ["response.cancel", "response.interrupt"])
def test_late_stop_is_passed_over_in_silence(kind: str) -> None:
    """An answer now would be taken for the first event of the next response."""
    with Playbook() as book:
        play_turn(book, 1, create(input="hi"), answer("resp_1", message("hi")))
        book >> frame({"type": kind, "response_id": "resp_1"})
        book >> frame({"type": "response.cancel"})
        book >> frame({"type": "response.cancel", "response_id": "resp_never"})
        book >> frame({"type": "response.processed", "response_id": "resp_1"})
        book >> frame({"type": "response.processed"})


def test_stop_of_an_unknown_response_is_an_error_after_the_one_that_runs() -> None:
    """It says what is wrong, but not in the middle of a response, where it would be taken for its end."""
    for kind in ("response.cancel", "response.interrupt"):
        with running() as book:
            book >> frame({"type": kind, "response_id": "resp_never"})
            book >> UpstreamBytes(1, sse({"type": "response.completed", "sequence_number": 5, "response": {}}))
            book << sends("response.completed")
            book << finishes(1)
            book << sends({"type": "error", "status": 400, "error": {"code": "response_not_found"}})


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"type": "response.cancel", "response_id": 5}, "response_id"),
        ({"type": "response.interrupt"}, "response_id"),
        ({"type": "response.interrupt", "response_id": "resp_1", "mode": "other"}, "mode"),
        ({"type": "response.inject", "input": []}, "response_id"),
        ({"type": "response.inject", "response_id": "resp_1", "input": "text"}, "input"),
    ],
)
def test_malformed_control_event_waits_and_the_response_goes_on(members: dict[str, Any], param: str) -> None:
    """The error stands behind the response that runs."""
    with running() as book:
        book >> frame(members)
        book >> UpstreamBytes(1, sse({"type": "response.completed", "sequence_number": 5, "response": {}}))
        book << sends("response.completed")
        book << finishes(1)
        book << sends({"type": "error", "status": 400, "error": {"param": param}})


def test_interrupt_is_acknowledged_and_names_what_is_discarded() -> None:
    """Codex: accepted, each partial item, then incomplete with `end_turn` false; the id can be continued."""
    book = running(message("done", "msg_done"))
    frames = said(book, frame({"type": "response.interrupt", "response_id": "resp_1", "mode": "discard_partial_items"}))
    assert [event["type"] for event in frames] == [
        "response.interrupt.accepted",
        "response.output_item.interrupted",
        "response.incomplete",
    ]
    assert [event["sequence_number"] for event in frames] == [4, 5, 6]
    assert frames[0]["response_id"] == "resp_1"
    assert (frames[1]["item_id"], frames[1]["output_index"]) == ("msg_part", 1)
    assert frames[2]["response"]["incomplete_details"] == {"reason": "interrupted"}
    assert frames[2]["response"]["end_turn"] is False
    assert "resp_1" in book.session.cache


def test_cancel_of_a_turn_that_waits_for_a_place() -> None:
    """To the client it runs already; it ends in its turn and the backend never hears of it."""
    with Playbook(lanes=LaneLimits(in_flight=1)) as book:
        book >> create(input="one", stream_id="a")
        book << opens()
        book >> create(input="two", stream_id="b")
        book >> frame({"type": "response.cancel", "stream_id": "b"})
        book << sends({"type": "response.created", "stream_id": "b"}, {"type": "response.incomplete", "stream_id": "b"})
        book << observes(turn=2, outcome="cancelled")


def test_cancel_in_one_lane_leaves_the_others_alone() -> None:
    """By id as well as by lane."""
    with Playbook() as book:
        book >> create(input="one", stream_id="a")
        book << opens()
        book >> create(input="two", stream_id="b")
        book << opens()
        for turn, name in ((1, "resp_a"), (2, "resp_b")):
            book >> UpstreamOpened(turn)
            book >> UpstreamBytes(turn, sse({"type": "response.created", "response": response(name, "in_progress")}))
            book << sends("response.created")
        book >> frame({"type": "response.cancel", "response_id": "resp_b"})
        book << cancels(2)
        book << sends({"type": "response.incomplete", "stream_id": "b"})
        book >> UpstreamBytes(1, sse({"type": "response.completed", "response": response("resp_a")}))
        book << sends({"type": "response.completed", "stream_id": "a"})
        book << finishes(1)


# Injecting


def test_injected_outputs_let_the_response_go_on() -> None:
    """The backend is asked again, and to the client it is one response: one id, numbers throughout, one end."""
    with running(call("c1")) as book:
        book >> frame({"type": "response.inject", "response_id": "resp_1", "input": [output("c1")]})
        book << sends({"type": "response.inject.created", "response_id": "resp_1", "sequence_number": 4})
        usage = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
        final = response("resp_1", "completed", [call("c1")], usage=usage)
        book >> UpstreamBytes(1, sse({"type": "response.completed", "sequence_number": 5, "response": final}))
        book << cancels(1)
        book << opens(input=[user("hi"), call("c1"), output("c1")])
        book >> UpstreamOpened(1)
        rest = message("so it is", "msg_2")
        book >> UpstreamBytes(1, answer("resp_other", rest, usage={**usage, "input_tokens": 20, "total_tokens": 22}))
        book << sends(
            {"type": "response.output_item.done", "output_index": 1, "sequence_number": 5, "item": {"id": "msg_2"}},
            {
                "type": "response.completed",
                "sequence_number": 6,
                "response": {"id": "resp_1", "output": [call("c1"), rest], "usage": {"total_tokens": 34}},
            },
        )
        book << finishes(1)
        book >> create(previous_response_id="resp_1", input="next")
        book << opens(input=[user("hi"), call("c1"), output("c1"), rest, user("next")])


def test_injected_output_stays_when_others_are_owed() -> None:
    """The response ends as it would; the create with the rest of the outputs need not send the first again."""
    with running(call("c1"), call("c2")) as book:
        book >> frame({"type": "response.inject", "response_id": "resp_1", "input": [output("c1")]})
        book << sends("response.inject.created")
        final = response("resp_1", "completed", [call("c1"), call("c2")])
        book >> UpstreamBytes(1, sse({"type": "response.completed", "sequence_number": 9, "response": final}))
        book << sends("response.completed")
        book << finishes(1)
        book >> create(previous_response_id="resp_1", input=[output("c2")])
        book << opens(input=[user("hi"), call("c1"), call("c2"), output("c1"), output("c2")])


@pytest.mark.parametrize(
    ("response_id", "items", "code"),
    [
        ("resp_never", [output("c1")], "response_not_found"),
        ("resp_0", [output("c1")], "response_already_completed"),
        ("resp_1", [output("c9")], "invalid_input"),
        ("resp_1", [user("x")], "invalid_input"),
        ("resp_1", [], "invalid_input"),
    ],
)
def test_what_cannot_be_injected_is_handed_back(response_id: str, items: list[Any], code: str) -> None:
    """With its code, and the response goes on."""
    book = Playbook()
    play_turn(book, 1, create(input="hi"), answer("resp_0"))
    for event in (create(input="hi"), UpstreamOpened(2), UpstreamBytes(2, begun("resp_1", call("c1")))):
        book.session.receive(event)
    with book:
        book >> frame({"type": "response.inject", "response_id": response_id, "input": items})
        book << sends(
            {
                "type": "response.inject.failed",
                "response_id": response_id,
                "input": items,
                "error": {"code": code},
            }
        )


def inject(*items: Any) -> Any:
    """A client's `response.inject` for the response that runs."""
    return frame({"type": "response.inject", "response_id": "resp_1", "input": list(items)})


def test_response_goes_on_as_often_as_its_calls_are_answered() -> None:
    """What was answered in an earlier round is owed no more: not by the next end, nor by steering, nor once more."""
    with running(call("c1")) as book:
        book >> inject(output("c1"))
        book << sends("response.inject.created")
        final = response("resp_1", "completed", [call("c1")])
        book >> UpstreamBytes(1, sse({"type": "response.completed", "sequence_number": 5, "response": final}))
        book << cancels(1)
        book << opens(input=[user("hi"), call("c1"), output("c1")])
        book >> inject(output("c1"))
        book << sends({"type": "response.inject.failed", "error": {"code": "invalid_input"}})
        book >> UpstreamOpened(1)
        events = answer("resp_other", call("c2"))
        end = events.index(b"event: response.completed")
        book >> UpstreamBytes(1, events[:end])
        book << sends("response.output_item.done")
        book >> inject(output("c2"))
        book << sends("response.inject.created")
        book >> UpstreamBytes(1, events[end:])
        book << cancels(1)
        book << opens(input=[user("hi"), call("c1"), output("c1"), call("c2"), output("c2")])
        book >> UpstreamOpened(1)
        book >> frame({"type": "response.steer", "previous_response_id": "resp_1", "input": "rather this"})
        book << sends("response.steer.accepted")
        book << cancels(1)
        book << sends("response.incomplete")
        book << opens(input=[user("hi"), call("c1"), output("c1"), call("c2"), output("c2"), user("rather this")])


def test_calls_that_only_the_snapshot_lists_are_replayed_once() -> None:
    """A backend that says nothing as done, or less than its snapshot: what is stopped later holds each item once."""
    with running(call("c1")) as book:
        book >> inject(output("c1"))
        book << sends("response.inject.created")
        final = response("resp_1", "completed", [message("so", "msg_0"), call("c1")])
        book >> UpstreamBytes(1, sse({"type": "response.completed", "sequence_number": 5, "response": final}))
        book << cancels(1)
        book << opens(input=[user("hi"), message("so", "msg_0"), call("c1"), output("c1")])
        book >> UpstreamOpened(1)
        events = answer("resp_other", message("done", "msg_2"))
        book >> UpstreamBytes(1, events[: events.index(b"event: response.completed")])
        book << sends({"type": "response.output_item.done", "output_index": 2})
        book >> frame({"type": "response.cancel"})
        book << cancels(1)
        book << sends(
            {
                "type": "response.incomplete",
                "response": {"output": [message("so", "msg_0"), call("c1"), message("done", "msg_2")]},
            }
        )
        book >> create(previous_response_id="resp_1", input="next")
        history = [user("hi"), message("so", "msg_0"), call("c1"), output("c1"), message("done", "msg_2")]
        book << opens(input=[*history, user("next")])


def test_one_call_is_answered_once() -> None:
    """Two outputs for it are one too many, together as well as one after the other."""
    with running(call("c1"), call("c2")) as book:
        book >> inject(output("c1"), output("c1", "no"))
        book << sends({"type": "response.inject.failed", "error": {"code": "invalid_input"}})
        book >> inject(output("c1"), output("c2"))
        book << sends("response.inject.created")


@pytest.mark.parametrize("kind", ["response.cancel", "response.interrupt"])
def test_injected_output_stays_when_the_response_is_stopped(kind: str) -> None:
    """It was accepted, and its call is finished: both stand before what comes next."""
    with running(call("c1")) as book:
        book >> inject(output("c1"))
        book << sends("response.inject.created")
        book >> frame({"type": kind, "response_id": "resp_1"})
        book << cancels(1)
        frames = ["response.interrupt.accepted", "response.output_item.interrupted"] * (kind != "response.cancel")
        book << sends(*frames, "response.incomplete")
        book >> create(previous_response_id="resp_1", input="next")
        book << opens(input=[user("hi"), call("c1"), output("c1"), user("next")])


def test_nothing_of_an_answer_that_was_over_is_interrupted() -> None:
    """An item that the backend began and never finished is gone with the answer that it stood in."""
    with running(call("c1")) as book:  # and a message that is not finished
        book >> inject(output("c1"))
        book << sends("response.inject.created")
        final = response("resp_1", "completed", [call("c1")])
        book >> UpstreamBytes(1, sse({"type": "response.completed", "sequence_number": 5, "response": final}))
        book << cancels(1)
        book << opens()
        book >> frame({"type": "response.interrupt", "response_id": "resp_1"})
        book << cancels(1)
        book << sends("response.interrupt.accepted", "response.incomplete")


def test_numbers_go_on_where_the_backend_stopped() -> None:
    """It has said more between the injected output and its end."""
    with running(call("c1")) as book:
        book >> inject(output("c1"))
        book << sends({"type": "response.inject.created", "sequence_number": 4})
        book >> UpstreamBytes(1, sse({"type": "response.output_text.delta", "sequence_number": 9, "delta": "x"}))
        book << sends({"type": "response.output_text.delta", "sequence_number": 9})
        final = response("resp_1", "completed", [call("c1")])
        book >> UpstreamBytes(1, sse({"type": "response.completed", "sequence_number": 10, "response": final}))
        book << cancels(1)
        book << opens()
        book >> UpstreamOpened(1)
        book >> UpstreamBytes(1, answer("resp_other", message("so")))
        book << sends(
            {"type": "response.output_item.done", "sequence_number": 10},
            {"type": "response.completed", "sequence_number": 11},
        )
        book << finishes(1)


def test_tokens_of_a_response_that_is_stopped_are_counted() -> None:
    """Those of the answers that had ended, in the response and in the record."""
    usage = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
    with running(call("c1")) as book:
        book >> inject(output("c1"))
        book << sends("response.inject.created")
        final = response("resp_1", "completed", [call("c1")], usage=usage)
        book >> UpstreamBytes(1, sse({"type": "response.completed", "sequence_number": 5, "response": final}))
        book << cancels(1)
        book << opens()
        book >> frame({"type": "response.cancel"})
        book << cancels(1)
        book << sends({"type": "response.incomplete", "response": {"usage": usage}})
        book << observes(turn=1, outcome="cancelled", usage=Usage(10, 0, 2))


# Rollout mode


def test_append_goes_on_with_all_that_its_create_said() -> None:
    """No id and no settings; a response that waits for tools ends in `response.done`, the last in `completed`."""
    with Playbook(rollout=True) as book:
        book >> create(input="hi", instructions="be brief", tools=[{"type": "function", "name": "f"}], store=False)
        book << opens()
        for event in streams(1, answer("resp_1", call("c1"))):
            book >> event
        book << sends("response.created", "response.output_item.done", {"type": "response.done"})
        book << finishes(1)
        book >> frame({"type": "response.append", "input": [output("c1")]})
        book << opens(
            input=[user("hi"), call("c1"), output("c1")],
            instructions="be brief",
            store=False,
            tools=[{"type": "function", "name": "f"}],
        )
        for event in streams(2, answer("resp_2", message("done"))):
            book >> event
        book << sends("response.created", "response.output_item.done", "response.completed")
        book << finishes(2)


def test_append_may_repeat_what_the_server_said() -> None:
    """Codex 0.98 sends the call again, in its own copy, with its output; it stands in the transcript once."""
    copy = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c1"}
    with Playbook(rollout=True) as book:
        reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
        play_turn(book, 1, create(input="hi"), answer("resp_1", reasoning, message("let me see"), call("c1")))
        said_again = [reasoning, {"role": "assistant", "content": "let me see"}, copy]
        book >> frame({"type": "response.append", "input": [*said_again, output("c1")]})
        book << opens(input=[user("hi"), reasoning, message("let me see"), call("c1"), output("c1")])


def test_append_takes_the_newest_response_when_it_starts() -> None:
    """Sent while the one before runs, it continues that one."""
    with running(rollout=True) as book:
        book >> frame({"type": "response.append", "input": "more"})
        book >> UpstreamBytes(1, sse({"type": "response.completed", "response": response("resp_1", "completed")}))
        book << sends("response.completed")
        book << finishes(1)
        book << opens(input=[user("hi"), user("more")])


@pytest.mark.parametrize("rollout", [True, False])
def test_append_without_a_create_is_a_failure(rollout: bool) -> None:  # noqa: FBT001
    """There is nothing to append to; in the form that such clients read, and the connection goes on."""
    with Playbook(rollout=rollout) as book:
        book >> frame({"type": "response.append", "input": "x"})
        book << sends(
            "response.created", {"type": "response.failed", "response": {"error": {"code": "rollout_not_started"}}}
        )
        book << observes(turn=1, outcome="refused", error_code="rollout_not_started")
        book >> create(input="hi")
        book << opens(input=[user("hi")])


def test_append_with_a_bad_input_is_a_failure() -> None:
    """As for a create."""
    with Playbook(rollout=True) as book:
        book >> frame({"type": "response.append", "input": 5})
        book << sends("response.created", {"type": "response.failed", "response": {"error": {"code": "invalid_type"}}})


def test_append_can_be_switched_off() -> None:
    """By a setting; the error names it."""
    with Playbook(appends=False) as book:
        book >> frame({"type": "response.append", "input": "x"})
        book << sends({"type": "error", "status": 400, "error": {"code": "rollout_mode_off", "param": "type"}})


def test_append_of_a_client_that_chose_nothing() -> None:
    """Codex 0.98: it appends whatever ended the response before, and reads no `error` frames."""
    with Playbook() as book:
        play_turn(book, 1, create(input="hi"), answer("resp_1", call("c1")))
        book >> frame({"type": "response.append", "input": [call("c1"), output("c1")]})
        book << opens(input=[user("hi"), call("c1"), output("c1")])
        book >> UpstreamFailed(2, UpstreamUnreachable())
        book << sends(
            "response.created", {"type": "response.failed", "response": {"error": {"code": "upstream_unreachable"}}}
        )
        book << observes(turn=2, outcome="error")


def test_done_never_reaches_a_client_that_did_not_choose_it() -> None:
    """Newer clients wait for `response.completed`."""
    with Playbook() as book:
        book >> create(input="hi")
        book << opens()
        for event in streams(1, answer("resp_1", call("c1"))):
            book >> event
        book << sends("response.created", "response.output_item.done", "response.completed")
        book << finishes(1)


def test_answered_calls_do_not_make_a_response_wait_in_rollout_mode() -> None:
    """What was injected is owed no more: the response ends in `completed`."""
    with running(call("c1"), rollout=True) as book:
        book >> inject(output("c1"))
        book << sends("response.inject.created")
        final = response("resp_1", "completed", [call("c1")])
        book >> UpstreamBytes(1, sse({"type": "response.completed", "sequence_number": 5, "response": final}))
        book << cancels(1)
        book << opens()
        book >> UpstreamOpened(1)
        book >> UpstreamBytes(1, answer("resp_2", message("done")))
        book << sends("response.output_item.done", "response.completed")
        book << finishes(1)


# One sequence


def test_open_responses_never_multiplexes() -> None:
    """Lanes or not, one response follows the other in the order in which they were asked for; the echo stays."""
    with Playbook(lanes=LaneLimits(side_by_side=False)) as book:
        book >> create(input="one", stream_id="a")
        book << opens(input=[user("one")])
        book >> create(input="two", stream_id="b")
        book >> create(input="three")
        for turn, name in ((1, "a"), (2, "b"), (3, None)):
            for event in streams(turn, answer(f"resp_{turn}")):
                book >> event
            lane = {"stream_id": name} if name else {}
            book << sends({"type": "response.created", **lane}, {"type": "response.completed", **lane})
            book << finishes(turn)
            if turn < 3:
                book << opens()


def test_cancel_in_one_sequence_means_the_lane_that_it_names() -> None:
    """Another lane's response runs on; what waits for it ends in its turn."""
    with Playbook(lanes=LaneLimits(side_by_side=False)) as book:
        book >> create(input="one", stream_id="a")
        book << opens(input=[user("one")])
        book >> create(input="two", stream_id="b")
        book >> frame({"type": "response.cancel", "stream_id": "b"})
        book >> frame({"type": "response.cancel", "stream_id": "c"})
        book >> frame({"type": "response.cancel"})
        for event in streams(1, answer("resp_1")):
            book >> event
        book << sends("response.created", {"type": "response.completed", "stream_id": "a"})
        book << finishes(1)
        book << sends("response.created", {"type": "response.incomplete", "stream_id": "b"})
