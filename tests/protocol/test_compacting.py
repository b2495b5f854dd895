"""Turns that compact first: what the backend is asked, what the client sees, and what stays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.protocol import compacting, compaction
from proxy.protocol.events import UpstreamBytes, UpstreamEnded, UpstreamFailed, UpstreamOpened
from proxy.protocol.profiles import PROFILES, Compaction, RequestRules
from proxy.protocol.upstream_errors import UpstreamUnreachable
from tests import openresponses
from tests.playbook import (
    Playbook,
    answer,
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
    said,
    sends,
    streams,
    user,
)

PROMPT = json.loads(compaction.PROMPT_ITEM)
THRESHOLD = [{"type": "compaction", "compact_threshold": 1000}]
USAGE = {"input_tokens": 1990, "output_tokens": 10, "total_tokens": 2000}
PROFILES_WITHOUT = [name for name, profile in PROFILES.items() if profile.compaction is not Compaction.BACKEND]


def full(profile: str = "generic") -> Playbook:
    """A dialogue whose first response, resp_1, has seen 2000 tokens, and ends with a call."""
    book = Playbook(profile=profile)
    play_turn(book, 1, create(input="the task"), answer("resp_1", message("I see"), call("c1"), usage=USAGE))
    return book


def is_summary_of(text: str, item: dict[str, Any]) -> bool:
    """Whether an item upstream is the message that holds a summary."""
    return bool(item["role"] == "user" and item["content"][0]["text"].endswith(text))


@pytest.mark.parametrize("profile", PROFILES_WITHOUT)
def test_threshold_makes_the_turn_begin_with_a_summary(profile: str) -> None:
    """One request for the summary, with the same tools; then the turn, with the summary in the place of the past."""
    tools = [{"type": "function", "name": "f"}]
    more = {"context_management": THRESHOLD, "tools": tools}
    with full(profile) as book:
        book >> create(previous_response_id="resp_1", input=[output("c1"), user("and now?")], **more)
        book << opens(
            input=[user("the task"), message("I see"), call("c1"), output("c1"), PROMPT],
            tools=tools,
            tool_choice="none",
            store=False,
        )
        book >> UpstreamOpened(2)
        book >> UpstreamBytes(2, answer("resp_s", message("It went so."), usage=USAGE))
        book << cancels(2)
        book << sends(
            {"type": "response.created", "sequence_number": 0},
            {"type": "response.in_progress", "sequence_number": 1},
            {"type": "response.output_item.added", "output_index": 0, "item": {"type": "compaction"}},
            {"type": "response.output_item.done", "sequence_number": 3, "item": {"type": "compaction"}},
        )
        (opened,) = [effect for effect in book._left if hasattr(effect, "request")]
        body = json.loads(opened.request.body())
        book << opens(tools=tools)
        assert "context_management" not in body
        assert [item.get("content", "") for item in body["input"][::2]] == [
            [{"type": "input_text", "text": "the task"}],
            "and now?",
        ]
        assert is_summary_of("It went so.", body["input"][1])
        book >> UpstreamOpened(2)
        book >> UpstreamBytes(2, answer("resp_2", message("Thus.", "msg_2"), usage=USAGE))
        book << sends(
            {"type": "response.output_item.done", "output_index": 1, "sequence_number": 4},
            {"type": "response.completed", "sequence_number": 5, "response": {"usage": {"total_tokens": 4000}}},
        )
        book << finishes(2)


def compacted() -> tuple[Playbook, list[dict[str, Any]]]:
    """A dialogue after a turn that has compacted, and the frames of that turn."""
    book = full()
    frames = said(book, create(previous_response_id="resp_1", input=[output("c1")], context_management=THRESHOLD))
    for event in [
        UpstreamOpened(2),
        UpstreamBytes(2, answer("resp_s", message("It went so."))),
        *streams(2, answer("resp_2", message("Thus.", "msg_2"))),
    ]:
        frames += said(book, event)
    return book, frames


def test_compacted_response_is_whole_and_the_chain_goes_on_from_it() -> None:
    """The client gets the item and may send it back; a continuation by id is as short as the summary lets it be."""
    book, frames = compacted()
    for event in frames:
        assert openresponses.problems(event) == []
    final = frames[-1]["response"]
    assert [item["type"] for item in final["output"]] == ["compaction", "message"]
    assert compaction.read_item(json.dumps(final["output"][0]).encode()) == "It went so."
    with book:
        book >> create(previous_response_id=final["id"], input="next")
        (opened,) = [effect for effect in book._left if hasattr(effect, "request")]
        sent = json.loads(opened.request.body())["input"]
        book << opens()
        assert len(sent) == 4
        assert is_summary_of("It went so.", sent[1])
        assert sent[2:] == [message("Thus.", "msg_2"), user("next")]


def test_whole_history_with_a_compaction_item_is_cut_at_it() -> None:
    """Clients that send everything each time send what the summary stands for too; the user's own words stay."""
    _, frames = compacted()
    item = frames[-1]["response"]["output"][0]
    with Playbook() as book:
        book >> create(input=[user("the task"), message("I see"), call("c1"), output("c1"), item, user("next")])
        (opened,) = [effect for effect in book._left if hasattr(effect, "request")]
        sent = json.loads(opened.request.body())["input"]
        book << opens()
        assert [sent[0], sent[2]] == [user("the task"), user("next")]
        assert is_summary_of("It went so.", sent[1])


def test_short_conversation_is_left_alone() -> None:
    """Below the threshold nothing is asked; the field does not reach a backend that does not know it."""
    with Playbook() as book:
        book >> create(input="hi", context_management=THRESHOLD)
        book << opens({"model": "m", "input": [user("hi")]})


def test_uncounted_conversation_is_estimated() -> None:
    """A backend that counts no tokens, or a first create that is long: by its bytes."""
    with Playbook() as book:
        book >> create(input=[user("x" * 5000), output_of_nothing()], context_management=THRESHOLD)
        book << opens(store=False)


def output_of_nothing() -> dict[str, Any]:
    """An item that is an output, of a kind whose call is not looked for."""
    return {"type": "computer_call_output", "call_id": "x", "output": {}}


def test_backend_that_compacts_itself_gets_the_field() -> None:
    """And the item, as it came: both are its own."""
    with Playbook(profile="openai") as book:
        foreign = {"type": "compaction", "id": "cmp_1", "encrypted_content": "theirs"}
        book >> create(input=[user("a"), foreign, user("b")], context_management=THRESHOLD)
        book << opens(input=[user("a"), foreign, user("b")], context_management=THRESHOLD)


def test_chain_restarts_at_an_item_that_the_backend_made() -> None:
    """The next request begins with it."""
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "theirs"}
    rules = RequestRules.of(PROFILES["openai"], keeps_responses=False)
    with Playbook(rules=rules) as book:
        play_turn(book, 1, create(input="a"), answer("resp_1", message("x"), item, message("y", "msg_2")))
        book >> create(previous_response_id="resp_1", input="b")
        book << opens(input=[item, message("y", "msg_2"), user("b")])


def test_compaction_item_in_a_continuation_stands_for_what_came_before() -> None:
    """The client compacted by itself and goes on with the id."""
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "theirs"}
    with Playbook() as book:
        play_turn(book, 1, create(input="a"), answer("resp_1", message("x")))
        book >> create(previous_response_id="resp_1", input=[user("b"), item, user("c")])
        book << opens(input=[item, user("c")])


@pytest.mark.parametrize("value", [5, [5], [{"type": "compaction", "compact_threshold": 5}]])
def test_malformed_context_management_is_an_error(value: Any) -> None:
    """It names the field; what it would have continued stays."""
    with full() as book:
        book >> create(previous_response_id="resp_1", input=[output("c1")], context_management=value)
        book << sends({"type": "error", "status": 400, "error": {"param": "context_management"}})
        assert "resp_1" in book.session.cache


def test_turn_goes_on_without_a_summary_that_cannot_be_had() -> None:
    """The conversation is only longer then; if that is too long, the backend will say so."""
    for events in ([UpstreamFailed(2, UpstreamUnreachable())], streams(2, answer("resp_s"))[:2]):
        book = full()
        book.session.receive(create(previous_response_id="resp_1", input=[output("c1")], context_management=THRESHOLD))
        orders = [order for event in events for order in book.session.receive(event)]
        (opened,) = [order for order in orders if hasattr(order, "request")]
        assert json.loads(opened.request.body())["input"] == [
            user("the task"),
            message("I see"),
            call("c1"),
            output("c1"),
        ]


# The trigger


def test_trigger_answers_with_the_compaction_item_alone() -> None:
    """Codex's remote compaction: the response is the item, and goes on from there."""
    with full() as book:
        book >> create(previous_response_id="resp_1", input=[output("c1"), {"type": compacting.TRIGGER}])
        book << opens(input=[user("the task"), message("I see"), call("c1"), output("c1"), PROMPT])
        book >> UpstreamOpened(2)
        book >> UpstreamBytes(2, answer("resp_s", message("It went so."), usage=USAGE))
        book << cancels(2)
        book << sends(
            "response.created", "response.in_progress", "response.output_item.added", "response.output_item.done"
        )
        book << sends(
            {
                "type": "response.completed",
                "sequence_number": 4,
                "response": {"status": "completed", "usage": {"total_tokens": 2000}},
            }
        )
        book << observes(turn=2, outcome="completed")


def test_trigger_fails_with_the_backends_error() -> None:
    """Nothing else was wanted, so this is what the client has to know."""
    with full() as book:
        book >> create(previous_response_id="resp_1", input=[output("c1"), {"type": compacting.TRIGGER}])
        book << opens()
        book >> UpstreamFailed(2, UpstreamUnreachable())
        book << sends({"type": "error", "status": 502, "error": {"code": "upstream_unreachable"}})


def test_cancel_while_the_summary_is_written() -> None:
    """The client has asked for a response and gets one that ends."""
    with full() as book:
        book >> create(previous_response_id="resp_1", input=[output("c1")], context_management=THRESHOLD)
        book << opens()
        book >> UpstreamOpened(2)
        book >> frame({"type": "response.cancel"})
        book << cancels(2)
        book << sends("response.created", "response.incomplete")


def test_cut_summary_is_no_summary() -> None:
    """A stream that breaks off is no reason to lose what was said."""
    with full() as book:
        book >> create(previous_response_id="resp_1", input=[output("c1")], context_management=THRESHOLD)
        book << opens()
        book >> UpstreamOpened(2)
        book >> UpstreamBytes(2, answer("resp_s", message("half"))[:200])
        book >> UpstreamEnded(2)
        book << opens(input=[user("the task"), message("I see"), call("c1"), output("c1")])


def asked(book: Playbook, **fields: Any) -> dict[str, Any]:
    """The body that a create makes go upstream."""
    (opened,) = [order for order in book.session.receive(create(**fields)) if hasattr(order, "request")]
    body: dict[str, Any] = json.loads(opened.request.body())
    return body


@pytest.mark.parametrize("usage", [USAGE, None])
def test_conversation_that_was_compacted_is_short_again(usage: dict[str, int] | None) -> None:
    """What the summary cost is not part of it: the next turn does not compact once more."""
    book = full()
    small = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110} if usage else None
    for event in [
        create(previous_response_id="resp_1", input=[output("c1")], context_management=THRESHOLD),
        UpstreamOpened(2),
        UpstreamBytes(2, answer("resp_s", message("It went so."), usage=usage)),
        *streams(2, answer("resp_2", message("Thus.", "msg_2"), usage=small)),
    ]:
        book.session.receive(event)
    (tip,) = set(book.session.cache._entries) - {"resp_1"}
    body = asked(book, previous_response_id=tip, input="next", context_management=THRESHOLD)
    assert body["input"][-1] == user("next")


def test_conversation_that_only_was_to_be_compacted_is_short_again() -> None:
    """As after the trigger."""
    book = full()
    for event in [
        create(previous_response_id="resp_1", input=[output("c1"), {"type": compacting.TRIGGER}]),
        *streams(2, answer("resp_s", message("It went so."), usage=USAGE))[:2],
    ]:
        book.session.receive(event)
    (tip,) = set(book.session.cache._entries) - {"resp_1"}
    body = asked(book, previous_response_id=tip, input="next", context_management=THRESHOLD)
    assert body["input"][-1] == user("next")


def test_conversation_that_the_client_compacted_is_short() -> None:
    """Its item stands for all that the backend had counted."""
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "theirs"}
    body = asked(full(), previous_response_id="resp_1", input=[item, user("c")], context_management=THRESHOLD)
    assert body["input"] == [item, user("c")]


def test_what_was_only_asked_is_not_compacted() -> None:
    """A first create that is long: there is nothing yet that a summary could stand for."""
    book = Playbook()
    asked_for = [{"type": "message", "role": "developer", "content": "d"}, user("x" * 5000)]
    assert asked(book, input=asked_for, context_management=THRESHOLD)["input"] == asked_for


def test_whole_history_is_compacted_up_to_what_the_model_said_last() -> None:
    """A client that sends everything each time: what it asks now stays as it is."""
    history = [user("a"), message("x" * 5000), user("b")]
    book = Playbook()
    body = asked(book, input=[*history, user("c")], context_management=THRESHOLD)
    assert body["input"] == [*history[:2], PROMPT]
    book.session.receive(UpstreamOpened(1))
    orders = book.session.receive(UpstreamBytes(1, answer("resp_s", message("It went so."))))
    (opened,) = [order for order in orders if hasattr(order, "request")]
    sent = json.loads(opened.request.body())["input"]
    assert is_summary_of("It went so.", sent[1])
    assert sent[2:] == [user("b"), user("c")]


def test_summary_of_an_answer_that_failed_is_no_summary() -> None:
    """Whatever it had said until then."""
    with full() as book:
        book >> create(previous_response_id="resp_1", input=[output("c1")], context_management=THRESHOLD)
        book << opens()
        book >> UpstreamOpened(2)
        book >> UpstreamBytes(2, answer("resp_s", message("half"), kind="failed"))
        book << cancels(2)
        book << opens(input=[user("the task"), message("I see"), call("c1"), output("c1")])


def test_steering_a_turn_that_began_with_a_summary() -> None:
    """The successor goes on from the summary."""
    book = full()
    frames = said(book, create(previous_response_id="resp_1", input=[output("c1")], context_management=THRESHOLD))
    for event in [UpstreamOpened(2), UpstreamBytes(2, answer("resp_s", message("It went so.")))]:
        frames += said(book, event)
    response_id = frames[0]["response"]["id"]
    with book:
        book >> frame({"type": "response.steer", "previous_response_id": response_id, "input": "rather this"})
        book << sends({"type": "response.steer.accepted", "sequence_number": 4})
        book << cancels(2)
        book << sends({"type": "response.incomplete", "sequence_number": 5})
        (opened,) = [effect for effect in book._left if hasattr(effect, "request")]
        sent = json.loads(opened.request.body())["input"]
        book << opens()
        assert is_summary_of("It went so.", sent[1])
        assert sent[2:] == [user("rather this")]


def test_what_inherits_its_settings_compacts_too() -> None:
    """The wish is one of them: an append to a long response begins with a summary, and no backend sees the field."""
    book = Playbook()
    assert "context_management" not in asked(book, input="the task", context_management=THRESHOLD)
    for event in streams(1, answer("resp_1", message("I see"), call("c1"), usage=USAGE)):
        book.session.receive(event)
    orders = book.session.receive(frame({"type": "response.append", "input": [output("c1")]}))
    (opened,) = [order for order in orders if hasattr(order, "request")]
    body = json.loads(opened.request.body())
    assert body["input"] == [user("the task"), message("I see"), call("c1"), output("c1"), PROMPT]
    assert "context_management" not in body
