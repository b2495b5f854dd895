"""One turn's stream: SSE bytes in, frames out, and what the next turn needs kept.

Most events are deltas, and a delta is relayed by cutting its bytes out of the stream: its SSE head is looked up in a
table of plans, which the first event of each type in the stream has filled. Only events that open or close something (a
response, an item, a part) are decoded, and those one level deep. Adding a lane's `stream_id` or a number that the
backend leaves out is a splice behind the opening brace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from proxy.protocol import gaps, rawjson, refusals, responses
from proxy.protocol.errors import ProxyError, UpstreamDisconnected, UpstreamProtocolError
from proxy.protocol.rawjson import Head, InvalidJSON, Pairs
from proxy.protocol.responses import RequestEcho
from proxy.protocol.sse import Splitter, parse_block

TerminalKind = Literal["completed", "incomplete", "failed"]

_TERMINALS: Final[dict[str, TerminalKind]] = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
}
_LIFECYCLE: Final = frozenset({"response.created", "response.queued", "response.in_progress", *_TERMINALS})
#: What an item's status is where it does not say.
_ITEMS: Final = {"response.output_item.added": "in_progress", "response.output_item.done": "completed"}
_PARTS: Final = frozenset(
    {"response.content_part.added", "response.content_part.done", "response.reasoning_summary_part.added"}
)
_DECODED: Final = _LIFECYCLE | _ITEMS.keys() | _PARTS

_DATA: Final = b"\ndata: "
_TYPE_FIRST: Final = re.compile(rb'\{\s*"type"\s*:\s*"([^"\\]+)"')
#: `type` as the last member of the outermost object: what vLLM and transformers write. A nested object would end in `}}`.
_TYPE_LAST: Final = re.compile(rb'[{,\s]"type"\s*:\s*"([^"\\]+)"\s*\}$')
_SEQUENCE_NUMBER: Final = re.compile(rb'"sequence_number"\s*:\s*(\d+)')

_AS_IT_IS: Final[tuple[str, ...]] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a response, as the backend reported them; 0 where it did not."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Terminal:
    """How a response ended.

    Attributes:
        kind: Which terminal event.
        items: Its output items, raw, as the backend sent them, in the order in which they are replayed.
        heads: The head of each.
        response: The response object without output, tools and instructions.
        usage: Its token counts.
        error_code: `response.error.code` of a failed one.
        snapshot_differs: The final snapshot lacked items that the stream had finished; those were taken.
    """

    kind: TerminalKind
    items: Sequence[bytes]
    heads: Sequence[Head]
    response: bytes
    usage: Usage
    error_code: str | None
    snapshot_differs: bool


class Relay:
    """The stream of one turn.

    Args:
        echo: What the turn's Response objects say about its request.
        stream_id: The lane whose name every event carries; None for the default lane.
        claim_id: Given the backend's response id (None if it sends none), the id the client is to know: the same one,
            unless the connection already knows a response by it.
        max_event_bytes: How long one event may get.

    Attributes:
        outcome: How the turn ended, or None while it runs. Nothing is relayed once it is there.
        response_id: The response's id as the client knows it; None before the first event that has one.
        events: Events relayed.
        size: Bytes relayed.
    """

    def __init__(
        self,
        echo: RequestEcho,
        *,
        stream_id: str | None,
        claim_id: Callable[[str | None], str],
        max_event_bytes: int,
    ) -> None:
        self.outcome: Terminal | ProxyError | None = None
        self.response_id: str | None = None
        self.events = 0
        self.size = 0
        self._echo = echo
        self._claim_id = claim_id
        self._splitter = Splitter(max_event_bytes)
        self._max_event_bytes = max_event_bytes
        self._lane = lane_member(stream_id)
        self._plans: dict[bytes, tuple[str, ...]] = {}
        self._counters = gaps.Counters()
        self._numbered: bool | None = None
        self._done_items: list[bytes] = []
        self._done_heads: list[Head] = []
        self._last_frame = b""

    # Receiving

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes of the stream; the frames they complete."""
        frames: list[bytes] = []
        plans = self._plans
        for block in self._splitter.feed(data):
            head, mark, event = block.partition(_DATA)
            plan = plans.get(head)
            if plan is None and not mark:
                event = block[6:]
                plan = plans.get(_type_of(event)) if block.startswith(b"data: ") else None
            if plan is None or not _is_plain(event):
                self._examine(block, frames)
                if self.outcome is not None:
                    break
            elif plan is _AS_IT_IS and not self._lane:
                frames.append(event)
            else:
                self._splice(event, plan, frames)
        if self._splitter.overflow and self.outcome is None:
            self.outcome = UpstreamProtocolError(f"an event of more than {self._max_event_bytes} bytes")
        return self._count(frames)

    def end(self) -> list[bytes]:
        """The stream has ended; the frames of what was left. Afterwards there is an outcome."""
        frames: list[bytes] = []
        rest = self._splitter.end()
        if self.outcome is None and rest:
            self._examine(rest, frames)
            if isinstance(self.outcome, UpstreamProtocolError):
                self.outcome = None  # not malformed: cut
        if self.outcome is None:
            self.outcome = UpstreamDisconnected()
        return self._count(frames)

    @property
    def next_sequence_number(self) -> int:
        """The number that an event of the proxy's own would have, were it sent now."""
        if not self._numbered:
            return self._counters.sequence
        match = _SEQUENCE_NUMBER.search(self._last_frame)
        return int(match[1]) + 1 if match else self.events

    def _count(self, frames: list[bytes]) -> list[bytes]:
        if frames:
            self.events += len(frames)
            self.size += sum(map(len, frames))
            self._last_frame = frames[-1]
        return frames

    # One event, in full

    def _examine(self, block: bytes, frames: list[bytes]) -> None:
        parsed = parse_block(block)
        if parsed is None or parsed[1] == b"[DONE]":
            return
        name, event = parsed[0], parsed[1].strip(b" \t\n")
        try:
            event.decode()
            self._handle(name, event, rawjson.split_object(event), frames)
        except UnicodeDecodeError:
            self.outcome = UpstreamProtocolError("an event is not valid UTF-8")
        except InvalidJSON as exc:
            self.outcome = UpstreamProtocolError(f"an event cannot be read: {exc}")

    def _handle(self, name: bytes, event: bytes, members: Pairs, frames: list[bytes]) -> None:
        values = dict(members)
        event_type = rawjson.string(values.get("type", b"")) or name.decode(errors="replace")
        if not event_type:
            raise InvalidJSON("it has no type")
        if event_type == "error":
            self.outcome = refusals.from_event(event)
            return
        if self._numbered is None:
            self._numbered = "sequence_number" in values
        shown = members if "type" in values else [("type", rawjson.dumps(event_type)), *members]
        terminal: Terminal | None = None
        if event_type in _LIFECYCLE:
            shown, terminal = self._response_event(event_type, shown)
        elif event_type in _ITEMS:
            shown = self._item_event(event_type, shown)
        elif event_type in _PARTS:
            shown = self._part_event(event_type, shown)
        missing = gaps.missing_members(event_type, members, numbered=self._numbered) or _AS_IT_IS
        if shown is not members:
            event = rawjson.join_object(shown)
        elif event_type not in _DECODED:
            self._plan(event_type, missing, name)
        self._splice(event, missing, frames)
        self.outcome = terminal

    def _plan(self, event_type: str, missing: tuple[str, ...], name: bytes) -> None:
        """From now on events of this type are spliced, not examined."""
        key = event_type.encode(errors="replace")
        self._plans[key] = missing
        if name == key:
            self._plans[b"event: " + key] = missing

    def _splice(self, event: bytes, missing: tuple[str, ...], frames: list[bytes]) -> None:
        prefix = self._lane
        if missing:
            prefix += self._counters.prefix(missing, event)
            if missing[0] == "sequence_number":
                self._counters.sequence += 1
        frames.append(b"{" + prefix + event[1:] if prefix else event)

    # Responses

    def _response_event(self, event_type: str, members: Pairs) -> tuple[Pairs, Terminal | None]:
        raw = dict(members).get("response", b"{}")
        response = rawjson.split_object(raw) if raw[:1] == b"{" else []
        kind = _TERMINALS.get(event_type)
        items, heads, differs = self._final_items(response) if kind else ([], [], False)
        shown = self._identified(response)
        if "status" not in dict(shown):
            shown = [*shown, ("status", rawjson.dumps(kind or "in_progress"))]
        shown = responses.fill(self._with_output(shown, items) if kind else shown, self._echo)
        terminal = None
        if kind:
            slim = [pair for pair in shown if pair[0] not in ("output", "tools", "instructions")]
            values = dict(shown)
            terminal = Terminal(
                kind=kind,
                items=items,
                heads=heads,
                response=rawjson.join_object(slim),
                usage=_usage(values["usage"]),
                error_code=_error_code(values["error"]),
                snapshot_differs=differs,
            )
        if shown is response:
            return members, terminal
        return _replaced(members, "response", rawjson.join_object(shown)), terminal

    def _identified(self, response: Pairs) -> Pairs:
        """The response under the id the client is to know, which stays the same through the turn."""
        own = rawjson.string(dict(response).get("id", b"")) or None
        if self.response_id is None:
            self.response_id = self._claim_id(own)
        return response if own == self.response_id else _replaced(response, "id", rawjson.dumps(self.response_id))

    def _final_items(self, response: Pairs) -> tuple[list[bytes], list[Head], bool]:
        """What is replayed: the snapshot if it lists every finished item, else those in the order of their arrival."""
        raw = dict(response).get("output", b"[]")
        items, heads = rawjson.split_items(raw) if raw[:1] == b"[" else ([], [])
        listed = {head.id for head in heads}
        if len(items) >= len(self._done_items) and all(head.id is None or head.id in listed for head in self._done_heads):
            return items, heads, False
        return self._done_items, self._done_heads, True

    def _with_output(self, response: Pairs, items: Sequence[bytes]) -> Pairs:
        """The response with an `output` that clients can use: an empty one is filled, items get what they lack."""
        raw = dict(response).get("output", b"[]")
        listed = rawjson.split_items(raw)[0] if raw[:1] == b"[" else []
        shown = [gaps.fill_item(item, rawjson.head(item), "completed") for item in listed or items]
        return response if shown == listed else _replaced(response, "output", b"[" + b",".join(shown) + b"]")

    # Items and parts

    def _item_event(self, event_type: str, members: Pairs) -> Pairs:
        values = dict(members)
        item = values.get("item", b"")
        if item[:1] != b"{":
            return members
        head = rawjson.head(item)
        self._counters.item_seen(head.id or "", values.get("output_index"))
        if event_type == "response.output_item.done":
            self._done_items.append(item)
            self._done_heads.append(head)
        return _replaced(members, "item", gaps.fill_item(item, head, _ITEMS[event_type]))

    def _part_event(self, event_type: str, members: Pairs) -> Pairs:
        values = dict(members)
        if event_type.endswith(".added"):
            self._counters.part_added(rawjson.string(values.get("item_id", b"")) or "")
        part = values.get("part", b"")
        return _replaced(members, "part", gaps.fill_part(part)) if part[:1] == b"{" else members


def lane_member(stream_id: str | None) -> bytes:
    """The member that tells an event's lane, a comma behind it; nothing for the default lane."""
    return b'"stream_id":' + rawjson.dumps(stream_id) + b"," if stream_id is not None else b""


def _is_plain(event: bytes) -> bool:
    """Whether bytes behind `data: ` may go out as they are: one line, braces at both ends, UTF-8."""
    if event[:1] != b"{" or event[-1:] != b"}" or b"\n" in event:
        return False
    if not event.isascii():
        try:
            event.decode()
        except UnicodeDecodeError:
            return False
    return True


def _type_of(event: bytes) -> bytes:
    match = _TYPE_FIRST.match(event) or _TYPE_LAST.search(event)
    return match[1] if match else b""


def _replaced(pairs: Pairs, name: str, value: bytes) -> Pairs:
    """An object with another value for one member; the same list if it has that value already."""
    old = dict(pairs).get(name)
    if old == value:
        return pairs
    return [*pairs, (name, value)] if old is None else [(key, value if key == name else raw) for key, raw in pairs]


def _usage(raw: bytes) -> Usage:
    usage = _members(raw)
    details = _members(usage.get("input_tokens_details", b""))
    return Usage(
        _number(usage.get("input_tokens")), _number(details.get("cached_tokens")), _number(usage.get("output_tokens"))
    )


def _error_code(raw: bytes) -> str | None:
    return rawjson.string(_members(raw).get("code", b""))


def _members(raw: bytes) -> dict[str, bytes]:
    return dict(rawjson.split_object(raw)) if raw[:1] == b"{" else {}


def _number(raw: bytes | None) -> int:
    return int(raw) if raw is not None and raw.isdigit() and len(raw) < 16 else 0
