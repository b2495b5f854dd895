"""The bench as its users run it: as a command, against the simulated backend and against servers that go wrong.

What is looked at are structure and counts; how long anything takes is the machine's business.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from asyncio.subprocess import PIPE
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from proxy.bench import children, run
from proxy.bench.children import DidNotStart
from proxy.bench.link import Link
from proxy.bench.run import Plan, Results
from proxy.bench.workload import PRESETS
from proxy.rollout.screen import Screen
from tests.demo.conftest import Place
from tests.demo.test_show import command, read_all, read_until
from tests.rollout.servers import serving

FEW = ("--turns", "3", "--preset", "small", "--token-rate", "0", "--output-tokens", "16")
KEY = "key-that-nobody-sees"


def plan(upstream: str, proxy: str | None, **choices: Any) -> Plan:
    """A small bench."""
    choices = {"turns": 3, "rounds": 2, "output_tokens": 16, "timeout": 30, "sizes": PRESETS["small"], **choices}
    return Plan(upstream=upstream, proxy=proxy, model="m", **choices)


async def measured(wanted: Plan) -> Results:
    """What comes of it, with nobody watching."""
    return await run.bench(wanted, "", Screen(lambda _text: None, is_terminal=False))


async def test_bench_measures_three_ways() -> None:
    """With a backend, a link and a proxy of its own: every way took all turns, and asked and got the same.

    On a terminal progress is one line that is written over, for all rounds.
    """
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        async with command("bench", *FEW, "--rounds", "2", "--rtt", "1", stdout=theirs) as process:
            os.close(theirs)
            text = await asyncio.to_thread(read_all, terminal)
            assert await process.wait() == 0
    assert re.search(r"\r  1/2 HTTP, new connections \[#\.+\] turn 1 of 18, [0-9,]+ bytes sent *\r", text)
    assert re.search(r"\r  2/2 HTTP, new connections \[#{20}\] turn 18 of 18, [0-9,]+ bytes sent *\r\n", text)
    assert "The backend was asked the same each way" in text
    assert re.search(r"TCP connections +3 +1 +1\r\n", text)
    assert re.search(r"output tokens +48 +48 +48\r\n", text)
    assert "too few rounds" in text


async def test_bench_measures_a_proxy_that_runs(simulation: Place, proxy_url: str) -> None:
    """Given a proxy and its backend it starts neither. The client sends less, the backend is asked the same."""
    results = await measured(plan(simulation.url, proxy_url, link=Link(0.001)))
    assert results.error is None
    assert len(results.rounds) == 2
    # Two warm-ups of two turns, then six rollouts of three.
    assert simulation.backend.take_seen().requests == 2 * 2 + 2 * 3 * 3
    for one in results.rounds:
        assert [one[way].meter.connections for way in run.WAYS] == [3, 1, 1]
        fresh, kept, websocket = (one[way].meter.sent_bytes for way in run.WAYS)
        assert websocket < kept <= fresh
        assert len({one[way].tokens("input_tokens") for way in run.WAYS}) == 1
        assert [len(one[way].turns) for way in run.WAYS] == [3] * 3
        # No rollout finds the prompts of another, but for the few words of two salts that may be the same by chance.
        assert all((one[way].turns[0].tokens("input_tokens", "cached_tokens") or 0) < 50 for way in run.WAYS)
        assert all((one[way].turns[1].tokens("input_tokens", "cached_tokens") or 0) > 200 for way in run.WAYS)


async def test_rounds_go_to_and_fro(simulation: Place, proxy_url: str) -> None:
    """Every other round is in the opposite order."""
    results = await measured(plan(simulation.url, proxy_url, turns=1))
    assert [list(one) for one in results.rounds] == [list(run.WAYS), list(reversed(run.WAYS))]


async def test_times_have_no_gaps(simulation: Place, proxy_url: str) -> None:
    """Set-up, waiting and streams are all of the time, but for what the tools and the client itself take."""
    results = await measured(plan(simulation.url, proxy_url, rounds=1, link=Link(0.02), pause=0.05))
    for way, handshakes in (("fresh", 3), ("kept", 1), ("websocket", 1)):
        one = results.rounds[0][way]
        parts = sum(turn.seconds for turn in one.turns)
        assert one.total_seconds - parts >= 2 * 0.05
        assert sum(turn.setup for turn in one.turns) >= handshakes * 0.04
        assert all(turn.wait >= 0.02 for turn in one.turns)


async def test_bench_compresses_if_it_is_told_to(simulation: Place) -> None:
    """Its own proxy accepts permessage-deflate then; tools that are the same in each turn take next to nothing."""
    results = await measured(plan(simulation.url, None, rounds=1, sizes=PRESETS["codex"], compresses=True))
    websocket = results.rounds[0]["websocket"]
    assert websocket.meter.sent_bytes < 30_000 < 3 * PRESETS["codex"].tools
    assert websocket.tokens("input_tokens") == results.rounds[0]["kept"].tokens("input_tokens")


async def test_bench_shows_what_it_has_at_ctrl_c() -> None:
    """It ends with 0 and a table of the rounds that are over."""
    async with command("bench", *FEW, "--rounds", "1000", "--rtt", "1", "--json", stderr=PIPE) as process:
        assert process.stderr is not None
        while not (await process.stderr.readline()).startswith(b"round 1 of 1000: "):
            assert not process.stderr.at_eof()
        process.send_signal(signal.SIGINT)
        output, errors = await process.communicate()
    assert process.returncode == 0, errors
    value = json.loads(output)
    assert value["stopped"] is True
    assert 0 < len(value["rounds"]) < 1_000
    assert b"It ended early" in errors
    assert b"Traceback" not in errors


async def test_bench_ends_before_anything_is_measured() -> None:
    """Ctrl-C at the beginning leaves nothing behind either."""
    async with command("bench", *FEW) as process:
        await read_until(process, "tool's output")
        process.send_signal(signal.SIGTERM)
        output, _ = await process.communicate()
    assert process.returncode == 0
    assert b"nothing to compare" in output
    assert b"Traceback" not in output


# What can go wrong


async def _unknown_model(request: web.Request) -> web.StreamResponse:
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    # Some repeat the key.
    return web.json_response({"error": {"message": f"The model `m` does not exist, {KEY}"}}, status=404)


async def _refuse_upgrade(request: web.Request) -> web.StreamResponse:
    return web.Response(status=403)


async def test_bench_shows_the_backends_error() -> None:
    """An unknown model is the backend's word, with the status; the key that was sent is shown nowhere."""
    async with serving(_unknown_model) as url:
        arguments = ("--upstream", url, "--model", "m", "--api-key-env", "THE_KEY")
        async with command("bench", *FEW, *arguments, env={**os.environ, "THE_KEY": KEY}) as process:
            output, _ = await process.communicate()
    text = output.decode()
    assert process.returncode == 1
    assert "HTTP 404" in text
    assert "The model `m` does not exist, ***" in text
    assert KEY not in text
    assert "Traceback" not in text


async def test_bench_says_that_a_proxy_refuses(simulation: Place) -> None:
    """It is told before anything is measured."""
    async with serving(_refuse_upgrade) as url:
        results = await measured(plan(simulation.url, url))
    assert results.error is not None
    assert results.error.startswith(f"WebSocket mode: no answer from {url}: 403")
    assert results.rounds == []


async def test_bench_says_that_nobody_listens(proxy_url: str) -> None:
    """An upstream that is not there is an error, not a traceback."""
    results = await measured(plan("http://127.0.0.1:9/v1", proxy_url))
    assert results.error is not None
    assert results.error.startswith("HTTP, kept alive: no answer from http://127.0.0.1:9/v1")


async def test_what_was_measured_before_an_error_is_kept(simulation: Place, proxy_url: str) -> None:
    """A backend that fails in the middle ends the bench, not what is known by then."""
    requests = 0

    async def fail_later(request: web.Request) -> web.StreamResponse:
        nonlocal requests
        requests += 1
        if requests > 2 + 6:  # the warm-up's, and those of one round
            return web.Response(status=503, text="out of memory")
        body = await request.read()
        async with aiohttp.request("POST", f"{simulation.url}/responses", data=body) as answer:
            return web.Response(body=await answer.read(), content_type="text/event-stream")

    async with serving(fail_later) as url:
        results = await measured(plan(url, proxy_url))
    assert results.error is not None
    assert results.error.endswith("HTTP 503: out of memory")
    assert len(results.rounds) == 1


async def test_server_that_does_not_start_says_why() -> None:
    """What it wrote is the error."""
    with pytest.raises(DidNotStart, match="No such command"):
        async with children.slipstream("no-such-command", ready=re.compile("never")):
            pass
