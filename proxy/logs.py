"""Logs: one line a turn, one a connection, one for a plain request that failed.

JSON lines or a console for people, on standard error. No payloads, no keys: what a client sends appears as sizes and ids
only. Lines of libraries go the same way, and a processor redacts what looks like a credential in any of them: aiohttp
itself logs `Sec-WebSocket-Protocol`, where browsers put keys.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from functools import lru_cache
from typing import Any, Final, Literal

import structlog

from proxy.observe import ConnectionRecord, PassThroughRecord, RefusalReason, TurnRecord
from proxy.protocol.rawjson import dumps
from proxy.protocol.records import ResponseEvicted

_SECRET_KEYS: Final = re.compile(r"authorization|api[-_]?key|cookie|password|secret|token$|credential", re.IGNORECASE)
_SECRET_VALUES: Final = re.compile(
    r"(?i:bearer\s+)[A-Za-z0-9._~+/=-]{8,}|\bsk-[A-Za-z0-9_-]{8,}|openai-insecure-api-key\.[^\s'\",]+|\bslp_[A-Za-z0-9]{8,}"
)
_REDACTED: Final = "[redacted]"


def configure(level: Literal["debug", "info", "warning", "error"], form: Literal["auto", "json", "console"]) -> None:
    """Set up logging for the process.

    Args:
        level: The least important lines to write.
        form: `auto` is `console` on a terminal.
    """
    is_console = form == "console" or (form == "auto" and sys.stderr.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        redact,
    ]
    console = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[*processors, console if is_console else structlog.processors.JSONRenderer(serializer=_json)],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr)
        if is_console
        else structlog.BytesLoggerFactory(sys.stderr.buffer),
        cache_logger_on_first_use=True,
    )
    # What libraries log in the standard library's way goes out in the same form.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *processors],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                console if is_console else structlog.processors.JSONRenderer(serializer=_json_text),
            ],
        )
    )
    logging.basicConfig(level=number, handlers=[handler], force=True)


def redact(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Take out what is, or looks like, a credential: by the name of its key, or by its form anywhere in a text."""
    for key, value in line.items():
        if type(value) is str:
            if _is_secret_key(key):
                line[key] = _REDACTED
            elif _SECRET_VALUES.search(value):
                line[key] = _SECRET_VALUES.sub(_REDACTED, value)
    return line


@lru_cache(maxsize=512)
def _is_secret_key(key: str) -> bool:
    return _SECRET_KEYS.search(key) is not None


class Logs:
    """The :class:`~proxy.observe.Observer` that writes lines."""

    def __init__(self) -> None:
        self._log = structlog.get_logger("slipstream")

    def connection_opened(self, record: ConnectionRecord) -> None:
        self._log.debug("connection opened", connection_id=record.connection_id, client=record.client)

    def connection_refused(self, reason: RefusalReason) -> None:
        self._log.info("upgrade refused", reason=reason)

    def connection_closed(self, record: ConnectionRecord) -> None:
        self._log.info(
            "connection",
            connection_id=record.connection_id,
            client=record.client,
            cause=record.cause,
            close_code=record.close_code,
            seconds=round(record.seconds, 3),
            turns=record.turns,
            received_bytes=record.received_bytes,
            sent_bytes=record.sent_bytes,
        )

    def turn_started(self) -> None:
        pass

    def turn_ended(self, record: TurnRecord) -> None:
        facts, exchange = record.facts, record.exchange
        line: dict[str, Any] = {
            "connection_id": record.connection_id,
            "turn": facts.turn,
            "lane": facts.lane,
            "outcome": facts.outcome,
            "response_id": facts.response_id,
            "previous_response_id": facts.previous_response_id,
            "model": facts.model,
            "depth": facts.depth,
            "cache": facts.lookup,
            "cache_reason": facts.reason,
            "received_bytes": facts.frame_bytes,
            "upstream_bytes": facts.upstream_bytes,
            "saved_bytes": facts.replayed_bytes,
            "new_items": facts.new_items,
            "replayed_items": facts.replayed_items,
            "events": facts.events,
            "sent_bytes": facts.relayed_bytes,
            "input_tokens": facts.usage.input_tokens,
            "cached_tokens": facts.usage.cached_tokens,
            "output_tokens": facts.usage.output_tokens,
            "total_seconds": round(record.ended - facts.received, 4),
        }
        if exchange is not None:
            line |= {
                "first_event_seconds": _since(exchange.first_bytes, facts.received),
                "queue_seconds": round(exchange.started - facts.received, 4),
                "proxy_seconds": round(exchange.own, 5),
                "upstream_status": exchange.status,
                "upstream_reused": exchange.reused,
                "upstream_retries": exchange.retries,
            }
        if facts.error_source is not None:
            line |= {
                "error_code": facts.error_code,
                "error_status": facts.error_status,
                "error_source": facts.error_source,
            }
        self._log.info("turn", **line)

    def response_evicted(self, record: ResponseEvicted) -> None:
        self._log.debug("response evicted", reason=record.reason)

    def passed_through(self, record: PassThroughRecord) -> None:
        write = self._log.info if record.status >= 400 else self._log.debug
        write(
            "http request",
            method=record.method,
            path=record.path,
            status=record.status,
            source=record.source,
            seconds=round(record.seconds, 4),
        )


def _since(moment: float | None, start: float) -> float | None:
    return None if moment is None else round(moment - start, 4)


def _json(line: Any, **_: Any) -> bytes:
    """One line of JSON; what UTF-8 cannot hold (a lone surrogate in a client's id) becomes an escape."""
    return dumps(line)


def _json_text(line: Any, **_: Any) -> str:
    return dumps(
        {key: value if isinstance(value, (str, int, float)) else str(value) for key, value in line.items()}
    ).decode()
