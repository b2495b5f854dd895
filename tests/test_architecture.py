"""The shape of the code base: who may import whom, what stands beside what, and what no file may hold."""

from __future__ import annotations

import ast
import asyncio
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import proxy
from proxy.protocol import session
from proxy.protocol.events import Event
from proxy.protocol.lanes import LaneState

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "proxy"
MODULES = sorted(PACKAGE.rglob("*.py"))
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def name_of(module: Path) -> str:
    """A module's path below the root, for messages and ids."""
    return str(module.relative_to(ROOT))


def definitions(module: Path) -> Iterator[tuple[str, Definition]]:
    """All classes, functions and methods of a module with their dotted names; those inside functions left out."""

    def walk(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Definition]]:
        for node in body:
            if isinstance(node, Definition):
                yield f"{prefix}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from walk(node.body, f"{prefix}{node.name}.")

    yield from walk(ast.parse(module.read_text()).body, "")


def tracked_files() -> list[Path]:
    """All text files of the tree that are in version control or about to be."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this is no git working tree")
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return [file for file in files if file.is_file() and b"\0" not in file.read_bytes()]


# Imports


def test_proxy_is_ours() -> None:
    """Another distribution installs a package of this name; what is imported here is the one beside these tests."""
    assert proxy.__file__ is not None
    assert Path(proxy.__file__).resolve() == (PACKAGE / "__init__.py").resolve()


def test_imports_keep_their_contracts() -> None:
    """Imports go down only, and the core does no I/O (the contracts stand in pyproject.toml)."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_contracts_know_every_module() -> None:
    """A new module has a place in the layers; else nothing would check what it imports."""
    text = (ROOT / "pyproject.toml").read_text()
    contracts = text[text.index("[tool.importlinter]") :]
    for module in MODULES:
        dotted = ".".join(module.relative_to(ROOT).with_suffix("").parts)
        if module.parent in (PACKAGE / "protocol", PACKAGE / "workers"):
            pattern = rf'["| ]{module.stem}["| ]'
        elif module.parent == PACKAGE:
            pattern = rf'["| ]{re.escape(dotted)}["| ]'
        else:
            pattern = rf'["| ]{re.escape(dotted.rpartition(".")[0])}["| ]'
        assert module.stem == "__init__" or re.search(pattern, contracts), f"{dotted} is in no layer"


# Modules


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_module_is_named_for_what_it_holds(module: Path) -> None:
    """No drawer for odds and ends."""
    assert not re.search(r"util|helper|manager|misc|common", module.stem)


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_module_can_be_read_at_a_sitting(module: Path) -> None:
    """Modules and functions have a bound, and a module says in its first line what it is."""
    text = module.read_text()
    lines = text.count("\n")
    assert lines <= MAX_MODULE_LINES
    assert ast.get_docstring(ast.parse(text))
    for name, node in definitions(module):
        if not isinstance(node, ast.ClassDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < MAX_FUNCTION_LINES, f"{name} is too long"


def has_code(module: Path) -> bool:
    """Whether there is anything to run in a module: declarations alone are tested by those who use them."""
    return any(not isinstance(node, ast.ClassDef) for _, node in definitions(module)) and module.stem[:2] != "__"


@pytest.mark.parametrize("module", [module for module in MODULES if has_code(module)], ids=name_of)
def test_module_has_tests_beside_it(module: Path) -> None:
    """`proxy/x.py` is tested by `tests/test_x.py`, which names it; below `proxy/demo`, `rollout` and `bench` the folder is enough."""
    place = ROOT / "tests" / module.relative_to(PACKAGE).parent
    if module.parent.name in ("demo", "rollout", "bench"):
        candidates = sorted(place.glob("test_*.py"))
    else:
        candidates = [place / f"test_{module.stem}.py"]
    package = ".".join(module.parent.relative_to(ROOT).parts)
    named = re.compile(
        rf"\b{package}\.{module.stem}\b|from {package} import [^)]*\b{module.stem}\b", re.MULTILINE | re.DOTALL
    )
    texts = [file.read_text() for file in candidates if file.exists()]
    assert any(named.search(text) for text in texts), f"no test module names {package}.{module.stem}"


def test_public_names_have_docstrings() -> None:
    """Every public class and function has a docstring; a method may have that of the protocol it fulfils."""
    everything = [(module, name, node) for module in MODULES for name, node in definitions(module)]
    documented = {name.rpartition(".")[2] for _, name, node in everything if ast.get_docstring(node)}
    documented |= {name for name in dir(asyncio.Protocol) if not name.startswith("_")}
    bare = [
        f"{name_of(module)}: {name}"
        for module, name, node in everything
        if not any(part.startswith("_") for part in name.split("."))
        and not ast.get_docstring(node)
        and ("." not in name or name.rpartition(".")[2] not in documented)
    ]
    # The parser calls these by name; they are described where the parser is made.
    assert [name for name in bare if not re.search(r"wire\.py: Wire\.on_", name)] == []


# The state machine


def test_table_of_transitions_names_what_there_is() -> None:
    """Every state has a row, and what stands in a row is an event with a handler of the session."""
    assert set(session.TRANSITIONS) == set(LaneState)
    for state, row in session.TRANSITIONS.items():
        assert set(row) <= set(get_args(Event)), state
        for handler in row.values():
            assert getattr(session.Session, handler.__name__) is handler


def test_table_of_transitions_leaves_no_state_without_an_end() -> None:
    """From every state in which somebody is asked an answer leads out, a failure too; an idle lane expects nothing."""
    events = {event.__name__: event for event in get_args(Event)}
    for state, row in session.TRANSITIONS.items():
        ends = {LaneState.IDLE: None, LaneState.RECALLING: "Recalled"}.get(state, "UpstreamFailed")
        assert (events[ends] in row) if ends else not row


# What no file may hold


def texts() -> Iterator[tuple[str, str]]:
    """Name and text of each tracked file."""
    for file in tracked_files():
        yield str(file.relative_to(ROOT)), file.read_text(errors="replace")


def test_no_file_knows_a_machine() -> None:
    """Neither this machine's paths nor any person's home."""
    home = re.escape(str(Path.home()))
    paths = re.compile(rf"{re.escape(str(ROOT))}\b|{home}/|/(?:home|Users)/[a-z]|[A-Z]:\\\\Users", re.MULTILINE)
    assert [(name, match[0]) for name, text in texts() if (match := paths.search(text))] == []


def test_no_file_knows_a_registry() -> None:
    """Packages come from wherever the reader's tools are set up to get them."""
    hosts = re.compile(
        r"https?://[\w.-]*\b(?:pypi|pythonhosted|npmjs|registry|artifactory|nexus|devpi|mirrors?)\b[\w.-]*"
    )
    options = re.compile(r"^\s*--?(?:extra-)?index-url|^\s*--find-links|^registry\s*=", re.MULTILINE)
    found = [(name, match[0]) for name, text in texts() if (match := hosts.search(text) or options.search(text))]
    assert found == []


def test_no_file_holds_an_address_of_a_person() -> None:
    """Examples use the domains that are reserved for them (RFC 2606)."""
    address = re.compile(
        r"\b[\w.+-]+@(?!example\.|[\w.-]*\.(?:example|invalid|test)\b)[a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,}\b"
    )
    assert [(name, match[0]) for name, text in texts() if (match := address.search(text))] == []


def test_version_is_said_once() -> None:
    """The distribution takes it from the package."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", proxy.__version__)
    text = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in text
    assert proxy.__version__ not in text[: text.index("classifiers")]


def test_package_is_imported_without_side_effects() -> None:
    """Importing any module writes nothing and starts nothing."""
    names = [".".join(module.relative_to(ROOT).with_suffix("").parts) for module in MODULES]
    names = [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]
    code = "import importlib, threading\n" + "".join(f"importlib.import_module({name!r})\n" for name in names)
    code += "assert threading.active_count() == 1\n"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert all(isinstance(importlib.import_module(name), type(proxy)) for name in names)


def test_ignored_types_are_few() -> None:
    """Each hole in the types of the product has a code, and there are not many."""
    lines: list[Any] = [
        line for module in MODULES for line in module.read_text().splitlines() if "type: ignore" in line
    ]
    assert all(re.search(r"# type: ignore\[[a-z-]+\]", line) for line in lines)
    assert len(lines) <= 3
