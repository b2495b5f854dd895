"""The command line: arguments in, exit codes out; the only place that prints.

For the options of ``serve``: a flag wins over its environment variable, that over the file, that over the default.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import click
import orjson

from proxy import __version__, app, logs
from proxy.config import Address, Config, defaults, json_schema
from proxy.configfile import FLAGS, ConfigError, load, variable
from proxy.demo import show
from proxy.demo.backend import Script
from proxy.protocol.profiles import PROFILES
from proxy.rollout.dialogue import RolloutFailed
from proxy.rollout.screen import Screen
from proxy.values import parse_address

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_DEFAULTS = defaults()


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
        code = _run(app.serve(config))
    except OSError as exc:
        click.echo(f"slipstream: cannot listen: {exc.strerror or exc}", err=True)
        code = 1
    sys.exit(code)


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


@main.command()
def schema() -> None:
    """Print the JSON Schema of the configuration, for completion in editors."""
    click.echo(orjson.dumps(json_schema(), option=orjson.OPT_INDENT_2))


@main.command()
def version() -> None:
    """Print the version."""
    click.echo(f"slipstream {__version__}")


def _screen() -> Screen:
    return Screen(lambda text: click.echo(text, nl=False), is_terminal=sys.stdout.isatty())


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
