"""Creates over HTTP: what is stored stands in the place of what refers to it, byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.protocol import expand
from proxy.protocol.chain import Entry, Settings
from proxy.protocol.errors import InvalidMessage, ItemNotFound, ToolCallNotFound
from proxy.protocol.expand import Expanded
from proxy.protocol.profiles import PROFILES, RequestRules
from proxy.protocol.rawjson import Head
from proxy.protocol.store import StoredItem
from proxy.protocol.transcript import extend

ASKED = b'{"role":"user","content":"one"}'
SAID = b'{"type":"message","id":"msg_1","role":"assistant", "content":[]}'
CALL = b'{"type":"function_call","id":"fc_1","call_id":"c1","name":"f","arguments":"{}"}'
RULES = RequestRules.of(PROFILES["generic"])


def parent(*items: bytes, brought: frozenset[str] = frozenset(), **fields: Any) -> Entry:
    """A stored response with these items behind it."""
    heads = [Head(**{name: json.loads(item).get(name) for name in Head._fields}) for item in items]
    settings = Settings([(name, json.dumps(value).encode()) for name, value in fields.items()])
    transcript = extend(None, items, heads)
    return Entry("resp_1", None, transcript, settings, 1, is_warmup=bool(brought), brought=brought, response=b"{}")


def expanded(
    body: bytes,
    before: Entry | None = None,
    found: dict[str, StoredItem] | None = None,
    rules: RequestRules = RULES,
    *,
    asks_backend: bool = False,
) -> Expanded:
    """A body, expanded."""
    asked = expand.read(body)
    assert asked is not None
    create = expand.sort(asked, max_items=10)
    return expand.expand(asked, create, before, found or {}, rules, asks_backend=asks_backend)


@pytest.mark.parametrize("body", [b"", b"[]", b"5", b'{"a":', b'{"a":1}x', b'{"a":"\xff"}', b"\xff\xfe{\0}\0"])
def test_what_is_no_object_is_not_read(body: bytes) -> None:
    """It is the backend's to refuse."""
    assert expand.read(body) is None


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"input":"x","stream":true,"previous_response_id":null}',
        b'{"input":[{"type":"function_call_output","call_id":"unknown","output":""}],"client_metadata":{}}',
    ],
)
def test_what_refers_to_nothing_goes_on_as_it_came(body: bytes) -> None:
    """Whatever the profile would drop, and whatever a continuation would be refused for."""
    assert expanded(body).body is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            b'{ "temperature": 1.0, "model":"m", "previous_response_id" : "resp_1", "stream":true, "input": "two" }',
            b'{"model":"m","temperature":1.0,"stream":true,"input":['
            + ASKED
            + b","
            + SAID
            + b',{"type":"message","role":"user","content":"two"}]}',
        ),
        (
            b'{"previous_response_id":"resp_1","tools":[ ],"instructions":"i","a":1,"input":[{"role": "user"}]}',
            b'{"tools":[ ],"instructions":"i","a":1,"input":[' + ASKED + b"," + SAID + b',{"role": "user"}]}',
        ),
        (
            b'{"previous_response_id":"resp_1","stream": null,"background":true,"store":false}',
            b'{"background":true,"store":false,"stream":null,"input":[' + ASKED + b"," + SAID + b"]}",
        ),
        (
            b'{"previous_response_id":"resp_1","stream":false,"client_metadata":{"a":1},"input":[]}',
            b'{"stream":false,"input":[' + ASKED + b"," + SAID + b"]}",
        ),
    ],
    ids=["string", "list", "null", "dropped"],
)
def test_expanded_body_is_spliced(body: bytes, expected: bytes) -> None:
    """The client's fields in one order and in its own spelling, `stream` as it said, then all of the conversation."""
    assert expanded(body, parent(ASKED, SAID)).body == expected


def test_profile_admits_items() -> None:
    """Reasoning that the backend cannot read is left out of what a client brings."""
    body = b'{"previous_response_id":"resp_1","input":[{"type":"reasoning","summary":[]}]}'
    made = expanded(body, parent(ASKED))
    assert made.body == b'{"input":[' + ASKED + b"]}"
    assert made.items == []


def test_reference_becomes_the_item() -> None:
    """With a parent and without; the item's own bytes."""
    found: dict[str, StoredItem] = {"msg_1": (SAID, Head("message", "msg_1"))}
    body = b'{"input":[{"type":"item_reference","id":"msg_1"}]}'
    made = expanded(body, None, found)
    assert made.body == b'{"input":[' + SAID + b"]}"
    assert made.heads == [Head("message", "msg_1")]
    made = expanded(body[:-1] + b',"previous_response_id":"resp_1"}', parent(ASKED), found)
    assert made.body == b'{"input":[' + ASKED + b"," + SAID + b"]}"


def test_unknown_reference_is_refused_unless_the_backend_is_to_be_asked() -> None:
    """A backend that keeps items may know it."""
    body = b'{"input":[{"type":"item_reference","id":"msg_1"}]}'
    with pytest.raises(ItemNotFound):
        expanded(body)
    assert expanded(body, asks_backend=True).body is None
    assert expand.references([Head("item_reference", "a"), Head("item_reference"), Head("message", "b")]) == {"a"}


def test_output_needs_its_call() -> None:
    """In what came before or beside it; not where only the backend knows the conversation."""
    body = b'{"previous_response_id":"resp_1","input":[{"type":"function_call_output","call_id":"c1","output":""}]}'
    assert expanded(body, parent(ASKED, CALL)).body is not None
    with pytest.raises(ToolCallNotFound):
        expanded(body, parent(ASKED, SAID))
    assert expanded(body[:-1] + b',"conversation":"conv_1"}', parent(ASKED)).body is not None
    beside = body.replace(b'"input":[', b'"input":[' + CALL + b",")
    assert expanded(beside, parent(ASKED)).body is not None


def test_warm_up_brings_its_fields() -> None:
    """Until a create names them itself; whatever is brought stays with the chain."""
    before = parent(ASKED, brought=frozenset({"model", "tools"}), model="m", tools=[1], user="u")
    made = expanded(b'{"previous_response_id":"resp_1","tools":[2],"input":[]}', before)
    assert made.body == b'{"tools":[2],"model":"m","input":[' + ASKED + b"]}"
    assert made.brought == {"model"}
    entry = expand.entry(made, "resp_2", [], [], b"{}", created_at=5, upstream_id=None)
    assert entry.brought == made.brought
    assert dict(entry.settings.fields) == {"tools": b"[2]", "model": b'"m"'}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"previous_response_id":5}', "previous_response_id"),
        (b'{"previous_response_id":["resp_1"]}', "previous_response_id"),
        (b'{"previous_response_id":"resp_1","input":5}', "input"),
        (b'{"previous_response_id":"resp_1","input":[5]}', "input"),
        (b'{"previous_response_id":"resp_1","input":[' + b",".join([b"{}"] * 11) + b"]}", "input"),
    ],
)
def test_what_steers_has_to_be_right(body: bytes, param: str) -> None:
    """The error names the field."""
    with pytest.raises(InvalidMessage) as caught:
        expanded(body)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{}", True),
        (b'{"store":true}', True),
        (b'{"store":null}', True),
        (b'{"store":false}', False),
        (b'{"store": false }', False),
        (b'{"conversation":null}', True),
        (b'{"conversation":"conv_1"}', False),
    ],
)
def test_client_says_what_may_be_stored(body: bytes, expected: bool) -> None:  # noqa: FBT001
    """Silence is leave; a conversation that only the backend knows cannot be continued here."""
    asked = expand.read(body)
    assert asked is not None
    assert asked.may_be_stored is expected


def test_entry_holds_the_turn() -> None:
    """Its items behind those before them, and where its output begins."""
    before = parent(ASKED, SAID, model="m")
    made = expanded(b'{"previous_response_id":"resp_1","model":"m","input":[{"role":"user"}]}', before)
    entry = expand.entry(made, "resp_2", [CALL], [Head("function_call")], b'{"x":1}', created_at=7, upstream_id="u")
    assert entry.transcript is not None
    assert entry.transcript.parent is before.transcript
    assert entry.transcript.data == b'{"role":"user"},' + CALL
    assert entry.settings is before.settings
    assert (entry.depth, entry.output_items, entry.created_at) == (2, 1, 7)
    assert (entry.may_be_stored, entry.lane, entry.upstream_id) == (True, None, "u")
    assert entry.response == b'{"x":1}'
