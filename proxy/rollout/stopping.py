"""Ctrl-C and SIGTERM end what runs, and what it has opened is closed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


async def until_stopped(work: Coroutine[Any, Any, None]) -> bool:
    """Run until it is over, or until the first SIGINT or SIGTERM; what it has opened it closes then.

    Signals after the first change nothing: closing takes a moment, and ends by itself.

    Returns:
        Whether it came to its end.
    """
    task = asyncio.current_task()
    assert task is not None
    is_stopped = False

    def stop() -> None:
        nonlocal is_stopped
        if not is_stopped:
            is_stopped = True
            task.cancel()

    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop)
    try:
        await work
    except asyncio.CancelledError:
        if not is_stopped:
            raise
        task.uncancel()
        return False
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
    return True
