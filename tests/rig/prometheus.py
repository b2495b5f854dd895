"""Prometheus and promtool: those of the PATH, or Debian's package unpacked into `.cache/prometheus` (`.ci/run` does that)."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
import yaml

from tests.rig import install
from tests.rig.processes import Server, free_port, serving

_READY: Final = re.compile(r"Server is ready to receive web requests")


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`."""
    unpacked = install.cache() / "prometheus/usr/bin"
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{unpacked}")
    if found is None:
        install.give_up(
            f"{name} is needed for this, and not on the PATH. Debian and Ubuntu have it in the package prometheus, "
            f"macOS in Homebrew's; `.ci/run test-observability` unpacks the former into .cache/prometheus."
        )
    return found


def promtool(*arguments: str | Path, given: str = "") -> str:
    """What promtool says about something that it finds good.

    Args:
        arguments: Its arguments.
        given: Its input.
    """
    command = [program("promtool"), *map(str, arguments)]
    done = subprocess.run(
        command, input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus.

    Attributes:
        client: What talks to it.
        server: Its process.
    """

    client: httpx2.Client
    server: Server

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What an expression is now: the samples of a vector, each with `metric` and `value`.

        Raises:
            AssertionError: it cannot be read, or worked out.
        """
        answer = self.client.post("/api/v1/query", data={"query": expression}).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        assert answer["data"]["resultType"] == "vector", expression
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def get(self, path: str) -> Any:
        """The data of another answer of its API."""
        answer = self.client.get(f"/api/v1/{path}").json()
        assert answer["status"] == "success", answer
        return answer["data"]


@contextlib.contextmanager
def prometheus(folder: Path, jobs: dict[str, list[str]], rules: list[Path]) -> Iterator[Prometheus]:
    """Run Prometheus, which scrapes once a second.

    Args:
        folder: An empty one, for all that it writes.
        jobs: What to scrape: `host:port` by job.
        rules: Files with rules, which it works out once a second.
    """
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(file) for file in rules],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": targets}]} for job, targets in jobs.items()
        ],
    }
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    options = [
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    command = [program("prometheus"), *options]
    with (
        serving(command, log=folder / "prometheus.log", ready=_READY, cwd=folder) as server,
        httpx2.Client(base_url=f"http://{address}", timeout=30) as client,
    ):
        yield Prometheus(client, server)
