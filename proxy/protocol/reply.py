"""A turn's answer: the backend's stream, and what the proxy says in its place.

Apart from relaying (:class:`~proxy.protocol.relay.Relay`), a reply can begin before the backend does, end where the
client or an error ends it, and go on with a further answer of the backend's after one that was complete: it is one
response to the client all the same, with one id, and its events are numbered throughout.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.protocol import controls, gaps, rawjson, responses
from proxy.protocol.rawjson import Head
from proxy.protocol.relay import Relay
from proxy.protocol.sse import Splitter
from proxy.protocol.terminals import Terminal, TerminalKind, read_usage


class Reply(Relay):
    """The answer to one turn."""

    def begin(self, items: Sequence[bytes] = (), heads: Sequence[Head] = (), usage: bytes = b"null") -> list[bytes]:
        """Say that the response has begun, before or without the backend.

        Args:
            items: Output items that it begins with.
            heads: The head of each.
            usage: Tokens that they cost, raw.

        Returns:
            The events up to the last of these items; what the backend answers from now on goes on from there.
        """
        self._numbered = False
        self.response_id = self._claim_id(None)
        response = responses.compose(self.echo, self.response_id, "in_progress")
        frames = [self._own("response.created", [("response", response)])]
        if items:
            frames.append(self._own("response.in_progress", [("response", response)]))
        for index, item in enumerate(items):
            members = [("output_index", b"%d" % index), ("item", item)]
            frames += [
                self._own("response.output_item.added", members),
                self._own("response.output_item.done", members),
            ]
        self._set_earlier(items, heads, usage)
        self._count(frames)
        return frames

    def go_on(self, terminal: Terminal) -> None:
        """The response that was held at its end goes on with a further answer of the backend's.

        Args:
            terminal: The end that it is not.
        """
        self._held.clear()
        self._open_items.clear()
        self.outcome = None
        self._counters.sequence = self.next_number()
        self._numbered = False
        self._set_earlier(terminal.items, terminal.heads, terminal.raw_usage)

    def release(self) -> list[bytes]:
        """The terminal event that was held: nothing comes before it any more."""
        held, self._held = self._held, []
        frames: list[bytes] = []
        for event, missing in held:
            self._splice(event, missing, frames)
        if frames:
            self._count(frames)
        return frames

    def stop(self, reason: str, *, is_interrupt: bool = False) -> list[bytes]:
        """End the response here, as incomplete, with the items that are finished.

        Args:
            reason: `incomplete_details.reason`.
            is_interrupt: Acknowledge it first, and name the items that are discarded (Codex, `response.interrupt`).

        Returns:
            The events that say so; the outcome is set.
        """
        frames = [] if self.response_id is not None else self.begin()
        assert self.response_id is not None
        response_id = ("response_id", rawjson.dumps(self.response_id))
        state = {"incomplete_details": rawjson.dumps({"reason": reason}), "usage": self._earlier_usage}
        if is_interrupt:
            state["end_turn"] = b"false"
            frames.append(self._own("response.interrupt.accepted", [response_id]))
            for item_id, index in self._open_items.items():
                members = [response_id, ("item_id", rawjson.dumps(item_id)), ("output_index", b"%d" % index)]
                frames.append(self._own("response.output_item.interrupted", members))
        frames.append(self._finish("incomplete", state))
        self._count(frames)
        return frames

    def complete(self, at: int) -> list[bytes]:
        """End the response here, as completed.

        Args:
            at: When that is, Unix seconds.
        """
        frames = [self._finish("completed", {"usage": self._earlier_usage, "completed_at": b"%d" % at})]
        self._count(frames)
        return frames

    def fail(self, code: str, message: str) -> list[bytes]:
        """End the response here, as failed; the events that say so, and the outcome is set."""
        frames = [] if self.response_id is not None else self.begin()
        frames.append(self._finish("failed", {"error": rawjson.dumps({"code": code, "message": message})}))
        self._count(frames)
        return frames

    def _finish(self, kind: TerminalKind, state: dict[str, bytes]) -> bytes:
        assert self.response_id is not None
        shown = [gaps.fill_item(item, "completed") for item in self._done_items]
        state["output"] = b"[" + b",".join(shown) + b"]"
        response = responses.compose(self.echo, self.response_id, kind, **state)
        usage = state.get("usage", b"null")
        self.outcome = Terminal(
            kind, self.response_id, self._done_items, self._done_heads, response, read_usage(usage), usage
        )
        return self._own(f"response.{kind}", [("response", response)])

    def _own(self, kind: str, members: list[tuple[str, bytes]]) -> bytes:
        return controls.event(kind, self.lane, self.next_number(), members)

    def _set_earlier(self, items: Sequence[bytes], heads: Sequence[Head], usage: bytes) -> None:
        self._goes_on = True
        self._earlier_items, self._earlier_heads, self._earlier_usage = list(items), list(heads), usage
        self._done_items, self._done_heads = list(items), list(heads)
        for index, head in enumerate(heads):
            self._counters.item_seen(head.id or "", b"%d" % index)
        self._splitter = Splitter(self._max_event_bytes)
        self._plans = {}


class Unheard(Relay):
    """An answer that the client does not see: what the proxy asked the backend for itself."""

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes of the stream; nothing of it goes on."""
        super().feed(data)
        return []

    def end(self) -> list[bytes]:
        """The stream has ended; nothing of it goes on."""
        super().end()
        return []
