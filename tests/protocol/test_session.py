"""Dialogues with a session: what a client and a backend say, and what must come of it."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from proxy.protocol.effects import OpenUpstream
from proxy.protocol.events import (
    ClientGone,
    DrainStarted,
    LifetimeReached,
    SilenceReached,
    UpstreamBytes,
    UpstreamEnded,
    UpstreamFailed,
    UpstreamOpened,
)
from proxy.protocol.lanes import LaneLimits
from proxy.protocol.profiles import PROFILES, RequestRules
from proxy.protocol.session import UnexpectedEvent
from proxy.protocol.upstream_errors import UpstreamRefused, UpstreamTimeout, UpstreamUnreachable
from tests.playbook import (
    NOW,
    Playbook,
    answer,
    call,
    cancels,
    closes,
    create,
    evicts,
    finishes,
    frame,
    frames_of,
    message,
    observes,
    opens,
    output,
    play_turn,
    response,
    sends,
    sse,
    streams,
    user,
)

REFUSED = UpstreamRefused("no", status=500, type="server_error")


def error(status: int, code: str | None, **members: Any) -> dict[str, Any]:
    """An error frame, as far as a test looks at it."""
    return {"type": "error", "status": status, "error": {"code": code, **members}}


# Chains


def test_first_turn_sends_its_input_upstream_and_relays_the_answer() -> None:
    """A create without an id is a new chain: its input goes up, the events come down, and it is remembered."""
    with Playbook() as book:
        book >> create(input=[user("hi")], temperature=0.5)
        book << opens({"model": "m", "temperature": 0.5, "input": [user("hi")]})
        for event in streams(1, answer("resp_a", message("hello"))):
            book >> event
        book << sends("response.created", "response.output_item.done", "response.completed") << finishes(1)
    assert "resp_a" in book.session.cache


def test_continuation_replays_the_whole_transcript() -> None:
    """A create with an id sends all that came before it and its own input, and never the id."""
    book = Playbook()
    play_turn(book, 1, create(input=[user("a")]), answer("resp_1", call("c1")))
    play_turn(book, 2, create(input=[output("c1")], previous_response_id="resp_1"), answer("resp_2", message("done")))
    with book:
        book >> create(input=[user("b")], previous_response_id="resp_2")
        book << opens({"model": "m", "input": [user("a"), call("c1"), output("c1"), message("done"), user("b")]})


def test_null_id_is_a_new_chain() -> None:
    """`previous_response_id: null` means that there is none (CLIProxyAPI#2596)."""
    book = Playbook()
    play_turn(book, 1, create(input=[user("a")]), answer("resp_1"))
    with book:
        book >> create(input=[user("b")], previous_response_id=None) << opens(input=[user("b")])


def test_full_resend_without_an_id_does_not_double_the_history() -> None:
    """A create without an id never picks up what the connection remembers (opencodex#1412)."""
    book = Playbook()
    play_turn(book, 1, create(input=[user("a")]), answer("resp_1", message("x")))
    with book:
        book >> create(input=[user("a"), message("x"), user("b")])
        book << opens(input=[user("a"), message("x"), user("b")])


def test_older_response_can_be_branched_from() -> None:
    """Any remembered response can be continued, not only the newest."""
    book = Playbook()
    play_turn(book, 1, create(input=[user("a")]), answer("resp_1", message("x")))
    play_turn(book, 2, create(input=[user("b")], previous_response_id="resp_1"), answer("resp_2", message("y")))
    with book:
        book >> create(input=[user("c")], previous_response_id="resp_1")
        book << opens(input=[user("a"), message("x"), user("c")])
    with book:
        for event in streams(3, answer("resp_3")):
            book >> event
        (
            book
            << sends("response.created", "response.completed")
            << finishes(3)
            << observes(reason="branch", lookup="hit")
        )


def test_unknown_id_is_not_found_and_the_connection_goes_on() -> None:
    """An id that is not remembered gets the error that clients match on; nothing goes upstream."""
    with Playbook() as book:
        book >> create(input=[user("a")], previous_response_id="resp_x")
        book << sends(
            {
                "type": "error",
                "status": 400,
                "sequence_number": 0,
                "error": {
                    "type": "invalid_request_error",
                    "code": "previous_response_not_found",
                    "message": "Previous response with id 'resp_x' not found.",
                    "param": "previous_response_id",
                },
            }
        )
        book << observes(outcome="refused", lookup="miss", reason="unknown")
        book >> create(input=[user("b")]) << opens(input=[user("b")])


def test_incomplete_response_can_be_continued() -> None:
    """`response.incomplete` is a success for the cache."""
    book = Playbook()
    data = answer("resp_1", message("par"), kind="incomplete", incomplete_details={"reason": "max_output_tokens"})
    play_turn(book, 1, create(input=[user("a")]), data)
    with book:
        book >> create(input=[], previous_response_id="resp_1") << opens(input=[user("a"), message("par")])


def test_state_is_kept_before_the_terminal_frame_is_ordered() -> None:
    """The client may continue the moment it reads the terminal frame, so the cache is filled by then."""
    book = Playbook()
    book >> create(input="a") << opens()
    book >> UpstreamOpened(1)
    effects = book.session.receive(UpstreamBytes(1, answer("resp_1")))
    assert b"response.completed" in frames_of(effects)[-1]
    assert "resp_1" in book.session.cache


def test_same_id_twice_is_given_a_new_one() -> None:
    """A backend with constant ids: the second response gets an id of its own in all its events."""
    book = Playbook()
    play_turn(book, 1, create(input="a"), answer("resp_const"))
    with book:
        book >> create(input="b") << opens()
        for event in streams(2, answer("resp_const")):
            book >> event
        book << sends({"response": {"id": "resp_new1"}}, {"response": {"id": "resp_new1"}}) << finishes(2)
        book >> create(input=[], previous_response_id="resp_new1") << opens()


def test_changing_ids_are_made_one() -> None:
    """A backend whose id changes within a stream: the first one holds."""
    with Playbook() as book:
        book >> create(input="a") << opens()
        first = {"type": "response.created", "response": response("resp_1", "in_progress")}
        last = {"type": "response.completed", "response": response("resp_2")}
        for event in streams(1, sse(first, last)):
            book >> event
        book << sends({"response": {"id": "resp_1"}}, {"response": {"id": "resp_1"}}) << finishes(1)
        book >> create(input=[], previous_response_id="resp_1") << opens()


def test_missing_id_is_made_up() -> None:
    """A response without an id gets one: clients chain by it."""
    with Playbook() as book:
        book >> create(input="a") << opens()
        for event in streams(1, sse({"type": "response.completed", "response": {"status": "completed"}})):
            book >> event
        book << sends({"response": {"id": "resp_new1", "output": [], "status": "completed"}}) << finishes(1)


def test_concurrent_lanes_do_not_share_an_id() -> None:
    """Two running responses to which the backend gave one id are told apart."""
    with Playbook() as book:
        book >> create(input="a", stream_id="a") << opens()
        book >> create(input="b", stream_id="b") << opens()
        created = sse({"type": "response.created", "response": response("resp_same", "in_progress")})
        book >> UpstreamOpened(1) >> UpstreamBytes(1, created) << sends({"response": {"id": "resp_same"}})
        book >> UpstreamOpened(2) >> UpstreamBytes(2, created) << sends({"response": {"id": "resp_new1"}})


# Output items


def test_empty_snapshot_is_filled_from_the_done_events() -> None:
    """Where the terminal snapshot lists no items although some were finished, they are put in and replayed."""
    book = Playbook()
    data = sse(
        {"type": "response.output_item.done", "output_index": 0, "item": call("c1")},
        {"type": "response.output_item.done", "output_index": 1, "item": call("c2")},
        {"type": "response.completed", "response": response("resp_1")},
    )
    book >> create(input=[user("a")]) << opens()
    for event in streams(1, data):
        book >> event
    book << sends(
        "response.output_item.done",
        "response.output_item.done",
        {"type": "response.completed", "response": {"output": [call("c1"), call("c2")]}},
    )
    book << finishes(1) << observes(snapshot_differs=True)
    with book:
        book >> create(input=[output("c1"), output("c2")], previous_response_id="resp_1")
        book << opens(input=[user("a"), call("c1"), call("c2"), output("c1"), output("c2")])


def test_snapshot_is_replayed_when_it_lists_every_item() -> None:
    """Transformers lists items in another order than it streamed them: the snapshot's order is replayed."""
    book = Playbook()
    data = sse(
        {"type": "response.output_item.done", "output_index": 1, "item": call("c1")},
        {"type": "response.output_item.done", "output_index": 1, "item": message("", "msg_1")},
        {"type": "response.completed", "response": response("resp_1", items=[message("", "msg_1"), call("c1")])},
    )
    play_turn(book, 1, create(input=[user("a")]), data)
    with book:
        book >> create(input=[output("c1")], previous_response_id="resp_1")
        book << opens(input=[user("a"), message("", "msg_1"), call("c1"), output("c1")])


def test_partial_snapshot_is_left_alone_but_not_replayed() -> None:
    """A snapshot that lacks a finished item reaches the client as it is; what was finished is replayed."""
    book = Playbook()
    data = sse(
        {"type": "response.output_item.done", "output_index": 0, "item": call("c1")},
        {"type": "response.output_item.done", "output_index": 1, "item": call("c2")},
        {"type": "response.completed", "response": response("resp_1", items=[call("c2")])},
    )
    book >> create(input=[user("a")]) << opens()
    for event in streams(1, data):
        book >> event
    done = "response.output_item.done"
    book << sends(done, done, {"response": {"output": [call("c2")]}}) << finishes(1)
    with book:
        book >> create(input=[output("c1")], previous_response_id="resp_1")
        book << opens(input=[user("a"), call("c1"), call("c2"), output("c1")])


def test_nothing_is_relayed_behind_the_terminal_event() -> None:
    """`[DONE]`, more events and more bytes behind the terminal event are dropped; the next turn is not disturbed."""
    with Playbook() as book:
        book >> create(input="a") << opens()
        tail = b"data: [DONE]\n\n" + sse({"type": "response.completed", "response": response("resp_9")})
        book >> UpstreamOpened(1) >> UpstreamBytes(1, answer("resp_1") + tail)
        book << sends("response.created", "response.completed") << finishes(1)
        book >> UpstreamBytes(1, tail) >> UpstreamEnded(1)
        book >> create(input="b") << opens()


@pytest.mark.parametrize("end", [UpstreamEnded(1), UpstreamFailed(1, REFUSED)])
def test_tail_of_a_turn_may_arrive_while_the_next_one_runs(end: UpstreamEnded | UpstreamFailed) -> None:
    """What an exchange still says when its lane has begun the next turn belongs to nobody."""
    with Playbook() as book:
        book >> create(input="a") << opens()
        book >> UpstreamOpened(1) >> UpstreamBytes(1, answer("resp_1"))
        book << sends("response.created", "response.completed") << finishes(1)
        book >> create(input="b", previous_response_id="resp_1") << opens()
        book >> UpstreamBytes(1, b"data: [DONE]\n\n") >> end
        book >> UpstreamOpened(2) >> UpstreamBytes(2, answer("resp_2"))
        book << sends("response.created", "response.completed") << finishes(2)


# Warm-ups


def test_warmup_is_answered_at_once_and_can_be_continued() -> None:
    """`generate: false` needs no backend: two whole events, and its input is part of the next turn's."""
    with Playbook() as book:
        book >> create(input=[user("system")], tools=[], instructions="be brief", generate=False)
        complete = {
            "id": "resp_new1",
            "object": "response",
            "created_at": NOW,
            "model": "m",
            "instructions": "be brief",
            "output": [],
        }
        book << sends(
            {"type": "response.created", "sequence_number": 0, "response": {**complete, "status": "in_progress"}},
            {
                "type": "response.completed",
                "sequence_number": 1,
                "response": {
                    **complete,
                    "status": "completed",
                    "completed_at": NOW,
                    "usage": {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0},
                },
            },
        )
        book << observes(outcome="warmup", lookup="new", response_id="resp_new1")
        book >> create(input=[user("hi")], tools=[], instructions="be brief", previous_response_id="resp_new1")
        book << opens({"model": "m", "tools": [], "instructions": "be brief", "input": [user("system"), user("hi")]})


def test_warmup_with_everything_generates_on_an_empty_input() -> None:
    """Codex: a warm-up brings all, the next create has its id and `input: []`, and that generates."""
    with Playbook() as book:
        book >> create(input=[user("all")], generate=False) << sends("response.created", "response.completed")
        book >> create(input=[], previous_response_id="resp_new1") << opens(input=[user("all")])


def test_warmup_without_input_is_a_hit_afterwards() -> None:
    """A warm-up may bring nothing but settings; continuing it is a hit all the same."""
    with Playbook() as book:
        book >> create(input=[], generate=False) << sends("response.created", "response.completed")
        book >> create(input=[user("a")], previous_response_id="resp_new1") << opens(input=[user("a")])
        for event in streams(2, answer("resp_2")):
            book >> event
        book << sends("response.created", "response.completed") << finishes(2)
        book << observes(lookup="hit", reason="warmup")


def test_prewarm_means_the_same() -> None:
    """`prompt_cache_options.prewarm: true` is a warm-up too, whatever `generate` says."""
    with Playbook() as book:
        book >> create(input=[], generate=True, prompt_cache_options={"prewarm": True})
        book << sends("response.created", "response.completed")


def test_what_a_warmup_brought_reaches_the_backend() -> None:
    """Fields that the first real create leaves out come from the warm-up, and stay with the chain."""
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    with Playbook() as book:
        book >> create(input=[], tools=tools, instructions="be brief", temperature=0, generate=False)
        book << sends("response.created", "response.completed")
        book >> create(input=[user("a")], previous_response_id="resp_new1", tools=tools)
        book << opens(
            {"model": "m", "tools": tools, "instructions": "be brief", "temperature": 0, "input": [user("a")]}
        )
        for event in streams(2, answer("resp_2")):
            book >> event
        book << sends("response.created", "response.completed") << finishes(2)
        book >> create(input=[user("b")], previous_response_id="resp_2")
        # The tools were named by a create in between, so they are not the warm-up's any more.
        book << opens({"model": "m", "instructions": "be brief", "temperature": 0, "input": [user("a"), user("b")]})


def test_fields_are_not_inherited_from_a_real_turn() -> None:
    """The API does not carry instructions or tools over with the id; neither does the proxy."""
    book = Playbook()
    play_turn(book, 1, create(input=[user("a")], instructions="x", tools=[]), answer("resp_1"))
    with book:
        book >> create(input=[], previous_response_id="resp_1") << opens({"model": "m", "input": [user("a")]})


def test_fields_are_inherited_where_the_operator_wants_it() -> None:
    """From turn to turn, namespaces and all, byte for byte; the response says so."""
    tools = [{"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read", "parameters": {}}]}]
    rules = RequestRules.of(PROFILES["generic"], inherits=frozenset({"tools", "instructions"}))
    book = Playbook(rules=rules)
    play_turn(book, 1, create(input=[user("a")], instructions="x", tools=tools), answer("resp_1"))
    play_turn(book, 2, create(input=[user("b")], previous_response_id="resp_1"), answer("resp_2"))
    with book:
        book >> create(input=[], previous_response_id="resp_2", instructions="y")
        book << opens({"model": "m", "instructions": "y", "tools": tools, "input": [user("a"), user("b")]})


def test_explicit_null_counts_as_named() -> None:
    """A create that says `instructions: null` does not get the warm-up's."""
    with Playbook() as book:
        book >> create(input=[], instructions="x", generate=False) << sends("response.created", "response.completed")
        book >> create(input=[user("a")], instructions=None, previous_response_id="resp_new1")
        book << opens({"model": "m", "instructions": None, "input": [user("a")]})


def test_warmup_can_continue_a_chain() -> None:
    """A warm-up in the middle of a connection adds its input to the chain."""
    book = Playbook()
    play_turn(book, 1, create(input=[user("a")]), answer("resp_1", message("x")))
    with book:
        book >> create(input=[user("b")], previous_response_id="resp_1", generate=False)
        book << sends(
            "response.created", {"type": "response.completed", "response": {"previous_response_id": "resp_1"}}
        )
        book >> create(input=[], previous_response_id="resp_new1")
        book << opens(input=[user("a"), message("x"), user("b")])


def test_warmup_with_an_unknown_id_is_not_found() -> None:
    """A warm-up resolves its id like any other create."""
    with Playbook() as book:
        book >> create(input=[], previous_response_id="resp_x", generate=False)
        book << sends(error(400, "previous_response_not_found"))


# Failures


def test_refusal_keeps_the_backends_words_and_evicts_the_parent() -> None:
    """A backend's error reaches the client with its status and words; the parent is gone, the connection is not."""
    book = Playbook()
    play_turn(book, 1, create(input=[user("a")]), answer("resp_1"))
    refusal = UpstreamRefused(
        "slow", status=429, type="rate_limit_error", code="rate_limit_exceeded", headers={"retry-after": "3"}
    )
    with book:
        book >> create(input=[user("b")], previous_response_id="resp_1") << opens()
        book >> UpstreamFailed(2, refusal)
        book << evicts("failed_continuation")
        book << sends(
            {
                "type": "error",
                "status": 429,
                "headers": {"retry-after": "3"},
                "error": {"type": "rate_limit_error", "code": "rate_limit_exceeded", "message": "slow", "param": None},
            }
        )
        book << observes(outcome="error", error_status=429, error_source="upstream")
        book >> create(input=[user("b")], previous_response_id="resp_1")
        book << sends(error(400, "previous_response_not_found")) << observes(reason="evicted_failed")


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (UpstreamUnreachable(), 502, "upstream_unreachable"),
        (UpstreamTimeout("first_event", 600), 504, "upstream_timeout"),
    ],
)
def test_failure_before_the_stream_becomes_an_error(failure: Any, status: int, code: str) -> None:
    """No connection and no answer in time are errors of their own; the next turn works."""
    with Playbook() as book:
        book >> create(input="a") << opens()
        book >> UpstreamFailed(1, failure) << sends(error(status, code, type="server_error"))
        book >> create(input="b") << opens()


def test_failure_in_the_stream_is_numbered_after_what_came() -> None:
    """An error that ends a running stream continues its numbers."""
    with Playbook() as book:
        book >> create(input="a") << opens()
        created = {"type": "response.created", "sequence_number": 7, "response": response("resp_1", "in_progress")}
        book >> UpstreamOpened(1) >> UpstreamBytes(1, sse(created)) << sends("response.created")
        book >> UpstreamFailed(1, UpstreamTimeout("idle", 300))
        book << sends({"type": "error", "status": 504, "sequence_number": 8})
    assert "resp_1" not in book.session.cache


def test_stream_without_a_terminal_event_is_an_error() -> None:
    """A clean end of the stream is no end of the response (CLIProxyAPI#4048)."""
    with Playbook() as book:
        book >> create(input="a") << opens()
        created = {"type": "response.created", "response": response("resp_1", "in_progress")}
        book >> UpstreamOpened(1) >> UpstreamBytes(1, sse(created)) << sends("response.created")
        book >> UpstreamEnded(1) << sends(error(502, "upstream_disconnected"))


def test_failed_response_is_passed_on_and_evicts_the_parent() -> None:
    """`response.failed` is the turn's end as it is: no error frame besides, nothing committed, the parent gone."""
    book = Playbook()
    play_turn(book, 1, create(input=[user("a")]), answer("resp_1"))
    with book:
        book >> create(input=[], previous_response_id="resp_1") << opens()
        failed = response("resp_2", "failed", error={"code": "server_error", "message": "x"})
        for event in streams(2, sse({"type": "response.failed", "response": failed})):
            book >> event
        book << evicts("failed_continuation") << sends("response.failed") << finishes(2)
        book << observes(outcome="failed", error_code="server_error", error_source="upstream")
    assert len(book.session.cache) == 0


def test_flat_error_event_becomes_a_nested_one() -> None:
    """SSE has errors flat, WebSocket clients look under `error`: it is converted, and the stream is stopped."""
    with Playbook() as book:
        book >> create(input="a") << opens()
        flat = {"type": "error", "code": "rate_limit_exceeded", "message": "slow", "param": None, "sequence_number": 3}
        book >> UpstreamOpened(1) >> UpstreamBytes(1, sse(flat))
        book << cancels(1)
        book << sends(
            {
                "type": "error",
                "status": 429,
                "error": {"type": "rate_limit_error", "code": "rate_limit_exceeded", "message": "slow", "param": None},
            }
        )


def test_orphan_output_is_refused_and_evicts_the_parent() -> None:
    """An output for a call that was never made is refused here, since lenient backends take it."""
    book = Playbook()
    play_turn(book, 1, create(input=[user("a")]), answer("resp_1", call("c1")))
    with book:
        book >> create(input=[output("c9")], previous_response_id="resp_1")
        book << evicts("failed_continuation")
        book << sends(error(400, "tool_call_not_found", param="input"))


@pytest.mark.parametrize("kind", ["function_call_output", "custom_tool_call_output"])
def test_orphan_output_in_a_new_chain_is_refused(kind: str) -> None:
    """The call must stand in the input where there is no transcript."""
    with Playbook() as book:
        book >> create(input=[{"type": kind, "call_id": "c1", "output": "x"}])
        book << sends(error(400, "tool_call_not_found"))


def test_output_whose_call_is_in_the_same_input_is_taken() -> None:
    """A client that sends everything has the call in its input."""
    with Playbook() as book:
        book >> create(input=[user("a"), call("c1"), output("c1")]) << opens()


def test_output_is_not_checked_where_a_conversation_holds_the_calls() -> None:
    """With `conversation` the calls may stand in what only the backend knows."""
    with Playbook() as book:
        book >> create(input=[output("c1")], conversation="conv_1") << opens(conversation="conv_1")


# Item references


def test_item_reference_is_replaced_by_the_item() -> None:
    """The AI SDK sends references without an id to continue: they are found in any transcript of the connection."""
    book = Playbook()
    play_turn(book, 1, create(input=[user("a")]), answer("resp_1", call("c1", "fc_1")))
    with book:
        reference = {"type": "item_reference", "id": "fc_1"}
        book >> create(input=[user("a"), reference, output("c1")])
        book << opens(input=[user("a"), call("c1", "fc_1"), output("c1")])


def test_unknown_item_reference_is_refused() -> None:
    """A reference that no transcript resolves would be a backend's 400; it is said here, clearly."""
    with Playbook() as book:
        book >> create(input=[{"type": "item_reference", "id": "msg_x"}])
        book << sends(error(404, "item_not_found", param="input"))


def test_unknown_item_reference_goes_to_a_backend_that_stores_items() -> None:
    """The hosted API resolves references itself."""
    with Playbook(profile="openai") as book:
        reference = {"type": "item_reference", "id": "msg_x"}
        book >> create(input=[reference]) << opens(input=[reference])


# Bad frames


@pytest.mark.parametrize(
    ("data", "code", "param"),
    [
        (b"{", "invalid_json", None),
        (b"[]", "invalid_json", None),
        (b'"x"', "invalid_json", None),
        (b'{"model":"m"}', "invalid_type", "type"),
        (b'{"type":5}', "invalid_type", "type"),
        (b'{"type":"session.update"}', "unknown_event_type", "type"),
        (b'{"type":"response.create","input":5}', "invalid_type", "input"),
        (b'{"type":"response.create","input":[5]}', "invalid_type", "input"),
        (b'{"type":"response.create","generate":"no"}', "invalid_type", "generate"),
        (b'{"type":"response.create","background":true}', "invalid_value", "background"),
        (b'{"type":"response.create","previous_response_id":5}', "invalid_type", "previous_response_id"),
        (b'{"type":"response.create","stream_id":""}', "invalid_stream_id", "stream_id"),
        (b'{"type":"response.create","stream_id":"a b"}', "invalid_stream_id", "stream_id"),
        (b'{"type":"response.create","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json", None),
    ],
)
def test_bad_frame_gets_an_error_and_loses_nothing(data: bytes, code: str, param: str | None) -> None:
    """Every frame that cannot be understood is answered, and what was remembered still is."""
    book = Playbook()
    play_turn(book, 1, create(input=[user("a")]), answer("resp_1"))
    with book:
        book >> frame(data) << sends(error(400, code, param=param, type="invalid_request_error"))
        book >> create(input=[], previous_response_id="resp_1") << opens(input=[user("a")])


def test_bad_frame_during_a_turn_is_answered_after_it() -> None:
    """Within a lane the order of frames is all that tells answers apart, so an error waits for its place."""
    with Playbook() as book:
        book >> create(input="a") << opens()
        book >> frame(b"{")
        book >> UpstreamOpened(1) >> UpstreamBytes(1, answer("resp_1"))
        book << sends("response.created", "response.completed") << finishes(1) << sends(error(400, "invalid_json"))


def test_processed_is_not_answered() -> None:
    """An acknowledgement of some Codex versions: an answer would be taken for the next turn's (shunt#519)."""
    with Playbook() as book:
        book >> frame({"type": "response.processed", "response_id": "resp_1"})


def test_ignored_values_of_stream_and_background_are_stripped() -> None:
    """`stream` in any form and `background: false` are the transport's business."""
    with Playbook() as book:
        book >> create(input=[], stream=False, background=False, generate=True, store=False)
        book << opens({"model": "m", "store": False, "input": []})


def test_client_metadata_is_stripped_unless_kept() -> None:
    """Several backends answer 400 or 422 to it; the hosted API takes it."""
    with Playbook() as book:
        book >> create(input=[], client_metadata={"a": "b"}) << opens({"model": "m", "input": []})
    with Playbook(profile="openai") as book:
        book >> create(input=[], client_metadata={"a": "b"}) << opens(client_metadata={"a": "b"})


# Order and lanes


def test_overlapping_creates_run_one_after_the_other() -> None:
    """A create during a turn waits, and starts right behind the terminal frame."""
    with Playbook() as book:
        book >> create(input="a") << opens(input=[user("a")])
        book >> create(input="b")
        book >> UpstreamOpened(1) >> UpstreamBytes(1, answer("resp_1"))
        book << sends("response.created", "response.completed") << finishes(1) << opens(input=[user("b")])


def test_queued_create_resolves_its_id_when_it_starts() -> None:
    """A pipelined create sees the cache as it is when its turn comes."""
    book = Playbook()
    play_turn(book, 1, create(input=[user("a")]), answer("resp_1"))
    with book:
        book >> create(input=[], previous_response_id="resp_1") << opens()
        book >> create(input=[user("b")], previous_response_id="resp_2")
        book >> UpstreamOpened(2) >> UpstreamBytes(2, answer("resp_2", message("x")))
        book << sends("response.created", "response.output_item.done", "response.completed") << finishes(2)
        book << opens(input=[user("a"), message("x"), user("b")])


def test_full_queue_is_refused_at_once() -> None:
    """The queue is bounded; what does not fit is told so, with advice when to come again."""
    with Playbook(lanes=LaneLimits(queued=1)) as book:
        book >> create(input="a") << opens()
        book >> create(input="b")
        book >> create(input="c")
        book << sends({**error(429, "websocket_queue_full"), "headers": {"retry-after": "1"}})


def test_queue_is_bounded_in_bytes() -> None:
    """A few large frames fill the queue as well as many small ones."""
    with Playbook(lanes=LaneLimits(queued_bytes=1000)) as book:
        book >> create(input="a") << opens()
        book >> create(input="b" * 600)
        book >> create(input="c" * 600) << sends(error(429, "websocket_queue_full"))


def test_lanes_run_side_by_side_and_echo_their_names() -> None:
    """Every event of a named lane carries its `stream_id`, spliced into the backend's bytes."""
    with Playbook() as book:
        book >> create(input="a", stream_id="one") << opens({"model": "m", "input": [user("a")]})
        book >> create(input="b") << opens()
        data = sse({"type": "response.created", "sequence_number": 0, "response": response("resp_1", "in_progress")})
        book >> UpstreamOpened(1) >> UpstreamBytes(1, data) << sends({"type": "response.created", "stream_id": "one"})
        book >> UpstreamOpened(2)
        (default,) = frames_of(book.session.receive(UpstreamBytes(2, data.replace(b"resp_1", b"resp_2"))))
        assert b"stream_id" not in default
        effects = book.session.receive(UpstreamFailed(1, REFUSED))
        assert json.loads(frames_of(effects)[0])["stream_id"] == "one"
    assert b"stream_id" not in frames_of(book.session.receive(UpstreamFailed(2, REFUSED)))[0]


def test_failed_fork_from_another_lane_keeps_the_parent() -> None:
    """A cross-lane fork that fails does not evict the response it shares with the other lane."""
    book = Playbook()
    play_turn(book, 1, create(input=[user("a")], stream_id="one"), answer("resp_1"))
    with book:
        book >> create(input=[], previous_response_id="resp_1", stream_id="two") << opens()
        book >> UpstreamFailed(2, REFUSED) << sends({"type": "error", "stream_id": "two"})
        book >> create(input=[], previous_response_id="resp_1", stream_id="one") << opens()


def test_turns_beyond_the_limit_in_flight_wait() -> None:
    """So many responses at once and no more; the lane that waited longest comes first."""
    with Playbook(lanes=LaneLimits(in_flight=1)) as book:
        book >> create(input="a", stream_id="a") << opens()
        book >> create(input="b", stream_id="b")
        book >> create(input="c", stream_id="c")
        book >> UpstreamFailed(1, REFUSED) << sends({"stream_id": "a"}) << opens(input=[user("b")])
        book >> UpstreamFailed(2, REFUSED) << sends({"stream_id": "b"}) << opens(input=[user("c")])


def test_one_lane_too_many_is_refused() -> None:
    """Named lanes are limited; the default lane does not count."""
    with Playbook(lanes=LaneLimits(named=1)) as book:
        book >> create(input="a", stream_id="a", generate=False) << sends("response.created", "response.completed")
        book >> create(input="b", stream_id="b")
        book << sends({**error(400, "websocket_stream_limit_reached"), "stream_id": "b"})
        book >> create(input="c", generate=False) << sends("response.created", "response.completed")


def test_warmups_do_not_wait_for_a_place_in_flight() -> None:
    """A warm-up needs no backend, so it is answered while all places are taken."""
    with Playbook(lanes=LaneLimits(in_flight=1)) as book:
        book >> create(input="a", stream_id="a") << opens()
        book >> create(input="b", stream_id="b", generate=False)
        book << sends({"stream_id": "b"}, {"stream_id": "b", "type": "response.completed"})


# Silence, age, drain, leaving


def test_silence_sends_a_keepalive_while_a_turn_runs() -> None:
    """Codex's watchdog counts text frames only; in a lane the frame names it."""
    with Playbook() as book:
        book >> create(input="a", stream_id="x") << opens()
        book >> SilenceReached(1) << sends(b'{"stream_id":"x","type":"keepalive"}')
        book >> UpstreamOpened(1) >> SilenceReached(1) << sends({"type": "keepalive"})
        book >> UpstreamBytes(1, answer("resp_1"))
        book << sends("response.created", "response.completed") << finishes(1)
        book >> SilenceReached(1)


def test_age_limit_when_idle_says_an_error_and_closes() -> None:
    """Right before the close the error can be mistaken for nothing else."""
    with Playbook(lifetime_minutes=60) as book:
        book >> LifetimeReached()
        book << sends(error(400, "websocket_connection_limit_reached")) << closes(1001)
        book >> create(input="a")


def test_age_limit_lets_a_running_turn_end() -> None:
    """No turn is cut by the connection's age; what is asked after the limit is refused."""
    with Playbook() as book:
        book >> create(input="a") << opens()
        book >> LifetimeReached()
        book >> create(input="b")
        book >> UpstreamOpened(1) >> UpstreamBytes(1, answer("resp_1"))
        book << sends("response.created", "response.completed") << finishes(1)
        limit = error(400, "websocket_connection_limit_reached")
        book << sends(limit) << cancels(1) << sends(limit) << closes(1001)


def test_drain_closes_an_idle_connection() -> None:
    """An idle connection is closed at once, with a code on which SDKs reconnect."""
    with Playbook() as book:
        book >> DrainStarted() << closes(1012)


def test_drain_waits_for_running_and_queued_turns() -> None:
    """What was asked before the drain is answered; what comes after it is told to come again."""
    with Playbook() as book:
        book >> create(input="a") << opens()
        book >> create(input="b")
        book >> DrainStarted()
        book >> create(input="c")
        book >> UpstreamFailed(1, REFUSED) << sends("error") << opens(input=[user("b")])
        book >> UpstreamFailed(2, REFUSED) << sends("error") << sends(error(503, "server_restarting")) << closes(1012)


def test_leaving_client_cancels_what_runs_and_forgets_everything() -> None:
    """A client that is gone costs the backend nothing more, and nothing of it is kept."""
    book = Playbook()
    play_turn(book, 1, create(input=[user("a")]), answer("resp_1"))
    with book:
        book >> create(input=[], previous_response_id="resp_1") << opens()
        book >> create(input="queued")
        book >> ClientGone()
        book << observes(turn=2, outcome="client_gone") << observes(turn=3, outcome="client_gone") << cancels(2)
        book >> UpstreamBytes(2, answer("resp_2")) >> create(input="late")
    assert len(book.session.cache) == 0
    assert book.budget.used == 0


def test_late_facts_of_a_cancelled_exchange_are_ignored() -> None:
    """A fact that was on its way when its exchange was cancelled changes nothing."""
    with Playbook() as book:
        book >> create(input="a") << opens()
        book >> UpstreamOpened(1) >> UpstreamBytes(1, b"data: no json\n\n") << cancels(1) << sends("error")
        book >> UpstreamBytes(1, answer("resp_1")) >> UpstreamEnded(1) >> UpstreamFailed(1, REFUSED)
        book >> create(input="b") << opens()


def test_impossible_fact_is_a_bug_and_says_so() -> None:
    """A fact that has no transition raises, naming lane, state and fact."""
    book = Playbook()
    book.session.receive(create(input="a"))
    with pytest.raises(UnexpectedEvent, match="lane default in state REQUESTED cannot take UpstreamEnded"):
        book.session.receive(UpstreamEnded(1))


# Bytes


@pytest.mark.parametrize(
    "value",
    [
        b"123456789012345678901234567890",
        b"1e999",
        b'"\\ud83d"',
        '"\u2028\U0001f600"'.encode(),
        b"null",
        b'{"a":1,"a":2}',
        b"[ 1 ,\t2 ]",
        b'"\\u0041\\/"',
    ],
)
def test_awkward_values_are_carried_byte_for_byte(value: bytes) -> None:
    """What is valid JSON goes upstream as it came, in fields and in items, in this turn and in later ones."""
    book = Playbook()
    item = b'{"role":"user","x":' + value + b',"content":"hi"}'
    asked = b'{"type":"response.create","unknown":' + value + b',"input":[' + item + b"]}"
    (opened,) = [effect for effect in book.session.receive(frame(asked)) if isinstance(effect, OpenUpstream)]
    assert b'"unknown":' + value in opened.request.body()
    assert item in opened.request.body()
    for event in streams(1, answer("resp_1")):
        book.session.receive(event)
    effects = book.session.receive(create(input=[], previous_response_id="resp_1"))
    assert item in effects[0].request.body()  # type: ignore[union-attr]


def test_members_that_share_a_name_are_all_carried() -> None:
    """A field that occurs twice goes upstream twice: what to make of it is the backend's choice."""
    book = Playbook()
    asked = b'{"type":"response.create","metadata":{"a":"1"},"metadata":{"a":"2"},"input":[]}'
    effects = book.session.receive(frame(asked))
    body = effects[0].request.body()  # type: ignore[union-attr]
    assert body.count(b'"metadata":') == 2


def test_body_of_a_turn_begins_with_the_body_of_the_turn_before() -> None:
    """While only the input grows, the backend's prefix cache sees the same bytes again."""
    book = Playbook()
    fields = {"tools": [{"type": "function", "name": "f"}], "instructions": "x", "temperature": 0, "store": False}
    opened = play_turn(book, 1, create(input="first", **fields), answer("resp_1", call("c1")))
    bodies = [opened.request.body()]
    for turn in range(2, 6):
        # Another order of keys is no change.
        shuffled = dict(reversed(fields.items()))
        asked = create(input=[output(f"c{turn - 1}")], previous_response_id=f"resp_{turn - 1}", **shuffled)
        opened = play_turn(book, turn, asked, answer(f"resp_{turn}", call(f"c{turn}")))
        bodies.append(opened.request.body())
    for shorter, longer in itertools.pairwise(bodies):
        assert longer.startswith(shorter.removesuffix(b"]}"))
    assert bodies[0].startswith(b'{"tools":[')
