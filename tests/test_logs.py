"""Logs: their lines, what is never in them, and that a line stays one line."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any, Literal, cast, get_args

import pytest
import structlog
from aiohttp.http_exceptions import BadHttpMessage

from proxy import logs
from proxy.observe import ConnectionRecord, Exchange, Observer, PassThroughRecord, TurnRecord, TurnStarted
from proxy.protocol.records import ResponseEvicted, TurnEnded
from proxy.protocol.terminals import Usage

NASTY = 'a"\n{"event":"turn"}\r\x1b[31m\x00\x85\u2028\u202e\ud83d\U0001f600'
"""An id that breaks lines, colours them, turns them round, and is no Unicode."""

Form = Literal["json", "console"]
Level = Literal["debug", "info", "warning", "error"]


class Stderr(io.TextIOWrapper):
    """Standard error that can be looked at."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)

    @property
    def text(self) -> str:
        """What was written."""
        return cast("io.BytesIO", self.buffer).getvalue().decode()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """JSON lines that were written; nothing else may be there."""
        return [json.loads(line) for line in self.text.splitlines()]


@contextlib.contextmanager
def configured(level: Level, form: Form, stderr: object) -> Iterator[None]:
    """Logging as the command sets it up, for a while."""
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        logs.configure(level, form)
        try:
            yield
        finally:
            structlog.reset_defaults()
            root.handlers[:] = before[1]
            root.setLevel(before[0])


@pytest.fixture(autouse=True)
def no_errors_of_libraries() -> None:
    """Here they are made on purpose."""


@pytest.fixture
def stderr() -> Iterator[Stderr]:
    """What JSON logging at the level `debug` writes."""
    stderr = Stderr()
    with configured("debug", "json", stderr):
        yield stderr


@pytest.fixture
def console() -> Iterator[Stderr]:
    """What console logging at the level `debug` writes."""
    stderr = Stderr()
    with configured("debug", "console", stderr):
        yield stderr


def turn(exchange: Exchange | None = None, lane: str | None = None, **facts: Any) -> TurnRecord:
    """The record of a turn that was received at 10.0 and ended at 12.5."""
    return TurnRecord("conn_1", TurnEnded(3, lane, 100, 10.0, **facts), 12.5, exchange)


# The lines


def test_logs_has_one_line_for_a_turn(stderr: Stderr) -> None:
    """All that is known about a turn, under names that metrics have too."""
    exchange = Exchange(started=10.25, first_bytes=11.0, own_relay=0.00123, status=200, reused=True, retries=1)
    record = turn(
        exchange,
        "main",
        outcome="failed",
        response_id="resp_2",
        previous_response_id="resp_1",
        model="m",
        lookup="hit",
        reason="tip",
        prefix="kept",
        depth=2,
        upstream_bytes=5000,
        replayed_bytes=4800,
        replayed_items=7,
        new_items=1,
        events=30,
        relayed_bytes=9000,
        usage=Usage(1000, 900, 50),
        error_code="server_error",
        error_status=500,
        error_source="upstream",
    )
    logs.Logs().turn_ended(record)
    [line] = stderr.lines
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "turn",
        "level": "info",
        "connection_id": "conn_1",
        "turn": 3,
        "lane": "main",
        "outcome": "failed",
        "response_id": "resp_2",
        "previous_response_id": "resp_1",
        "model": "m",
        "depth": 2,
        "cache": "hit",
        "cache_reason": "tip",
        "prefix": "kept",
        "received_bytes": 100,
        "upstream_bytes": 5000,
        "saved_bytes": 4800,
        "new_items": 1,
        "replayed_items": 7,
        "events": 30,
        "sent_bytes": 9000,
        "input_tokens": 1000,
        "cached_tokens": 900,
        "output_tokens": 50,
        "total_seconds": 2.5,
        "first_event_seconds": 1.0,
        "queue_seconds": 0.25,
        "proxy_seconds": 0.00123,
        "upstream_status": 200,
        "upstream_reused": True,
        "upstream_retries": 1,
        "error_code": "server_error",
        "error_status": 500,
        "error_source": "upstream",
    }


def test_logs_leaves_out_what_did_not_happen(stderr: Stderr) -> None:
    """A turn that never reached the backend has nothing to say about it, one without error nothing about errors."""
    logs.Logs().turn_ended(turn(outcome="warmup"))
    logs.Logs().turn_ended(turn(Exchange(started=10.0), outcome="client_gone"))
    warmup, gone = stderr.lines
    assert not [key for key in warmup if key.startswith(("upstream_status", "error", "queue", "first_event"))]
    assert gone["first_event_seconds"] is None
    assert gone["upstream_status"] is None


def test_logs_has_one_line_for_a_connection(stderr: Stderr) -> None:
    """Written when it ends, with who it was, why it ended, and what went over it."""
    record = ConnectionRecord("conn_1", "codex/1", 0.0, 1.23456, 3, 100, 200, 1001, "lifetime", arrived=40)
    logs.Logs().connection_closed(record)
    [line] = stderr.lines
    del line["timestamp"]
    assert line == {
        "event": "connection",
        "level": "info",
        "connection_id": "conn_1",
        "client": "codex/1",
        "cause": "lifetime",
        "close_code": 1001,
        "seconds": 1.235,
        "turns": 3,
        "received_bytes": 100,
        "wire_bytes": 40,
        "sent_bytes": 200,
    }


def test_logs_has_lines_of_less_importance(stderr: Stderr) -> None:
    """What is only for somebody who looks for it is at the level `debug`; what failed is at `info`."""
    observer: Observer = logs.Logs()
    observer.connection_opened(ConnectionRecord("conn_1", "", 0.0))
    observer.turn_started(TurnStarted("conn_1", 1, None, 0.0, 0.0))
    observer.response_evicted(ResponseEvicted("process_bytes"))
    observer.passed_through(PassThroughRecord("GET", "/v1/models", 200, "upstream", 0.1))
    observer.passed_through(PassThroughRecord("POST", "/v1/responses", 502, "proxy", 0.1))
    observer.connection_refused("draining")
    assert [(line["event"], line["level"]) for line in stderr.lines] == [
        ("connection opened", "debug"),
        ("response evicted", "debug"),
        ("http request", "debug"),
        ("http request", "info"),
        ("upgrade refused", "info"),
    ]


@pytest.mark.parametrize(("level", "count"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_logs_keep_to_their_level(level: Level, count: int) -> None:
    """Lines of the product and of libraries alike."""
    stderr = Stderr()
    with configured(level, "json", stderr):
        for logger in (structlog.get_logger(), logging.getLogger("aiohttp.test")):
            for name in ("debug", "info", "warning", "error"):
                getattr(logger, name)(name)
    assert len(stderr.lines) == 2 * count


def test_logs_cut_what_others_chose(stderr: Stderr) -> None:
    """An id of a megabyte is a client's joke, and not for the disk."""
    long = "x" * 2**20
    logs.Logs().turn_ended(turn(response_id=long, previous_response_id=long, model=long, error_code=long))
    logs.Logs().passed_through(PassThroughRecord(long, long, 404, "upstream", 0.1))
    assert len(stderr.text) < 5000
    assert stderr.lines[0]["model"].endswith("...")


# Libraries


@pytest.mark.parametrize("name", ["aiohttp.server", "asyncio", "somebody.else"])
def test_libraries_write_lines_of_the_same_form(stderr: Stderr, name: str) -> None:
    """The standard library's loggers end in JSON lines too, tracebacks inside."""
    logging.getLogger(name).warning("a %s", "b")
    try:
        raise ValueError(NASTY)
    except ValueError:
        logging.getLogger(name).exception("boom")
    first, second = stderr.lines
    assert (first["event"], first["level"], first["logger"]) == ("a b", "warning", name)
    assert (second["event"], second["level"]) == ("boom", "error")
    assert "ValueError" in second["exception"]
    assert first.keys() == {"event", "level", "logger", "timestamp"}


def test_libraries_do_not_show_what_they_could_not_read(stderr: Stderr) -> None:
    """aiohttp logs the bytes of a bad request as an error; they are a client's, and none of ours."""  # noqa: D403
    try:
        raise BadHttpMessage("X-Key: very secret")
    except BadHttpMessage as error:
        logging.getLogger("aiohttp.server").exception("Error handling request from %s", "10.0.0.1", exc_info=error)
    [line] = stderr.lines
    assert (line["event"], line["level"]) == ("not an HTTP request: BadHttpMessage", "info")
    assert "secret" not in stderr.text
    quiet = Stderr()
    with configured("warning", "json", quiet):
        logging.getLogger("aiohttp.server").error("Error handling request", exc_info=error_of("secret"))
    assert quiet.text == ""


def error_of(text: str) -> BadHttpMessage:
    """An error of aiohttp's about a request."""
    return BadHttpMessage(text)


# What is never in them


@pytest.mark.parametrize(
    "secret",
    [
        "Bearer sk-abcdefghijklmnop",
        "bearer  abc.def-ghi_jkl",
        "Basic dXNlcjpwYXNzd29yZA==",
        "sk-proj-abcdefgh_ijkl-mnop",
        "key_sk-abcdefghijkl",
        "openai-insecure-api-key.ek_abc.def",
        "xai-client-secret.xyz123",
        "https://h/v1?api_key=abcdef&x=1",
        "wss://h/v1?model=m&access_token=abcdef",
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUg==",
        "data:application/pdf;name=x;base64,JVBERi0xLjc",
        "data:;base64,aGVsbG8=",
    ],
)
def test_redaction_goes_by_the_form_of_a_value(secret: str) -> None:
    """What looks like a credential or a file goes, wherever it stands in a text; the text around it stays."""
    text = f"before '{secret}' after"
    line = logs.redact(None, "info", {"event": text, "inner": {"list": [text, (text,)]}, "raw": text.encode()})
    plain = str(line)
    assert plain.count("[redacted]") == 4
    for part in ("abcdef", "abc.def", "dXNl", "ek_abc", "xyz123", "iVBOR", "JVBER", "aGVsbG8"):
        assert part not in plain
    assert line["event"].startswith("before '")
    assert line["event"].endswith("' after")


@pytest.mark.parametrize(
    "text",
    [
        "task-1234567890",
        "desk-lamps-and-more",
        "a bearer",
        "resp_0123456789abcdef",
        "sk-",
        "data:text/plain,hello",
        "a=b",
    ],
)
def test_redaction_leaves_other_text_alone(text: str) -> None:
    """Ids and words that only resemble a credential stay readable."""
    assert logs.redact(None, "info", {"event": text}) == {"event": text}


@pytest.mark.parametrize(
    "key",
    ["authorization", "Authorization", "api_key", "x-api-key", "Set-Cookie", "password", "client_secret", "token"],
)
@pytest.mark.parametrize("value", ["hush", b"hush", 12345, ["hush"], {"a": "hush"}])
def test_redaction_goes_by_the_name_of_a_key(key: str, value: object) -> None:
    """Whatever stands under such a name, at any depth, goes."""
    line = logs.redact(None, "info", {key: value, "inner": {key: value}, "event": "x"})
    assert line == {key: "[redacted]", "inner": {key: "[redacted]"}, "event": "x"}


def test_redaction_leaves_other_keys_alone() -> None:
    """Token counts are no tokens, and nothing is no secret."""
    line = {"input_tokens": 5, "cached_tokens": 3, "lane": None, "api_key": None, "seconds": 1.5, "ok": True}
    assert logs.redact(None, "info", dict(line)) == line


def test_redaction_comes_before_the_writing(stderr: Stderr) -> None:
    """It holds for the product's lines, for libraries' lines, and for tracebacks."""
    structlog.get_logger().info("hello", header="Bearer abcdefghijklm", api_key="plain")
    logging.getLogger("aiohttp.websocket").warning("protocols %r", ["openai-insecure-api-key.abcdefghijklm"])
    secret = "sk-" + "abcdefghijklm"
    try:
        raise ValueError(secret)
    except ValueError:
        structlog.get_logger().exception("boom")
        logging.getLogger("asyncio").exception("boom")
    assert stderr.text.count("[redacted]") == 5
    assert "abcdefghijklm" not in stderr.text
    assert "plain" not in stderr.text


# One line stays one line


def test_json_line_stays_one_line(stderr: Stderr) -> None:
    """Ids may hold anything: the line is one, pure ASCII, and JSON for parsers that are strict about surrogates."""
    logs.Logs().turn_ended(turn(lane=NASTY, response_id=NASTY, previous_response_id=NASTY, model=NASTY))
    logs.Logs().connection_closed(ConnectionRecord("conn_1", NASTY, 0.0))
    logs.Logs().passed_through(PassThroughRecord(NASTY, NASTY, 404, "upstream", 0.1))
    logging.getLogger("aiohttp").warning("%s", NASTY)
    lines = stderr.text.split("\n")
    assert lines.pop() == ""
    assert len(lines) == 4
    assert stderr.text.isascii()
    assert stderr.text.isprintable() is False
    assert "".join(lines).isprintable()
    assert json.loads(lines[0])["model"] == NASTY.replace("\ud83d", "\ufffd")
    assert json.loads(lines[3])["event"] == NASTY.replace("\ud83d", "\ufffd")
    assert b"\\ud83d\\ude00" in lines[0].encode()
    assert r"\ud83d\ufffd" not in lines[0]


@pytest.mark.parametrize("value", [b"\xff", object(), {1: 2}, {"a": {3}}, 2**70, float("inf"), "\ud83d"])
def test_json_line_holds_any_value(stderr: Stderr, value: object) -> None:
    """A value that JSON does not know becomes text; no log call raises."""
    structlog.get_logger().info("x", value=value)
    [line] = stderr.lines
    assert "value" in line


def test_console_line_stays_one_line(console: Stderr) -> None:
    """A person's terminal gets escapes instead of its own control characters."""
    logs.Logs().turn_ended(turn(response_id=NASTY, model=NASTY))
    logging.getLogger("aiohttp").warning("%s", NASTY)
    lines = console.text.split("\n")
    assert lines.pop() == ""
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)
    assert "turn" in lines[0]


def test_console_sets_tracebacks_in(console: Stderr) -> None:
    """A traceback has lines of its own, none of which looks like a line of the log."""
    try:
        raise ValueError(NASTY)
    except ValueError:
        structlog.get_logger().exception("boom")
        logging.getLogger("asyncio").exception("boom")
    lines = console.text.splitlines()
    assert sum("boom" in line for line in lines) == 2
    assert all(line.startswith("    ") or "boom" in line for line in lines)


class Full:
    """Standard error on a disk that is full."""

    @property
    def buffer(self) -> Full:
        """Itself: bytes fit no better."""
        return self

    def write(self, _: object) -> int:
        """Nothing fits."""
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self) -> None:
        """Nothing is there to be flushed, and that does not fit either."""
        raise OSError(errno.ENOSPC, "No space left on device")

    def isatty(self) -> bool:
        """It is a disk."""
        return False


@pytest.mark.parametrize("form", get_args(Form))
def test_full_disk_does_not_stop_the_traffic(form: Form) -> None:
    """What cannot be written is lost; whoever logs does not notice."""
    with configured("info", form, Full()):
        logs.Logs().turn_ended(turn())
        logging.getLogger("aiohttp").error("x")
