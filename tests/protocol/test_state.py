"""What a session hands to the store, and what it asks of it (:mod:`proxy.protocol.state`)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.protocol import kept as kept_responses
from proxy.protocol.chain import Entry, Settings
from proxy.protocol.effects import Effect, Recall, StoreResponse
from proxy.protocol.events import ClientGone, Event, Recalled, UpstreamBytes, UpstreamOpened
from proxy.protocol.lanes import LaneLimits
from proxy.protocol.rawjson import Head
from proxy.protocol.transcript import extend, items_of
from tests.playbook import (
    Expectation,
    Playbook,
    answer,
    begun,
    call,
    create,
    finishes,
    frame,
    message,
    observes,
    opens,
    output,
    sends,
    streams,
    user,
)


def stores(response_id: str) -> Expectation:
    """A response is kept beyond the connection."""
    return Expectation(
        f"stores {response_id}", StoreResponse, lambda effect: bool(effect.entry.response_id == response_id)
    )


def recalls(turn: int, response_id: str | None, *item_ids: str) -> Expectation:
    """The store is asked."""
    return Expectation(
        f"recalls {response_id} {item_ids}",
        Recall,
        lambda effect: bool((effect.turn, effect.response_id, effect.item_ids) == (turn, response_id, set(item_ids))),
    )


def kept(response_id: str = "resp_old", **changes: Any) -> Entry:
    """What the store knows: a user's message and a call."""
    transcript = extend(
        None,
        [b'{"type":"message","role":"user","content":"before"}', b'{"type":"function_call","call_id":"c0"}'],
        [Head("message"), Head("function_call", None, "c0")],
    )
    facts: dict[str, Any] = {"may_be_stored": True, "depth": 3, "lane": None, "output_items": 1, **changes}
    return Entry(
        response_id=response_id,
        transcript=transcript,
        settings=Settings([]),
        is_warmup=False,
        brought=frozenset(),
        response=b"{}",
        **facts,
    )


def orders(book: Playbook, *events: Event) -> list[Effect]:
    """All that comes of some facts."""
    return [order for event in events for order in book.session.receive(event)]


def stored(effects: list[Effect]) -> list[Entry]:
    """The entries that are to be kept."""
    return [effect.entry for effect in effects if isinstance(effect, StoreResponse)]


@pytest.mark.parametrize("members", [{}, {"store": True}, {"store": None}])
def test_response_is_stored_before_its_last_frame(members: dict[str, Any]) -> None:
    """Unless the client says otherwise, and before it can ask for it elsewhere."""
    with Playbook(stores=True) as book:
        book >> create(input="hi", **members)
        book << opens()
        for event in streams(1, answer("resp_1", message("hello")))[:2]:
            book >> event
        book << stores("resp_1")
        book << sends("response.created", "response.output_item.done", "response.completed")
        book << finishes(1)


def test_what_is_stored_is_all_that_a_continuation_needs() -> None:
    """Transcript, output, settings."""
    book = Playbook(stores=True)
    (entry,) = stored(orders(book, create(input="hi", tools=[]), *streams(1, answer("resp_1", message("hello")))))
    assert [head.type for _, head in items_of(entry.transcript)] == ["message", "message"]
    assert entry.output_items == 1
    assert dict(entry.settings.fields)["tools"] == b"[]"
    assert entry.created_at > 0


def test_store_false_is_never_stored_nor_what_follows_from_it() -> None:
    """A later response would bring along what was not to be kept."""
    book = Playbook(stores=True)
    effects = orders(book, create(input="hi", store=False), *streams(1, answer("resp_1")))
    effects += orders(book, create(previous_response_id="resp_1", input="a"), *streams(2, answer("resp_2")))
    effects += orders(book, create(input="new"), *streams(3, answer("resp_3")))
    assert [entry.response_id for entry in stored(effects)] == ["resp_3"]


def test_no_store_no_orders() -> None:
    """Switched off, nothing is kept and nothing asked."""
    with Playbook() as book:
        book >> create(previous_response_id="resp_x", input="hi")
        book << sends({"type": "error", "error": {"code": "previous_response_not_found"}})
    assert stored(orders(book, create(input="hi"), *streams(2, answer("resp_1")))) == []


@pytest.mark.parametrize("kind", ["failed", "incomplete"])
def test_only_what_can_be_continued_is_stored(kind: str) -> None:
    """A failed response cannot."""
    book = Playbook(stores=True)
    effects = orders(book, create(input="hi"), *streams(1, answer("resp_1", kind=kind)))
    assert [entry.response_id for entry in stored(effects)] == (["resp_1"] if kind == "incomplete" else [])


def test_response_of_another_connection_is_continued() -> None:
    """Its transcript comes first; the chain goes on from its depth."""
    with Playbook(stores=True) as book:
        book >> create(previous_response_id="resp_old", input=[output("c0")])
        book << recalls(1, "resp_old")
        book >> Recalled(1, kept(), {})
        book << opens(
            input=[
                {"type": "message", "role": "user", "content": "before"},
                {"type": "function_call", "call_id": "c0"},
                output("c0"),
            ]
        )
        for event in streams(1, answer("resp_1")):
            book >> event
        book << stores("resp_1")
        book << sends(
            {"type": "response.created", "response": {"previous_response_id": "resp_old"}}, "response.completed"
        )
        book << finishes(1)
        book << observes(turn=1, lookup="hit", reason="stored", depth=4)


def test_what_nobody_knows_is_not_found() -> None:
    """The same words as without a store."""
    with Playbook(stores=True) as book:
        book >> create(previous_response_id="resp_x", input="hi")
        book << recalls(1, "resp_x")
        book >> Recalled(1, None, {})
        book << sends({"type": "error", "status": 400, "error": {"code": "previous_response_not_found"}})
        book << observes(turn=1, lookup="miss", reason="unknown")


def test_what_the_connection_remembers_is_not_asked_for() -> None:
    """Nothing waits for the store in the common case."""
    book = Playbook(stores=True)
    orders(book, create(input="hi"), *streams(1, answer("resp_1", call("c1"))))
    effects = orders(book, create(previous_response_id="resp_1", input=[output("c1")]))
    assert not [effect for effect in effects if isinstance(effect, Recall)]


def test_item_references_are_looked_up_in_the_store() -> None:
    """The AI SDK names items of responses from before its socket."""
    reference = {"type": "item_reference", "id": "msg_old"}
    with Playbook(stores=True) as book:
        book >> create(input=[user("a"), reference, user("b")])
        book << recalls(1, None, "msg_old")
        book >> Recalled(1, None, {"msg_old": (b'{"type":"message","id":"msg_old"}', Head("message", "msg_old"))})
        book << opens(input=[user("a"), {"type": "message", "id": "msg_old"}, user("b")])
    with Playbook(stores=True) as book:
        book >> create(input=[reference])
        book << recalls(1, None, "msg_old")
        book >> Recalled(1, None, {})
        book << sends({"type": "error", "status": 404, "error": {"code": "item_not_found"}})


def test_turn_that_waits_for_the_store_holds_its_place() -> None:
    """Its lane and its place in flight; a cancel meets it, and a client that leaves ends it."""
    with Playbook(stores=True, lanes=LaneLimits(in_flight=1)) as book:
        book >> create(previous_response_id="resp_old", input="a", stream_id="a")
        book << recalls(1, "resp_old")
        book >> create(input="b", stream_id="b")
        book >> frame({"type": "response.cancel", "stream_id": "a"})
        book >> Recalled(1, kept(), {})
        book << stores("resp_new1")
        book << sends("response.created", {"type": "response.incomplete", "stream_id": "a"})
        book << observes(turn=1, outcome="cancelled")
        book << opens(input=[user("b")])
    with Playbook(stores=True) as book:
        book >> create(previous_response_id="resp_old", input="a")
        book << recalls(1, "resp_old")
        book >> ClientGone()
        book << observes(turn=1, outcome="client_gone")
        book >> Recalled(1, kept(), {})


def test_failure_leaves_the_store_alone() -> None:
    """A failed continuation is forgotten by the connection; what was stored was stored for longer."""
    book = Playbook(stores=True)
    orders(book, create(input="hi"), *streams(1, answer("resp_1")))
    orders(book, create(previous_response_id="resp_1", input=[output("c9")]))
    assert "resp_1" not in book.session.cache
    with book:
        book >> create(previous_response_id="resp_1", input="again")
        book << recalls(3, "resp_1")


def test_ids_of_responses_that_ended_are_not_given_again() -> None:
    """A backend that always says the same id, even for one that failed."""
    book = Playbook()
    orders(book, create(input="hi"), *streams(1, answer("resp_1", kind="failed")))
    effects = orders(book, create(input="hi"), *streams(2, answer("resp_1")))
    assert "resp_1" not in book.session.cache
    assert effects
    assert len(book.session.cache) == 1


def shown(entry: Entry) -> tuple[list[Any], list[Any]]:
    """The output of a stored response, and its input, as they are asked for over HTTP."""
    whole = json.loads(kept_responses.response_object(entry))
    listed = json.loads(kept_responses.input_items(entry, kept_responses.Page(is_ascending=True)))
    return [item["id"] for item in whole["output"]], [item.get("call_id", item["id"]) for item in listed["data"]]


def test_stored_response_with_injected_outputs_shows_its_own() -> None:
    """They are neither its output nor among the items that it was asked with."""
    book = Playbook(stores=True)
    effects = orders(
        book,
        create(input=[{**user("hi"), "id": "msg_hi"}]),
        UpstreamOpened(1),
        UpstreamBytes(1, begun("resp_1", call("c1"), call("c2"))),
        frame({"type": "response.inject", "response_id": "resp_1", "input": [output("c1")]}),
        frame({"type": "response.cancel"}),
    )
    (entry,) = stored(effects)
    assert shown(entry) == (["fc_c1", "fc_c2"], ["msg_hi"])


def test_stored_response_that_a_backend_compacted_shows_all_its_output() -> None:
    """Its transcript begins in the middle of it."""
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "theirs"}
    book = Playbook(stores=True, profile="openai")
    said = (message("x", "msg_x"), item, message("y", "msg_y"))
    (entry,) = stored(orders(book, create(input="hi"), *streams(1, answer("resp_1", *said))))
    assert shown(entry) == (["msg_x", "cmp_1", "msg_y"], [])


def test_append_to_a_response_that_the_connection_forgot() -> None:
    """The store is asked for it, as for one that is named."""
    with Playbook(stores=True, rollout=True, max_entries=1) as book:
        (entry,) = stored(orders(book, create(input="hi"), *streams(1, answer("resp_1", call("c1")))))
        orders(book, create(input="other", stream_id="b"), *streams(2, answer("resp_2")))
        book >> frame({"type": "response.append", "input": [call("c1"), output("c1")]})
        book << recalls(3, "resp_1")
        book >> Recalled(3, entry, {})
        book << opens(input=[user("hi"), call("c1"), output("c1")])


def test_what_the_backend_does_nothing_for_takes_no_place() -> None:
    """A warm-up that waits for the store stands in nobody's way, nor is it counted as in flight."""
    with Playbook(stores=True, lanes=LaneLimits(in_flight=1)) as book:
        book >> create(input="a", stream_id="a")
        book << opens()
        book >> create(previous_response_id="resp_old", input="b", stream_id="b", generate=False)
        book << recalls(2, "resp_old")
        assert book.session.lanes.in_flight == 1
        book >> Recalled(2, kept(), {})
        book << stores("resp_new1")
        book << sends("response.created", {"type": "response.completed", "stream_id": "b"})
        assert book.session.lanes.in_flight == 1
        for event in streams(1, answer("resp_1")):
            book.session.receive(event)
        assert book.session.lanes.in_flight == 0


def test_memory_of_ends_is_bounded() -> None:
    """A connection that lives for long keeps the newest ones."""
    book = Playbook(max_entries=2)
    for _ in range(300):
        book.session.receive(create(generate=False))
    assert len(book.session.state.ended) == 256
    assert "resp_new300" in book.session.state.ended
