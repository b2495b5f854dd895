"""A turn's answer where the proxy itself begins it, ends it, or lets it go on."""

from __future__ import annotations

import json
from typing import Any

from proxy.protocol.rawjson import Head
from proxy.protocol.reply import Reply, Unheard
from proxy.protocol.responses import RequestEcho
from proxy.protocol.terminals import Terminal
from tests import openresponses
from tests.playbook import answer, call, message

ITEM = b'{"type":"compaction","id":"cmp_1","encrypted_content":"x"}'


def reply(stream_id: str | None = None) -> Reply:
    """A fresh answer."""
    echo = RequestEcho({"model": b'"m"'}, 1000, "resp_0")
    return Reply(echo, stream_id=stream_id, claim_id=lambda own: own or "resp_made", max_event_bytes=2**20)


def read(frames: list[bytes]) -> list[dict[str, Any]]:
    """Frames as a strict client reads them."""
    events = [json.loads(frame) for frame in frames]
    for event in events:
        assert openresponses.problems(event) == []
    return events


def test_answer_that_begins_with_items_goes_on_with_the_backends() -> None:
    """One response: its events are numbered throughout, and so are its items; the backend's own beginning is left out."""
    this = reply("a")
    events = read(this.begin([ITEM], [Head("compaction", "cmp_1")]))
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.output_item.done",
    ]
    events += read(this.feed(answer("resp_theirs", message("hi"))))
    assert [event["sequence_number"] for event in events] == list(range(6))
    assert all(event["stream_id"] == "a" for event in events)
    assert events[4]["output_index"] == 1
    assert events[5]["response"]["id"] == "resp_made"
    assert [item["type"] for item in events[5]["response"]["output"]] == ["compaction", "message"]
    outcome = this.outcome
    assert isinstance(outcome, Terminal)
    assert outcome.items[0] == ITEM
    assert outcome.backend_id is None


def test_answer_that_is_stopped_twice_over_keeps_its_numbers() -> None:
    """What is said ends what was said."""
    this = reply()
    events = read(
        this.feed(answer("resp_1", message("hi"))[: answer("resp_1", message("hi")).index(b"event: response.c", 10)])
    )
    events += read(this.stop("cancelled"))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"]["output"] == [message("hi")]


def test_failure_of_our_own_is_a_whole_response() -> None:
    """Begun and failed, with the code and the words."""
    events = read(reply().fail("context_length_exceeded", "Too long."))
    assert [event["type"] for event in events] == ["response.created", "response.failed"]
    assert events[1]["response"]["error"] == {"code": "context_length_exceeded", "message": "Too long."}
    assert events[1]["response"]["status"] == "failed"


def test_held_end_is_released_or_forgotten() -> None:
    """`response.completed` stands back until it is clear that nothing follows."""
    this = reply()
    this.holds_end = True
    held = read(this.feed(answer("resp_1", call("c1"))))
    assert held[-1]["type"] == "response.output_item.done"
    assert read(this.release())[0]["type"] == "response.completed"
    assert this.release() == []
    other = reply()
    other.holds_end = True
    other.feed(answer("resp_1", call("c1")))
    assert isinstance(other.outcome, Terminal)
    other.go_on(other.outcome)
    assert other.outcome is None
    assert other.release() == []


def test_unheard_answer_says_nothing() -> None:
    """It is read and kept, and none of it reaches the client."""
    this = Unheard(RequestEcho({}, 1000, None), stream_id=None, claim_id=lambda own: own or "", max_event_bytes=2**20)
    data = answer("resp_1", message("hi"))
    assert this.feed(data[:50]) + this.feed(data[50:]) + this.end() == []
    assert isinstance(this.outcome, Terminal)
    assert len(this.outcome.items) == 1


def test_events_of_kinds_that_need_no_number_keep_one() -> None:
    """A backend that numbers them all; in what goes on the numbers are ours."""
    this = reply()
    this.begin([ITEM], [Head("compaction", "cmp_1")])
    event = (
        b'event: response.reasoning_part.added\ndata: {"type":"response.reasoning_part.added","sequence_number":7}\n\n'
    )
    (frame,) = this.feed(event)
    assert json.loads(frame) == {"type": "response.reasoning_part.added", "sequence_number": 4}
    other = b'event: response.odd\ndata: {"type":"response.odd"}\n\n'
    assert this.feed(other) == [b'{"type":"response.odd"}']
    (frame,) = this.feed(event)
    assert json.loads(frame)["sequence_number"] == 5
