"""The command line: arguments in, exit codes out; the only place that prints.

For the options of ``serve``: a flag wins over its environment variable, that over the file, that over the default.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import socket
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TextIO

import click
import orjson
from yarl import URL

from proxy import __version__, app, logs
from proxy.bench import report, run
from proxy.bench.link import Link
from proxy.bench.run import Plan
from proxy.bench.workload import COMPRESSING, PRESETS, Sizes
from proxy.config import Address, Config, Upstream, defaults, json_schema
from proxy.configfile import FLAGS, ConfigError, load, variable
from proxy.demo import show
from proxy.demo.backend import MODEL, Script
from proxy.protocol.profiles import PROFILES
from proxy.rollout.dialogue import RolloutFailed
from proxy.rollout.screen import Screen
from proxy.top.feed import CannotWatch, admin_url
from proxy.top.watch import NotInstalled, watch
from proxy.values import parse_address
from proxy.workers import processors, supervisor
from proxy.workers.worker import work

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_DEFAULTS = defaults()
_SIMULATED_RTT: Final = 50
"""Milliseconds of the link in front of a simulated backend; without one a simulation on loopback says little."""


def _flag(name: str, text: str, **settings: Any) -> Callable[[Any], Any]:
    """One of the options that :mod:`proxy.configfile` takes from here, from the environment or from the file."""
    value: Any = _DEFAULTS
    for part in FLAGS[name]:
        value = value.get(part)
    default = f"; default: {value}" if value is not None else ""
    return click.option(f"--{name}", help=f"{text}  [env: {variable(name)}{default}]", **settings)


@click.group(context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="slipstream", message="%(prog)s %(version)s")
def main() -> None:
    """WebSocket mode of the Responses API, in front of any server that speaks it over HTTP."""


@main.command()
@click.option(
    "-c",
    "--config",
    "file",
    type=click.Path(path_type=Path),
    envvar="SLIPSTREAM_CONFIG",
    metavar="FILE",
    help="A YAML file.  [env: SLIPSTREAM_CONFIG]",
)
@_flag("upstream", "Base URL of the backend, /v1 included.", metavar="URL")
@_flag("profile", "The kind of backend.", type=click.Choice(list(PROFILES)))
@_flag("listen", "Where clients connect.", metavar="HOST:PORT")
@_flag("admin", "Where metrics and probes are.", metavar="HOST:PORT")
@_flag("workers", "Processes that serve clients, or auto.", metavar="N")
@_flag("log-format", "How log lines look.", type=click.Choice(["auto", "json", "console"]))
@_flag("log-level", "The least important lines.", type=click.Choice(["debug", "info", "warning", "error"]))
def serve(file: Path | None, **flags: str | None) -> None:
    """Run the proxy until SIGTERM or Ctrl-C.

    Every option has a default but for the backend's URL. A flag wins over its environment variable, that over the file.
    Other options of the file are set by variables too: SLIPSTREAM_CACHE__MAX_BYTES=1GiB is cache.max_bytes.
    """
    config = _load(file, _overrides(flags))
    logs.configure(config.log.level, config.log.format)
    try:
        workers = processors.count(config.workers)
        code = _run(app.serve(config) if workers == 1 else supervisor.serve(config, workers))
    except OSError as exc:
        click.echo(f"slipstream: cannot start: {exc.strerror or exc}", err=True)
        code = 1
    sys.exit(code)


@main.command(hidden=True)
@click.argument("channel", type=int)
def worker(channel: int) -> None:
    """Be one of the processes that serve clients; the supervisor starts them, at the end of a pair of sockets."""
    sys.exit(_run(work(socket.socket(fileno=channel))))


@main.command("check-config")
@click.argument("file", type=click.Path(path_type=Path))
def check_config(file: Path) -> None:
    """Check a configuration file.

    Exit code 0 if it can be used; 1 if not, and every mistake with its line.
    """
    _load(file)
    click.echo(f"{file}: ok")


def _address(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Address | None:
    if value is None:
        return None
    try:
        address: Address = parse_address(value)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc
    return address


def _base_url(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    try:
        url = Upstream(url=value).url
    except ValueError as exc:
        raise click.BadParameter("expected a base URL like http://127.0.0.1:8000/v1") from exc
    return url


_tool_calls = click.option(
    "--tool-calls", type=click.IntRange(1, 500), default=20, show_default=True, help="Tool calls in a rollout."
)
_token_ms = click.option(
    "--token-ms", type=click.FloatRange(0, 1000), default=5, show_default=True, help="Simulated time for a token."
)


@main.command()
@click.option("--once", is_flag=True, help="End after the table, serve nothing.")
@_tool_calls
@click.option("--listen", metavar="HOST:PORT", callback=_address, help="For clients. [127.0.0.1:8080 if free]")
@click.option("--admin", metavar="HOST:PORT", callback=_address, help="For metrics. [127.0.0.1:9100 if free]")
@_token_ms
def demo(*, once: bool, tool_calls: int, listen: Address | None, admin: Address | None, token_ms: float) -> None:
    """Measure the saving, with a simulated backend.

    Runs one agent rollout over plain HTTP and in WebSocket mode, compares them, then serves until Ctrl-C.
    """
    script = Script(tool_calls, token_ms / 1000)
    choices = show.Choices(listen, admin, is_once=once, script=script)
    # The demo counts on asyncio's own loop.
    sys.exit(_show(show.demo(choices, _screen()), asyncio.run))


@main.command("demo-backend", hidden=True)
@click.option("--listen", metavar="HOST:PORT", callback=_address, default="127.0.0.1:8000", show_default=True)
@_tool_calls
@_token_ms
@click.option("--answer-tokens", type=click.IntRange(0), default=0, show_default=True, help="Tokens of an answer.")
def demo_backend(listen: Address, tool_calls: int, token_ms: float, answer_tokens: int) -> None:
    """Serve the demo's simulated backend alone, until SIGTERM or Ctrl-C."""
    script = Script(tool_calls, token_ms / 1000, answer_tokens)
    sys.exit(_show(show.serve_backend(listen, script, _screen()), _run))


@main.command("demo-load", hidden=True)
@click.option("--url", default="http://127.0.0.1:8080/v1", show_default=True, help="The proxy's base URL.")
@click.option("--pause", type=click.FloatRange(0, 3600), default=1, show_default=True, help="Seconds between rollouts.")
@click.option("--rounds", type=click.IntRange(1), help="How many. [until it is stopped]")
def demo_load(url: str, pause: float, rounds: int | None) -> None:
    """Run the demo's rollout through a proxy in front of the simulated backend, again and again."""
    # The demo counts on asyncio's own loop.
    sys.exit(_show(show.load(url.rstrip("/"), pause, rounds, _screen()), asyncio.run))


def _admin_url(_context: click.Context, _parameter: click.Parameter, value: str) -> URL:
    try:
        return admin_url(value)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


@main.command()
@click.option(
    "--admin",
    "url",
    metavar="HOST:PORT|URL",
    callback=_admin_url,
    envvar=variable("admin"),
    default=str(_DEFAULTS["admin"]),
    help=f"Where the proxy's live page is.  [env: {variable('admin')}; default: {_DEFAULTS['admin']}]",
)
@click.option("--once", is_flag=True, help="Print what there is as plain text, and end.")
def top(*, url: URL, once: bool) -> None:
    """Watch a running proxy in the terminal.

    Shows what its live page shows: connections, turns and why each was a hit or a miss, what it saved, backends.
    """
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        click.echo("slipstream: top needs a terminal; --once prints what there is", err=True)
        sys.exit(1)
    try:
        asyncio.run(watch(url, is_once=once, write=_print))
    except (CannotWatch, NotInstalled) as exc:
        click.echo(f"slipstream: {exc}", err=True)
        sys.exit(1)


def _print(text: str) -> None:
    """Print what may hold characters that the terminal does not know."""
    encoding = sys.stdout.encoding or "ascii"
    click.echo(text.encode(encoding, "replace").decode(encoding), nl=False)


def _headers(options: dict[str, Any]) -> dict[str, str]:
    """The headers that were asked for, with the key from the environment unless one of them is the key."""
    headers = {}
    for header in options["header"]:
        name, colon, value = header.partition(":")
        if not colon or not name.strip():
            raise click.BadParameter("expected 'Name: value'", param_hint="--header")
        headers[name.strip()] = value.strip()
    key = os.environ.get(options["api_key_env"])
    if key and "authorization" not in {name.lower() for name in headers}:
        headers["Authorization"] = f"Bearer {key}"
    return headers


def _plan(options: dict[str, Any]) -> Plan:
    upstream, proxy = options["upstream"], options["proxy"]
    if proxy and not upstream:
        raise click.UsageError("--proxy needs --upstream: the backend behind it, which plain HTTP is measured against.")
    if upstream and not options["model"]:
        raise click.UsageError("--upstream needs --model: a model that it serves.")
    if proxy and (options["config"] or options["profile"]):
        raise click.UsageError("--config and --profile are for the proxy that is started, not for --proxy.")
    chosen = {name: options[name] for name in Sizes.__slots__ if options.get(name) is not None}
    rtt = options["rtt"] if options["rtt"] is not None else 0 if upstream else _SIMULATED_RTT
    bandwidth = options["bandwidth"] * 1e6 / 8 or math.inf
    if rtt and any(url and url.startswith("https:") for url in (upstream, proxy)):
        raise click.UsageError("A link is simulated in front of http:// only; https:// has a TLS handshake of its own.")
    serve = [("--config", str(options["config"]))] if options["config"] else []
    serve += [("--profile", options["profile"])] if options["profile"] else []
    return Plan(
        upstream=upstream,
        proxy=proxy,
        model=options["model"] or MODEL,
        sizes=replace(PRESETS[options["preset"]], **chosen),
        headers=_headers(options),
        turns=options["turns"],
        output_tokens=options["output_tokens"],
        rounds=options["rounds"],
        link=Link(rtt / 1000, bandwidth, options["tls_rtts"], options["linux_idle"]) if rtt else None,
        token_rate=options["token_rate"],
        pause=options["tool_ms"] / 1000,
        compresses=options["preset"] in COMPRESSING if options["compress"] is None else options["compress"],
        timeout=options["turn_timeout"],
        serve_options=tuple(itertools.chain.from_iterable(serve)),
    )


def _size(name: str, text: str) -> Callable[[Any], Any]:
    return click.option(f"--{name}", type=click.IntRange(0, 2**24), metavar="BYTES", help=f"{text} [by preset]")


def _number(name: str, default: float, low: int, high: int, unit: str, text: str) -> Callable[[Any], Any]:
    """An option with a number; a whole one if its default is."""
    kind = click.IntRange if isinstance(default, int) else click.FloatRange
    return click.option(f"--{name}", type=kind(low, high), metavar=unit, default=default, help=f"{text} [{default:g}]")


@main.command()
@click.option("--upstream", metavar="URL", callback=_base_url, help="The backend's base URL. [a simulated backend]")
@click.option("--model", help="A model that it serves.")
@click.option("--proxy", metavar="URL", callback=_base_url, help="A proxy that runs already. [one is started]")
@click.option("-c", "--config", type=click.Path(exists=True, path_type=Path), help="Of the proxy that is started.")
@click.option("--profile", type=click.Choice(list(PROFILES)), help="Of the proxy that is started.")
@click.option("--api-key-env", default="OPENAI_API_KEY", show_default=True, help="Variable that may hold a key.")
@click.option("--header", multiple=True, metavar="'NAME: VALUE'", help="A header for each request.")
@_number("rounds", 6, 1, 1000, "N", "Rollouts each way.")
@_number("turns", 21, 1, 500, "N", "Of a rollout: an answer, and one for each of 20 tool outputs.")
@click.option("--preset", type=click.Choice(list(PRESETS)), default="codex", help="Whose sizes requests have. [codex]")
@_size("instructions", "In each turn.")
@_size("tools", "In each turn.")
@_size("history", "Before the first turn.")
@_size("tool-output", "New in each turn.")
@_number("output-tokens", 100, 16, 100_000, "N", "Of an answer, at most.")
@_number("tool-ms", 0.0, 0, 60_000, "MS", "What tools take between two turns.")
@click.option("--compress/--no-compress", default=None, help="Offer permessage-deflate. [codex and agents do]")
@click.option(
    "--rtt", type=click.FloatRange(0, 10_000), metavar="MS", help="Of a simulated link. [none; 50 without --upstream]"
)
@_number("bandwidth", 100.0, 0, 1_000_000, "MBIT/S", "Of that link; 0 for any.")
@_number("tls-rtts", 1, 0, 10, "N", "Round trips of a TLS handshake on that link.")
@click.option(
    "--linux-idle", is_flag=True, help="Idle senders on it lose half of their window, not all as by RFC 5681."
)
@_number("token-rate", 1000.0, 0, 1_000_000, "N", "Tokens a second of the simulated backend; 0 for any.")
@_number("turn-timeout", 600.0, 1, 86_400, "SECONDS", "What a turn may take.")
@click.option("--json", "wants_json", is_flag=True, help="JSON on standard output, the rest on standard error.")
def bench(*, wants_json: bool, **options: Any) -> None:
    """Measure agent rollouts over HTTP and through the proxy, on your backend.

    The same rollout over HTTP with new connections, over HTTP kept alive, and in WebSocket mode, in turn: how long it takes,
    where that comes from, and whether the difference is larger than the noise. Ctrl-C shows what is measured so far.
    """
    plan = _plan(options)
    screen = _screen(sys.stderr if wants_json else sys.stdout)
    logs.configure("warning", "auto")
    # It counts on asyncio's own loop.
    results = asyncio.run(run.bench(plan, report.introduction(plan), screen))
    if results.is_stopped:
        screen.stopped()
    screen.say()
    screen.say(report.comparison(plan, results))
    if wants_json:
        click.echo(orjson.dumps(report.as_json(plan, results), option=orjson.OPT_INDENT_2))
    if results.error:
        click.echo(f"slipstream: {results.error}", err=True)
        sys.exit(1)


@main.command()
def schema() -> None:
    """Print the JSON Schema of the configuration, for completion in editors."""
    click.echo(orjson.dumps(json_schema(), option=orjson.OPT_INDENT_2))


@main.command()
def version() -> None:
    """Print the version."""
    click.echo(f"slipstream {__version__}")


def _screen(file: TextIO | None = None) -> Screen:
    file = file or sys.stdout
    return Screen(lambda text: click.echo(text, nl=False, file=file), is_terminal=file.isatty())


def _show(work: Coroutine[Any, Any, int], run: Callable[[Coroutine[Any, Any, int]], int]) -> int:
    logs.configure("warning", "auto")
    try:
        return run(work)
    except (show.CannotListen, RolloutFailed) as exc:
        click.echo(f"slipstream: {exc}", err=True)
        return 1


def _overrides(flags: dict[str, str | None]) -> dict[str, str | None]:
    return {".".join(path): flags[name.replace("-", "_")] for name, path in FLAGS.items()}


def _run(main_coroutine: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop  # noqa: PLC0415 - it exists on some systems only
    except ImportError:
        return asyncio.run(main_coroutine)
    return uvloop.run(main_coroutine)


def _load(file: Path | None, overrides: dict[str, Any] | None = None) -> Config:
    try:
        return load(file, os.environ, overrides)
    except ConfigError as exc:
        click.echo(str(exc), err=True)
        sys.exit(1)
