"""From a YAML file, the environment and flags to a :class:`~proxy.config.Config`.

Later wins: defaults, file, environment, flags. In the file, ``${VAR}`` and ``${VAR:-default}`` are replaced in scalar
values after the YAML was parsed, so that no value can become structure; ``${file:/path}`` is a file's content without
its last line end, and ``$$`` a dollar sign. From the environment, ``SLIPSTREAM_CACHE__MAX_BYTES=1GiB`` sets
``cache.max_bytes``; names without a double underscore belong to flags.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from proxy.config import Config

ENVIRONMENT_PREFIX: Final = "SLIPSTREAM_"

_REFERENCE: Final = re.compile(
    r"\$(?:\$|\{(?:file:(?P<file>[^}]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?)\})"
)

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a configuration.

    Attributes:
        path: Where, for example `websocket.lifetime`; empty for the file as a whole.
        message: What is wrong.
        line: Line in the file, from 1, where it is known.
    """

    path: str
    message: str
    line: int | None = None


class ConfigError(Exception):
    """A configuration that cannot be used.

    Args:
        source: The file, or what else it came from.
        problems: Every mistake that was found.
    """

    def __init__(self, source: str, problems: list[Problem]) -> None:
        super().__init__(source, problems)
        self.source = source
        self.problems = problems

    def __str__(self) -> str:
        lines = []
        for problem in self.problems:
            place = self.source if problem.line is None else f"{self.source}:{problem.line}"
            lines.append(": ".join(part for part in (place, problem.path, problem.message) if part))
        return "\n".join(lines)


def load(file: Path | None, environment: Mapping[str, str], overrides: Mapping[str, Any] | None = None) -> Config:
    """Read and check a configuration.

    Args:
        file: The YAML file, or None for none.
        environment: The process environment.
        overrides: Values of flags by dotted path, for example `{"upstream.url": …}`; None values are not set.

    Raises:
        ConfigError: the file cannot be read, or the whole has mistakes; it names all of them.
    """
    source = str(file) if file else "configuration"
    lines: dict[KeyPath, int] = {}
    values: dict[str, Any] = {}
    if file is not None:
        values = _read(file, environment, lines)
    for name, value in environment.items():
        if name.startswith(ENVIRONMENT_PREFIX) and "__" in name:
            _set(values, name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"), value)
    for path, value in (overrides or {}).items():
        if value is not None:
            _set(values, path.split("."), value)
    try:
        return Config.model_validate(values)
    except ValidationError as exc:
        raise ConfigError(source, [_problem(error, lines) for error in exc.errors()]) from exc


def _read(file: Path, environment: Mapping[str, str], lines: dict[KeyPath, int]) -> dict[str, Any]:
    problems: list[Problem] = []
    try:
        text = file.read_text(encoding="utf-8")
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(str(file), [Problem("", f"cannot be read: {exc}")]) from exc
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        message = f"is not valid YAML: {getattr(exc, 'problem', None) or exc}"
        raise ConfigError(str(file), [Problem("", message, mark.line + 1 if mark else None)]) from exc
    if tree is None:
        return {}
    if not isinstance(tree, yaml.MappingNode):
        raise ConfigError(str(file), [Problem("", "must be a mapping of options", tree.start_mark.line + 1)])
    _locate(tree, (), lines, problems)
    values: dict[str, Any] = _interpolate(yaml.safe_load(text), (), environment, lines, problems)
    if problems:
        raise ConfigError(str(file), problems)
    return values


def _locate(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], problems: list[Problem]) -> None:
    """Note the line of every key; a key that occurs twice is a mistake that YAML itself would let pass."""
    if isinstance(node, yaml.MappingNode):
        seen: set[Any] = set()
        for key, value in node.value:
            here = (*path, key.value)
            line = key.start_mark.line + 1
            if key.value in seen:
                problems.append(Problem(_dotted(here), "occurs twice", line))
            seen.add(key.value)
            lines[here] = line
            _locate(value, here, lines, problems)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            here = (*path, index)
            lines[here] = value.start_mark.line + 1
            _locate(value, here, lines, problems)


def _interpolate(
    value: Any, path: KeyPath, environment: Mapping[str, str], lines: Mapping[KeyPath, int], problems: list[Problem]
) -> Any:
    if isinstance(value, dict):
        return {key: _interpolate(item, (*path, key), environment, lines, problems) for key, item in value.items()}
    if isinstance(value, list):
        return [_interpolate(item, (*path, i), environment, lines, problems) for i, item in enumerate(value)]
    if not isinstance(value, str) or "$" not in value:
        return value

    def replace(match: re.Match[str]) -> str:
        try:
            return _resolve(match, environment)
        except ValueError as exc:
            problems.append(Problem(_dotted(path), str(exc), lines.get(path)))
            return ""

    return _REFERENCE.sub(replace, value)


def _resolve(match: re.Match[str], environment: Mapping[str, str]) -> str:
    if match["file"]:
        try:
            return Path(match["file"]).read_text(encoding="utf-8").rstrip("\n")
        except (OSError, UnicodeDecodeError) as exc:
            raise ValueError(f"the file {match['file']} cannot be read: {exc}") from exc
    if not match["name"]:
        return "$"
    value = environment.get(match["name"])
    if value is None:
        value = match["default"]
    if value is None:
        raise ValueError(f"the environment variable {match['name']} is not set")
    return value


def _set(values: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner = values.get(name)
        if not isinstance(inner, dict):
            inner = values[name] = {}
        values = inner
    values[path[-1]] = value


def _problem(error: Any, lines: Mapping[KeyPath, int]) -> Problem:
    path: KeyPath = tuple(error["loc"])
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = "unknown option"
    elif error["type"] == "missing":
        message = "is required"
        if path == ("upstream",):
            path, message = ("upstream", "url"), "is required: the backend's base URL (or give --upstream)"
    line = None
    for end in range(len(path), 0, -1):
        line = lines.get(path[:end])
        if line is not None:
            break
    return Problem(_dotted(path), message, line)


def _dotted(path: KeyPath) -> str:
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else str(part)
    return out
