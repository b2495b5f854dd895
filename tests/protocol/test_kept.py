"""What is kept of a response, and how it is shown again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import Response

from proxy.protocol import kept, rawjson, responses
from proxy.protocol.chain import Entry, Settings
from proxy.protocol.errors import InvalidMessage
from proxy.protocol.kept import Page
from proxy.protocol.rawjson import Head
from proxy.protocol.responses import RequestEcho
from proxy.protocol.transcript import extend
from tests import openresponses

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
FIELDS: dict[str, Any] = {"model": "m", "instructions": "caf\u00e9", "tools": [TOOL], "temperature": 0.5}
MESSAGE: dict[str, Any] = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "hi", "annotations": []}],
}


def echo(previous: str | None = "resp_0", **fields: Any) -> RequestEcho:
    """What a response says about a request with these fields."""
    return RequestEcho({name: rawjson.dumps(value) for name, value in fields.items()}, 1000, previous)


def entry(items: list[dict[str, Any]], outputs: int, response: bytes = b"{}", **fields: Any) -> Entry:
    """A stored response; the last items are its output."""
    raw = [rawjson.dumps(item) for item in items]
    settings = Settings([(name, rawjson.dumps(value)) for name, value in fields.items()])
    transcript = extend(None, raw, [rawjson.head(item) for item in raw])
    return Entry(
        "resp_1",
        None,
        transcript,
        settings,
        1,
        is_warmup=False,
        brought=frozenset(),
        response=response,
        output_items=outputs,
        created_at=1000,
    )


RESPONSES: list[dict[str, Any]] = [
    {"id": "resp_1", "object": "response", "status": "completed", "output": [MESSAGE]},
    {"id": "resp_1", "status": "incomplete", "output": [], "incomplete_details": {"reason": "max_output_tokens"}},
    {"id": "resp_1", "status": "completed", "created_at": 999.5, "model": "m-2026", "output": [], "user": "u"},
    {"id": "resp_1", "status": "completed", "previous_response_id": None, "output": [], "store": False, "own": [1]},
    {"id": "resp_1", "status": "completed", "tools": [{**TOOL, "strict": None, "description": None}], "output": []},
    {"id": "resp_1", "status": "completed", "usage": {"input_tokens": 1}, "reasoning": None, "output": []},
]


@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize(
    "fields", [{}, FIELDS, {"reasoning": {"effort": "low"}, "metadata": {"a": "b"}, "tools": None}]
)
def test_what_was_trimmed_comes_back(response: dict[str, Any], fields: dict[str, Any]) -> None:
    """All members, those that a request decided and those that the backend added."""
    said = echo(**fields)
    whole = responses.fill(rawjson.dumps(response), "resp_1", "completed", said)
    trimmed = kept.trim(whole, said)
    output = [rawjson.dumps(item) for item in response["output"]]
    restored = kept.restore(trimmed, echo(None, **fields), "resp_1", output)
    assert json.loads(restored) == json.loads(whole)
    assert json.loads(kept.trim(restored, said)) == json.loads(trimmed)


def test_trimmed_response_holds_what_nothing_else_does() -> None:
    """Settings, output and defaults are gone, however the backend spelt them."""
    said = echo(**FIELDS)
    whole = responses.fill(b'{"id":"resp_1","status":"completed","output":[{}]}', "resp_1", "completed", said)
    own = json.loads(whole) | {"tools": [dict(reversed({**TOOL, "strict": None, "description": None}.items()))]}
    spelt = json.dumps(own).encode()  # with blanks and escapes
    assert json.loads(kept.trim(spelt, said)) == {
        "id": "resp_1",
        "status": "completed",
        "previous_response_id": "resp_0",
    }


@pytest.mark.parametrize("value", ['"\\ud83d"', '{"a":"\\ud83d"}', '[{"type":"function"}]'])
def test_value_that_cannot_be_compared_is_kept(value: str) -> None:
    """A cut emoji is text that nothing here decodes."""
    said = RequestEcho({"instructions": b'"x"', "metadata": b'{"a":1}', "tools": b"[]"}, 1000, None)
    for name in ("instructions", "metadata", "tools"):
        if value[0] == '"' or name != "instructions":
            trimmed = kept.trim(f'{{"id":"r","{name}":{value}}}'.encode(), said)
            assert trimmed == f'{{"id":"r","{name}":{value}}}'.encode()


def test_response_object_is_whole() -> None:
    """By both schemas; it says that it is stored, and its output lacks nothing."""
    bare = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "hi"}]}
    response = rawjson.dumps({"id": "resp_1", "status": "completed", "store": False, "usage": None})
    shown = json.loads(kept.response_object(entry([{"role": "user", "content": "x"}, bare], 1, response, **FIELDS)))
    assert openresponses.response_problems(shown) == []
    assert Response.model_validate(shown).output_text == "hi"
    assert shown["output"] == [MESSAGE]
    assert (shown["id"], shown["store"], shown["created_at"]) == ("resp_1", True, 1000)
    assert (shown["instructions"], shown["temperature"]) == (FIELDS["instructions"], 0.5)


def test_response_without_output_is_shown() -> None:
    """A warm-up's, say."""
    assert json.loads(kept.response_object(entry([MESSAGE], 0)))["output"] == []
    assert json.loads(kept.response_object(entry([], 0)))["output"] == []


def test_deletion_is_said_in_the_apis_words() -> None:
    """openai-python reads nothing, others do."""
    assert json.loads(kept.deletion("resp_1")) == {"id": "resp_1", "object": "response", "deleted": True}


# Input items

ITEMS: list[dict[str, Any]] = [
    *(
        {"type": "message", "id": f"msg_{number}", "role": "user", "status": "completed", "content": []}
        for number in range(5)
    ),
    {"type": "message", "id": "out", "role": "assistant", "content": []},
]


@pytest.mark.parametrize(
    ("page", "expected", "has_more"),
    [
        (Page(), [4, 3, 2, 1, 0], False),
        (Page(is_ascending=True), [0, 1, 2, 3, 4], False),
        (Page(limit=2), [4, 3], True),
        (Page(limit=2, after="msg_3"), [2, 1], True),
        (Page(limit=2, after="msg_2"), [1, 0], False),
        (Page(limit=3, is_ascending=True, after="msg_1"), [2, 3, 4], False),
        (Page(after="msg_0"), [], False),
    ],
)
def test_input_items_come_in_pages(page: Page, expected: list[int], has_more: bool) -> None:  # noqa: FBT001
    """In either order, from where the last page ended; the output is not among them."""
    listed = json.loads(kept.input_items(entry(ITEMS, 1), page))
    assert listed["data"] == [ITEMS[number] for number in expected]
    ends = [f"msg_{expected[0]}", f"msg_{expected[-1]}"] if expected else [None, None]
    assert [listed["first_id"], listed["last_id"]] == ends
    assert (listed["object"], listed["has_more"]) == ("list", has_more)


@pytest.mark.parametrize("after", ["out", "msg_9", ""])
def test_page_cannot_begin_behind_what_is_not_there(after: str) -> None:
    """The output is not in the list."""
    with pytest.raises(InvalidMessage) as caught:
        kept.input_items(entry(ITEMS, 1), Page(after=after))
    assert caught.value.param == "after"


def test_items_of_one_id_do_not_make_an_endless_list() -> None:
    """Some backends call every message the same."""
    stored = entry([{"type": "message", "id": "msg", "role": "user", "content": []}] * 5, 0)
    assert json.loads(kept.input_items(stored, Page(limit=2)))["has_more"]
    assert json.loads(kept.input_items(stored, Page(limit=2, after="msg")))["data"] == []


def test_items_are_listed_in_the_apis_form() -> None:
    """With an id that stays, a type, a status, and text as a part; all else as it came."""
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two", "id": ""},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        {"type": "reasoning", "summary": [], "id": None},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "three"}]},
    ]
    stored = entry(items, 0)
    first = kept.input_items(stored, Page(is_ascending=True))
    assert first == kept.input_items(stored, Page(is_ascending=True))
    data = json.loads(first)["data"]
    ids = [item.pop("id") for item in data]
    assert len(set(ids)) == 5
    assert [made.partition("_")[0] for made in ids] == ["msg", "msg", "item", "rs", "msg"]
    done = {"type": "message", "status": "completed"}
    assert data == [
        {**done, "role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {**done, "role": "assistant", "content": [{"type": "output_text", "text": "two", "annotations": []}]},
        items[2],
        {"type": "reasoning", "summary": []},
        {**done, "role": "developer", "content": items[4]["content"]},
    ]
    assert json.loads(kept.input_items(stored, Page(after=ids[1])))["data"][0]["id"] == ids[0]


def test_item_that_lacks_nothing_is_listed_byte_for_byte() -> None:
    """White space and all."""
    item = b'{"type" : "message", "id":"m", "role":"user","status":"completed","content":[]}'
    stored = entry([], 0)
    stored.transcript = extend(None, [item], [Head("message", "m")])
    assert item in kept.input_items(stored, Page())


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, Page()),
        ({"limit": "1", "order": "asc", "after": "a", "include": "x"}, Page(1, is_ascending=True, after="a")),
        ({"limit": "100", "order": "desc"}, Page(100)),
    ],
)
def test_page_is_read(query: dict[str, str], expected: Page) -> None:
    """What is not known is ignored."""
    assert kept.read_page(query) == expected


@pytest.mark.parametrize(
    "query",
    [
        *({"limit": limit} for limit in ("0", "101", "-1", "", "1.5", "x", "\u0661", "9" * 5000)),
        {"order": "up"},
        {"order": ""},
    ],
)
def test_page_that_cannot_be_is_refused(query: dict[str, str]) -> None:
    """The error names the parameter."""
    with pytest.raises(InvalidMessage) as caught:
        kept.read_page(query)
    assert caught.value.param in query
