"""The command line: arguments in, exit codes out; the only place that prints.

For the options of ``serve``: a flag wins over its environment variable, that over the file, that over the default.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click
import orjson

from proxy import __version__, app, logs
from proxy.config import Config
from proxy.configfile import ConfigError, load
from proxy.protocol.profiles import PROFILES

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="slipstream", message="%(prog)s %(version)s")
def main() -> None:
    """WebSocket mode of the Responses API, in front of any server that speaks it over HTTP."""


@main.command()
@click.option("--config", "file", type=click.Path(path_type=Path), envvar="SLIPSTREAM_CONFIG", help="A YAML file.")
@click.option("--upstream", envvar="SLIPSTREAM_UPSTREAM", metavar="URL", help="Base URL of the backend, /v1 included.")
@click.option(
    "--profile", envvar="SLIPSTREAM_PROFILE", type=click.Choice(list(PROFILES)), help="The kind of backend. [generic]"
)
@click.option("--listen", envvar="SLIPSTREAM_LISTEN", metavar="HOST:PORT", help="For clients. [127.0.0.1:8080]")
@click.option(
    "--admin", envvar="SLIPSTREAM_ADMIN", metavar="HOST:PORT", help="For metrics and probes. [127.0.0.1:9100]"
)
@click.option(
    "--log-format", envvar="SLIPSTREAM_LOG_FORMAT", type=click.Choice(["auto", "json", "console"]), help="[auto]"
)
@click.option(
    "--log-level",
    envvar="SLIPSTREAM_LOG_LEVEL",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="[info]",
)
def serve(file: Path | None, **flags: str | None) -> None:
    """Run the proxy until SIGTERM or Ctrl-C."""
    config = _load(file, _overrides(flags))
    logs.configure(config.log.level, config.log.format)
    try:
        code = _run(app.serve(config))
    except OSError as exc:
        click.echo(f"slipstream: cannot listen: {exc}", err=True)
        code = 1
    sys.exit(code)


@main.command("check-config")
@click.argument("file", type=click.Path(path_type=Path))
def check_config(file: Path) -> None:
    """Check a configuration file; exit code 0 if it can be used, 1 if not."""
    _load(file)
    click.echo(f"{file}: ok")


@main.command()
def schema() -> None:
    """Print the JSON Schema of the configuration, for completion in editors."""
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema()}
    click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))


@main.command()
def version() -> None:
    """Print the version."""
    click.echo(f"slipstream {__version__}")


def _overrides(flags: dict[str, str | None]) -> dict[str, Any]:
    return {
        "upstream.url": flags["upstream"],
        "upstream.profile": flags["profile"],
        "listen": flags["listen"],
        "admin": flags["admin"],
        "log.format": flags["log_format"],
        "log.level": flags["log_level"],
    }


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
