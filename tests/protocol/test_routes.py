"""Which backend serves a model, and where a chain is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.effects import Observe, OpenUpstream
from proxy.protocol.events import ClientGone, UpstreamBytes, UpstreamEnded, UpstreamOpened
from proxy.protocol.profiles import PROFILES, RequestRules
from proxy.protocol.records import TurnEnded
from proxy.protocol.routes import Placement, Route, RoutingTable, Served
from tests.playbook import (
    Expectation,
    Playbook,
    answer,
    cancels,
    create,
    finishes,
    observes,
    sends,
    user,
)

RULES = RequestRules.of(PROFILES["generic"])
A, B, C = (Route(name, RULES, replicas=3) for name in "abc")
TABLE = RoutingTable(
    A,
    [
        Served(A, ["exact", "same*"], {}),
        Served(B, ["same-b*", "m-[0-9]", "other"], {"alias": "other", "exact-2": "m"}),
        Served(C, ["m-*", "exact-2"]),
    ],
)


@pytest.mark.parametrize(
    ("model", "backend", "known_as"),
    [
        ("exact", "a", None),
        ("other", "b", None),
        ("alias", "b", b'"other"'),
        ("same-b1", "a", None),
        ("m-1", "b", None),
        ("m-x", "c", None),
        ("exact-2", "c", None),
        ("unknown", "a", None),
        ("EXACT", "a", None),
        ("m-", "c", None),
        (None, "a", None),
    ],
)
def test_model_finds_its_backend(model: str | None, backend: str, known_as: bytes | None) -> None:
    """Its own name, then an alias, then the first pattern, then the default."""
    route = TABLE.find(model)
    assert (route.backend, route.model) == (backend, known_as)


def test_alias_is_rewritten_for_the_backend_only() -> None:
    """In its place among the fields; nothing else is touched."""
    fields = [("tools", b"[]"), ("model", b'"alias"'), ("x", b"1")]
    assert TABLE.find("alias").address(fields) == [("tools", b"[]"), ("model", b'"other"'), ("x", b"1")]
    assert TABLE.find("exact").address(fields) is fields


def test_chain_keeps_its_placement_until_its_model_changes() -> None:
    """The same object, whatever else changes; another model is placed anew."""
    first = TABLE.follow(b'"m-1"', {"tools": b"[1]"}, None).at(2)
    assert TABLE.follow(b'"m-1"', {"tools": b"[2]"}, first) is first
    moved = TABLE.follow(b'"m-x"', {"tools": b"[1]"}, first)
    assert (moved.route.backend, moved.replica) == ("c", None)


def test_bound_chain_stays_at_its_replica_whatever_its_model() -> None:
    """As long as the backend is the same: nobody else can read what it holds."""
    bound = TABLE.follow(b'"m-1"', {}, None).at(2).bound()
    stays = TABLE.follow(b'"other"', {}, bound)
    assert (stays.replica, stays.is_bound, stays.model) == (2, True, b'"other"')
    assert TABLE.follow(b'"m-x"', {}, bound) == Placement(C, b'"m-x"')


def test_prefix_is_that_of_tools_and_instructions() -> None:
    """A client's key tells conversations apart, and not what they share; input is no part of either."""
    names = {"tools": b'[{"a":1}]', "instructions": b'"Be brief."'}
    plain = TABLE.follow(b'"m"', names, None)
    keyed = TABLE.follow(b'"m"', {**names, "prompt_cache_key": b'"k"', "input": b"[]"}, None)
    assert plain.prefix == keyed.prefix != b""
    assert plain.conversation == b"" != keyed.conversation
    assert TABLE.follow(b'"m"', {"tools": b"[]", "instructions": b"null"}, None).prefix == b""
    only_key = TABLE.follow(b'"m"', {"prompt_cache_key": b'"k"'}, None)
    assert (only_key.prefix, bool(only_key.conversation)) == (b"", True)


def test_one_replica_needs_no_hash() -> None:
    """Nothing is computed where there is nothing to choose."""
    table = RoutingTable(Route("a", RULES))
    assert table.is_trivial
    assert not TABLE.is_trivial
    assert table.follow(b'"m"', {"tools": b"[1]"}, None).prefix == b""


@given(st.lists(st.binary(max_size=6), min_size=2, max_size=2), st.lists(st.binary(max_size=6), min_size=2, max_size=2))
def test_different_fields_have_different_prefixes(one: list[bytes], other: list[bytes]) -> None:
    """Wherever the border between the fields is."""
    first, second = (
        TABLE.follow(None, {"tools": b"x" + pair[0], "instructions": b"x" + pair[1]}, None).prefix
        for pair in (one, other)
    )
    assert (first == second) == (one == other)


def goes(backend: str, replica: int | None, *, is_bound: bool = False, **members: object) -> Expectation:
    """A request goes to a backend, to be placed or where its chain is, with at least these members."""

    def fits(effect: OpenUpstream) -> bool:
        placement, body = effect.placement, json.loads(effect.request.body())
        where = placement.route.backend, placement.replica, placement.is_bound
        return where == (backend, replica, is_bound) and members.items() <= body.items()

    return Expectation(f"goes to {backend} {replica} with {members}", OpenUpstream, fits)


def test_session_keeps_a_chain_where_it_was_answered() -> None:
    """The client's alias is the backend's model; whoever answered is asked again, also by a branch; a new chain is free."""
    with Playbook(routes=TABLE) as book:
        for turn, (previous, replica) in enumerate(
            [({}, None), ({"previous_response_id": "resp_1"}, 2), ({"previous_response_id": "resp_1"}, 2), ({}, None)],
            1,
        ):
            book >> create(model="alias", **previous) << goes("b", replica, model="other")
            book >> UpstreamOpened(turn, 2) >> UpstreamBytes(turn, answer(f"resp_{turn}"))
            book << sends("response.created", "response.completed") << finishes(turn)
            book << observes(route="new" if replica is None else "same", model="alias")
            book >> UpstreamEnded(turn)


def test_session_notes_where_a_chain_has_moved_to() -> None:
    """Another one has answered: its successor goes there."""
    with Playbook(routes=TABLE) as book:
        for turn, (previous, asked, answered) in enumerate(
            [({}, None, 0), ({"previous_response_id": "resp_1"}, 0, 1), ({"previous_response_id": "resp_2"}, 1, 1)], 1
        ):
            book >> create(**previous) << goes("a", asked)
            book >> UpstreamOpened(turn, answered) >> UpstreamBytes(turn, answer(f"resp_{turn}"))
            book << sends("response.created", "response.completed") << finishes(turn)
            book >> UpstreamEnded(turn)


def test_session_binds_a_chain_to_who_can_read_it() -> None:
    """After an encrypted item, of whatever the backend calls so; an empty one says nothing."""
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    with Playbook(routes=TABLE) as book:
        for turn, content in enumerate(("", "gAAAA"), 1):
            item = {**reasoning, "encrypted_content": content}
            previous = {"previous_response_id": "resp_1"} if turn > 1 else {}
            book >> create(**previous) << goes("a", 1 if turn > 1 else None)
            book >> UpstreamOpened(turn, 1) >> UpstreamBytes(turn, answer(f"resp_{turn}", item))
            book << sends("response.created", "response.output_item.done", "response.completed") << finishes(turn)
            book >> UpstreamEnded(turn)
        book >> create(previous_response_id="resp_2") << goes("a", 1, is_bound=True)
        book >> ClientGone() << cancels(3)


def test_session_knows_who_can_read_what_a_client_brings() -> None:
    """By what stands for it: the same as in the record of the turn that said it."""
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}
    seals = []
    with Playbook(routes=TABLE) as book:
        book >> create() << goes("a", None)
        book >> UpstreamOpened(1, 1) >> UpstreamBytes(1, answer("resp_1", item))
        book << sends("response.created", "response.output_item.done", "response.completed") << finishes(1)
        seals += [
            effect.record.sealed
            for effect in book._left
            if isinstance(effect, Observe) and isinstance(effect.record, TurnEnded)
        ]
        book >> UpstreamEnded(1) >> create(input=[item, user("more")])
        seals += [effect.placement.sealed for effect in book._left if isinstance(effect, OpenUpstream)]
        book << goes("a", None) >> ClientGone() << cancels(2)
    first, second = seals
    assert first == second != b""
