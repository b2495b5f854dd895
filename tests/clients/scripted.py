"""A backend that plays a script: HTTP only, as a model server, and it keeps every request as it came.

It stands behind Slipstream and makes a client do what a test needs: run tools, several at once, meet a rate limit, a
failure, a stream that breaks off. Each `POST …/responses` plays one step. What it sends has the form of the hosted API's
streams, so that nothing has to be filled in; it knows no WebSocket and remembers nothing between two requests.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NoReturn

Event = dict[str, Any]
Item = dict[str, Any]

#: Seconds between two deltas of a text without an end.
_PACE: Final = 0.02

#: Seconds to wait for those who belong together.
_PATIENCE: Final = 30.0

_ERROR_TYPES: Final = {400: "invalid_request_error", 429: "rate_limit_error"}

#: What a thought looks like to whoever must hand it back unread.
SEALED: Final = "c2VhbGVk" * 40


@dataclass(frozen=True)
class Say:
    """Answer with a text.

    Attributes:
        text: The text.
        thinking: A reasoning item comes first.
    """

    text: str
    thinking: bool = False


@dataclass(frozen=True)
class Call:
    """Ask for tools to be called, all of them at once.

    Attributes:
        calls: Name and arguments of each.
        thinking: A reasoning item comes first.
    """

    calls: Sequence[tuple[str, dict[str, Any]]]
    thinking: bool = False


@dataclass(frozen=True)
class Refuse:
    """Answer with an error instead of a stream.

    Attributes:
        status: The status.
        code: `error.code`.
        headers: Further headers.
        message: `error.message`; there are clients that read it to tell what may get better.
    """

    status: int
    code: str
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "The script says so."


@dataclass(frozen=True)
class Cut:
    """Break the connection in the middle of a text."""


@dataclass(frozen=True)
class Talk:
    """Write a text without an end, until the other side leaves."""


@dataclass(frozen=True)
class Fail:
    """End the stream with a failed response.

    Attributes:
        code: `response.error.code`.
    """

    code: str


@dataclass(frozen=True)
class Stop:
    """End the stream with an incomplete response."""


@dataclass(frozen=True)
class Together:
    """Answer when others have been asked for as well, so that they run at the same time.

    Attributes:
        step: What to do then.
        all: All who have to be there.
    """

    step: Say | Call
    all: threading.Barrier


Step = Say | Call | Refuse | Cut | Talk | Fail | Stop | Together


@dataclass(frozen=True)
class Request:
    """A request as it came.

    Attributes:
        method: Its method.
        path: Its path.
        headers: Its headers, with names in lower case.
        body: Its body.
        time: When it had come, in seconds of a clock that only goes forward.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    time: float

    @property
    def json(self) -> dict[str, Any]:
        """Its body, read."""
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value


class Backend:
    """The script and what became of it.

    Args:
        steps: What to do for one request after the other.
        needs_tool: Only requests that offer this tool play a step: for clients that ask for a title on the side.

    Attributes:
        base_url: What a client's base URL is.
        was_left: The other side went away from a :class:`Talk`.
        says_stored: Whether its responses say that they are stored, unless the request says otherwise.
    """

    def __init__(self, steps: Sequence[Step], needs_tool: str | None = None) -> None:
        self.base_url = ""
        self.was_left = threading.Event()
        self.says_stored = False
        self._steps = list(steps)
        self._needs_tool = needs_tool
        self._played: list[Request] = []
        self._outputs: list[list[Item]] = []
        self._others: list[Request] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)

    @property
    def left(self) -> int:
        """Steps that were not played."""
        return len(self._steps)

    @property
    def requests(self) -> list[Request]:
        """The requests that played a step."""
        return list(self._played)

    @property
    def outputs(self) -> list[list[Item]]:
        """The output items of the response to each of them; none where it was not completed."""
        return list(self._outputs)

    @property
    def others(self) -> list[Request]:
        """All other requests."""
        return list(self._others)

    def next_step(self, request: Request) -> Step:
        """What to do about a request for a response."""
        with self._lock:
            if self._needs_tool is not None and self._needs_tool not in _tools(request.json):
                self._others.append(request)
                return Say("A title")
            step = self._steps.pop(0) if self._steps else Say("The script has ended.")
            self._played.append(request)
            self._outputs.append([])
            return step

    def note(self, request: Request) -> None:
        """Keep a request for something else."""
        self._others.append(request)

    def events(self, step: Say | Call | Cut | Talk | Fail | Stop, request: Request) -> Iterator[Event]:
        """The stream of one response."""
        response = self._response(request.json)
        yield {"type": "response.created", "response": response}
        yield {"type": "response.in_progress", "response": response}
        output: list[Item] = []
        for item in self._items(step):
            yield from _item_events(item, len(output))
            output.append(item)
        usage = _usage(len(request.body) // 4)
        match step:
            case Fail(code):
                error = {"code": code, "message": "The script says so."}
                yield {"type": "response.failed", "response": {**response, "status": "failed", "error": error}}
            case Stop():
                why = {"reason": "max_output_tokens"}
                final = {"status": "incomplete", "incomplete_details": why, "output": output, "usage": usage}
                yield {"type": "response.incomplete", "response": {**response, **final}}
            case _:
                if request in self._played:
                    self._outputs[self._played.index(request)] = output
                final = {
                    "status": "completed",
                    "completed_at": response["created_at"],
                    "output": output,
                    "usage": usage,
                }
                yield {"type": "response.completed", "response": {**response, **final}}

    def _items(self, step: Step) -> Iterator[Item]:
        if isinstance(step, (Say, Call)) and step.thinking:
            summary = [{"type": "summary_text", "text": "It thinks."}]
            yield {"type": "reasoning", "id": self._id("rs"), "summary": summary, "encrypted_content": SEALED}
        match step:
            case Call(calls):
                for name, arguments in calls:
                    number = self._id("call")
                    yield {
                        "type": "function_call",
                        "id": f"fc_{number}",
                        "call_id": number,
                        "name": name,
                        "arguments": json.dumps(arguments),
                        "status": "completed",
                    }
            case Fail() | Refuse():
                pass
            case _:
                text = step.text if isinstance(step, Say) else "It was about to say something long. " * 20
                content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
                role = {"role": "assistant", "status": "completed"}
                yield {"type": "message", "id": self._id("msg"), **role, "content": content}

    def _response(self, body: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._id("resp"),
            "object": "response",
            "created_at": 1_700_000_000,
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": None,
            "metadata": {},
            "model": body.get("model"),
            "output": [],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": self.says_stored and body.get("store") is not False,
            "temperature": 1.0,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": None,
        }

    def _id(self, kind: str) -> str:
        return f"{kind}_{next(self._numbers):08x}"


@contextlib.contextmanager
def playing(*steps: Step, needs_tool: str | None = None) -> Iterator[Backend]:
    """Serve a script for as long as the context lasts."""
    backend = Backend(steps, needs_tool)

    class Handler(_Handler):
        script = backend

    with _Server(("127.0.0.1", 0), Handler) as server:
        backend.base_url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield backend
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is no error of the server's."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: Backend

    def do_GET(self) -> None:
        request = self._read()
        self.script.note(request)
        if request.path.partition("?")[0].endswith("/models"):
            models = [{"id": "scripted", "object": "model", "created": 1_700_000_000, "owned_by": "tests"}]
            self._answer(200, {"object": "list", "data": models})
        else:
            self._answer(404, {"error": {"type": "not_found_error", "code": "not_found", "message": "No such path."}})

    def do_POST(self) -> None:
        request = self._read()
        step = self.script.next_step(request)
        if isinstance(step, Together):
            step.all.wait(_PATIENCE)
            step = step.step
        if isinstance(step, Refuse):
            kind = _ERROR_TYPES.get(step.status, "server_error")
            error = {"type": kind, "code": step.code, "message": step.message, "param": None}
            self._answer(step.status, {"error": error}, step.headers)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, event in enumerate(self.script.events(step, request)):
            if isinstance(step, Cut) and event["type"] == "response.output_text.done":
                self._cut()
            data = json.dumps({"type": event["type"], "sequence_number": number, **event})
            chunk = f"event: {event['type']}\ndata: {data}\n\n".encode()
            self._chunk(chunk)
            if isinstance(step, Talk) and event["type"] == "response.output_text.delta":
                self._repeat(chunk)
        self._chunk(b"")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        """Nothing: a test's output is not the place."""

    def _read(self) -> Request:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self._read_chunks() if "chunked" in headers.get("transfer-encoding", "") else b""
        body = body or self.rfile.read(int(headers.get("content-length", 0)))
        return Request(self.command, self.path, headers, body, time.monotonic())

    def _read_chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _repeat(self, chunk: bytes) -> NoReturn:
        try:
            while True:
                self._chunk(chunk)
                time.sleep(_PACE)
        except ConnectionError:
            self.script.was_left.set()
            raise

    def _cut(self) -> NoReturn:
        self.close_connection = True
        raise ConnectionAbortedError


def _item_events(item: Item, index: int) -> Iterator[Event]:
    """An item, from its beginning to its end."""
    place = {"item_id": item["id"], "output_index": index}
    match item["type"]:
        case "message":
            text = item["content"][0]["text"]
            part = {**item["content"][0], "text": ""}
            opened = {**item, "status": "in_progress", "content": []}
            place |= {"content_index": 0}
            yield {"type": "response.output_item.added", "output_index": index, "item": opened}
            yield {"type": "response.content_part.added", **place, "part": part}
            for start in range(0, len(text), 12):
                delta = {"delta": text[start : start + 12], "logprobs": []}
                yield {"type": "response.output_text.delta", **place, **delta}
            yield {"type": "response.output_text.done", **place, "text": text, "logprobs": []}
            yield {"type": "response.content_part.done", **place, "part": item["content"][0]}
        case "function_call":
            opened = {**item, "status": "in_progress", "arguments": ""}
            yield {"type": "response.output_item.added", "output_index": index, "item": opened}
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield {"type": "response.function_call_arguments.delta", **place, "delta": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **place, **done}
        case _:
            text = item["summary"][0]["text"]
            empty = {"type": "summary_text", "text": ""}
            place |= {"summary_index": 0}
            opened = {**item, "summary": [], "encrypted_content": ""}
            yield {"type": "response.output_item.added", "output_index": index, "item": opened}
            yield {"type": "response.reasoning_summary_part.added", **place, "part": empty}
            yield {"type": "response.reasoning_summary_text.delta", **place, "delta": text}
            yield {"type": "response.reasoning_summary_text.done", **place, "text": text}
            yield {"type": "response.reasoning_summary_part.done", **place, "part": item["summary"][0]}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _usage(tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 10,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens + 10,
    }


def _tools(body: dict[str, Any]) -> set[str]:
    return {tool.get("name", tool.get("type")) for tool in body.get("tools") or ()}
