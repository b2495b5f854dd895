"""What an operator can choose about a connection, as the core sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from proxy.protocol.lanes import LaneLimits
from proxy.protocol.routes import RoutingTable


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What an operator can choose about a connection.

    Attributes:
        routes: Which backend serves a model, and how it wants its requests.
        lanes: Bounds of lanes and queues.
        max_items: Input items in one create.
        max_event_bytes: One event of the backend.
        max_entries: Responses remembered.
        max_bytes: Bytes remembered.
        lifetime_minutes: What the error says when the connection gets too old.
        rollout: The client has chosen the first generation: a response that waits for outputs of tools ends in
            `response.done`.
        appends: `response.append` is taken. Codex 0.98 and older send it without having chosen anything, and wait in
            vain for what newer clients would say.
        steering: Whether responses can be steered.
        stores: Whether there is a store for what may outlive the connection.
        inspects: Records say what turns said.
    """

    routes: RoutingTable
    lanes: LaneLimits = field(default_factory=LaneLimits)
    max_items: int = 100_000
    max_event_bytes: int = 64 * 2**20
    max_entries: int = 256
    max_bytes: int = 64 * 2**20
    lifetime_minutes: float = 60
    rollout: bool = False
    appends: bool = True
    steering: bool = True
    stores: bool = False
    inspects: bool = False
