"""A relay in front of Slipstream that keeps what a client puts on its connections."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

_TEXT, _CONTINUATION = 1, 0


@dataclass
class Recording:
    """One connection of the client's.

    Attributes:
        sent: The bytes that it has sent.
    """

    sent: bytearray = field(default_factory=bytearray)

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
        """The text messages that it has sent, read; none may be compressed."""
        messages, text = [], b""
        for opcode, is_final, payload in _frames(bytes(self.sent).partition(b"\r\n\r\n")[2]):
            if opcode not in (_TEXT, _CONTINUATION):
                continue
            text += payload
            if is_final:
                messages.append(json.loads(text))
                text = b""
        return messages


class Tap:
    """The relay and its recordings.

    Args:
        base_url: What a client's base URL would be without it.

    Attributes:
        base_url: What it is now.
    """

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        assert parts.hostname is not None and parts.port is not None
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._recordings: list[Recording] = []
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.base_url = f"http://127.0.0.1:{self._listener.getsockname()[1]}{parts.path}"

    @property
    def websockets(self) -> list[Recording]:
        """The WebSocket connections, in their order."""
        return [recording for recording in self._recordings if recording.is_websocket]

    @property
    def requests(self) -> list[Recording]:
        """The connections for plain HTTP."""
        return [recording for recording in self._recordings if recording.sent and not recording.is_websocket]

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
            server = socket.create_connection(self._target)
            self._sockets += [client, server]
            recording = Recording()
            self._recordings.append(recording)
            self._run(_pump, client, server, recording.sent)
            self._run(_pump, server, client, None)

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


def _pump(source: socket.socket, target: socket.socket, record: bytearray | None) -> None:
    """Carry bytes until either side ends, and end the other one in the same way."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            if record is not None:
                record += data
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _frames(data: bytes) -> Iterator[tuple[int, bool, bytes]]:
    """Opcode, whether it is the last of its message, and payload of each frame of a client (RFC 6455 section 5.2)."""
    while len(data) >= 2:
        assert not data[0] & 0x70, "no extension was negotiated"
        size, start = data[1] & 0x7F, 2
        if size >= 126:
            start = 4 if size == 126 else 10
            size = int.from_bytes(data[2:start], "big")
        mask, payload = data[start : start + 4], data[start + 4 : start + 4 + size]
        if len(payload) < size:
            return
        key = mask * (size // 4 + 1)
        unmasked = int.from_bytes(payload, "big") ^ int.from_bytes(key[:size], "big")
        yield data[0] & 0x0F, bool(data[0] & 0x80), unmasked.to_bytes(size, "big")
        data = data[start + 4 + size :]
