"""Compaction: summaries in items that only the proxy reads, and what is sent and returned for them."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol import compaction, rawjson
from proxy.protocol.errors import InvalidMessage
from proxy.protocol.rawjson import Head, Pairs


def split(*items: Any) -> tuple[list[bytes], list[Head]]:
    """Items as the proxy has them."""
    return rawjson.split_items(json.dumps(items).encode())


def forged(data: bytes, *, prefix: str = "slipstream-summary-1.", **members: Any) -> bytes:
    """An item as it would be made from some bytes."""
    content = prefix + base64.urlsafe_b64encode(data).rstrip(b"=").decode()
    return json.dumps({"type": "compaction", "id": "cmp_1", "encrypted_content": content, **members}).encode()


def user(content: Any, **members: Any) -> dict[str, Any]:
    """A message of the user."""
    return {"type": "message", "role": "user", "content": content, **members}


def part(text: str, kind: str = "input_text") -> dict[str, str]:
    """A content part."""
    return {"type": kind, "text": text}


OURS = compaction.make_item("cmp_1", "All is well.")
THEIRS = {"type": "compaction", "id": "cmp_2", "encrypted_content": "gAAAAABpM0Yj-something"}


# Items


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_summary_comes_back_from_its_item(summary: str) -> None:
    """Whatever text it is, lone surrogates included."""
    item = compaction.make_item("cmp_1", summary)
    assert compaction.read_item(item) == summary
    assert compaction.as_message(item) == compaction.as_message(item)


def test_surrogates_reach_json() -> None:
    """A character cut in half is valid JSON all the way."""
    item = compaction.make_item("cmp_1", "cut \ud83d here")
    message = compaction.as_message(item)
    assert message is not None
    assert json.loads(message)["content"][0]["text"].endswith("cut \ud83d here")


def test_item_has_the_members_of_the_api() -> None:
    """Type, id, and content that is opaque to JSON writers: nothing in it is ever escaped."""
    item = json.loads(OURS)
    assert list(item) == ["type", "id", "encrypted_content"]
    assert (item["type"], item["id"]) == ("compaction", "cmp_1")
    assert item["encrypted_content"].replace("-", "").replace(".", "").replace("_", "").isalnum()


def test_long_summary_comes_back() -> None:
    """A megabyte of text."""
    summary = "".join(f"{number} é\n" for number in range(130_000))
    assert len(summary) > 10**6
    item = compaction.make_item("cmp_1", summary)
    assert compaction.read_item(item) == summary
    assert len(item) < len(summary)


@pytest.mark.parametrize("start", ["", "a", "ab"])
def test_summary_beyond_the_bound_is_cut_between_characters(start: str) -> None:
    """What is kept is the beginning, and no character is cut in half."""
    summary = start + "€" * (compaction.MAX_SUMMARY // 3 + 5)
    kept = compaction.read_item(compaction.make_item("cmp_1", summary))
    assert kept is not None
    assert summary.startswith(kept)
    assert 0 <= compaction.MAX_SUMMARY - len(kept.encode()) < 3


@pytest.mark.parametrize(
    "item",
    [
        json.dumps(THEIRS).encode(),
        b'{"type":"compaction","id":"cmp_1"}',
        b'{"type":"compaction","encrypted_content":null}',
        b'{"type":"compaction","encrypted_content":["slipstream-summary-1.x"]}',
        b'{"type":"compaction","encrypted_content":"slipstream-summary-1."}',
        b'{"type":"compaction","encrypted_content":"slipstream-summary-1.!!!"}',
        b'{"type":"compaction","encrypted_content":"slipstream-summary-1.eNpLBAAAQ \\nAAQ"}',
        b'{"type":"compaction","encrypted_content":"slipstream-summary-1.a"}',
        b"{}",
        forged(b"no zlib"),
        forged(zlib.compress(b"text"), type="reasoning"),
        forged(zlib.compress(b"text"), prefix="slipstream-summary-2."),
        forged(zlib.compress(b"text"), prefix=""),
        forged(zlib.compress(b"text")[:-1]),
        forged(zlib.compress(b"text") + b"more"),
        forged(zlib.compress(b"\xff\xfe")),
        forged(zlib.compress(bytes(compaction.MAX_SUMMARY + 1))),
        forged(zlib.compress(bytes(200 * 2**20))),
        forged(bytes(2 * compaction.MAX_SUMMARY)),
    ],
)
def test_what_is_not_ours_is_not_read(item: bytes) -> None:
    """Items of others, of other versions, damaged ones, and those that inflate to more than a summary may have."""
    assert compaction.read_item(item) is None
    assert compaction.as_message(item) is None


def test_largest_summary_is_read() -> None:
    """The bound itself is within it."""
    assert compaction.read_item(forged(zlib.compress(b"x" * compaction.MAX_SUMMARY))) == "x" * compaction.MAX_SUMMARY


def test_items_of_ours_become_messages() -> None:
    """All others stay, byte for byte, in their places."""
    items, heads = split(
        user("Hello."), json.loads(OURS), THEIRS, {"type": "message", "role": "user", "content": "Go."}
    )
    admitted, admitted_heads = compaction.admit(items, heads)
    assert [admitted[0], admitted[2], admitted[3]] == [items[0], items[2], items[3]]
    message = json.loads(admitted[1])
    assert (message["type"], message["role"]) == ("message", "user")
    (text,) = message["content"]
    assert text["type"] == "input_text"
    assert text["text"].endswith("\n\nAll is well.")
    assert [head.type for head in admitted_heads] == ["message", "message", "compaction", "message"]


def test_body_is_admitted_as_its_input_is() -> None:
    """Only `input` changes, and nothing but the items of ours in it."""
    body = b'{ "model": "m", "input" : [{"role":"user","content":"Hi."}, %b], "a": [1, 2] }' % OURS
    message = compaction.as_message(OURS)
    assert message is not None
    expected = b'{"model":"m","input":[{"role":"user","content":"Hi."},%b],"a":[1, 2]}' % message
    assert compaction.admit_body(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no JSON",
        b"slipstream-summary-1.",
        b'{"input":"slipstream-summary-1. is what it begins with"}',
        b'{ "input": [{"role":"user","content":"slipstream-summary-1. again"}] }',
        b'{"messages":[{"content":"slipstream-summary-1."}]}',
        b'{"input":[1,"slipstream-summary-1."]}',
        json.dumps({"input": [THEIRS]}).encode(),
    ],
)
def test_body_without_our_items_stays_as_it_is(body: bytes) -> None:
    """The very same bytes."""
    assert compaction.admit_body(body) is body


def replayed(*items: Any) -> list[Any]:
    """What stands for some items."""
    kept, heads = compaction.replayed(*split(*items))
    assert [rawjson.head(item) for item in kept] == heads
    return [json.loads(item) for item in kept]


def test_conversation_is_replayed_from_its_last_compaction_on() -> None:
    """With the user's own messages before it, as they came; an earlier summary is in the later one."""
    later, again = json.loads(compaction.make_item("cmp_9", "Later.")), json.loads(OURS)
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    items = [{"role": "user", "content": "One."}, call, again, user("Two."), later, call, user("Three.")]
    assert replayed(*items) == [items[0], items[3], later, call, items[6]]


def test_conversation_without_a_compaction_of_ours_is_replayed_as_it_is() -> None:
    """An item of the API's stays where it is, with all before it: only the API knows what it stands for."""
    items = [user("One."), THEIRS, user("Two.")]
    assert replayed(*items) == items
    assert replayed() == []


# The summarising request


TOOLS = b'[{"type":"function","name":"f"}]'


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("model", b'"m"')], [("model", b'"m"'), ("store", b"false")]),
        (
            [("model", b'"m"'), ("tools", TOOLS), ("tool_choice", b'"required"'), ("store", b"true")],
            [("model", b'"m"'), ("tools", TOOLS), ("tool_choice", b'"none"'), ("store", b"false")],
        ),
        ([("tools", b"[ ]"), ("tool_choice", b'"auto"')], [("tools", b"[ ]"), ("store", b"false")]),
        ([("tools", b"null")], [("tools", b"null"), ("store", b"false")]),
        (
            [
                *((name, b"1") for name in ("text", "max_output_tokens", "context_management", "include", "stream")),
                *((name, b"1") for name in ("stream_options", "metadata", "truncation", "input", "conversation")),
                *((name, b"1") for name in ("previous_response_id", "background", "max_tool_calls", "top_logprobs")),
            ],
            [("store", b"false")],
        ),
        (
            [(name, b"1") for name in ("instructions", "reasoning", "service_tier", "prompt_cache_key", "top_k")],
            [
                *((name, b"1") for name in ("instructions", "reasoning", "service_tier", "prompt_cache_key", "top_k")),
                ("store", b"false"),
            ],
        ),
    ],
)
def test_summary_is_asked_for_with_what_shapes_the_prompt(fields: Pairs, expected: Pairs) -> None:
    """What only shapes the answer, or bounds it, is left out; tools stay and are not called."""
    assert compaction.summary_fields(fields) == expected


def test_prompt_is_a_message_of_the_user() -> None:
    """It asks for plain text."""
    item = json.loads(compaction.PROMPT_ITEM)
    assert (item["type"], item["role"], [part["type"] for part in item["content"]]) == (
        "message",
        "user",
        ["input_text"],
    )
    assert "plain text" in item["content"][0]["text"]


def answer(*parts: Any) -> dict[str, Any]:
    """A message of the assistant."""
    return {"type": "message", "role": "assistant", "content": list(parts)}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([answer(part("All ", "output_text"), part("done.", "output_text"))], "All done."),
        (
            [{"type": "reasoning", "content": [part("Hm.", "reasoning_text")]}, answer(part(" Yes.\n", "output_text"))],
            "Yes.",
        ),
        ([answer(part("One.", "output_text")), answer(part(" Two.", "output_text"))], "One. Two."),
        ([{"type": "message", "role": "assistant", "content": "Text."}], "Text."),
        ([answer(part("cut \ud83d", "output_text"))], "cut \ud83d"),
        ([answer({"type": "refusal", "refusal": "No."})], None),
        ([answer(part(" \n", "output_text"))], None),
        ([answer({"type": "output_text", "text": None})], None),
        ([answer(1, 2)], None),
        ([{"type": "message"}], None),
        ([{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}], None),
        ([], None),
    ],
)
def test_summary_is_the_text_of_the_answer(items: list[Any], expected: str | None) -> None:
    """Nothing but what the assistant says to the user."""
    assert compaction.summary_text(split(*items)[0]) == expected


# The window


def windowed(*items: Any) -> list[Any]:
    """The window of some items, before its compaction item."""
    new = compaction.make_item("cmp_abc", "New.")
    window = compaction.window(*split(*items), new)
    assert window[-1] == new
    return [json.loads(item) for item in window[:-1]]


def test_window_holds_what_the_user_said() -> None:
    """In order, and nothing else."""
    first, second = (
        user([part("One.")], id="msg_1", status="completed"),
        user([part("Two.")], id="2", status="completed"),
    )
    others = [
        {"type": "message", "role": "developer", "content": "Be brief."},
        {"type": "message", "role": "assistant", "content": [part("Yes.", "output_text")]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
        {"type": "reasoning", "summary": []},
        THEIRS,
    ]
    assert windowed(first, *others, second) == [first, second]


def test_window_keeps_whole_messages_to_the_byte() -> None:
    """Those that have all that the API returns."""
    item = (
        b'{ "id": "msg_1", "type":"message","status":"completed","role":"user", "content":[ {"type":"input_text"} ] }'
    )
    assert compaction.window([item], [Head("message", "msg_1")], OURS) == [item, OURS]


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": "Hi."},
        {"type": "message", "role": "user", "content": "Hi."},
        {"role": "user", "content": [part("Hi.")], "id": None, "status": None, "type": None},
    ],
)
def test_window_completes_short_messages(item: Any) -> None:
    """An output item of the API has an id, a status and a list of parts; what the user said stays as it is."""
    expected = {
        "type": "message",
        "id": "msg_abc_0",
        "status": "completed",
        "content": [part("Hi.")],
        "role": "user",
    }
    assert windowed(item) == [expected]
    assert windowed(expected) == [expected]


def test_ids_in_a_window_differ() -> None:
    """Also those of equal messages."""
    ids = [item["id"] for item in windowed(user("Hi."), user("Hi."), user("Hi.", id="own"))]
    assert ids == ["msg_abc_0", "msg_abc_1", "own"]


def test_window_of_a_window_holds_one_summary() -> None:
    """An earlier one is gone, as an item and as a message; the user's messages on both sides of it stay."""
    first, second = user([part("One.")], id="1", status="completed"), user([part("Two.")], id="2", status="completed")
    message = json.loads(compaction.as_message(OURS) or b"")
    assert windowed(first, json.loads(OURS), second) == [first, second]
    assert windowed(first, message, second) == [first, second]
    assert windowed({**message, "content": message["content"][0]["text"]}) == []


# context_management


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (None, None),
        (b"null", None),
        (b"[]", None),
        (b'[{"type":"other","compact_threshold":1}]', None),
        (b'[{"compact_threshold":5000}]', None),
        (b'[{"type":"compaction","compact_threshold":1000}]', 1000),
        (b'[{"type":"compaction","compact_threshold": 200000 }]', 200_000),
        (b'[{"type":"other"},{"type":"compaction","compact_threshold":9000}]', 9000),
        (b'[{"type":"compaction","compact_threshold":9000},{"type":"compaction","compact_threshold":5000}]', 5000),
        (b'[{"type":"compaction"}]', 200_000),
        (b'[{"type":"compaction","compact_threshold":null}]', 200_000),
    ],
)
def test_threshold_is_that_of_the_compaction(field: bytes | None, expected: int | None) -> None:
    """The lowest, should there be several."""
    assert compaction.threshold(field) == expected


@pytest.mark.parametrize(
    "field",
    [
        b"{}",
        b'"compaction"',
        b"true",
        b'["compaction"]',
        *(
            b'[{"type":"compaction","compact_threshold":%b}]' % value
            for value in (b"999", b"0", b"-5000", b"1e4", b"5000.0", b"true", b'"5000"', b"[]", b"1" + b"0" * 400)
        ),
    ],
)
def test_threshold_has_to_be_a_number(field: bytes) -> None:
    """Whoever sends something else is told which field is meant."""
    with pytest.raises(InvalidMessage, match="context_management") as caught:
        compaction.threshold(field)
    assert caught.value.param == "context_management"
