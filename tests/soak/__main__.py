"""The soak from the command line."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.soak.load import soak


def main() -> int:
    """Run it, say what came of it, and whether that is good."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=60, help="how many at any time")
    parser.add_argument("--workers", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(
            soak(
                Path(folder),
                warm_up=chosen.minutes * 6,
                seconds=chosen.minutes * 60,
                clients=chosen.clients,
                workers=chosen.workers,
                say=lambda text: print(text, flush=True),  # noqa: T201 - a command says how it goes
            )
        )
    growth = result.after.resident / result.before.resident - 1
    lines = [
        f"visits: {dict(result.visits)}; the backend was asked {result.asked} times",
        f"memory: {result.before.resident / 2**20:.1f} MiB, then {result.after.resident / 2**20:.1f} MiB ({growth:+.1%})",
        f"files: {result.before.files}, then {result.after.files}; left: {result.after.gauges}",
        f"/metrics took {result.slowest * 1000:.0f} ms at most",
        *(f"FAILED {failure}" for failure in result.failures[:20]),
    ]
    print("\n".join(lines))  # noqa: T201
    is_clean = result.after.files <= result.before.files and not any(
        value for name, value in result.after.gauges.items() if not name.startswith(("store", "tasks"))
    )
    is_clean = is_clean and result.after.gauges["tasks"] <= result.before.gauges["tasks"]
    return 0 if not result.failures and growth <= 0.05 and is_clean else 1


sys.exit(main())
