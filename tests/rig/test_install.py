"""The installer of what the other tests run: once, whole, and never silently not at all."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.rig import install

_TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not into the developer's own folder."""
    monkeypatch.setenv("SLIPSTREAM_TESTS_CACHE", str(tmp_path))


@pytest.fixture(params=["in CI", "in CI although it may skip", "locally"])
def no_way_out(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing may be skipped."""
    monkeypatch.setenv("CI", "true") if "CI" in request.param else monkeypatch.delenv("CI", raising=False)
    if "may skip" in request.param:
        monkeypatch.setenv("SLIPSTREAM_TESTS_MAY_SKIP", "1")
    else:
        monkeypatch.delenv("SLIPSTREAM_TESTS_MAY_SKIP", raising=False)


def test_installer_makes_a_folder_once_for_all_who_come_at_once() -> None:
    """Whoever comes while it is being made waits and finds it whole."""
    made = []
    gate = threading.Barrier(4)

    def build(folder: Path) -> None:
        made.append(folder)
        (folder / "half").touch()
        (folder / "whole").touch()

    def ask(_: int) -> bool:
        gate.wait()
        return (install._provide("thing", b"recipe", build) / "whole").exists()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == [True] * 4
    assert len(made) == 1


def test_installer_begins_anew_where_it_was_interrupted() -> None:
    """What an earlier run left half made is thrown away."""

    def be_interrupted(folder: Path) -> None:
        (folder / "old").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install._provide("thing", b"recipe", be_interrupted)
    folder = install._provide("thing", b"recipe", lambda folder: (folder / "new").touch())
    assert {path.name for path in folder.iterdir()} == {".complete", "new"}


def test_installer_makes_another_folder_for_another_recipe() -> None:
    """A new version does not meet the files of an old one."""
    folders = {install._provide("thing", recipe, lambda _: None) for recipe in (b"one", b"two")}
    assert len(folders) == 2


def test_installer_fails_a_test_with_what_pip_said(no_way_out: None) -> None:
    """A package whose file is not the expected one is an error, and its reason is shown."""
    requirement = f"no-such-package-of-slipstream @ file:///nowhere/at/all.whl --hash=sha256:{'0' * 64}\n"
    with pytest.raises(pytest.fail.Exception, match=r"(?s)thing cannot be installed: .*ended with 1:\n.*ERROR"):
        install.wheels("thing", requirement)


def test_installer_fails_a_test_for_want_of_npm(
    no_way_out: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without npm it says so."""
    source = tmp_path / "client"
    source.mkdir()
    for name in ("package.json", "package-lock.json"):
        (source / name).write_text("{}")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match="npm is needed"):
        install.node_modules(source)


def test_installer_skips_only_where_a_developer_allowed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An explicit wish turns what cannot be had into a skip."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("SLIPSTREAM_TESTS_MAY_SKIP", "1")
    with pytest.raises(pytest.skip.Exception, match="no network"):
        install.give_up("no network")


def test_lock_files_pin_what_they_name_and_name_no_registry() -> None:
    """Each package has a hash, and comes from wherever the machine's own settings say."""
    npm = sorted(_TESTS.glob("clients/npm/*/package-lock.json"))
    pypi = sorted(_TESTS.glob("*/pypi/*.txt"))
    assert npm and pypi
    for path in npm:
        packages = {name: package for name, package in json.loads(path.read_text())["packages"].items() if name}
        assert packages
        assert [name for name, package in packages.items() if "resolved" in package] == []
        assert [name for name, package in packages.items() if "integrity" not in package] == []
    for path in pypi:
        text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE)
        for requirement in re.sub(r"\\\n\s*", "", text).splitlines():
            assert re.fullmatch(r"[a-z0-9._-]+==\S+( ; [^#]+?)? (--hash=sha256:[0-9a-f]{64} ?)+", requirement), (
                requirement
            )
