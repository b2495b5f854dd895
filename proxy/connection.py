"""Runs one session: carries facts to it and its orders out.

One task reads the client for as long as the connection lives; each exchange with the backend is a task of its own, all in
one task group; :meth:`Connection._execute` is the only place where an order becomes an act. The handler never looks into
JSON, and nothing here decides what the protocol says. A bug ends this one connection (:meth:`Connection._break`).

Times: a turn's limits (first event, idle, whole turn), the pings, the text keepalive and the connection's age are looked
at by one timer a connection, which compares counters with what it saw last, so that no read has to arm a timer or read
the clock for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, assert_never

import structlog

from proxy.backends import Backends
from proxy.downstream import Downstream
from proxy.exchange import ConnectionSettings, Running, until_all_ended
from proxy.observe import CloseCause, ConnectionRecord, Exchange, Observer, TurnRecord, TurnStarted
from proxy.propagation import Tracer
from proxy.protocol.effects import (
    CancelUpstream,
    CloseConnection,
    Effect,
    FinishUpstream,
    Observe,
    OpenUpstream,
    Recall,
    SendFrames,
    StoreResponse,
)
from proxy.protocol.errors import InternalError
from proxy.protocol.events import (
    ClientGone,
    DrainStarted,
    Event,
    FrameReceived,
    LifetimeReached,
    Recalled,
    SilenceReached,
    UpstreamBytes,
    UpstreamEnded,
    UpstreamFailed,
    UpstreamOpened,
)
from proxy.protocol.records import ResponseEvicted, TurnEnded
from proxy.protocol.session import GOING_AWAY, SERVICE_RESTART, Session
from proxy.protocol.store import Owner, ResponseStore
from proxy.protocol.upstream_errors import UpstreamError
from proxy.upstream import Answer, Upstream

_log: Final = structlog.get_logger("slipstream")

_CLOSE_GRACE: Final = 0.25
"""Seconds between the last frame and a close: some clients lose a frame that a close follows at once (agents-js)."""

INTERNAL_ERROR: Final = 1011
"""Close code for a bug of ours (RFC 6455's errata and IANA's registry)."""

_CAUSES: Final[dict[int, CloseCause]] = {GOING_AWAY: "lifetime", SERVICE_RESTART: "drain"}


@dataclass(slots=True, eq=False)
class Connection:
    """One client's connection.

    Args:
        session: Its state.
        downstream: Its WebSocket, accepted.
        backends: Whom to ask.
        headers: Header lines that go to each backend with every request of this client, by its name.
        settings: The operator's choices.
        observer: Whom to tell.
        record: What will be told about the connection.
        store: What outlives the connection, and does not fail; None where nothing does.
        owner: Whose responses the client's are.
        tracer: Who traces its turns; None for nobody.
    """

    session: Session
    downstream: Downstream
    backends: Backends
    headers: Mapping[str, bytes]
    settings: ConnectionSettings
    observer: Observer
    record: ConnectionRecord
    store: ResponseStore | None = None
    owner: Owner = b""
    tracer: Tracer | None = None
    _receive: Callable[[Event], list[Effect]] = field(init=False)
    _near: Upstream = field(init=False)
    _running: dict[int, Running] = field(default_factory=dict)
    _exchanges: dict[int, Exchange] = field(default_factory=dict)
    _recalls: set[asyncio.Task[None]] = field(default_factory=set)
    _tasks: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _timer: asyncio.TimerHandle | None = None
    _began: float = 0.0
    _seen_sent: int = 0
    _silent_since: float = 0.0
    _last_ping: float = 0.0
    _is_over: bool = False

    def __post_init__(self) -> None:
        self._receive = self.session.receive
        self._near = self.backends.first

    async def run(self) -> None:
        """Serve the client until its connection ends.

        Cancellation: the client counts as gone; exchanges are cancelled and everything is observed before this returns.
        """
        self._silent_since = self._last_ping = self._loop.time()
        self.observer.connection_opened(self.record)
        self._near.expect(self)
        try:
            async with self._tasks:
                self._arm()
                try:
                    await self._read()
                finally:
                    self._is_over = True
                    try:
                        if self.settings.websocket.on_disconnect == "drain":
                            self._apply(ClientGone(may_outlive=True))
                            await until_all_ended(self._running, self.settings.websocket.disconnect_timeout)
                    finally:
                        self._apply(ClientGone())
                        for running in self._running.values():
                            running.cancel()
                        for recall in self._recalls:
                            recall.cancel()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._settle()
            self._near.dismiss(self)
            record = self.record
            record.seconds = self._loop.time() - record.opened
            record.sent_bytes = self.downstream.sent
            record.close_code, record.cause = self.downstream.close_code, self.downstream.cause
            self.observer.connection_closed(record)

    def drain(self) -> None:
        """The process wants to end: finish what runs, then close."""
        self._apply(DrainStarted())

    def cut(self) -> None:
        """End now, whatever runs; also what outlives its client."""
        self.downstream.abort()
        if self._is_over:
            self._apply(ClientGone())

    # Facts

    async def _read(self) -> None:
        while (data := await self.downstream.receive()) is not None:
            self.record.received_bytes += len(data)
            self._began = time.perf_counter()
            self._apply(FrameReceived(data, time.time(), self._began))
            await self.downstream.drain()

    def _apply(self, event: Event) -> None:
        """Give the session a fact and carry out what it orders."""
        try:
            for effect in self._receive(event):
                if type(effect) is SendFrames:  # what nearly every read orders
                    self.downstream.write(effect.frames)
                else:
                    self._execute(effect)
        except Exception:  # noqa: BLE001 - a bug of ours, or in an observer
            self._break(type(event).__name__)

    def _break(self, during: str) -> None:
        """There is a bug: the connection does not survive it, all others do."""
        _log.exception("internal error", connection_id=self.record.connection_id, during=during)
        self._receive = _ignore  # nobody knows what state the session is in
        for running in self._running.values():
            running.cancel()
        self._close(CloseConnection(INTERNAL_ERROR, "internal error"), "internal_error")

    def _settle(self) -> None:
        """Give back and report what a session that broke has not."""
        self.session.cache.close()
        error = InternalError()
        for turn, exchange in self._exchanges.items():
            ended = TurnEnded(turn, None, 0, exchange.started, "error")
            ended.error_code, ended.error_status, ended.error_source = error.code, error.status, error.source
            self.observer.turn_ended(TurnRecord(self.record.connection_id, ended, time.perf_counter(), exchange))

    # Orders

    def _execute(self, effect: Effect) -> None:
        match effect:
            case SendFrames(frames):
                self.downstream.write(frames)
            case OpenUpstream():
                self._open(effect)
            case Recall():
                recall = self._tasks.create_task(self._recall(effect), name=f"recall for turn {effect.turn}")
                self._recalls.add(recall)
                recall.add_done_callback(self._recalls.discard)
            case StoreResponse(entry):
                assert self.store is not None
                self.store.save(self.owner, entry)
            case FinishUpstream(turn):
                self._running[turn].finish(self._loop.time())
            case CancelUpstream(turn):
                self._running.pop(turn).cancel()
            case CloseConnection(code):
                self._close(effect, _CAUSES.get(code, "internal_error"))
            case Observe(record):
                self._observe(record)
            case _:
                assert_never(effect)

    def _open(self, order: OpenUpstream) -> None:
        self._near.dismiss(self)
        now = time.perf_counter()
        exchange = self._exchanges.get(order.turn)
        if exchange is None:
            exchange = self._exchanges[order.turn] = Exchange(now)
            asked = order.record
            self.observer.turn_started(
                TurnStarted(self.record.connection_id, order.turn, asked.lane, asked.received, now)
            )
            if self.tracer is not None:
                exchange.trace = self.tracer.turn(self.record.connection_id, asked)
            if asked.received == self._began:  # it did not wait, so reading it is part of what is going on
                exchange.own_dispatch = now - self._began
        started = self._loop.time()
        began = started - (now - exchange.started)
        timeouts = self.settings.timeouts[order.placement.route.backend]
        fact = UpstreamBytes(order.turn, b"")
        running = Running(order.turn, exchange, started, now, timeouts, fact, began=began)
        self._running[order.turn] = running
        running.task = self._tasks.create_task(self._exchange(order, running), name=f"turn {order.turn}")

    def _close(self, order: CloseConnection, cause: CloseCause) -> None:
        self.downstream.cause = cause
        if order.code == GOING_AWAY:
            self.downstream.close(order.code, order.reason)
        else:
            self._loop.call_later(_CLOSE_GRACE, self.downstream.close, order.code, order.reason)

    def _observe(self, record: TurnEnded | ResponseEvicted) -> None:
        match record:
            case TurnEnded():
                self.record.turns += 1
                ended = time.perf_counter()
                exchange = self._exchanges.pop(record.turn, None)
                if exchange is not None and exchange.relaying is not None:  # with the bytes that are being relayed
                    exchange.own_relay += ended - exchange.relaying
                if exchange is not None and record.sealed:
                    self.backends.made(exchange, record.sealed)
                if exchange is not None and exchange.dispatched is None:
                    # The core knows what it built, not that it left.
                    record.upstream_bytes = record.plain_bytes = record.replayed_bytes = record.replayed_items = 0
                arrived = self.record.note_arrived(self.downstream.arrived())
                self.observer.turn_ended(TurnRecord(self.record.connection_id, record, ended, exchange, arrived))
            case ResponseEvicted():
                self.observer.response_evicted(record)

    # One exchange with the backend

    async def _exchange(self, order: OpenUpstream, running: Running) -> None:
        try:
            await self._converse(order, running)
        except UpstreamError as error:
            self._fail(running, error)
        except asyncio.CancelledError:
            # A limit was reached, or it was cancelled from outside; only the first is ours to handle.
            if running.expired is None:
                raise
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            self.backends.expired(running.exchange, running.expired)
            self._fail(running, running.expired)
        except Exception:  # noqa: BLE001 - a bug of ours: outside of the session, but it ends the same
            self._break("exchange")
        finally:
            running.bytes.data = b""  # whatever still holds it, it holds no more than that
            if self._running.get(order.turn) is running:  # else the turn has asked again
                del self._running[order.turn]
            if not self._running and not self._is_over:
                self._near.expect(self)

    async def _recall(self, order: Recall) -> None:
        """Ask the store."""
        assert self.store is not None
        entry = await self.store.load(self.owner, order.response_id) if order.response_id is not None else None
        items = await self.store.find_items(self.owner, order.item_ids) if order.item_ids else {}
        self._apply(Recalled(order.turn, entry, dict(items)))

    async def _converse(self, order: OpenUpstream, running: Running) -> None:
        exchange = running.exchange
        exchange.own_dispatch += time.perf_counter() - running.ordered
        async with self.backends.ask(order, self.headers, exchange) as asked:
            self._near = asked.replica.upstream
            self._tell(running, UpstreamOpened(order.turn, asked.replica.index))
            answer = asked.answer
            # No partial: that would leave the interpreter and enter it again, for every read.
            await answer.read(lambda data: self._relay(running, answer, data))
        self._tell(running, UpstreamEnded(order.turn))

    def _tell(self, running: Running, event: Event) -> None:
        """A fact about an exchange, unless its turn has turned away from it: another one may have its number by now."""
        if self._running.get(running.turn) is running:
            self._apply(event)

    def _fail(self, running: Running, error: UpstreamError) -> None:
        trace = running.exchange.trace
        if trace is not None and self._running.get(running.turn) is running:
            trace.failed(error)
        self._tell(running, UpstreamFailed(running.turn, error))

    def _relay(self, running: Running, answer: Answer, data: bytes) -> None:
        """Bytes came: called in the callback in which they were read, once a read."""
        if self._running.get(running.turn) is not running:
            return  # its turn has turned away from it, and may have asked again since
        running.reads += 1
        running.bytes.data = data
        # The clock is read until the first event is out, and then for one read in sixteen, which stands for all of them.
        if running.reads & 15 == 1 or running.exchange.first_bytes is None:
            self._relay_timed(running)
        else:
            self._apply(running.bytes)
        if self.downstream.protocol.writing_paused and not self._is_over:
            answer.pause()
            self._tasks.create_task(self._resume(answer, running.exchange), name=f"drain for turn {running.turn}")

    def _relay_timed(self, running: Running) -> None:
        began = time.perf_counter()
        exchange = running.exchange
        is_first = exchange.first_bytes is None
        sent = self.downstream.sent
        if is_first:
            exchange.first_bytes = began  # in case that the turn ends with them
        exchange.relaying = began
        self._apply(running.bytes)
        exchange.relaying = None
        done = time.perf_counter()
        if is_first:
            # A comment is no event: backends send some while they read a prompt.
            exchange.first_bytes = done if self.downstream.sent != sent else None
            exchange.own_relay += done - began
        else:
            exchange.own_relay += (done - began) * 16

    async def _resume(self, answer: Answer, exchange: Exchange) -> None:
        """Read on once the client has taken what was written: its slowness becomes the backend's."""
        began = time.perf_counter()
        try:
            await self.downstream.drain()
        finally:
            exchange.blocked += time.perf_counter() - began
        answer.resume()

    # The clock

    def _arm(self) -> None:
        self._timer = self._loop.call_later(self.settings.tick, self._look_at_clock)

    def _look_at_clock(self) -> None:
        now = self._loop.time()
        settings = self.settings.websocket
        # Rather half a tick early than half a tick late.
        if settings.ping_interval and now - self._last_ping >= settings.ping_interval - self.settings.tick / 2:
            self._last_ping = now
            self.downstream.ping()
        for running in self._running.values():
            running.check_limits(now, is_held_up=self.downstream.protocol.writing_paused)
        self._check_silence(now)
        if settings.lifetime and now - self.record.opened >= settings.lifetime:
            self._apply(LifetimeReached())
        self._arm()

    def _check_silence(self, now: float) -> None:
        interval = self.settings.websocket.keepalive_interval
        if self.downstream.sent != self._seen_sent or not self._running:
            self._seen_sent, self._silent_since = self.downstream.sent, now
        elif interval and now - self._silent_since >= interval:
            for running in list(self._running.values()):
                if not running.is_complete:
                    self._apply(SilenceReached(running.turn))


def _ignore(_: Event) -> list[Effect]:
    return []
