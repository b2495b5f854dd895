"""What each kind of backend lacks or refuses: data, in one place.

What a backend leaves out of its *answers* needs no entry here: :mod:`proxy.protocol.gaps` sees it in the first events of
each stream and fills it. A profile says what cannot be seen there: what a backend refuses in a *request*, and how it
treats connections. `generic` assumes the least and works in front of any of them.

Each entry stands on a recorded stream (`tests/captures/`) or on the backend's published source; where neither could be
had the entry says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final


class Reasoning(Enum):
    """What becomes of a reasoning item that a *client* sends (a backend's own items are replayed as they came)."""

    KEEP = "keep"  #: as it came
    NOT_EMPTY = "not_empty"  #: left out if it holds nothing: no text, no summary, nothing encrypted
    NEEDS_TEXT = "needs_text"  #: left out unless it holds its text in `content`
    NO_ENCRYPTED = "no_encrypted"  #: without its `encrypted_content`


class Compaction(Enum):
    """Who compacts conversations: `POST …/responses/compact`, and `context_management` in a create."""

    BACKEND = "backend"  #: it has both
    PROXY = "proxy"  #: it has neither; the proxy does it, by asking the backend for a summary
    ASK = "ask"  #: nobody knows: it is asked, and the proxy does it if it has no such path


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of backend.

    Attributes:
        name: What the configuration calls it.
        drop_fields: Request fields that it answers with an error.
        reasoning: How it wants reasoning items.
        resolves_references: Whether it knows `item_reference` items of its own, so that unknown ones are handed on.
        keeps_responses: Whether it keeps responses whose `store` is not false, so that their ids can be continued.
        reuses_connections: Whether a connection survives a streamed answer.
        keepalive_timeout: Seconds after which an idle connection is not used again; below the backend's own limit.
        compaction: Who compacts conversations.
    """

    name: str
    drop_fields: frozenset[str] = frozenset({"client_metadata"})
    reasoning: Reasoning = Reasoning.KEEP
    resolves_references: bool = False
    keeps_responses: bool = False
    reuses_connections: bool = True
    keepalive_timeout: float = 4.0
    compaction: Compaction = Compaction.PROXY


PROFILES: Final[dict[str, Profile]] = {
    profile.name: profile
    for profile in (
        # A client that keeps only what is encrypted has nothing left of llama.cpp's reasoning, which answers the empty
        # rest with 400 (capture llamacpp).
        Profile("generic", reasoning=Reasoning.NOT_EMPTY, compaction=Compaction.ASK),
        # The hosted API, and whatever else implements the whole of it. Idle connections live for minutes there.
        Profile(
            "openai",
            drop_fields=frozenset(),
            resolves_references=True,
            keeps_responses=True,
            keepalive_timeout=30.0,
            compaction=Compaction.BACKEND,
        ),
        # uvicorn closes idle connections after 5 s; "Encrypted content is not supported" (capture vllm).
        Profile("vllm", reasoning=Reasoning.NO_ENCRYPTED),
        # From its source: pydantic models that ignore unknown fields, uvicorn in front. Not run here.
        Profile("sglang"),
        # Closes after each stream although it says keep-alive; "item['content'] is not an array" (capture llamacpp).
        Profile("llamacpp", reasoning=Reasoning.NEEDS_TEXT, reuses_connections=False),
        # From its source: Go's net/http, which ignores unknown fields and keeps idle connections. Not run here.
        Profile("ollama", keepalive_timeout=30.0),
        # Hands unknown fields to the provider behind it, whose refusals vary (capture litellm). It has the path of
        # compaction for OpenAI's models alone (its documentation); for others it answers 500, so that asking tells nothing.
        Profile("litellm"),
        # 422 for every field it does not know (capture transformers).
        Profile(
            "transformers",
            drop_fields=frozenset({"client_metadata", "access_programs", "prompt_cache_options"}),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class RequestRules:
    """A profile with the operator's own choices on top; what a turn is built by.

    Attributes:
        profile: The kind of backend.
        drop_fields: All request fields to leave out.
        keeps_responses: Whether the backend is told the id of the response before instead of all that was said.
        compaction: Who compacts conversations.
        inherits: Request fields that a create which continues a response has from it where it does not name them.
    """

    profile: Profile
    drop_fields: frozenset[str] = field(default=frozenset())
    keeps_responses: bool = False
    compaction: Compaction = Compaction.PROXY
    inherits: frozenset[str] = field(default=frozenset())

    @classmethod
    def of(
        cls,
        profile: Profile,
        *,
        drop: frozenset[str] = frozenset(),
        keep: frozenset[str] = frozenset(),
        keeps_responses: bool | None = None,
        compaction: Compaction | None = None,
        inherits: frozenset[str] = frozenset(),
    ) -> RequestRules:
        """Rules for a profile.

        Args:
            profile: The kind of backend.
            drop: Fields to leave out besides those of the profile.
            keep: Fields not to leave out; these win.
            keeps_responses: Whether the backend remembers; None for what the profile says.
            compaction: Who compacts conversations; None for what the profile says.
            inherits: Fields that creates have from the response that they continue.
        """
        return cls(
            profile,
            (profile.drop_fields | drop) - keep,
            profile.keeps_responses if keeps_responses is None else keeps_responses,
            compaction or profile.compaction,
            inherits,
        )
