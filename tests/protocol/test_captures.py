"""Contract tests: recorded streams and errors of real backends, through a session, against strict clients' types.

`tests/captures/BACKEND/CASE.sse` is a body as the backend sent it and `CASE.json` the request that it answered;
`errors.json` are its HTTP errors. A new fault of a backend becomes a new file there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from proxy.protocol import refusals, rescue
from proxy.protocol.effects import Observe
from proxy.protocol.events import UpstreamBytes, UpstreamEnded, UpstreamOpened
from proxy.protocol.profiles import PROFILES
from proxy.protocol.records import TurnEnded
from tests import openresponses
from tests.playbook import Playbook, create, frames_of

CAPTURES = Path(__file__).parent.parent / "captures"
GOOD = sorted(
    path
    for path in CAPTURES.glob("*/*.sse")
    if path.stem in ("plain-text", "multi-turn-replay", "tool-call", "tool-output-replay", "reasoning")
)
ERRORS = [
    pytest.param(backend.parent.name, case, error, id=f"{backend.parent.name}-{case}")
    for backend in sorted(CAPTURES.glob("*/errors.json"))
    for case, error in json.loads(backend.read_text()).items()
]
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def name(path: Path) -> str:
    """A test's id for a capture."""
    return f"{path.parent.name}-{path.stem}"


def play(path: Path, *, size: int = 2**20) -> tuple[list[bytes], TurnEnded]:
    """The frames a client gets for a capture that arrives in pieces of so many bytes, and the turn's record."""
    book = Playbook(profile=path.parent.name if path.parent.name in PROFILES else "generic")
    request = json.loads(path.with_suffix(".json").read_text())
    effects = book.session.receive(create(**request))
    effects += book.session.receive(UpstreamOpened(1))
    data = path.read_bytes()
    for start in range(0, len(data), size):
        effects += book.session.receive(UpstreamBytes(1, data[start : start + size]))
    effects += book.session.receive(UpstreamEnded(1))
    (record,) = [effect.record for effect in effects if isinstance(effect, Observe)]
    assert isinstance(record, TurnEnded)
    return frames_of(effects), record


def events_of(path: Path) -> list[Any]:
    """What the backend sent, read in the simplest way that is right for a capture."""
    lines = path.read_text().split("\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_captures_are_there() -> None:
    """Seven backends were recorded, each in five cases."""
    assert len(GOOD) == 35


@pytest.mark.parametrize("path", GOOD, ids=name)
def test_stream_satisfies_the_official_sdk(path: Path) -> None:
    """Every event that reaches the client is what openai-python's types ask for."""
    frames, record = play(path)
    assert record.outcome == "completed"
    for payload in frames:
        EVENTS.validate_json(payload)


@pytest.mark.parametrize("path", GOOD, ids=name)
def test_stream_satisfies_open_responses(path: Path) -> None:
    """Every event that reaches the client is what the Open Responses schema asks for."""
    frames, _ = play(path)
    for payload in frames:
        assert openresponses.problems(json.loads(payload)) == []


def without_added(events: list[dict[str, Any]], sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events without the one that is added where a backend sends arguments in pieces only."""
    added = "response.function_call_arguments.done"
    if any(event["type"] == added for event in sent):
        return events
    return [event for event in events if event["type"] != added]


@pytest.mark.parametrize("backend", ["llamacpp", "litellm", "aimock", "transformers", "vllm"])
def test_strict_client_refuses_what_the_backend_itself_sends(backend: str) -> None:
    """Without the filling these streams are refused: the check can fail."""
    found = [
        problem
        for event in events_of(CAPTURES / backend / "tool-call.sse")
        for problem in openresponses.problems(event)
    ]
    assert found


@pytest.mark.parametrize("path", GOOD, ids=name)
def test_stream_keeps_all_that_the_backend_sent(path: Path) -> None:
    """Filling adds members; what the backend sent is there, in its order, with its values."""
    frames, _ = play(path)
    sent = events_of(path)
    got = without_added([json.loads(payload) for payload in frames], sent)
    assert len(got) == len(sent)
    for event, original in zip(got, sent, strict=True):
        assert missing_from(event, original) == []


@pytest.mark.parametrize("path", GOOD, ids=name)
def test_stream_numbers_go_up_by_one(path: Path) -> None:
    """Whether the backend numbers its events or the proxy does, they go up from 0 by one."""
    frames, _ = play(path)
    assert [json.loads(payload)["sequence_number"] for payload in frames] == list(range(len(frames)))


@pytest.mark.parametrize("path", GOOD, ids=name)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_stream_is_the_same_however_it_is_cut(path: Path, size: int) -> None:
    """Where the bytes are cut on their way makes no difference to the frames."""
    assert play(path, size=size)[0] == play(path)[0]


@pytest.mark.parametrize("path", GOOD, ids=name)
def test_items_are_replayed_as_the_backend_sent_them(path: Path) -> None:
    """The next turn's request holds the output items byte for byte."""
    book = Playbook()
    request = json.loads(path.with_suffix(".json").read_text())
    book.session.receive(create(**request))
    book.session.receive(UpstreamOpened(1))
    book.session.receive(UpstreamBytes(1, path.read_bytes()))
    effects = book.session.receive(UpstreamEnded(1))
    final = events_of(path)[-1]["response"]
    effects = book.session.receive(create(input="next", previous_response_id=final["id"]))
    body = effects[0].request.body()  # type: ignore[union-attr]
    data = path.read_bytes()
    snapshot = data[data.rindex(b"data: {") :]
    assert final["output"]
    for item in json.loads(body)["input"][-1 - len(final["output"]) : -1]:
        assert item in final["output"]
    # Byte for byte: the raw list stands in the request as it stood in the snapshot.
    start = snapshot.index(b'"output":[') + len(b'"output":[')
    first = snapshot[start : start + 200]
    assert first[:150] in body


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("aimock/cutoff", "upstream_disconnected"),
        ("llmock/fault-truncate", "upstream_disconnected"),
        ("llmock/fault-disconnect", "upstream_disconnected"),
    ],
)
def test_cut_stream_becomes_an_error(case: str, code: str) -> None:
    """A stream that ends without a terminal event ends in an error frame, numbered after what came before it."""
    frames, record = play(CAPTURES / f"{case}.sse")
    last = json.loads(frames[-1])
    assert last["type"] == "error"
    assert last["status"] == 502
    assert last["error"]["code"] == code == record.error_code
    assert last["sequence_number"] == len(frames) - 1
    assert record.outcome == "error"


def test_malformed_event_becomes_an_error() -> None:
    """An event that is no JSON ends the turn; nothing broken reaches the client."""
    frames, record = play(CAPTURES / "llmock/fault-malformed.sse")
    assert [json.loads(payload)["type"] for payload in frames][-1] == "error"
    assert record.error_code == "upstream_protocol_error"


def test_error_event_ends_the_turn_before_a_failed_event() -> None:
    """Transformers sends an `error` event and then `response.failed`: the client gets one end, not two."""
    frames, record = play(CAPTURES / "transformers/response-failed.sse")
    assert [json.loads(payload)["type"] for payload in frames] == ["response.created", "response.in_progress", "error"]
    assert json.loads(frames[-1])["error"]["message"] == "`max_new_tokens` must be greater than 0, but is 0."
    assert record.outcome == "error"


@pytest.mark.parametrize(("backend", "case", "error"), ERRORS)
def test_http_error_becomes_one_that_clients_understand(backend: str, case: str, error: dict[str, Any]) -> None:
    """Whatever form a backend's error has, the frame has all its members, and the backend's status and words."""
    refusal = refusals.from_answer(error["status"], error["headers"], error["body"].encode())
    shown = json.loads(rescue.error_frame(refusal))
    assert shown["status"] == error["status"]
    assert set(shown["error"]) >= {"type", "code", "message", "param"}
    assert shown["error"]["message"]
    assert shown["error"]["code"] is None or isinstance(shown["error"]["code"], str)
    try:
        original = json.loads(error["body"])
    except ValueError:
        assert shown["error"]["message"] == error["body"].strip() or not error["body"].strip()
        return
    inner = original.get("error", original)
    if isinstance(inner, dict) and isinstance(inner.get("message"), str):
        assert shown["error"]["message"] == inner["message"]
        assert shown["error"]["type"] == inner.get("type", shown["error"]["type"])


def missing_from(actual: Any, original: Any) -> list[str]:
    """What of the original is not in the actual value: members may be added, and null filled where null is not allowed."""
    if isinstance(original, dict) and isinstance(actual, dict):
        return [
            f"{key}.{problem}" if problem else key
            for key, value in original.items()
            for problem in ([""] if key not in actual else missing_from(actual[key], value))
            if value is not None
        ]
    if isinstance(original, list) and isinstance(actual, list) and len(original) == len(actual):
        return [problem for one, other in zip(actual, original, strict=True) for problem in missing_from(one, other)]
    return [] if actual == original else [f"{actual!r} for {original!r}"]
