"""Which backend serves a model, and where a chain is: found once, and kept for as long as it holds.

A model's own name goes before an alias, an alias before a pattern, patterns in their order; what nobody names is the default
backend's. Which of a backend's replicas takes a chain is not decided here; what is said here is what such a decision may
look at: the part of the prompt that other chains are likely to share, and whether only one replica can read what was said.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from proxy.protocol import rawjson
from proxy.protocol.profiles import RequestRules
from proxy.protocol.rawjson import Pairs

RouteLookup = Literal["none", "new", "same", "model_changed", "unplaced"]
"""How a turn came by its route: it did not; a new chain; as the turn before; its model is another one than before; it
continues what another process, or plain HTTP, has stored."""

_WILD: Final = re.compile(r"[*?\[]")
_ABSENT: Final = (b"null", b"[]", b'""')


@dataclass(frozen=True, slots=True)
class Route:
    """The way to a backend.

    Attributes:
        backend: Its name in the configuration.
        rules: How it wants its requests.
        model: The raw `model` that it is told; None for the client's own.
        replicas: How many there are of it.
        overflow_fails: A prompt that is too long for the model ends in `response.failed`, on which clients compact, and
            not in an error.
    """

    backend: str
    rules: RequestRules
    model: bytes | None = None
    replicas: int = 1
    overflow_fails: bool = True

    def address(self, fields: Pairs) -> Pairs:
        """Request fields with the model that the backend knows."""
        if self.model is None:
            return fields
        return [(name, self.model if name == "model" else value) for name, value in fields]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a chain is.

    Attributes:
        route: The way to its backend.
        model: The raw `model` for which that was found; None if there was none.
        replica: The index of the one that has its prefix in its cache; None as long as none has.
        prefix: What stands for the part of its prompt that others may share; empty if there is none, or only one replica.
        conversation: What stands for that and the client's own `prompt_cache_key`; empty without one.
        is_bound: It holds what only this replica can read.
        sealed: What stands for the last thing among its first items that only who made it can read; empty for none.
    """

    route: Route
    model: bytes | None
    replica: int | None = None
    prefix: bytes = b""
    conversation: bytes = b""
    is_bound: bool = False
    sealed: bytes = b""

    def at(self, replica: int) -> Placement:
        """The same chain, at a replica."""
        return self if replica == self.replica else replace(self, replica=replica)

    def bound(self) -> Placement:
        """The same chain, which can go nowhere else any more."""
        return self if self.is_bound else replace(self, is_bound=True)


@dataclass(frozen=True, slots=True)
class Served:
    """What a backend serves.

    Attributes:
        route: The way to it.
        models: Names, and patterns with `*`, `?` or `[…]`.
        aliases: Names for clients, each with the one that the backend knows.
    """

    route: Route
    models: Sequence[str] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)


class RoutingTable:
    """Which backend serves a model.

    Args:
        default: Where a model goes that nobody names.
        served: What is named, in order.

    Attributes:
        default: See above.
        routes: One to each backend.
    """

    def __init__(self, default: Route, served: Sequence[Served] = ()) -> None:
        self.default = default
        self.routes = {default.backend: default, **{one.route.backend: one.route for one in served}}
        self._names: dict[str, Route] = {}
        self._patterns: list[tuple[re.Pattern[str], Route]] = []
        for one in served:
            for name, known_as in one.aliases.items():
                self._names[name] = replace(one.route, model=rawjson.dumps(known_as))
        for one in served:
            for name in one.models:
                if _WILD.search(name):
                    self._patterns.append((re.compile(fnmatch.translate(name)), one.route))
                else:
                    self._names[name] = one.route

    @property
    def is_trivial(self) -> bool:
        """Whether everything goes to the only server that there is, as it came."""
        return len(self.routes) == 1 and not self._names and self.default.replicas == 1

    def find(self, model: str | None) -> Route:
        """The way to the backend that serves a model."""
        if model is None:
            return self.default
        found = self._names.get(model)
        if found is not None:
            return found
        return next((route for pattern, route in self._patterns if pattern.match(model)), self.default)

    def follow(self, model: bytes | None, names: Mapping[str, bytes], parent: Placement | None) -> Placement:
        """Where a turn goes.

        Args:
            model: Its raw `model`; None if it has none.
            names: Its fields, raw.
            parent: Where the turn before it was; None if there was none, or nobody knows.
        """
        if parent is not None and parent.model == model:
            return parent
        route = self.find(None if model is None else rawjson.string(model))
        if parent is not None and parent.is_bound and parent.route.backend == route.backend:
            return replace(parent, route=route, model=model)
        prefix, conversation = _shared(names) if route.replicas > 1 else (b"", b"")
        return Placement(route, model, prefix=prefix, conversation=conversation)


def _shared(names: Mapping[str, bytes]) -> tuple[bytes, bytes]:
    """What stands for the beginning of a prompt, and for that of one conversation; each empty if there is none."""
    parts = [names.get(name, b"null") for name in ("tools", "instructions")]
    key = names.get("prompt_cache_key", b"null")
    prefix = b"" if all(part in _ABSENT for part in parts) else _digest(names.get("model", b""), *parts)
    return prefix, b"" if key in _ABSENT else _digest(names.get("model", b""), *parts, key)


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()
