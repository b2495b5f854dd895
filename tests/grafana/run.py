"""A real run for Prometheus to watch: proxies as processes, clients that do what clients do, and faults.

Two proxies. One stands in front of the demo's backend: rollouts, warm-ups, branches, other tools, unknown ids, stored
responses, refused requests, plain HTTP; its memory is small, so that it fills up. The other one's backend refuses
connections at first and does not answer later; then it is told to end, and drains for as long as the run lasts.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from tests.grafana.boards import FOLDER
from tests.rig.processes import free_port, serving, wait_until
from tests.rig.prometheus import Prometheus, prometheus
from tests.rig.slipstream import COMMAND, Slipstream, slipstream

JOB: Final = "slipstream"
FAULTY: Final = "slipstream-faulty"

_BACKEND: Final = re.compile(r"serves at (http://\S+)")
_TOOLS: Final = [
    {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}} for name in ("look", "go")
]
_FAILURES: Final = 520
"""Turns that fail: more than the floor of any alert."""


@dataclass(frozen=True)
class Watched:
    """What is being watched.

    Attributes:
        prometheus: Who watches.
        proxy: The proxy that works.
        faulty: The one that drains.
    """

    prometheus: Prometheus
    proxy: Slipstream
    faulty: Slipstream


@contextlib.contextmanager
def watched_run(folder: Path) -> Iterator[Watched]:
    """A run that was watched from before its first turn until after its last; what it leaves open stays open."""
    dead_end = free_port()
    with contextlib.ExitStack() as stack:
        backend = [str(COMMAND), "demo-backend", "--listen", "127.0.0.1:0", "--token-ms", "0", "--tool-calls", "20"]
        url = stack.enter_context(serving(backend, log=folder / "backend.log", ready=_BACKEND)).ready[1]
        small = {"cache__max_total_bytes": "256KiB", "response_store__max_bytes": "64KiB"}
        proxy = stack.enter_context(slipstream(folder, url, **small))
        few = {"websocket__max_queued": "2", "websocket__max_in_flight": "1"}
        faulty = stack.enter_context(slipstream(folder, f"http://127.0.0.1:{dead_end}/v1", **few))
        jobs = {JOB: [_address(proxy)], FAULTY: [_address(faulty), f"127.0.0.1:{free_port()}"]}
        files = [FOLDER / "rules.yaml", FOLDER / "alerts.yaml"]
        server = stack.enter_context(prometheus(folder, jobs, files))
        # A counter's rise is seen from the second sample on.
        assert wait_until(lambda: _scrapes(server) >= 2)
        _run(stack, proxy, faulty, dead_end)
        seen = _scrapes(server)
        assert wait_until(lambda: _scrapes(server) >= seen + 3)
        yield Watched(server, proxy, faulty)


def _address(proxy: Slipstream) -> str:
    return proxy.admin_url.removeprefix("http://")


def _scrapes(server: Prometheus) -> int:
    """How often both proxies have been scraped."""
    found = server.query("count_over_time(slipstream_ready[5m])")
    return min(int(sample["value"][1]) for sample in found) if len(found) == 2 else 0


def _run(stack: contextlib.ExitStack, proxy: Slipstream, faulty: Slipstream, dead_end: int) -> None:
    load = [str(COMMAND), "demo-load", "--url", proxy.base_url, "--pause", "0", "--rounds", "3"]
    subprocess.run(load, check=True, stdout=subprocess.DEVNULL, timeout=60)
    _converse(proxy)
    _use_plain_http(proxy)
    _fill(stack.enter_context(_socket(proxy)))
    _fail(faulty)
    _hang(stack, faulty, dead_end)


def _socket(proxy: Slipstream) -> Connection:
    return connect(f"ws{proxy.base_url.removeprefix('http')}/responses", compression=None)


def _create(websocket: Connection, text: str, **fields: Any) -> None:
    items = [{"type": "message", "role": "user", "content": text}]
    create = {"type": "response.create", "model": "simulated-model", "store": False, "input": items, **fields}
    websocket.send(json.dumps(create))


def _turn(websocket: Connection, text: str, **fields: Any) -> Any:
    """The last event of a turn."""
    _create(websocket, text, **fields)
    while True:
        event = json.loads(websocket.recv(timeout=30))
        if event["type"] in ("response.completed", "response.failed", "response.incomplete", "error"):
            return event


def _respond(websocket: Connection, text: str, **fields: Any) -> str:
    """The id of a turn's response, which must have been completed."""
    event = _turn(websocket, text, **fields)
    assert event["type"] == "response.completed", event
    identifier: str = event["response"]["id"]
    return identifier


def _converse(proxy: Slipstream) -> None:
    """Everything that a lookup can find or not find."""
    with _socket(proxy) as websocket:
        warm = _respond(websocket, "Get ready.", generate=False, instructions="Be brief.")
        first = _respond(websocket, "One.", previous_response_id=warm)
        second = _respond(websocket, "Two.", previous_response_id=first, tools=_TOOLS[:1], tool_choice="none")
        third = _respond(websocket, "Three.", previous_response_id=second, tools=_TOOLS, tool_choice="none")
        assert _turn(websocket, "No.", previous_response_id=third, max_output_tokens=0)["type"] == "error"
        assert _turn(websocket, "Where were we?", previous_response_id=third)["type"] == "error"
        _respond(websocket, "Not two but this.", previous_response_id=first)
        assert _turn(websocket, "Hello?", previous_response_id="resp_unknown")["type"] == "error"
        kept = _respond(websocket, "Keep this.", store=True)
    with _socket(proxy) as websocket:
        _respond(websocket, "Still there?", store=True, previous_response_id=kept)
        for number in range(80):
            _respond(websocket, f"{number} " * 100, store=True)


def _use_plain_http(proxy: Slipstream) -> None:
    with httpx2.Client(base_url=proxy.base_url, timeout=30) as client:
        assert client.get("/models").status_code == 200
        assert client.get("/nothing").status_code == 404
        assert client.post("/responses", json={"model": "m", "input": "Hello"}).status_code == 200
        assert client.get("/responses/resp_unknown").status_code == 404


def _fill(websocket: Connection) -> None:
    """Make the cache forget; the connection stays open, so that it stays full."""
    first, *_ = [_respond(websocket, f"{number} " * 4000) for number in range(40)]
    assert _turn(websocket, "What was the first?", previous_response_id=first)["type"] == "error"


def _fail(faulty: Slipstream) -> None:
    """Turns whose backend refuses connections."""
    with _socket(faulty) as websocket:
        for _ in range(_FAILURES):
            assert _turn(websocket, "Hello?")["type"] == "error"


def _hang(stack: contextlib.ExitStack, faulty: Slipstream, port: int) -> None:
    """Turns without an answer, more than may wait; then the proxy is to end, and waits for them."""
    stack.enter_context(socket.create_server(("127.0.0.1", port)))
    websocket = stack.enter_context(_socket(faulty))
    for _ in range(12):
        _create(websocket, "Hello?")
    for _ in range(9):
        assert json.loads(websocket.recv(timeout=30))["type"] == "error"
    os.kill(faulty.server.pid, signal.SIGTERM)
    assert wait_until(lambda: httpx2.get(f"{faulty.admin_url}/readyz").status_code == 503)
