"""One turn's stream: frames out of bytes, byte for byte where it can be, and what is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.protocol.relay import Relay
from proxy.protocol.responses import RequestEcho
from proxy.protocol.terminals import Terminal, Usage
from proxy.protocol.upstream_errors import UpstreamDisconnected, UpstreamProtocolError, UpstreamRefused
from tests.playbook import answer, call, message, response, sse

CREATED = {"type": "response.created", "sequence_number": 0, "response": response("resp_1", "in_progress")}
DELTA = (
    b'{"type":"response.output_text.delta","sequence_number":4,"item_id":"m","output_index":0,"content_index":0,'
    b'"delta":"x","logprobs":[]}'
)
BARE = b'{"type":"response.output_text.delta","item_id":"m","delta":"x"}'


def relay(*, stream_id: str | None = None, limit: int = 2**20) -> Relay:
    """A fresh stream."""
    echo = RequestEcho({"model": b'"m"'}, 1000, None)
    return Relay(echo, stream_id=stream_id, claim_id=lambda own: own or "resp_made", max_event_bytes=limit)


def named(event: bytes, name: bytes = b"response.output_text.delta") -> bytes:
    """An event with its name, as most backends write it."""
    return b"event: " + name + b"\ndata: " + event + b"\n\n"


@pytest.mark.parametrize("count", [1, 2, 5])
def test_whole_event_is_relayed_byte_for_byte(count: int) -> None:
    """The first event of a type is looked at, the others are cut out: the same bytes either way."""
    stream = relay()
    stream.feed(sse(CREATED))
    assert stream.feed(named(DELTA) * count) == [DELTA] * count
    assert stream.events == 1 + count


PLACE = '"item_id":"m","output_index":0,"content_index":0,"logprobs":[]'
AWKWARD = (
    '{"type":"response.output_text.delta","sequence_number":1,"delta":"\\ud83d",' + PLACE + "}",
    '{"type":"response.output_text.delta","sequence_number":1,"delta":"\u2028\U0001f600",' + PLACE + "}",
    "{ " + PLACE + ' , "delta":"1e999","sequence_number":1,\t"type" : "response.output_text.delta" }',
    '{"sequence_number":1,"type":"response.output_text.delta","delta":"","obfuscation":"abc",' + PLACE + "}",
)


@pytest.mark.parametrize("event", [text.encode() for text in AWKWARD])
@pytest.mark.parametrize("with_name", [True, False])
def test_awkward_events_are_relayed_byte_for_byte(event: bytes, with_name: bool) -> None:  # noqa: FBT001
    """Cut emoji, separators that are no line ends, white space, and `type` first, last or in the middle."""
    stream = relay()
    data = named(event) if with_name else b"data: " + event + b"\n\n"
    assert stream.feed(sse(CREATED) + data * 3)[1:] == [event] * 3


def test_lane_is_spliced_into_every_event() -> None:
    """The backend's bytes follow the lane's name unchanged."""
    stream = relay(stream_id="a")
    frames = stream.feed(sse(CREATED) + named(DELTA) * 2)
    assert all(payload.startswith(b'{"stream_id":"a",') for payload in frames)
    assert frames[1:] == [b'{"stream_id":"a",' + DELTA[1:]] * 2


def test_missing_members_are_spliced_in() -> None:
    """A backend that numbers nothing: members come behind the brace, the rest is as it was."""
    stream = relay(stream_id="a")
    frames = stream.feed(sse({"type": "response.created", "response": {}}) + named(BARE) * 2)
    prefix = b'{"stream_id":"a","sequence_number":%d,"output_index":0,"content_index":0,"logprobs":[],'
    assert frames[1:] == [prefix % number + BARE[1:] for number in (1, 2)]


@pytest.mark.parametrize(
    "noise", [b": ping\n\n", b":\n\n", b"\n\n", b"event: x\n\n", b"data: [DONE]\n\n", b"retry: 5\n\n"]
)
def test_noise_is_dropped(noise: bytes) -> None:
    """Comments, keepalives and markers are no events."""
    assert relay().feed(noise + sse(CREATED) + noise) == relay().feed(sse(CREATED))


def test_unknown_events_are_relayed() -> None:
    """Extensions and keepalives of the backend pass as they are."""
    event = b'{"type":"codex.rate_limits","primary":{}}'
    assert relay().feed(sse(CREATED) + named(event, b"codex.rate_limits") * 2)[1:] == [event, event]


def test_data_in_several_lines_is_joined() -> None:
    """The standard allows an event's data to be written in lines."""
    stream = relay()
    stream.feed(sse(CREATED) + named(DELTA))
    first, comma, rest = DELTA.partition(b",")
    data = b"event: response.output_text.delta\ndata: " + first + comma + b"\ndata: " + rest + b"\n\n"
    assert stream.feed(data) == [first + comma + b"\n" + rest]


def test_fields_behind_the_data_are_read() -> None:
    """An `id:` line behind the data is not part of it."""
    stream = relay()
    stream.feed(sse(CREATED) + named(DELTA))
    assert stream.feed(b"event: response.output_text.delta\ndata: " + DELTA + b"\nid: 7\n\n") == [DELTA]


def test_type_may_stand_in_the_events_name_only() -> None:
    """A backend that leaves `type` out of the JSON: clients need it there."""
    (frame,) = relay().feed(b'event: response.created\ndata: {"sequence_number":0,"response":{"id":"r"}}\n\n')
    assert json.loads(frame)["type"] == "response.created"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"data: nonsense\n\n", "cannot be read"),
        (b"data: [1]\n\n", "cannot be read"),
        (b'data: {"type":"response.created"\n\n', "cannot be read"),
        (b"data: {}\n\n", "no type"),
        (b'data: {"type":"x","a":"\xff"}\n\n', "not valid UTF-8"),
        (b'data: {"type":"response.completed","response":{"output":[5]}}\n\n', "cannot be read"),
        (b"data: " + b"x" * 200 + b"\n\n", "more than 100 bytes"),
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_broken_stream_is_an_outcome(data: bytes, reason: str, size: int) -> None:
    """What cannot be read ends the turn; what came before it was relayed."""
    stream = relay(limit=100)
    first = b'data: {"type":"x"}\n\n'
    whole = first + data + first
    frames = [payload for start in range(0, len(whole), size) for payload in stream.feed(whole[start : start + size])]
    assert frames[0] == b'{"type":"x"}'
    assert isinstance(stream.outcome, UpstreamProtocolError)
    assert reason in str(stream.outcome)


def test_broken_delta_is_noticed_in_the_middle_of_a_run() -> None:
    """An event of a known type whose bytes are no object, or no UTF-8, does not slip through."""
    for broken in (DELTA[:-1], DELTA.replace(b'"x"', b'"\xff"')):
        stream = relay()
        stream.feed(sse(CREATED) + named(DELTA))
        assert stream.feed(named(DELTA) + named(broken) + named(DELTA)) == [DELTA]
        assert isinstance(stream.outcome, UpstreamProtocolError)


def test_end_without_a_terminal_event_is_a_disconnect() -> None:
    """However clean the stream's end is, the response has none."""
    stream = relay()
    stream.feed(sse(CREATED) + named(DELTA)[:-20])
    assert stream.end() == []
    assert isinstance(stream.outcome, UpstreamDisconnected)


def test_last_event_may_lack_its_blank_line() -> None:
    """A backend that ends right behind the terminal event's line has said it all."""
    stream = relay()
    data = answer("resp_1", message("hi"))
    stream.feed(data.removesuffix(b"\n\n"))
    (frame,) = stream.end()
    assert json.loads(frame)["type"] == "response.completed"
    assert isinstance(stream.outcome, Terminal)


def test_error_event_is_the_outcome() -> None:
    """A flat error is no frame: the turn's end makes the one form of it."""
    stream = relay()
    assert stream.feed(sse({"type": "error", "message": "m", "code": "rate_limit_exceeded"}) + sse(CREATED)) == []
    assert isinstance(stream.outcome, UpstreamRefused)
    assert stream.outcome.status == 429


def test_terminal_keeps_what_the_next_turn_needs() -> None:
    """Items as they came, their heads, token counts and the response's own facts."""
    stream = relay()
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 13,
    }
    item = call("c1")
    stream.feed(answer("resp_1", item, usage=usage))
    terminal = stream.outcome
    assert isinstance(terminal, Terminal)
    assert terminal.response_id == stream.response_id == "resp_1"
    assert [json.loads(raw) for raw in terminal.items] == [item]
    assert terminal.heads[0].call_id == "c1"
    assert terminal.usage == Usage(10, 4, 3)
    assert json.loads(terminal.response)["usage"]["input_tokens"] == 10


@pytest.mark.parametrize("usage", [{"input_tokens": -5, "output_tokens": 2**70}, {"input_tokens": "many"}, [], "x", 5])
def test_nonsense_in_usage_counts_as_nothing(usage: Any) -> None:
    """Token counts that cannot be added up do no harm."""
    stream = relay()
    stream.feed(answer("resp_1", usage=usage))
    assert isinstance(stream.outcome, Terminal)
    assert stream.outcome.usage == Usage()


@pytest.mark.parametrize("kind", ["completed", "incomplete", "failed"])
def test_each_terminal_event_ends_the_turn(kind: str) -> None:
    """Whichever terminal event comes, nothing is relayed behind it."""
    stream = relay()
    frames = stream.feed(answer("resp_1", kind=kind) + named(DELTA))
    assert json.loads(frames[-1])["type"] == f"response.{kind}"
    assert isinstance(stream.outcome, Terminal)
    assert stream.outcome.kind == kind


@pytest.mark.parametrize(
    ("snapshot", "kept"),
    [
        ([message("a", "m1"), call("c1")], "snapshot"),
        ([message("a", "m1"), call("c2")], "done"),
        ([message("a", "m1")], "done"),
        ([], "done"),
    ],
)
def test_snapshot_counts_when_it_holds_what_was_done(snapshot: list[Any], kept: str) -> None:
    """A terminal event's output is kept when it has every item that was done, else the done items as they came."""
    stream = relay()
    done = [{**message("a", "m1"), "from": "done"}, {**call("c1"), "from": "done"}]
    whole = response("resp_1", items=[{**item, "from": "snapshot"} for item in snapshot])
    stream.feed(
        sse(
            CREATED,
            *({"type": "response.output_item.done", "output_index": i, "item": item} for i, item in enumerate(done)),
            {"type": "response.completed", "response": whole},
        )
    )
    assert isinstance(stream.outcome, Terminal)
    assert {json.loads(item)["from"] for item in stream.outcome.items} == {kept}
    assert len(stream.outcome.items) == 2


def test_response_that_is_no_object_is_replaced() -> None:
    """`response: null` and no response at all become whole ones."""
    for data in ({"type": "response.completed", "response": None}, {"type": "response.completed"}):
        (frame,) = relay().feed(sse(data))
        assert json.loads(frame)["response"]["id"] == "resp_made"


def test_items_without_an_object_are_left_alone() -> None:
    """An item event whose item is null is relayed and keeps nothing."""
    stream = relay()
    frames = stream.feed(sse(CREATED, {"type": "response.output_item.done", "output_index": 0, "item": None}))
    assert json.loads(frames[1])["item"] is None


def test_next_number_continues_the_stream() -> None:
    """An error of the proxy's own is numbered after the last event, whoever counts."""
    stream = relay()
    assert stream.next_number() == 0
    stream.feed(sse(CREATED))
    assert stream.next_number() == 1
    stream.feed(named(DELTA))
    assert stream.next_number() == 5
    bare = relay()
    bare.feed(sse({"type": "response.created", "response": {}}) + named(BARE))
    assert bare.next_number() == 2


def test_same_bytes_twice_in_an_event_are_told_apart() -> None:
    """The response is replaced where it stands, though its bytes stand elsewhere too."""
    data = b'event: response.created\ndata: {"twin":{"id":"r"},"type":"response.created","response":{"id":"r"}}\n\n'
    frame = json.loads(relay().feed(data)[0])
    assert frame["twin"] == {"id": "r"}
    assert frame["response"]["object"] == "response"
