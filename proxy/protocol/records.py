"""Records: what is worth counting, said once by the core and heard by metrics, logs and whatever comes.

Every label in them is from a closed set, so that no client can create a series; ids are for logs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from proxy.protocol.chain import EvictionReason
from proxy.protocol.errors import Source
from proxy.protocol.inspection import Inspection
from proxy.protocol.routes import RouteLookup
from proxy.protocol.terminals import Usage

Outcome = Literal["completed", "incomplete", "failed", "error", "refused", "warmup", "cancelled", "client_gone"]
"""How a turn ended. `failed`: `response.failed`; `error`: an `error` frame for the backend's sake; `refused`: an `error`
frame because the client asked for what cannot be done; `cancelled`: the client cancelled, interrupted or steered it;
`client_gone`: the client left before the end."""

LookupResult = Literal["new", "hit", "miss"]
"""`new`: no previous response was named."""

ToolsLookup = Literal["none", "new", "same", "changed"]
"""The tools of a turn beside those of the response that it continues: there are none, nothing is continued (or had none),
they are the same bytes, they are not."""

Prefix = Literal["none", "kept", "tools", "instructions", "model", "fields", "compaction"]
"""Whether the request begins with the bytes of the one that it continues, which is what a backend's prefix cache needs:
nothing is continued, it does, or what comes first that does not."""

LookupReason = Literal["none", "warmup", "tip", "branch", "stored", "unknown", "evicted_limit", "evicted_failed"]
"""Of a hit: what was continued (a `warmup`, the newest response of the lane, an older one, one of another connection);
of a miss: why."""


@dataclass(slots=True)
class TurnEnded:
    """One turn, from its create to its last frame.

    Attributes:
        turn: Its number in the connection, from 1.
        lane: Its `stream_id`; None for the default lane.
        outcome: How it ended.
        response_id: The id the client knows its response by; None if there was none.
        previous_response_id: The id it continued; None for a new chain.
        model: The `model` of the request as the client wrote it; free text, not for labels.
        lookup: What the cache said.
        reason: Why it said so.
        tools: How its tools compare with those before.
        tools_changed_at: Index of the first tool that is not as before; None if they have not changed, or cannot be told apart.
        prefix: Whether its request begins as the one before did.
        route: How it came by its route.
        sealed: What stands for the last thing that it said and only who said it can read; empty for none.
        depth: Turns in its chain, this one included; 0 if it never started.
        frame_bytes: Bytes of the create.
        received: `clock` of the frame that asked for it.
        upstream_bytes: Bytes of the request body sent upstream; 0 if none was.
        replayed_bytes: Those of them that the client did not have to send again.
        plain_bytes: Bytes that its request body would have had over plain HTTP, from a client that sends everything; 0 if
            the backend was not asked.
        replayed_items: Items that the client did not have to send again.
        new_items: Items that the create brought.
        events: Events relayed.
        relayed_bytes: Their bytes.
        usage: Token counts.
        error_code: `error.code` where it ended in an error.
        error_status: Its status.
        error_source: Which side was to blame.
        snapshot_differs: The backend's final snapshot lacked items that its stream had finished.
        answered_by: The `model` of the response, which a router behind the proxy may have chosen; None if it did not end.
        metadata: Its `client_metadata`, raw, which may name the trace that it is part of; empty if it has none.
        inspection: What was said; None unless the operator wants to look into turns.
    """

    turn: int
    lane: str | None
    frame_bytes: int
    received: float = 0.0
    outcome: Outcome = "refused"
    response_id: str | None = None
    previous_response_id: str | None = None
    model: str | None = None
    lookup: LookupResult | None = None
    reason: LookupReason = "none"
    tools: ToolsLookup = "none"
    tools_changed_at: int | None = None
    prefix: Prefix = "none"
    route: RouteLookup = "none"
    sealed: bytes = b""
    depth: int = 0
    upstream_bytes: int = 0
    plain_bytes: int = 0
    replayed_bytes: int = 0
    replayed_items: int = 0
    new_items: int = 0
    events: int = 0
    relayed_bytes: int = 0
    usage: Usage = field(default_factory=Usage)
    error_code: str | None = None
    error_status: int | None = None
    error_source: Source | None = None
    snapshot_differs: bool = False
    answered_by: str | None = None
    metadata: bytes = b""
    inspection: Inspection | None = None


@dataclass(frozen=True, slots=True)
class ResponseEvicted:
    """A response is no longer remembered.

    Attributes:
        reason: Why.
    """

    reason: EvictionReason


Record = TurnEnded | ResponseEvicted
