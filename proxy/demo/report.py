"""What the demo says: the table, and what to try next.

Plain ASCII, so that any terminal and any log shows it. Each number comes from :class:`~proxy.rollout.measure.Measured` or
from what the simulated backend counted; nothing is estimated, and what is simulated is called so.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from proxy.config import Address
from proxy.demo import backend
from proxy.demo.backend import Seen
from proxy.rollout.measure import Measured

_COLUMNS: Final = ("plain HTTP", "WebSocket mode", "saving")


@dataclass(frozen=True, slots=True)
class Side:
    """One rollout from both ends.

    Attributes:
        client: What its client measured.
        seen: What reached the simulated backend meanwhile.
    """

    client: Measured
    seen: Seen


@dataclass(frozen=True, slots=True)
class Places:
    """Where things listen.

    Attributes:
        clients: The proxy's listener.
        admin: Its operator's listener.
        backend: The simulated backend.
    """

    clients: Address
    admin: Address
    backend: Address


def introduction(places: Places, tool_calls: int, token_seconds: float) -> str:
    """What is about to happen."""
    return f"""\
Slipstream demo: one agent rollout of {_count(tool_calls, "tool call")}, run twice.

  client --- plain HTTP ----------------------> simulated backend
  client --- WebSocket mode --> Slipstream ---> simulated backend

The proxy is the real one. The backend is a SIMULATION in this process, at
{url(places.backend)}: no model runs, what it says is scripted, and a
token takes it {token_seconds * 1000:g} ms because it is told so.
"""


def comparison(http: Side, websocket: Side) -> str:
    """Both rollouts side by side, and what the numbers mean."""
    return "\n".join([*_table(http, websocket), "", _outcome(http.client, websocket.client), "", _NOTES])


_NOTES: Final = """\
All numbers were measured in this run. Bytes are what the client's sockets
carried: HTTP and WebSocket framing included, TCP/IP headers not. The HTTP
client did what clients usually do: one connection, kept alive.

What this shows    The client sends only what is new in each turn. The proxy
                   remembers the rest and sends the backend the whole history:
                   what reaches the backend is as much as before.
What it cannot     Time. The model's time is simulated, and on loopback bytes
                   travel for next to nothing: the saving in time is small
                   here, if there is any. The saving in bytes is real.
                   `slipstream bench` measures time."""


def _table(http: Side, websocket: Side) -> list[str]:
    sides = (http, websocket)

    def row(label: str, value: Callable[[Side], float], form: str = ",", *, is_saving: bool = False) -> str:
        left, right = (value(side) for side in sides)
        return _row(label, f"{left:{form}}", f"{right:{form}}", _factor(left, right) if is_saving else "")

    return [
        _row("", *_COLUMNS),
        "The client",
        row("bytes sent", lambda side: side.client.meter.sent_bytes, is_saving=True),
        row("bytes received", lambda side: side.client.meter.received_bytes, is_saving=True),
        row("HTTP requests", lambda side: side.client.meter.requests),
        row("  of these on a kept-alive connection", lambda side: side.client.meter.kept_alive),
        row("WebSocket messages sent", lambda side: side.client.meter.messages),
        row("TCP connections set up", lambda side: side.client.meter.connections),
        row("time per turn, median (ms)", lambda side: _median_ms(side.client), ".1f", is_saving=True),
        row("time in total (s)", lambda side: side.client.total_seconds, ".2f", is_saving=True),
        row("  of this in the simulated backend (s)", lambda side: side.seen.busy_seconds, ".2f"),
        "The simulated backend",
        row("requests received", lambda side: side.seen.requests),
        row("TCP connections accepted", lambda side: side.seen.connections),
        row("bytes in request bodies", lambda side: side.seen.body_bytes),
        row("prompt tokens (simulated, 4 bytes each)", lambda side: side.seen.input_tokens),
        row("  of these in its simulated prefix cache", lambda side: side.seen.cached_tokens),
    ]


def _row(label: str, left: str, right: str, factor: str) -> str:
    return f"  {label:<40}{left:>12}{right:>16}{factor:>8}".rstrip()


def _factor(before: float, after: float) -> str:
    """By how much something became less: `2.0x` is half of it, `0.95x` is more than before."""
    if not after:
        return ""
    factor = before / after
    return f"{factor:.1f}x" if factor >= 2 else f"{factor:.2f}x"


def _median_ms(client: Measured) -> float:
    return statistics.median(turn.seconds for turn in client.turns) * 1000


def _outcome(http: Measured, websocket: Measured) -> str:
    if http.story != websocket.story:
        return "The rollouts did NOT go the same way, so the numbers say nothing. Please report this."
    before, after = (side.meter.sent_bytes for side in (http, websocket))
    calls = _count(http.tool_calls, "tool call")
    return f"""\
Same rollout, word for word: {_count(len(http.turns), "turn")}, {calls}.
In WebSocket mode the client sent {after:,} bytes in place of {before:,}."""


def invitation(places: Places) -> str:
    """What to try while it runs."""
    base = url(places.clients)
    return f"""\
Still running, for you to try, until Ctrl-C:

  HTTP base URL   {base}
  WebSocket       ws{base.removeprefix("http")}/responses
  metrics         http://{reachable(places.admin)}/metrics

Plain HTTP works as well:

{curl(base)}

WebSocket mode, with the official client (pip install "openai[realtime]"):

{snippet(base)}

A longer rollout             slipstream demo --tool-calls 60
Your own server behind it    slipstream serve --upstream http://HOST:PORT/v1
What it saves there          slipstream bench --upstream URL --model MODEL
"""


def curl(base: str) -> str:
    """A command that asks over HTTP."""
    body = f'{{"model": "{backend.MODEL}", "input": "Hello", "stream": true}}'
    return f"curl -N {base}/responses \\\n  -H 'Content-Type: application/json' \\\n  -d '{body}'"


def snippet(base: str) -> str:
    """A Python program that asks twice over one WebSocket, the second time with what is new only."""
    return f"""\
from openai import OpenAI
client = OpenAI(base_url="{base}", api_key="demo")
with client.responses.connect() as ws:
    previous = {{}}
    for text in "Hello", "And now?":
        ws.response.create(model="{backend.MODEL}", input=text, **previous)
        done = next(e.response for e in ws if e.type == "response.completed")
        previous = {{"previous_response_id": done.id}}
        print(done.output_text)"""


def url(address: Address) -> str:
    """The base URL of an API that listens there."""
    return f"http://{reachable(address)}/v1"


def reachable(address: Address) -> Address:
    """Where to connect to reach a listener: one on all interfaces is reached over loopback."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)  # noqa: S104 - read, not listened on
    return Address(host, address.port)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
