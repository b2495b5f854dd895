"""What a client says about a response that runs: cancel it, interrupt it, steer it, give it more input.

These events pass the queue. Their forms are those of the Responses API reference (steer, inject), of Codex (interrupt,
processed) and of Pipecat (cancel); what answers them is here too, apart from the terminal event of the response.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from proxy.protocol import rawjson
from proxy.protocol.errors import InjectRefused, InvalidMessage, SteerRefused
from proxy.protocol.messages import Frame, read_input, wrong_type
from proxy.protocol.rawjson import Head, InvalidJSON, Pairs

CANCEL: Final = "response.cancel"
INTERRUPT: Final = "response.interrupt"
STEER: Final = "response.steer"
INJECT: Final = "response.inject"
PROCESSED: Final = "response.processed"
"""An acknowledgement of some Codex versions that expects no reply: an answer would be read as the next turn's."""

MEMBERS_OF_STEERING: Final = frozenset({"type", "role", "content", "id", "status"})
_PARTS: Final = frozenset({"input_text", "input_image", "input_file"})
_NULL: Final = b"null"


@dataclass(frozen=True, slots=True)
class Stop:
    """The wish to end a response now: `response.cancel` or `response.interrupt`.

    Attributes:
        response_id: The response; None for whatever runs in the lane (`response.cancel` only).
        stream_id: The lane it names.
        is_interrupt: Whether it wants the acknowledgements of an interrupt.
    """

    response_id: str | None
    stream_id: str | None
    is_interrupt: bool


@dataclass(slots=True)
class Steer:
    """User input for the response that comes after one that runs.

    Attributes:
        response_id: The response that is steered.
        raw_input: What to hand back if it cannot be committed.
        items: The input as items, raw.
        heads: The head of each.
        size: Bytes of the frame as it came.
        id: Its own id, once it is accepted.
        at: Wall-clock time at which it came, Unix seconds.
        clock: The same on the driver's own clock.
    """

    response_id: str
    raw_input: bytes
    items: list[bytes]
    heads: list[Head]
    size: int
    id: str = ""
    at: int = 0
    clock: float = 0.0


@dataclass(frozen=True, slots=True)
class Inject:
    """Outputs of tools for a response that runs.

    Attributes:
        response_id: The response.
        raw_input: What to hand back if it cannot be committed.
        items: The input as items, raw.
        heads: The head of each.
    """

    response_id: str
    raw_input: bytes
    items: list[bytes]
    heads: list[Head]


def read_stop(frame: Frame) -> Stop:
    """Read a `response.cancel` or a `response.interrupt`.

    Raises:
        InvalidMessage: it names no response although it has to, or names it by what is no string; an interrupt asks
            for something other than that partial items are discarded.
    """
    members = dict(frame.pairs)
    is_interrupt = frame.type == INTERRUPT
    raw = members.get("response_id", _NULL)
    response_id = rawjson.string(raw)
    if response_id is None and (is_interrupt or raw != _NULL):
        raise wrong_type("response_id", "a string" if is_interrupt else "a string or null")
    mode = rawjson.string(members.get("mode", b'"discard_partial_items"'))
    if is_interrupt and mode != "discard_partial_items":
        raise InvalidMessage("The only supported 'mode' is 'discard_partial_items'.", param="mode")
    return Stop(response_id, frame.stream_id, is_interrupt)


def read_steer(frame: Frame, *, max_items: int) -> Steer:
    """Read a `response.steer`.

    Raises:
        SteerRefused: its input is no string and no list of user messages, or it names no response.
    """
    members = dict(frame.pairs)
    raw = members.get("input", _NULL)
    response_id = rawjson.string(members.get("previous_response_id", _NULL))
    if response_id is None:
        raise SteerRefused("invalid_input", "'previous_response_id' has to name the response to steer.")
    try:
        items, heads = read_input(raw, max_items)
    except InvalidMessage as exc:
        raise SteerRefused("invalid_input", str(exc)) from exc
    if not items:
        raise SteerRefused("invalid_input", "'input' has to be a string or a list of user messages that is not empty.")
    if not all(map(_is_user_message, items)):
        raise SteerRefused("invalid_input", "'input' may hold user messages of text, images and files only.")
    return Steer(response_id, raw, items, heads, frame.size)


def read_inject(frame: Frame, *, max_items: int) -> Inject:
    """Read a `response.inject`.

    Raises:
        InvalidMessage: it names no response, or its input is no list of items.
    """
    members = dict(frame.pairs)
    response_id = rawjson.string(members.get("response_id", _NULL))
    if response_id is None:
        raise wrong_type("response_id", "a string")
    raw = members.get("input", _NULL)
    if raw[:1] != b"[":
        raise wrong_type("input", "a list of items")
    items, heads = read_input(raw, max_items)
    return Inject(response_id, raw, items, heads)


def _is_user_message(item: bytes) -> bool:
    members = dict(rawjson.split_object(item))
    kind = rawjson.string(members.get("type", b'"message"'))
    if kind != "message" or rawjson.string(members.get("role", b"")) != "user" or members.keys() - MEMBERS_OF_STEERING:
        return False
    content = members.get("content", _NULL)
    if content[:1] != b"[":
        return content[:1] == b'"'
    try:
        _, parts = rawjson.split_items(content)
    except InvalidJSON:
        return False
    return all(part.type in _PARTS for part in parts)


# Answers


def event(kind: str, lane: bytes, sequence_number: int, members: Pairs) -> bytes:
    """An event of ours.

    Args:
        kind: Its type.
        lane: The member that tells its lane (:func:`proxy.protocol.relay.lane_member`).
        sequence_number: Its number.
        members: The rest of it.
    """
    rest = b"".join(b"," + rawjson.dumps(name) + b":" + value for name, value in members)
    return b'{"type":' + rawjson.dumps(kind) + b"," + lane + b'"sequence_number":%d' % sequence_number + rest + b"}"


def steer_accepted(steer: Steer, lane: bytes, sequence_number: int) -> bytes:
    """The input is ours now; whether it takes effect is said by the `response.created` of the successor."""
    return event("response.steer.accepted", lane, sequence_number, [("steer", _submission(steer))])


def steer_pending(steer: Steer, required: list[bytes], lane: bytes, sequence_number: int) -> bytes:
    """The input waits for outputs that the client owes.

    Args:
        steer: The input.
        required: A stub for each output (:func:`required_input`).
        lane: The lane's member.
        sequence_number: Its number.
    """
    members = [
        ("reason", b'"waiting_for_required_input"'),
        ("required_input", b"[" + b",".join(required) + b"]"),
        ("steer", _submission(steer)),
    ]
    return event("response.steer.pending", lane, sequence_number, members)


def steer_failed(error: SteerRefused, members: Pairs, lane: bytes = b"", sequence_number: int = 0) -> bytes:
    """The input could not be committed and is the client's again.

    Args:
        error: Why.
        members: Of the submission: `id` if it had one, `input` and `previous_response_id` as they came.
        lane: The lane's member.
        sequence_number: Its number.
    """
    failure = rawjson.dumps({"type": error.type, "code": error.code, "message": str(error)})
    submission = rawjson.join_object(members)
    return event("response.steer.failed", lane, sequence_number, [("error", failure), ("steer", submission)])


def submission_of(steer: Steer) -> Pairs:
    """An accepted submission, to be handed back."""
    return [
        ("id", rawjson.dumps(steer.id)),
        ("input", steer.raw_input),
        ("previous_response_id", rawjson.dumps(steer.response_id)),
    ]


def submission_in(frame: Frame) -> Pairs:
    """A submission that was not accepted, as far as the frame holds it."""
    members = dict(frame.pairs)
    previous = members.get("previous_response_id", b'""')
    return [
        ("input", members.get("input", b'""')),
        ("previous_response_id", previous if previous[:1] == b'"' else b'""'),
    ]


def inject_created(inject: Inject, lane: bytes, sequence_number: int) -> bytes:
    """The input is part of the response."""
    members = [("response_id", rawjson.dumps(inject.response_id))]
    return event("response.inject.created", lane, sequence_number, members)


def inject_failed(error: InjectRefused, inject: Inject, lane: bytes = b"", sequence_number: int = 0) -> bytes:
    """The input could not be committed and is the client's again."""
    failure = rawjson.dumps({"code": error.code, "message": str(error)})
    members = [
        ("error", failure),
        ("input", inject.raw_input),
        ("response_id", rawjson.dumps(inject.response_id)),
    ]
    return event("response.inject.failed", lane, sequence_number, members)


def required_input(call: bytes, head: Head) -> bytes:
    """The stub of the output that a tool call waits for (openai-python `ResponseSteerRequiredInput`)."""
    kind = str(head.type)
    members = [("call_id", rawjson.dumps(head.call_id)), ("type", rawjson.dumps(f"{kind}_output"))]
    if kind == "function_call":
        members.insert(1, ("name", dict(rawjson.split_object(call)).get("name", b'""')))
    if kind == "tool_search_call":
        members = [members[0], ("execution", b'"client"'), ("type", b'"tool_search_output"')]
    return rawjson.join_object(members)


def _submission(steer: Steer) -> bytes:
    return rawjson.dumps({"id": steer.id, "previous_response_id": steer.response_id})
