"""References to the environment and to files, in values of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.references import expand

ENVIRONMENT = {"KEY": "sk-1", "EMPTY": "", "NEST": "${KEY}", "DIR": "credentials"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("plain", "plain"),
        ("${KEY}", "sk-1"),
        ("a ${KEY} b ${KEY}", "a sk-1 b sk-1"),
        ("${NOPE:-default}", "default"),
        ("${NOPE:-}", ""),
        ("${KEY:-default}", "sk-1"),
        ("${EMPTY:-default}", "default"),
        ("${EMPTY}", ""),
        ("${NEST}", "${KEY}"),
        ("$$", "$"),
        ("$${KEY}", "${KEY}"),
        ("$$$$", "$$"),
        ("$KEY costs 5$", "$KEY costs 5$"),
        ("${NOPE:-http://h:1/v1}", "http://h:1/v1"),
    ],
)
def test_reference_stands_for_a_value(text: str, expanded: str) -> None:
    """Variables, defaults and escapes, each replaced once: a value is never looked at again."""
    assert expand(text, ENVIRONMENT) == (expanded, [])


@pytest.mark.parametrize("text", ["${", "${}", "${KEY", "${1KEY}", "${a-b}", "${KEY:+x}", "${A:-${KEY}}", "${file:}"])
def test_reference_refuses_what_it_cannot_read(text: str) -> None:
    """Text that looks like a reference and is none is a mistake, not a literal that would go out as a key."""
    _, mistakes = expand(text, ENVIRONMENT)
    assert mistakes[0].startswith("expected ${VARIABLE}")


def test_reference_names_all_unset_variables() -> None:
    """Every one of them is named, so that one round of fixing is enough."""
    _, mistakes = expand("${ONE} ${TWO}", ENVIRONMENT)
    assert mistakes == ["the environment variable ONE is not set", "the environment variable TWO is not set"]


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_reference_reads_a_file_without_its_last_line_end(tmp_path: Path, end: str) -> None:
    """A mounted secret usually ends in a line end that is not part of it."""
    file = tmp_path / "key"
    file.write_bytes(b" sk-1\nx" + end.encode())
    assert expand(f"<${{file:{file}}}>", {}) == ("< sk-1\nx>", [])


def test_reference_finds_a_file_below_a_directory_of_the_environment(tmp_path: Path) -> None:
    """A variable may stand in the path: systemd puts credentials below `$CREDENTIALS_DIRECTORY`."""
    (tmp_path / "key").write_text("sk-1")
    assert expand("${file:$D/key}", {"D": str(tmp_path)}) == ("sk-1", [])
    assert expand("${file:$NO/key}", {}) == ("", ["the environment variable NO is not set"])


def test_reference_says_why_a_file_cannot_be_read(tmp_path: Path) -> None:
    """Missing, a directory, not text: said with the path and never with the content."""
    (tmp_path / "binary").write_bytes(b"secret\xff")
    for name, why in (("missing", "No such file"), (".", "directory"), ("binary", "UTF-8"), ("a\0b", "UTF-8")):
        _, [mistake] = expand(f"${{file:{tmp_path}/{name}}}", {})
        assert "cannot be read" in mistake
        assert why in mistake
        assert "secret" not in mistake
