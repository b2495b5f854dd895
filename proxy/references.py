"""References in the values of a configuration file: to the environment, and to files.

``${VAR}`` is a variable that has to be set, ``${VAR:-default}`` one that need not be (an empty one counts as not set, as
in a shell), ``${file:/path}`` the content of a file without the line ends behind it, for secrets that are mounted; a
``$VAR`` in that path is replaced as well, for systemd's ``$CREDENTIALS_DIRECTORY``. ``$$`` is a dollar sign.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_REFERENCE: Final = re.compile(
    r"\$(?:(?P<dollar>\$)|\{(?:file:(?P<file>[^{}]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?)\}"
    r"|(?P<broken>\{))"
)
_VARIABLE: Final = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_MALFORMED: Final = (
    "expected ${VARIABLE}, ${VARIABLE:-default} or ${file:/path}; write $${ for the characters themselves"
)


def expand(text: str, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Replace the references in a text.

    Args:
        text: A value as it stands in the file.
        environment: The process environment.

    Returns:
        The text, and what is wrong with its references; if anything is, the text is of no use.
    """
    mistakes: list[str] = []

    def replace(match: re.Match[str]) -> str:
        try:
            return _resolve(match, environment)
        except _Unresolved as exc:
            mistakes.append(str(exc))
            return ""

    return _REFERENCE.sub(replace, text), mistakes


class _Unresolved(Exception):
    """A reference stands for nothing."""


def _resolve(match: re.Match[str], environment: Mapping[str, str]) -> str:
    if match["dollar"]:
        return "$"
    if match["broken"]:
        raise _Unresolved(_MALFORMED)
    if match["file"]:
        return _content(_VARIABLE.sub(lambda part: _variable(part[1], environment), match["file"]))
    if match["default"] is not None and not environment.get(match["name"]):
        return match["default"]
    return _variable(match["name"], environment)


def _variable(name: str, environment: Mapping[str, str]) -> str:
    if name not in environment:
        raise _Unresolved(f"the environment variable {name} is not set")
    return environment[name]


def _content(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as exc:
        raise _Unresolved(f"the file {path} cannot be read: {exc.strerror}") from exc
    except ValueError as exc:  # not UTF-8, or no path at all
        raise _Unresolved(f"the file {path!r} cannot be read: it is not UTF-8 text") from exc
