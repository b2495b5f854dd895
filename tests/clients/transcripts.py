"""What must hold of the requests that a backend sees, whatever the client: judged by what the client has said."""

from __future__ import annotations

import itertools
from typing import Any, Final

from tests.clients.scripted import Backend, Request
from tests.clients.tap import Tap

#: What belongs to the WebSocket, and what many backends refuse.
_NEVER_SENT: Final = frozenset(
    {"type", "previous_response_id", "generate", "stream_id", "client_metadata", "background"}
)


def check_requests(backend: Backend) -> None:
    """Each request is a streamed one without anything that belongs to the socket."""
    for request in backend.requests:
        assert not _NEVER_SENT & request.json.keys()
        assert request.json["stream"] is True
        assert request.path.endswith("/responses")


def check_growth(requests: list[Request]) -> None:
    """While the tools stay the same, each body begins with the bytes of the one before, up to its closing brackets."""
    for before, after in itertools.pairwise(requests):
        assert before.json.get("tools") == after.json.get("tools")
        assert before.body.endswith(b"]}")
        assert after.body.startswith(before.body.removesuffix(b"]}"))


def check_deltas(tap: Tap, backend: Backend, *, sockets: int = 1) -> None:
    """Each request holds the whole transcript, and each frame but those that open a chain only what is new in it.

    Args:
        tap: What the client sent.
        backend: What the backend was sent, and what it answered.
        sockets: How many WebSockets the client was to open.
    """
    assert len(tap.websockets) == sockets
    requests = zip(backend.requests, backend.outputs, strict=True)
    for socket in tap.websockets:
        transcript: list[Any] = []
        for frame in socket.messages:
            assert frame["type"] == "response.create"
            if frame.get("previous_response_id") is None:
                assert not transcript, "the client began anew on a socket that had a transcript"
            transcript += frame["input"]
            if frame.get("generate") is False:
                continue
            request, output = next(requests)
            assert request.json["input"] == transcript
            transcript += output
    assert not list(requests)


def check_appends(tap: Tap, backend: Backend, *, repeats: bool) -> None:
    """Each socket's first frame holds a whole transcript, each other one appends to it, and the backend sees nothing twice.

    Frames without an answer do not count: there are clients that notice only by sending that their socket was closed.

    Args:
        tap: What the client sent.
        backend: What the backend was sent, and what it answered.
        repeats: The client puts a copy of the server's own items in front of what it appends.
    """
    requests = zip(backend.requests, backend.outputs, strict=True)
    for socket in tap.websockets:
        transcript: list[Any] = []
        output: list[Any] = []
        for number, frame in enumerate(socket.messages[: len(socket.terminals)]):
            items = frame["input"]
            assert frame["type"] == ("response.append" if number else "response.create")
            if number:
                assert frame.keys() == {"type", "input"}
            if number and repeats:
                assert identities(items[: len(output)]) == identities(output)
                items = items[len(output) :]
            transcript += output + items
            request, output = next(requests)
            assert identities(request.json["input"]) == identities(transcript)
    assert not list(requests)


def identities(items: list[Any]) -> list[tuple[Any, ...]]:
    """What tells items from others: a client's copy of an item may have fewer members, and no id."""
    names = ("role", "call_id", "arguments", "output", "encrypted_content")
    return [(item.get("type", "message"), *map(item.get, names), _texts(item)) for item in items]


def check_whole(tap: Tap, backend: Backend) -> None:
    """Each request holds what its frame held: for clients that send everything each time."""
    frames = [frame for socket in tap.websockets for frame in socket.messages]
    assert all(frame.get("previous_response_id") is None for frame in frames)
    assert [request.json["input"] for request in backend.requests] == [frame["input"] for frame in frames]


def _texts(item: Any) -> list[str]:
    content = item.get("content") or []
    return [content] if isinstance(content, str) else [part["text"] for part in content]
