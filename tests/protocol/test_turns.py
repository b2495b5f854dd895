"""What a turn is made of: the corners that the dialogues in `test_session.py` do not show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.protocol import turns
from proxy.protocol.chain import CacheBudget, ChainCache, Entry, Settings
from proxy.protocol.errors import ToolCallNotFound
from proxy.protocol.lanes import Lane, Turn
from proxy.protocol.messages import Create, open_frame, read_create
from proxy.protocol.profiles import PROFILES, RequestRules
from proxy.protocol.rawjson import Head
from proxy.protocol.records import TurnEnded
from proxy.protocol.request import build
from proxy.protocol.routes import Route, RoutingTable
from proxy.protocol.terminals import Terminal, Usage
from proxy.protocol.transcript import extend, items_of
from tests import openresponses

RULES = RequestRules.of(PROFILES["generic"])


def create(**fields: Any) -> Create:
    """A create of these fields."""
    return read_create(open_frame(json.dumps({"type": "response.create", **fields}).encode()), max_items=100)


def remembered(*, lane: str | None = None, brought: frozenset[str] = frozenset(), warmup: bool = False) -> ChainCache:
    """A cache with one response, `resp_1`, whose transcript has one call."""
    cache = ChainCache(CacheBudget(2**30), max_entries=10, max_bytes=2**20)
    transcript = extend(None, [b'{"x":1}'], [Head("function_call", "fc_1", "c1")])
    settings = Settings([("model", b'"old"'), ("tools", b"[1]"), ("temperature", b"0")])
    cache.commit(Entry("resp_1", lane, transcript, settings, 3, is_warmup=warmup, brought=brought, response=b"{}"))
    return cache


def prepare(
    asked: Create, cache: ChainCache | None = None, *, tip: str | None = None, rules: RequestRules = RULES
) -> Turn:
    """A turn, prepared."""
    turn = Turn(asked, TurnEnded(1, None, asked.size), 1000)
    table = RoutingTable(Route("default", rules))
    turns.prepare(turn, asked, Lane(None, tip=tip), cache or remembered(), table)
    return turn


@pytest.mark.parametrize(
    ("tip", "warmup", "reason"), [("resp_1", False, "tip"), ("resp_2", False, "branch"), ("resp_1", True, "warmup")]
)
def test_lookup_says_what_was_continued(tip: str, warmup: bool, reason: str) -> None:  # noqa: FBT001
    """The newest response of the lane, an older one, or a warm-up."""
    record = prepare(create(previous_response_id="resp_1"), remembered(warmup=warmup), tip=tip).record
    assert (record.lookup, record.reason, record.depth) == ("hit", reason, 4)


def test_new_chain_begins_at_depth_one() -> None:
    """A create without an id looks nothing up."""
    record = prepare(create(input="hi", model="m")).record
    assert (record.lookup, record.reason, record.depth, record.model) == ("new", "none", 1, "m")


def test_call_of_the_transcript_answers_for_an_output() -> None:
    """The call may stand in the transcript or in the input; elsewhere there is none."""
    prepare(create(previous_response_id="resp_1", input=[{"type": "function_call_output", "call_id": "c1"}]))
    with pytest.raises(ToolCallNotFound):
        prepare(create(input=[{"type": "function_call_output", "call_id": "c1"}]))


@pytest.mark.parametrize("kind", ["computer_call_output", "function_call_output"])
def test_outputs_without_a_call_id_are_the_backends_business(kind: str) -> None:
    """What names no call cannot be checked."""
    prepare(create(input=[{"type": kind, "output": "x"}]))


def test_fields_of_a_warmup_fill_what_is_left_out() -> None:
    """Only what the warm-up brought and nobody has named since."""
    cache = remembered(brought=frozenset({"tools", "temperature"}), warmup=True)
    turn = prepare(create(model="new", tools=[], previous_response_id="resp_1"), cache)
    assert dict(turn.fields) == {"model": b'"new"', "tools": b"[]", "temperature": b"0"}
    assert turn.brought == {"temperature"}


@pytest.mark.parametrize(
    ("tools", "lookup", "index"),
    [
        ([1], "same", None),
        ([], "none", None),
        ([{"name": "a"}], "changed", None),
    ],
)
def test_tools_are_compared_with_those_before(tools: list[Any], lookup: str, index: int | None) -> None:
    """They are the same bytes or not; what is no list of objects has changed somewhere."""
    record = prepare(create(previous_response_id="resp_1", tools=tools)).record
    assert (record.tools, record.tools_changed_at) == (lookup, index)


@pytest.mark.parametrize(
    ("before", "after", "index"),
    [
        (b'[{"a":1},{"b":2}]', b'[{"a":1},{"b":3}]', 1),
        (b'[{"a":1},{"b":2}]', b'[{"a":1}]', 1),
        (b'[{"a":1}]', b'[{"a":1},{"b":2}]', 1),
        (b'[{"a":1}]', b'[{"c":1},{"a":1}]', 0),
        (b'[{"a":1},{"b":2}]', b'[{"a":1}, {"b":2}]', None),  # between them
        (b'[{"a":1}]', b'"none"', None),
    ],
)
def test_first_changed_tool_is_found(before: bytes, after: bytes, index: int | None) -> None:
    """Where a backend's prefix cache stops to be of use."""
    assert turns._first_difference(before, after) == index


def test_request_is_counted() -> None:
    """The record knows what was sent, and what of it the client did not have to send."""
    turn = prepare(create(previous_response_id="resp_1", input=[{"role": "user"}]))
    body = turns.build_request(turn)
    assert turn.record.upstream_bytes == body.size
    assert turn.record.replayed_bytes == len(b'{"x":1}')
    assert turn.record.replayed_items == 1
    assert turn.record.new_items == 1


@pytest.mark.parametrize("lane", [None, "a"])
def test_warmup_answer_satisfies_strict_clients(lane: str | None) -> None:
    """Both events are whole, numbered from 0, and name their lane if they have one."""
    turn = prepare(create(model="m", tools=[{"type": "function", "name": "f"}], generate=False))
    turn.record.lane = lane
    frames = [json.loads(frame) for frame in turns.warmup_frames(turn, turns.warmup_terminal(turn, "resp_w"))]
    assert [frame["type"] for frame in frames] == ["response.created", "response.completed"]
    for number, frame in enumerate(frames):
        assert frame["sequence_number"] == number
        assert frame.get("stream_id") == lane
        assert openresponses.problems(frame) == []


def test_entry_shares_what_is_the_same() -> None:
    """Equal settings are one object, and the transcript goes on from the parent's."""
    cache = remembered()
    turn = prepare(
        create(model="old", tools=[1], temperature=0, previous_response_id="resp_1", input=[{"a": 1}]), cache
    )
    parent = turn.parent
    assert parent is not None
    entry = turns.entry(
        turn, Lane("a"), Terminal("completed", "resp_2", [b"{}"], [Head()], b"{}", Usage()), is_stored=False
    )
    assert entry.settings is parent.settings
    assert [item for item, _ in items_of(entry.transcript)] == [b'{"x":1}', b'{"a": 1}', b"{}"]
    assert entry.lane == "a"


# What the backend's prefix cache finds


SAME = {"model": "old", "tools": [1], "temperature": 0}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (SAME, "kept"),
        ({"temperature": 0, "tools": [1], "model": "old"}, "kept"),
        ({**SAME, "tools": [1, 2]}, "tools"),
        ({**SAME, "tools": [2], "model": "new", "instructions": "x"}, "tools"),
        ({**SAME, "instructions": "x"}, "instructions"),
        ({**SAME, "instructions": "x", "model": "new"}, "instructions"),
        ({**SAME, "model": "new"}, "model"),
        ({**SAME, "model": "new", "temperature": 1}, "model"),
        ({**SAME, "temperature": 1}, "fields"),
        ({"model": "old", "tools": [1]}, "fields"),
        ({**SAME, "metadata": {}}, "fields"),
        ({**SAME, "client_metadata": {}}, "kept"),  # the profile leaves it out
        ({**SAME, "input": [{"type": "compaction", "encrypted_content": "x"}]}, "compaction"),
        ({**SAME, "input": "more"}, "kept"),
    ],
)
def test_prefix_is_kept_or_broken_by_what_comes_first(fields: dict[str, Any], expected: str) -> None:
    """In the order in which the body has them: tools, instructions, the others by name, the conversation."""
    cache = remembered()
    turn = prepare(create(previous_response_id="resp_1", **fields), cache)
    assert turn.record.prefix == expected
    parent = cache.resolve("resp_1")
    before = build(list(parent.settings.fields), parent.transcript, []).body().removesuffix(b"]}")
    assert turns.build_request(turn).body().startswith(before) == (expected == "kept")


def test_prefix_of_what_continues_nothing_is_none() -> None:
    """A new chain, and the first turn after a warm-up, which no backend has seen."""
    assert prepare(create(input="hi", model="m")).record.prefix == "none"
    cache = remembered(warmup=True)
    assert prepare(create(previous_response_id="resp_1", **SAME), cache).record.prefix == "none"


# What a create has from its parent


@pytest.mark.parametrize(
    ("inherits", "fields", "expected"),
    [
        ([], {}, {}),
        (["tools"], {}, {"tools": [1]}),
        (["tools", "model"], {}, {"tools": [1], "model": "old"}),
        (["tools", "model"], {"model": "new"}, {"tools": [1], "model": "new"}),
        (["tools"], {"tools": None}, {"tools": None}),
        (["tools"], {"tools": []}, {"tools": []}),
        (["instructions"], {}, {}),
    ],
)
def test_fields_are_inherited_where_the_operator_wants_it(
    inherits: list[str], fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Those that a create does not name; what it names counts, null too."""
    rules = RequestRules.of(PROFILES["generic"], inherits=frozenset(inherits))
    turn = prepare(create(previous_response_id="resp_1", **fields), rules=rules)
    assert {name: json.loads(value) for name, value in turn.fields} == expected
    alone = prepare(create(input="hi", **fields), rules=rules)
    assert {name: json.loads(value) for name, value in alone.fields} == fields
