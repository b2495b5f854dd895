"""One turn's stream: SSE bytes in, frames out, and what the next turn needs kept.

Most events are deltas, and a delta is relayed by cutting its bytes out of the stream: its SSE head is looked up in a
table of plans, which the first event of each type in the stream has filled. Only events that open or close something (a
response, an item, a part) are decoded, and those one level deep. Adding a lane's `stream_id` or a number that the
backend leaves out is a splice behind the opening brace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Raw, UnsetType

from proxy.protocol import gaps, rawjson, refusals, responses, shapes
from proxy.protocol.errors import ProxyError
from proxy.protocol.rawjson import Head, InvalidJSON
from proxy.protocol.responses import RequestEcho
from proxy.protocol.shapes import EventShape
from proxy.protocol.sse import Splitter, parse_block
from proxy.protocol.terminals import TERMINALS, Terminal, TerminalKind, add_usage, read_usage
from proxy.protocol.transcript import unanswered
from proxy.protocol.upstream_errors import UpstreamDisconnected, UpstreamProtocolError

_LIFECYCLE: Final = frozenset({"response.created", "response.queued", "response.in_progress", *TERMINALS})
#: What an item's status is where it does not say.
_ITEMS: Final = {"response.output_item.added": "in_progress", "response.output_item.done": "completed"}
_PARTS: Final = frozenset(
    {"response.content_part.added", "response.content_part.done", "response.reasoning_summary_part.added"}
)

#: What the events about a call's arguments begin with, and the member of the call that holds them. llama.cpp sends them
#: in pieces (`.delta`) and never as a whole (`.done`), which the API does before the call is done.
_ARGUMENTS: Final = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}

_DATA: Final = b"\ndata: "
_LF: Final = 0x0A
_TYPE_FIRST: Final = re.compile(rb'\{\s*"type"\s*:\s*"([^"\\]+)"')
#: `type` as the last member of the outermost object: what vLLM and transformers write. A nested object would end in `}}`.
_TYPE_LAST: Final = re.compile(rb'[{,\s]"type"\s*:\s*"([^"\\]+)"\s*\}$')
_SEQUENCE_NUMBER: Final = re.compile(rb'"sequence_number"\s*:\s*(\d{1,15})\b')


class Relay:
    """The stream of one turn.

    Args:
        echo: What the turn's Response objects say about its request.
        stream_id: The lane whose name every event carries; None for the default lane.
        claim_id: Given the backend's response id (None if it sends none), the id the client is to know: the same one,
            unless the connection already knows a response by it.
        max_event_bytes: How long one event may get.
        says_done: A response that waits for outputs of tools ends in `response.done` (first generation).

    Attributes:
        echo: What its Response objects say about the request.
        lane: The member that tells the lane of an event; nothing for the default lane.
        outcome: How the turn ended, or None while it runs. Nothing is relayed once it is there.
        response_id: The response's id as the client knows it; None before the first event that has one.
        events: Events relayed.
        size: Bytes relayed.
        holds_end: The terminal event is not relayed but kept (:meth:`release`), since something may come before it.
    """

    def __init__(
        self,
        echo: RequestEcho,
        *,
        stream_id: str | None,
        claim_id: Callable[[str | None], str],
        max_event_bytes: int,
        says_done: bool = False,
    ) -> None:
        self.outcome: Terminal | ProxyError | None = None
        self.response_id: str | None = None
        self.events = 0
        self.size = 0
        self.holds_end = False
        self.lane = lane_member(stream_id)
        self._says_done = says_done
        self.echo = echo
        self._claim_id = claim_id
        self._splitter = Splitter(max_event_bytes)
        self._max_event_bytes = max_event_bytes
        self._plans: dict[bytes, tuple[str, ...]] = {}
        self._counters = gaps.Counters()
        self._numbered: bool | None = None
        self._done_items: list[bytes] = []
        self._done_heads: list[Head] = []
        self._open_items: dict[str, int] = {}
        self._kinds: set[str] = set()
        self._last_frame = b""
        self._begun = b"", b""  # a response that runs, and filled: `created` and `in_progress` hold the same
        self._backend_id: str | None = None
        # Of a response that goes on (:meth:`go_on`): what came before.
        self._goes_on = False
        self._earlier_items: list[bytes] = []
        self._earlier_heads: list[Head] = []
        self._earlier_usage = b"null"
        self._held: list[tuple[bytes, tuple[str, ...]]] = []

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
            if (
                plan is None
                or event[:1] != b"{"
                or event[-1:] != b"}"
                or _LF in event  # data in several lines, or further fields
                or not (event.isascii() or rawjson.is_utf8(event))
            ):
                self._examine(block, frames)
                if self.outcome is not None:
                    break
            elif plan or self.lane:
                self._splice(event, plan, frames)
            else:
                frames.append(event)
        if self._splitter.overflow and self.outcome is None:
            self.outcome = UpstreamProtocolError(f"an event of more than {self._max_event_bytes} bytes")
        if frames:
            self._count(frames)
        return frames

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
        if frames:
            self._count(frames)
        return frames

    @property
    def finished(self) -> Sequence[Head]:
        """The heads of the items that are finished."""
        return self._done_heads

    def next_number(self) -> int:
        """The `sequence_number` for an event of the proxy's own; numbers that the backend gives are not shifted."""
        number = self._counters.sequence
        if self._numbered:
            match = _SEQUENCE_NUMBER.search(self._last_frame)
            number = max(number, int(match[1]) + 1 if match else self.events)
        self._counters.sequence = number + 1
        return number

    def _count(self, frames: list[bytes]) -> None:
        self.events += len(frames)
        self.size += sum(map(len, frames))
        self._last_frame = frames[-1]

    # One event, in full

    def _examine(self, block: bytes, frames: list[bytes]) -> None:
        parsed = parse_block(block)
        if parsed is None or parsed[1] == b"[DONE]":
            return
        name, event = parsed[0], parsed[1].strip(b" \t\n")
        try:
            if not (event.isascii() or rawjson.is_utf8(event)):
                raise InvalidJSON("it is not valid UTF-8")
            self._handle(name, event, frames)
        except InvalidJSON as exc:
            self.outcome = UpstreamProtocolError(f"an event cannot be read: {exc}")

    def _handle(self, name: bytes, event: bytes, frames: list[bytes]) -> None:
        shape = shapes.event(event)
        if isinstance(shape.type, UnsetType):
            if not name:
                raise InvalidJSON("it has no type")
            shape.type = name.decode(errors="replace")
            event = rawjson.join_object([("type", rawjson.dumps(shape.type)), *rawjson.split_object(event)])
        if shape.type == "error":
            self.outcome = refusals.from_event(event)
            return
        has_number = not isinstance(shape.sequence_number, UnsetType)
        if self._goes_on:
            if shape.type in _LIFECYCLE and shape.type not in TERMINALS:
                return  # it has begun already
            shape, event = self._renumbered(event)
        missing = self._missing(shape, has_number=has_number)
        terminal: Terminal | None = None
        if shape.type in _LIFECYCLE:
            event, terminal = self._response_event(shape, event)
        elif shape.type in _ITEMS:
            event = self._item_event(shape, event, frames)
        elif shape.type in _PARTS:
            event = self._part_event(shape, event)
        else:
            self._kinds.add(str(shape.type))
            if not self._goes_on:
                self._plan(str(shape.type), missing, name)
        if terminal is not None and self.holds_end:
            self._held.append((event, missing))
        else:
            self._splice(event, missing, frames)
        self.outcome = terminal

    def _missing(self, shape: EventShape, *, has_number: bool) -> tuple[str, ...]:
        if self._numbered is None:
            self._numbered = has_number
        missing = gaps.missing_members(str(shape.type), shape, numbered=self._numbered)
        if self._goes_on and has_number and "sequence_number" not in missing:
            return ("sequence_number", *missing)  # in the place of the one that was taken away
        return missing

    def _renumbered(self, event: bytes) -> tuple[EventShape, bytes]:
        """An event of a further answer: its numbers go on from those of the answers before it."""
        shift = len(self._earlier_items)
        pairs = [
            (name, b"%d" % (int(value) + shift) if name == "output_index" and value.isdigit() else value)
            for name, value in rawjson.split_object(event)
            if name != "sequence_number"
        ]
        event = rawjson.join_object(pairs)
        return shapes.event(event), event

    def _plan(self, event_type: str, missing: tuple[str, ...], name: bytes) -> None:
        """From now on events of this type are spliced, not examined."""
        key = event_type.encode(errors="replace")
        self._plans[key] = missing
        if name == key:
            self._plans[b"event: " + key] = missing

    def _splice(self, event: bytes, missing: tuple[str, ...], frames: list[bytes]) -> None:
        prefix = self.lane
        if missing:
            prefix += self._counters.prefix(missing, event)
            if missing[0] == "sequence_number":
                self._counters.sequence += 1
        frames.append(b"{" + prefix + event[1:] if prefix else event)

    # Responses

    def _response_event(self, shape: EventShape, event: bytes) -> tuple[bytes, Terminal | None]:
        raw = bytes(shape.response) if isinstance(shape.response, Raw) else b""
        response = raw if raw[:1] == b"{" else b"{}"
        if self._backend_id is None:
            self._backend_id = responses.own_id(response)
        if self.response_id is None:
            self.response_id = self._claim_id(self._backend_id)
        kind = TERMINALS.get(str(shape.type))
        if kind is None and response == self._begun[0]:
            return _replaced(event, "response", raw, self._begun[1]), None
        filled = responses.fill(response, self.response_id, kind or "in_progress", self.echo)
        terminal = None
        if kind is None:
            self._begun = response, filled
        else:
            filled, terminal = self._conclude(kind, self.response_id, filled)
        event = _replaced(event, "response", raw, filled)
        if self._says_done and terminal is not None and kind == "completed" and self._waits(terminal):
            event = _replaced(event, "type", b'"response.completed"', b'"response.done"')
        return event, terminal

    def _waits(self, terminal: Terminal) -> bool:
        """Whether outputs of tools are owed; what was called before the response went on has been answered."""
        return bool(unanswered(terminal.heads[len(self._earlier_heads) :]))

    def _conclude(self, kind: TerminalKind, response_id: str, response: bytes) -> tuple[bytes, Terminal]:
        """What is kept of a final response, and the response with an output and token counts that clients can use."""
        final = responses.final_members(response)
        listed, heads = rawjson.split_items(final.output) if final.output[:1] == b"[" else ([], [])
        if self._goes_on:
            listed, heads = [*self._earlier_items, *listed], [*self._earlier_heads, *heads]
        items, heads, differs = self._final_items(listed, heads)
        shown = [gaps.fill_item(item, "completed") for item in listed or items]
        if shown != listed or self._goes_on:
            response = _replaced(response, "output", final.output, b"[" + b",".join(shown) + b"]")
        usage = responses.fill_usage(final.usage)
        counted = read_usage(usage)
        if self._goes_on:
            usage = add_usage(self._earlier_usage, usage)
        response = _replaced(response, "usage", final.usage, usage)
        return response, Terminal(
            kind=kind,
            response_id=response_id,
            items=items,
            heads=heads,
            response=response,
            usage=read_usage(usage),
            raw_usage=usage,
            error_code=final.error_code,
            snapshot_differs=differs,
            backend_id=None if self._goes_on else self._backend_id,
            tokens=counted.input_tokens + counted.output_tokens,
            model=final.model,
        )

    def _final_items(self, listed: list[bytes], heads: list[Head]) -> tuple[list[bytes], list[Head], bool]:
        """What is replayed: the snapshot if it lists every finished item, else those in the order of their arrival."""
        ids = {head.id for head in heads}
        if len(listed) >= len(self._done_items) and all(head.id is None or head.id in ids for head in self._done_heads):
            return listed, heads, False
        return self._done_items, self._done_heads, True

    # Items and parts

    def _item_event(self, shape: EventShape, event: bytes, frames: list[bytes]) -> bytes:
        item = bytes(shape.item) if isinstance(shape.item, Raw) else b""
        if item[:1] != b"{":
            return event
        whole = shapes.item(item)
        head = whole or rawjson.head(item)
        index = bytes(shape.output_index) if isinstance(shape.output_index, Raw) else None
        self._open_items[head.id or ""] = self._counters.item_seen(head.id or "", index)
        if shape.type == "response.output_item.done":
            self._done_items.append(item)
            self._done_heads.append(head)
            self._add_arguments(item, head, self._open_items.pop(head.id or ""), frames)
        if whole is not None:
            return event
        return _replaced(event, "item", item, gaps.fill_item(item, _ITEMS[str(shape.type)]))

    def _add_arguments(self, item: bytes, head: Head, index: int, frames: list[bytes]) -> None:
        """Say the arguments of a call as a whole where the backend does not; not where it numbers its events."""
        kind, member = _ARGUMENTS.get(head.type or "", ("", ""))
        seen = self._kinds
        if self._numbered or f"{kind}.delta" not in seen or f"{kind}.done" in seen:
            return
        values = dict(rawjson.split_object(item))
        members = [(member, values.get(member, b'""')), ("item_id", rawjson.dumps(head.id or ""))]
        members += [("output_index", b"%d" % index), ("sequence_number", b"%d" % self._counters.sequence)]
        if "name" in values:
            members.append(("name", values["name"]))
        self._counters.sequence += 1
        event = rawjson.join_object([("type", rawjson.dumps(f"{kind}.done")), *members])
        frames.append(b"{" + self.lane + event[1:])

    def _part_event(self, shape: EventShape, event: bytes) -> bytes:
        if str(shape.type).endswith(".added"):
            item_id = rawjson.string(bytes(shape.item_id)) if isinstance(shape.item_id, Raw) else None
            self._counters.part_added(item_id or "")
        part = bytes(shape.part) if isinstance(shape.part, Raw) else b""
        return _replaced(event, "part", part, gaps.fill_part(part)) if part[:1] == b"{" else event


def lane_member(stream_id: str | None) -> bytes:
    """The member that tells an event's lane, a comma behind it; nothing for the default lane."""
    return b'"stream_id":' + rawjson.dumps(stream_id) + b"," if stream_id is not None else b""


def _type_of(event: bytes) -> bytes:
    match = _TYPE_FIRST.match(event) or _TYPE_LAST.search(event)
    return match[1] if match else b""


def _replaced(event: bytes, name: str, old: bytes, new: bytes) -> bytes:
    """An event with another value for one member."""
    if new is old or new == old:
        return event
    if event.endswith(b'"%b":%b}' % (name.encode(), old)):  # where nearly all have it
        return event[: -len(old) - 1] + new + b"}"
    if old[:1] == b"{" and event.count(old) == 1:
        return event.replace(old, new)
    others = [pair for pair in rawjson.split_object(event) if pair[0] != name]
    return rawjson.join_object([*others, (name, new)])
