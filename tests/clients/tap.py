"""A relay in front of Slipstream that keeps what a client puts on its connections, and what it gets there."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from tests.rig.sdk import TERMINALS

_TEXT, _CONTINUATION = 1, 0
_FINAL, _DEFLATED = 0x80, 0x40

_TERMINALS: Final = TERMINALS | {"response.done"}


@dataclass
class Recording:
    """One connection of the client's.

    Attributes:
        sent: The bytes that it has sent.
        received: The bytes that it was sent.
    """

    sent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)

    @property
    def head(self) -> str:
        """The head of its first request."""
        return bytes(self.sent).partition(b"\r\n\r\n")[0].decode("latin-1")

    @property
    def is_websocket(self) -> bool:
        """Whether that was an upgrade."""
        return "\r\nupgrade: websocket" in self.head.lower()

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The text messages that it has sent, read."""
        return list(_messages(bytes(self.sent)))

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events that it was sent."""
        return list(_messages(bytes(self.received)))

    @property
    def terminals(self) -> list[str]:
        """How its turns ended, by the type of their last event."""
        return [event["type"] for event in self.events if event["type"] in _TERMINALS]


class Tap:
    """The relay and its recordings.

    Args:
        base_url: What a client's base URL would be without it.

    Attributes:
        base_url: What it is now.
    """

    def __init__(self, base_url: str) -> None:
        self.lead_to(base_url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._recordings: list[Recording] = []
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.base_url = f"http://127.0.0.1:{self._listener.getsockname()[1]}{urlsplit(base_url).path}"

    @property
    def websockets(self) -> list[Recording]:
        """The WebSocket connections, in their order."""
        return [recording for recording in self._recordings if recording.is_websocket]

    @property
    def requests(self) -> list[Recording]:
        """The connections for plain HTTP."""
        return [recording for recording in self._recordings if recording.sent and not recording.is_websocket]

    def lead_to(self, base_url: str) -> None:
        """Relay new connections to another server; its base URL has the same path."""
        parts = urlsplit(base_url)
        assert parts.hostname is not None and parts.port is not None
        self._target = (parts.hostname, parts.port)

    def start(self) -> None:
        """Take connections from now on."""
        self._run(self._accept)

    def stop(self) -> None:
        """Take no more, and cut those that are open."""
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in (self._listener, *self._sockets):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except ConnectionRefusedError:  # it is being restarted: the client finds that out
                client.close()
                continue
            self._sockets += [client, server]
            recording = Recording()
            self._recordings.append(recording)
            self._run(_pump, client, server, recording.sent)
            self._run(_pump, server, client, recording.received)

    def _run(self, target: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()


@contextlib.contextmanager
def tapped(base_url: str) -> Iterator[Tap]:
    """Relay to a base URL for as long as the context lasts."""
    tap = Tap(base_url)
    tap.start()
    try:
        yield tap
    finally:
        tap.stop()


def _pump(source: socket.socket, target: socket.socket, record: bytearray) -> None:
    """Carry bytes until either side ends, and end the other one in the same way."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            record += data
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _messages(data: bytes) -> Iterator[dict[str, Any]]:
    """The text messages of one side, read out of all that it sent: the head of its request or answer, and frames."""
    text, is_deflated = b"", False
    inflater = zlib.decompressobj(wbits=-15)
    for flags, payload in _frames(data.partition(b"\r\n\r\n")[2]):
        if flags & 0x0F not in (_TEXT, _CONTINUATION):
            continue
        is_deflated = is_deflated or bool(flags & _DEFLATED)
        text += payload
        if flags & _FINAL:
            # RFC 7692 section 7.2.2; all of a side's messages share one window.
            yield json.loads(inflater.decompress(text + b"\0\0\xff\xff") if is_deflated else text)
            text, is_deflated = b"", False


def _frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    """First byte (flags and opcode) and payload of each frame (RFC 6455 section 5.2)."""
    while len(data) >= 2:
        assert not data[0] & 0x30, "no such extension was negotiated"
        is_masked, size, start = data[1] & 0x80, data[1] & 0x7F, 2
        if size >= 126:
            start = 4 if size == 126 else 10
            size = int.from_bytes(data[2:start], "big")
        mask = data[start : start + 4] if is_masked else b""
        start += len(mask)
        payload = data[start : start + size]
        if len(payload) < size:
            return
        yield data[0], _unmasked(payload, mask)
        data = data[start + size :]


def _unmasked(payload: bytes, mask: bytes) -> bytes:
    key = (mask or bytes(4)) * (len(payload) // 4 + 1)
    return (int.from_bytes(payload, "big") ^ int.from_bytes(key[: len(payload)], "big")).to_bytes(len(payload), "big")
