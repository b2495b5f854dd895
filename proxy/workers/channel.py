"""The pair of sockets between the supervisor and one worker: messages, questions and their answers.

On the wire each message is a length (4 bytes, big-endian) and an :class:`_Envelope` in MessagePack.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from collections.abc import Awaitable
from typing import Final, Literal, Protocol, TypeVar, cast

import msgspec
import structlog

from proxy.workers.messages import Answer, Message, Question, Statement

_log: Final = structlog.get_logger("slipstream")

_LENGTH: Final = struct.Struct("!I")
_HIGH_WATER: Final = 4 * 2**20
"""Bytes that may wait for the other side before what can wait has to (:meth:`Channel.drain`)."""

A = TypeVar("A", bound=msgspec.Struct)


class ChannelLost(Exception):
    """The other side is gone."""


class _Envelope(msgspec.Struct, array_like=True):
    kind: Literal["statement", "question", "answer"]
    number: int
    message: Message


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Envelope)


class Listener(Protocol):
    """Who is at this end."""

    def hear(self, statement: Statement) -> None:
        """The other side says something."""

    async def answer(self, question: Question) -> Answer:
        """The other side asks something."""


class Channel(asyncio.Protocol):
    """One end.

    Args:
        listener: Who is told what the other side says.

    Attributes:
        is_lost: Set once the other side is gone.
    """

    def __init__(self, listener: Listener) -> None:
        self.is_lost = asyncio.Event()
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._is_drained = asyncio.Event()
        self._is_drained.set()

    @classmethod
    async def open(cls, sock: socket.socket, listener: Listener) -> Channel:
        """Talk over a connected socket, which belongs to the channel from now on."""
        loop = asyncio.get_running_loop()
        sock.setblocking(False)
        _, channel = await loop.create_connection(lambda: cls(listener), sock=sock)
        return channel

    def tell(self, statement: Statement) -> None:
        """Say something; if the other side is gone, to nobody."""
        self._send("statement", 0, statement)

    async def ask(self, question: Question, expected: type[A], *, seconds: float) -> A:
        """Ask something.

        Args:
            question: What.
            expected: The type of its answer.
            seconds: How long to wait.

        Raises:
            ChannelLost: the other side is gone, or cannot answer.
            TimeoutError: no answer came in time.
        """
        if self.is_lost.is_set():
            raise ChannelLost
        number = next(self._numbers)
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                self._send("question", number, question)
                answer = await future
        finally:
            del self._asked[number]
        if not isinstance(answer, expected):
            raise ChannelLost  # it does not know what is asked
        return answer

    async def drain(self) -> None:
        """Wait until the other side has taken most of what was said, or is gone."""
        await self._is_drained.wait()

    def close(self) -> None:
        """Hang up, once what was said is out."""
        if self._transport is not None:
            self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        at = 0
        while len(received) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(received, at)
            end = at + _LENGTH.size + length
            if len(received) < end:
                break
            envelope = _decoder.decode(memoryview(received)[at + _LENGTH.size : end].tobytes())
            at = end
            self._take(envelope)
        del received[:at]

    def pause_writing(self) -> None:
        self._is_drained.clear()

    def resume_writing(self) -> None:
        self._is_drained.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost.set()
        self._is_drained.set()
        for future in self._asked.values():
            if not future.done():
                future.set_exception(ChannelLost())
        for task in self._answering:
            task.cancel()

    # Inside

    def _send(self, kind: Literal["statement", "question", "answer"], number: int, message: Message) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        data = _encoder.encode(_Envelope(kind, number, message))
        self._transport.writelines([_LENGTH.pack(len(data)), data])

    def _take(self, envelope: _Envelope) -> None:
        match envelope.kind:
            case "statement":
                self._listener.hear(cast("Statement", envelope.message))
            case "question":
                answering = self._listener.answer(cast("Question", envelope.message))
                task = asyncio.get_running_loop().create_task(self._answer(envelope.number, answering))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
            case "answer":
                future = self._asked.get(envelope.number)
                if future is not None and not future.done():
                    future.set_result(cast("Answer", envelope.message))

    async def _answer(self, number: int, answering: Awaitable[Answer]) -> None:
        try:
            self._send("answer", number, await answering)
        except Exception:  # noqa: BLE001 - a bug of ours: whoever asked runs into its time limit
            _log.exception("internal error", during="an answer to another process")
