"""From a YAML file, the environment and flags to a :class:`~proxy.config.Config`.

Later wins: defaults, file, environment, flags. In the file, :mod:`~proxy.references` such as ``${VAR}`` are replaced in
scalar values after the YAML was parsed, so that no value can become structure. From the environment,
``SLIPSTREAM_CACHE__MAX_BYTES=1GiB`` sets ``cache.max_bytes``; options at the top need no double underscore
(``SLIPSTREAM_DRAIN_TIMEOUT``), and those that have a flag have its name as well (``SLIPSTREAM_LOG_LEVEL``). An empty
variable counts as not set, and what Kubernetes puts there for a service called *slipstream* is left alone.

All mistakes are found at once. None of their messages holds a value, since that may be a secret.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from proxy import references
from proxy.config import Config, option_paths
from proxy.served import Backend

ENVIRONMENT_PREFIX: Final = "SLIPSTREAM_"

FLAGS: Final = {
    "upstream": ("upstream", "url"),
    "profile": ("upstream", "profile"),
    "listen": ("listen",),
    "admin": ("admin",),
    "workers": ("workers",),
    "log-format": ("log", "format"),
    "log-level": ("log", "level"),
}
"""Options that have a flag of their own, and a short name in the environment."""

_OF_KUBERNETES: Final = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$")

KeyPath = tuple[str | int, ...]

#: What pydantic says, in the words of whoever writes the file. The keys are pydantic's names of errors.
_MESSAGES: Final = {
    "extra_forbidden": "unknown option",
    "missing": "is required",
    "model_type": "expected a mapping of options",
    "dict_type": "expected a mapping",
    "tuple_type": "expected a list",
    "string_type": "expected text; put it in quotes",
    "string_unicode": "expected text in UTF-8",
    "float_type": "expected a number",
    "float_parsing": "expected a number",
    "string_too_short": "must not be empty",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_parsing_size": "the number is too large",
    "int_from_float": "expected a whole number",
    "finite_number": "expected a finite number",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "literal_error": "expected {expected}",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le}",
}
_NO_URL: Final = "is required: the base URL of the backend; --upstream and SLIPSTREAM_UPSTREAM set it too"


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a configuration.

    Attributes:
        place: Where the value came from: a file, a variable of the environment, or a flag; may be empty.
        path: Which option, for example `websocket.lifetime`; empty for the file as a whole.
        message: What is wrong.
        line: Line in the file, from 1, where it is known.
    """

    place: str
    path: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        place = self.place if self.line is None else f"{self.place}:{self.line}"
        return ": ".join(part for part in (place, self.path, self.message) if part)


class ConfigError(Exception):
    """A configuration that cannot be used.

    Args:
        problems: Every mistake that was found.
    """

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


@dataclass(slots=True)
class _Draft:
    """A configuration as it comes together.

    Attributes:
        source: Where a problem is if nothing better is known.
        environment: The process environment.
        values: Nested, as the model takes them.
        origins: Where each came from, and the line.
        problems: What is wrong so far.
        broken: Paths of values that could not be made out, so that nothing more is to be said about them.
    """

    source: str
    environment: Mapping[str, str]
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, tuple[str, int | None]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    broken: set[KeyPath] = field(default_factory=set)

    def reject(self, path: KeyPath, message: str) -> None:
        """Note a mistake, at the place that its path came from, or something inside it, or the section around it."""
        inside = (known for known in self.origins if known[: len(path)] == path)
        around = (path[:end] for end in range(len(path), 0, -1))
        nearest = next((known for known in (path, *inside, *around) if known in self.origins), None)
        place, line = self.origins[nearest] if nearest is not None else (self.source, None)
        self.problems.append(Problem(place, _dotted(path), message, line))

    def set(self, path: KeyPath, value: Any, place: str) -> None:
        """Put a value where one from an earlier source may be."""
        values = self.values
        for name in path[:-1]:
            inner = values.get(str(name))
            if inner is None:
                inner = values[str(name)] = {}
            if not isinstance(inner, dict):
                return  # what is there is a mistake, and will be called one
            values = inner
        values[str(path[-1])] = value
        self.origins[path] = (place, None)


def load(file: Path | None, environment: Mapping[str, str], overrides: Mapping[str, Any] | None = None) -> Config:
    """Read and check a configuration.

    Args:
        file: The YAML file, or None for none.
        environment: The process environment.
        overrides: Values of flags by dotted path, for example `{"upstream.url": …}`; None values are not set.

    Raises:
        ConfigError: the file cannot be read, or the whole has mistakes; it names all of them.
    """
    draft = _Draft(str(file or ""), environment)
    if file is not None:
        _read(draft, file)
    for name, path in _variables(environment):
        draft.set(path, environment[name], name)
    flags: dict[KeyPath, str] = {path: f"--{name}" for name, path in FLAGS.items()}
    for dotted, value in (overrides or {}).items():
        if value is not None:
            option: KeyPath = tuple(dotted.split("."))
            draft.set(option, value, flags.get(option, draft.source))
    return _validate(draft)


def _validate(draft: _Draft) -> Config:
    config = None
    try:
        config = Config.model_validate(draft.values)
    except ValidationError as exc:
        for error in exc.errors(include_input=False, include_url=False):
            _note(draft, error)
    else:
        for dotted, message in config.conflicts():
            draft.reject(_places(dotted.split(".")), message)
    if config is None or draft.problems:
        draft.problems.sort(key=lambda problem: (problem.line is None, problem.line or 0))
        raise ConfigError(draft.problems)
    return config


def _note(draft: _Draft, error: ErrorDetails) -> None:
    path: KeyPath = tuple(error["loc"])
    kind = error["type"]
    if kind != "extra_forbidden" and any(path[: len(broken)] == broken for broken in draft.broken):
        return
    message = error["msg"].removeprefix("Value error, ")
    if kind in _MESSAGES:
        message = _MESSAGES[kind].format(**error.get("ctx", {}))
    if kind == "extra_forbidden":
        message += _suggestion(path)
    elif kind == "missing" and path in (("upstream",), ("upstream", "url")):
        path, message = ("upstream", "url"), _NO_URL
    draft.reject(path, message)


def _suggestion(path: KeyPath) -> str:
    """What was meant by an unknown option, if it looks like one that there is: in its section, else anywhere."""
    wanted = tuple(map(str, path))
    known = list(option_paths())
    if len(path) == 3 and path[0] == "backends":  # an option of one of the list
        known = [(*wanted[:2], name) for name in Backend.model_fields]
    sections = {option[:end] for option in known for end in range(1, len(option))}
    siblings = [option for option in {*known, *sections} if option[:-1] == wanted[:-1]]
    near = difflib.get_close_matches(wanted[-1], [option[-1] for option in siblings], n=1)
    found = [option for option in siblings if option[-1] in near] or [opt for opt in known if opt[-1] == wanted[-1]]
    return f"; did you mean {_dotted(_places(found[0]))}?" if found else ""


# The environment


def variable(flag: str) -> str:
    """The environment variable that stands for a flag."""
    return ENVIRONMENT_PREFIX + flag.replace("-", "_").upper()


def _variables(environment: Mapping[str, str]) -> list[tuple[str, KeyPath]]:
    """The variables that set an option, each with its path; short names win, so they come last."""
    short: dict[str, KeyPath] = {variable(name): path for name, path in FLAGS.items()}
    short |= {
        variable(name): (name,)
        for name, *rest in option_paths()
        if not rest and name != "version"  # containers often say their own version so
    }
    found: list[tuple[str, KeyPath]] = []
    for name in sorted(environment):
        path: KeyPath = tuple(name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"))
        if name not in short and name.startswith(ENVIRONMENT_PREFIX) and len(path) > 1 and environment[name]:
            if path[:2] == ("upstream", "headers"):
                path = (*path[:2], *(str(part).replace("_", "-") for part in path[2:]))
            elif _OF_KUBERNETES.search(name):
                continue
            found.append((name, path))
    return found + [(name, path) for name, path in short.items() if environment.get(name)]


# The file


class _Loader(yaml.SafeLoader):
    """YAML without dates: what looks like one (in a header, say) is text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _read(draft: _Draft, file: Path) -> None:
    """Fill a draft from a file.

    Raises:
        ConfigError: it cannot be read as YAML at all.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as exc:
        raise ConfigError([Problem(draft.source, "", f"cannot be read: {exc.strerror}")]) from exc
    except ValueError as exc:
        raise ConfigError([Problem(draft.source, "", "cannot be read: it is not UTF-8 text")]) from exc
    try:
        loader = _Loader(text)
        tree = loader.get_single_node()
        if tree is None or tree.tag == "tag:yaml.org,2002:null":
            return
        if not isinstance(tree, yaml.MappingNode):
            raise ConfigError([Problem(draft.source, "", "expected a mapping of options", tree.start_mark.line + 1)])
        _locate(draft, tree, ())
        draft.values = _interpolate(draft, loader.construct_document(tree), ())
    except yaml.YAMLError as exc:
        raise ConfigError([*draft.problems, _yaml_problem(draft.source, text, exc)]) from exc
    except (ValueError, LookupError, AttributeError, OverflowError, RecursionError) as exc:
        # What PyYAML raises for `!!int x`, `!!bool x`, `!!timestamp x` and the like, and for loops.
        message = "holds a value that its YAML tag does not allow, or is nested too deeply"
        raise ConfigError([*draft.problems, Problem(draft.source, "", message)]) from exc


def _yaml_problem(source: str, text: str, error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark is not None else None
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be parsed"
    if reason.startswith("but "):
        reason = f"{getattr(error, 'context', '')} {reason}"
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
    if re.search(r"\b(tag|alias|anchor)\b", reason):
        reason = re.sub(r"['\"].*['\"]", "", reason) + "; a value that begins with !, & or * needs quotes"
    return Problem(source, "", f"is not valid YAML: {reason}", line)


def _locate(draft: _Draft, node: yaml.Node, path: KeyPath) -> None:
    """Note the line of every key; a key that occurs twice is a mistake that YAML itself would let pass."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                draft.problems.append(Problem(draft.source, "", "expected a word as key", key.start_mark.line + 1))
                continue
            if key.tag != "tag:yaml.org,2002:merge":
                key.tag = "tag:yaml.org,2002:str"  # `on` and `1` are names here
            here = (*path, key.value)
            draft.origins[here] = (draft.source, key.start_mark.line + 1)
            if key.value in seen:
                draft.reject(here, "occurs twice")
            seen.add(key.value)
            _locate(draft, value, here)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            here = (*path, index)
            draft.origins[here] = (draft.source, value.start_mark.line + 1)
            _locate(draft, value, here)


def _interpolate(draft: _Draft, value: Any, path: KeyPath) -> Any:
    if isinstance(value, dict):
        return {key: _interpolate(draft, item, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_interpolate(draft, item, (*path, index)) for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    text, mistakes = references.expand(value, draft.environment)
    if mistakes:
        draft.broken.add(path)
    for mistake in mistakes:
        draft.reject(path, mistake)
    return text


def _places(parts: Iterable[str]) -> KeyPath:
    """A path in which places in a list are numbers."""
    return tuple(int(part) if part.isdigit() else part for part in parts)


def _dotted(path: KeyPath) -> str:
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else part
    return out
