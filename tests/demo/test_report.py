"""What the demo says holds what was measured, and claims nothing else."""

from __future__ import annotations

import shlex

from proxy.config import Address
from proxy.demo import report
from proxy.demo.backend import Seen
from proxy.demo.report import Places, Side
from proxy.rollout.measure import Measured, Turn
from proxy.rollout.meter import Meter

PLACES = Places(Address("0.0.0.0", 8080), Address("::", 9100), Address("127.0.0.1", 8000))


def meter(**counts: int) -> Meter:
    """A meter that has counted."""
    made = Meter()
    for name, count in counts.items():
        assert hasattr(made, name)
        setattr(made, name, count)
    return made


def side(*seconds: float, seen: Seen | None = None, story: str = "hi", **counts: int) -> Side:
    """One side of the comparison."""
    turns = [Turn(setup=0, wait=0, stream=one, usage={}) for one in seconds]
    client = Measured(meter(**counts), turns, sum(seconds), [("message", story), ("function_call", "f", "{}")])
    return Side(client, seen or Seen())


def cells(text: str, label: str) -> list[str]:
    """The numbers in a row of the table."""
    (line,) = [line for line in text.splitlines() if line.strip().startswith(label)]
    return line.strip().removeprefix(label).split()


def test_comparison_shows_each_side_and_the_factor() -> None:
    """Bytes, requests, connections and times of both sides are in the table, with the saving as a factor."""
    http = side(0.1, 0.3, 0.2, sent_bytes=123_456, requests=3, kept_alive=2, connections=1, received_bytes=500)
    socket = side(0.2, 0.2, 0.2, sent_bytes=12_345, requests=1, messages=3, connections=1, received_bytes=1_000)
    text = report.comparison(http, socket)
    assert cells(text, "bytes sent") == ["123,456", "12,345", "10.0x"]
    assert cells(text, "bytes received") == ["500", "1,000", "0.50x"]
    assert cells(text, "HTTP requests") == ["3", "1"]
    assert cells(text, "of these on a kept-alive connection") == ["2", "0"]
    assert cells(text, "WebSocket messages sent") == ["0", "3"]
    assert cells(text, "TCP connections set up") == ["1", "1"]
    assert cells(text, "time per turn, median (ms)") == ["200.0", "200.0", "1.00x"]
    assert cells(text, "time in total (s)") == ["0.60", "0.60", "1.00x"]
    assert "the client sent 12,345 bytes in place of 123,456" in text


def test_comparison_shows_what_reached_the_backend() -> None:
    """What the simulated backend counted is there as well, and called simulated."""
    seen = Seen(connections=2, requests=21, body_bytes=1_000, input_tokens=250, cached_tokens=200, busy_seconds=1.5)
    text = report.comparison(side(1.0, seen=seen), side(1.0, seen=seen))
    assert cells(text, "requests received") == ["21", "21"]
    assert cells(text, "TCP connections accepted") == ["2", "2"]
    assert cells(text, "bytes in request bodies") == ["1,000", "1,000"]
    assert cells(text, "prompt tokens (simulated, 4 bytes each)") == ["250", "250"]
    assert cells(text, "of these in its simulated prefix cache") == ["200", "200"]
    assert cells(text, "of this in the simulated backend (s)") == ["1.50", "1.50"]


def test_comparison_is_honest_about_time() -> None:
    """Whoever reads the table is told what is simulated and what is real; no percentage stands anywhere."""
    text = " ".join(report.comparison(side(1.0), side(1.0)).split())
    assert "The model's time is simulated" in text
    assert "the saving in time is small here" in text
    assert "The saving in bytes is real" in text
    assert "%" not in text


def test_comparison_admits_that_rollouts_differ() -> None:
    """Two rollouts that went different ways are not compared."""
    text = report.comparison(side(1.0), side(1.0, story="ho"))
    assert "did NOT go the same way" in text
    assert "in place of" not in text


def test_introduction_says_what_is_simulated() -> None:
    """The reader knows from the beginning that no model runs."""
    text = report.introduction(PLACES, 1, 0.005)
    assert "1 tool call," in text
    assert "SIMULATION" in text
    assert "http://127.0.0.1:8000/v1" in text
    assert "5 ms" in text


def test_invitation_has_addresses_that_can_be_reached() -> None:
    """A listener on all interfaces is reached over loopback."""
    text = report.invitation(PLACES)
    assert "http://127.0.0.1:8080/v1\n" in text
    assert "ws://127.0.0.1:8080/v1/responses\n" in text
    assert "http://[::1]:9100/metrics\n" in text


def test_texts_fit_a_terminal() -> None:
    """Everything fits into 80 columns of ASCII."""
    texts = [
        report.introduction(PLACES, 500, 0.005),
        report.comparison(side(1.0), side(1.0)),
        report.invitation(PLACES),
    ]
    for line in "\n".join(texts).splitlines():
        assert line.isascii()
        assert len(line) < 80


def test_curl_is_a_command() -> None:
    """A shell takes the command apart into what curl needs."""
    words = shlex.split(report.curl("http://h/v1"))
    assert words[:3] == ["curl", "-N", "http://h/v1/responses"]
    assert '"stream": true' in words[-1]


def test_snippet_is_python() -> None:
    """The program that is printed compiles."""
    compile(report.snippet("http://h/v1"), "snippet", "exec")
