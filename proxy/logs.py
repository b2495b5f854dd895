"""Logs: one line a turn, one a connection, one for a plain request that failed.

JSON lines or a console for people, on standard error. No payloads, no keys: what a client sends appears as sizes and ids
only, and ids are cut to a sensible length. Lines of libraries go the same way, and a processor redacts what looks like a
credential in any of them: aiohttp itself logs `Sec-WebSocket-Protocol`, where browsers put keys.

A line stays one line whatever is in it: JSON is pure ASCII, the console shows control characters as escapes. A disk or a
pipe that takes no more lines loses lines, not traffic.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import MutableMapping
from functools import lru_cache, partial
from typing import IO, Any, BinaryIO, Final, Literal, TextIO, cast

import orjson
import structlog
from aiohttp.http_exceptions import HttpProcessingError

from proxy.observe import ConnectionRecord, PassThroughRecord, RefusalReason, TurnRecord, TurnStarted
from proxy.protocol.records import ResponseEvicted

_SECRET_KEYS: Final = re.compile(r"authorization|api[-_]?key|cookie|passw|secret|token$|credential", re.IGNORECASE)
_SECRET_VALUES: Final = re.compile(
    r"(?i:\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}"  # Authorization
    r"|(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{8,}"  # keys of OpenAI, and of those who copied their form
    r"|(?:openai-insecure-api-key|xai-client-secret)\.[^\s'\",]+"  # Sec-WebSocket-Protocol of browsers
    r"|(?i:[?&;]\w*(?:key|token|secret|password)=)[^\s&;'\"]+"  # queries
    r"|data:[^\s,;'\"]{0,100}(?:;[^\s,;'\"]{1,100}){0,5};base64,[A-Za-z0-9+/=_%-]*"  # images and files
)
_SECRET_TRACES: Final = ("bearer", "basic", "sk-", "api-key", "secret", "=", "base64")
"""In lower case: a text with none of them cannot match the above, which takes twenty times as long to find out."""
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_REDACTED: Final = "[redacted]"
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MAX_TEXT: Final = 512
"""Characters of one value that a client or a backend chose; LiteLLM's ids have some 400."""


def configure(
    level: Literal["debug", "info", "warning", "error"],
    form: Literal["auto", "json", "console"],
    *,
    worker: int | None = None,
) -> None:
    """Set up logging for the process.

    Args:
        level: The least important lines to write.
        form: `auto` is `console` on a terminal.
        worker: Which of several workers the process is; it stands in all its lines.
    """
    is_console = form == "console" or (form == "auto" and sys.stderr.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        redact,
    ]
    if worker is not None:
        processors.insert(0, partial(_name_worker, worker))
    render: structlog.typing.Processor = _render_json
    factory: Any = structlog.BytesLoggerFactory(cast("BinaryIO", _Sink(sys.stderr.buffer)))
    if is_console:
        processors.append(_show_control)
        render = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
        factory = structlog.PrintLoggerFactory(cast("TextIO", _Sink(sys.stderr)))
    structlog.configure(
        processors=[*processors, render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=factory,
        cache_logger_on_first_use=True,
    )
    # What libraries log in the standard library's way goes out in the same form.
    handler = logging.StreamHandler(cast("TextIO", _Sink(sys.stderr)))
    handler.addFilter(_withhold_request)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *processors],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                render if is_console else _render_json_text,
            ],
        )
    )
    handler.setLevel(number)
    logging.basicConfig(level=number, handlers=[handler], force=True)


def _name_worker(number: int, _logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    line["worker"] = number
    return line


def redact(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Take out what is, or looks like, a credential: by the name of its key, or by its form anywhere in a text."""
    texts = "\n".join([value for value in line.values() if type(value) is str]).lower()
    is_suspect = any(trace in texts for trace in _SECRET_TRACES)
    if not is_suspect and _SCALARS.issuperset(map(type, line.values())) and not _secret_keys(tuple(line)):
        return line  # nearly all
    for key, value in line.items():
        if value is not None and _is_secret_key(key):
            line[key] = _REDACTED
        elif is_suspect or type(value) not in _SCALARS:
            line[key] = _clean(value)
    return line


@lru_cache(maxsize=64)
def _secret_keys(keys: tuple[str, ...]) -> list[str]:
    return [key for key in keys if _is_secret_key(key)]


@lru_cache(maxsize=512)
def _is_secret_key(key: str) -> bool:
    return _SECRET_KEYS.search(key) is not None


def _clean(value: Any) -> Any:
    if type(value) is str:
        return _SECRET_VALUES.sub(_REDACTED, value)
    if isinstance(value, dict):
        return redact(None, "", {str(key): inner for key, inner in value.items()})
    if isinstance(value, (list, tuple)):
        return [_clean(inner) for inner in value]
    return _clean(value.decode(errors="replace")) if isinstance(value, bytes) else value


def _show_control(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """For a console: escapes for what moves its cursor or its colours; tracebacks keep their lines, set in."""
    for key, value in line.items():
        if type(value) is str and _CONTROL.search(value):
            parts = [f"    {part}" for part in value.split("\n")] if key in ("exception", "stack") else [value]
            line[key] = "\n".join(_CONTROL.sub(_escape, part) for part in parts)
    return line


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def _render_json(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> bytes:
    try:
        text = orjson.dumps(line, default=str)
    except TypeError:  # a lone surrogate, in an id say: UTF-8 cannot hold it, and many parsers refuse its escape
        raw = json.dumps(line, default=str, ensure_ascii=False).encode("utf-16", "surrogatepass")
        line, text = json.loads(raw.decode("utf-16", "replace")), b""
    return text if text.isascii() and text else json.dumps(line, default=str, separators=(",", ":")).encode()


def _render_json_text(logger: Any, method: str, line: MutableMapping[str, Any]) -> str:
    return _render_json(logger, method, line).decode()


def _withhold_request(record: logging.LogRecord) -> bool:
    """Whether a library's line is to be written.

    aiohttp logs the bytes that it could not read as a request, as an error with a traceback. They are a client's, and may
    be its key or its message.
    """
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.msg, record.args = "not an HTTP request: %s", (type(error).__name__,)
        record.exc_info = None
        record.levelno, record.levelname = logging.INFO, "INFO"
    return logging.getLogger().isEnabledFor(record.levelno)


class _Sink:
    """A file for lines that may get lost.

    Args:
        file: Where they go.
    """

    def __init__(self, file: IO[Any]) -> None:
        self._file = file

    def write(self, text: str | bytes) -> None:
        try:  # no context manager: this is for every turn
            self._file.write(text)
        except (OSError, ValueError):  # full, broken, or closed
            return

    def flush(self) -> None:
        try:
            self._file.flush()
        except (OSError, ValueError):
            return


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
            wire_bytes=record.arrived,
            sent_bytes=record.sent_bytes,
        )

    def turn_started(self, record: TurnStarted) -> None:
        pass

    def turn_ended(self, record: TurnRecord) -> None:
        facts, exchange = record.facts, record.exchange
        line: dict[str, Any] = {
            "connection_id": record.connection_id,
            "turn": facts.turn,
            "lane": facts.lane,
            "outcome": facts.outcome,
            "response_id": _cut(facts.response_id),
            "previous_response_id": _cut(facts.previous_response_id),
            "model": _cut(facts.model),
            "depth": facts.depth,
            "cache": facts.lookup,
            "cache_reason": facts.reason,
            "prefix": facts.prefix,
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
            if exchange.server is not None:
                line |= {
                    "backend": exchange.backend,
                    "replica": exchange.server,
                    "reroutes": [reason for _, reason in exchange.reroutes],
                }
        if facts.error_source is not None:
            line |= {
                "error_code": _cut(facts.error_code),
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
            method=_cut(record.method),
            path=_cut(record.path),
            status=record.status,
            source=record.source,
            seconds=round(record.seconds, 4),
        )


def _since(moment: float | None, start: float) -> float | None:
    return None if moment is None else round(moment - start, 4)


def _cut(text: str | None) -> str | None:
    """A value that somebody else chose, at a bearable length."""
    return text if text is None or len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
