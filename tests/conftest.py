"""What holds for all tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from proxy import app, connection, custody, otlp, server


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Log lines go nowhere, unless a test captures them or sets logging up itself."""
    structlog.configure(processors=[_drop], cache_logger_on_first_use=False)
    for module in (app, connection, custody, otlp, server):
        vars(module._log).pop("bind", None)  # what a test that set logging up has left there
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def no_errors_of_libraries(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What the event loop or aiohttp log as an error is one of ours: a callback that raised, a task that nobody asked."""
    yield
    errors = [
        record.getMessage()
        for record in caplog.get_records("call")
        if record.levelno >= logging.ERROR and record.name.partition(".")[0] in ("asyncio", "aiohttp", "slipstream")
    ]
    assert not errors


def _drop(_logger: Any, _method: str, _line: Any) -> Any:
    raise structlog.DropEvent
