"""Complete Response objects.

Clients validate a Response with 25 to 30 members (openai-python `Response`, Open Responses `ResponseResource`); backends
send as few as three. What a request said about a member is echoed, as OpenAI's own server does; the rest gets the API's
default. Used where the proxy answers itself (warm-ups) and to fill what a backend left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from msgspec import UNSET, Raw, Struct
from msgspec.structs import astuple

from proxy.protocol import rawjson, shapes
from proxy.protocol.rawjson import InvalidJSON, Pairs

_NULL: Final = b"null"
_RAW_NULL: Final = Raw(_NULL)
_PREVIOUS: Final = b'"previous_response_id"'
_CACHED: Final = b'"cached_tokens"'

#: Members of a Response whose value a request decides, with the default where it is silent. (Open Responses
#: `ResponseResource`, required members; the API's documented defaults.)
_ECHOED: Final[dict[str, bytes]] = {
    "instructions": _NULL,
    "max_output_tokens": _NULL,
    "max_tool_calls": _NULL,
    "metadata": b"{}",
    "model": b'""',
    "parallel_tool_calls": b"true",
    "presence_penalty": b"0",
    "frequency_penalty": b"0",
    "prompt_cache_key": _NULL,
    "reasoning": b'{"effort":null,"summary":null}',
    "safety_identifier": _NULL,
    "service_tier": b'"default"',
    "store": b"true",
    "temperature": b"1.0",
    "text": b'{"format":{"type":"text"}}',
    "tool_choice": b'"auto"',
    "tools": b"[]",
    "top_logprobs": b"0",
    "top_p": b"1.0",
    "truncation": b'"disabled"',
    "user": _NULL,
}

#: Members that say how the response fares.
_STATE: Final[dict[str, bytes]] = {
    "completed_at": _NULL,
    "background": b"false",
    "error": _NULL,
    "incomplete_details": _NULL,
    "output": b"[]",
    "usage": _NULL,
}

#: Members that may be null; null in any other member is a gap.
_NULLABLE: Final = frozenset(
    {
        "completed_at",
        "error",
        "incomplete_details",
        "usage",
        "previous_response_id",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "prompt_cache_key",
        "reasoning",
        "safety_identifier",
        "user",
    }
)

_USAGE: Final[dict[str, bytes]] = {
    "input_tokens": b"0",
    "input_tokens_details": b"{}",
    "output_tokens": b"0",
    "output_tokens_details": b"{}",
}
_INPUT_DETAILS: Final[dict[str, bytes]] = {"cached_tokens": b"0", "cache_write_tokens": b"0"}
_OUTPUT_DETAILS: Final[dict[str, bytes]] = {"reasoning_tokens": b"0"}

ZERO_USAGE: Final = (
    b'{"input_tokens":0,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},'
    b'"output_tokens":0,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":0}'
)


class RequestEcho(Struct):
    """What a turn's Response objects say about its request; made once a turn, filled in on first use.

    Attributes:
        fields: The request's body fields, raw.
        created_at: Unix seconds at which the turn began.
        previous_response_id: The id the client continued, or None.
        normalised: Echoes that had to be brought into the response's form, by field name.
        tails: What was put behind responses that lacked something, by what they lacked.
    """

    fields: Mapping[str, bytes]
    created_at: int
    previous_response_id: str | None
    normalised: dict[str, bytes] = {}
    tails: dict[tuple[str, ...], bytes] = {}

    def tail(self, missing: tuple[str, ...]) -> bytes:
        """Members with their defaults, a comma before each; the events of a turn lack the same ones."""
        tail = self.tails.get(missing)
        if tail is None:
            members = [(name, self.default(name)) for name in missing]
            tail = b"," + rawjson.join_object([(name, value) for name, value in members if value is not None])[1:-1]
            self.tails[missing] = tail
        return tail

    def default(self, name: str) -> bytes | None:
        """The value of a member that a Response lacks, or None if it does not need that member."""
        if name in _ECHOED:
            return self._echo(name)
        if name == "created_at":
            return b"%d" % self.created_at
        if name == "previous_response_id":
            return rawjson.dumps(self.previous_response_id)
        if name == "object":
            return b'"response"'
        return _STATE.get(name)

    def _echo(self, name: str) -> bytes:
        value = self.fields.get(name)
        if value is None or (value == _NULL and name not in _NULLABLE):
            return _ECHOED[name]
        normalise = _NORMALISERS.get(name)
        if normalise is None or value == _NULL:
            return value
        if name not in self.normalised:
            try:
                self.normalised[name] = normalise(value)
            except InvalidJSON:
                self.normalised[name] = _ECHOED[name]
        return self.normalised[name]


MEMBERS: Final = ("object", "created_at", "previous_response_id", *_STATE, *_ECHOED)
"""Every member that :meth:`RequestEcho.default` knows: behind `id` and `status`, a complete Response, in the order of
:class:`~proxy.protocol.shapes.ResponseShape`."""


def compose(echo: RequestEcho, response_id: str, status: str, **state: bytes) -> bytes:
    """A complete Response object of the proxy's own.

    Args:
        echo: What the request said.
        response_id: Its id.
        status: Its status.
        state: Raw values for members other than the defaults.
    """
    return fill(rawjson.join_object(state.items()), response_id, status, echo)


def fill(response: bytes, response_id: str, status: str, echo: RequestEcho) -> bytes:
    """A Response with all its members; those that it has stay as they are.

    The exception is `previous_response_id`: a backend that was sent the whole conversation knows of none, and says null.

    Args:
        response: The object, raw.
        response_id: The id it is to have.
        status: The status it has if it does not say.
        echo: What the request said.
    """
    shape = shapes.response(response)
    if shape is None or shape.id != response_id or shape.status is UNSET:
        return _fill_the_long_way(response, response_id, status, echo)
    if _denies_parent(shape, echo):
        if response.count(_PREVIOUS) != 1:  # else it can only be the response's own
            return _fill_the_long_way(response, response_id, status, echo)
        before, name, after = response.partition(_PREVIOUS)
        response = before + name + after.replace(_NULL, rawjson.dumps(echo.previous_response_id), 1)
    missing = tuple([name for name, value in zip(MEMBERS, astuple(shape)[2:], strict=True) if value is UNSET])
    return response[:-1] + echo.tail(missing) + b"}" if missing else response


def _denies_parent(shape: shapes.ResponseShape, echo: RequestEcho) -> bool:
    """Whether a Response says null where the client had named a response to continue."""
    return echo.previous_response_id is not None and shape.previous_response_id == _RAW_NULL


def _fill_the_long_way(response: bytes, response_id: str, status: str, echo: RequestEcho) -> bytes:
    """The same for a response with another id, without a status, or with null where there may be none."""
    members = rawjson.split_object(response)
    values = dict(members)
    nullable = _NULLABLE - {"previous_response_id"} if echo.previous_response_id is not None else _NULLABLE
    kept = [
        (name, value)
        for name, value in members
        if name not in ("id", "status") and (value != _NULL or name in nullable or name not in MEMBERS)
    ]
    present = {name for name, _ in kept}
    first = [("id", rawjson.dumps(response_id)), ("status", values.get("status", rawjson.dumps(status)))]
    added = [(name, echo.default(name) or _NULL) for name in MEMBERS if name not in present]
    return rawjson.join_object([*first, *kept, *added])


def own_id(response: bytes) -> str | None:
    """The id that a backend gave a response; None if it gave none."""
    shape = shapes.response(response)
    if shape is not None:
        return shape.id or None
    return rawjson.string(dict(rawjson.split_object(response)).get("id", b"")) or None


class FinalMembers(NamedTuple):
    """What is kept of a response that is over.

    Attributes:
        output: Its output items, raw.
        usage: Its token counts, raw.
        error_code: `error.code` of one that failed.
        model: The model that answered.
    """

    output: bytes
    usage: bytes
    error_code: str | None
    model: str | None


def final_members(response: bytes) -> FinalMembers:
    """Read what is kept of a response that :func:`fill` has filled."""
    shape = shapes.response(response)
    if (
        shape is not None
        and isinstance(shape.output, Raw)
        and isinstance(shape.usage, Raw)
        and isinstance(shape.error, Raw)
    ):
        output, usage, error = bytes(shape.output), bytes(shape.usage), bytes(shape.error)
        model = shape.model if isinstance(shape.model, str) else None
    else:
        members = dict(rawjson.split_object(response))
        output, usage, error = members["output"], members["usage"], members["error"]
        model = rawjson.string(members.get("model", b""))
    code = rawjson.string(dict(rawjson.split_object(error)).get("code", b"")) if error[:1] == b"{" else None
    return FinalMembers(output, usage, code, model)


def fill_usage(usage: bytes) -> bytes:
    """Token counts with the details that clients require (openai-python `ResponseUsage`); null stays null."""
    if usage[:1] != b"{" or shapes.usage(usage) is not None:
        return usage
    if usage.count(_CACHED) == 1:  # nearly all say all but this, which is newer than they are
        filled = usage.replace(_CACHED, b'"cache_write_tokens":0,' + _CACHED)
        if usage.count(b"cache_write_tokens") == 0 and shapes.usage(filled) is not None:
            return filled
    full = _with_defaults(rawjson.split_object(usage), _USAGE)
    values = dict(full)
    full = _with_defaults(full, {"total_tokens": _sum(values["input_tokens"], values["output_tokens"])})
    details = {"input_tokens_details": _INPUT_DETAILS, "output_tokens_details": _OUTPUT_DETAILS}
    return rawjson.join_object(
        (name, _fill_object(value, details[name]) if name in details else value) for name, value in full
    )


def _fill_object(value: bytes, defaults: Mapping[str, bytes]) -> bytes:
    if value[:1] != b"{":
        return rawjson.join_object(defaults.items())
    pairs = rawjson.split_object(value)
    full = _with_defaults(pairs, defaults)
    return value if full == pairs else rawjson.join_object(full)


def _with_defaults(pairs: Pairs, defaults: Mapping[str, bytes]) -> Pairs:
    values = dict(pairs)
    kept = [pair for pair in pairs if pair[1] != _NULL or pair[0] not in defaults]
    return kept + [(name, value) for name, value in defaults.items() if values.get(name, _NULL) == _NULL]


def _sum(*numbers: bytes) -> bytes:
    return b"%d" % sum(int(number) for number in numbers if number.isdigit())


def _normalise_tools(raw: bytes) -> bytes:
    """Function tools in the form a Response shows them: description, parameters and strict are there, even if null."""
    tools, heads = rawjson.split_items(raw)
    wanted = {"description": _NULL, "parameters": _NULL, "strict": _NULL}
    shown = [
        _fill_missing(tool, wanted) if head.type == "function" else tool
        for tool, head in zip(tools, heads, strict=True)
    ]
    return b"[" + b",".join(shown) + b"]"


def _normalise_text(raw: bytes) -> bytes:
    """The text settings with a format, and a schema format with all that it needs."""
    text = _fill_object(raw, {"format": b'{"type":"text"}'})
    members = dict(rawjson.split_object(text))
    form = members["format"]
    if rawjson.head(form).type != "json_schema":
        return text
    return rawjson.join_object(
        {**members, "format": _fill_missing(form, {"description": _NULL, "strict": b"false"})}.items()
    )


def _normalise_tool_choice(raw: bytes) -> bytes:
    if raw[:1] == b"{" and rawjson.head(raw).type == "allowed_tools":
        return _fill_missing(raw, {"mode": b'"auto"'})
    return raw


def _fill_missing(value: bytes, defaults: Mapping[str, bytes]) -> bytes:
    """An object with the members that it lacks; null counts as there."""
    pairs = rawjson.split_object(value)
    names = {name for name, _ in pairs}
    missing = [(name, default) for name, default in defaults.items() if name not in names]
    return rawjson.join_object(pairs + missing) if missing else value


_NORMALISERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "tools": _normalise_tools,
    "reasoning": lambda raw: _fill_object(raw, {"effort": _NULL, "summary": _NULL}),
    "text": _normalise_text,
    "tool_choice": _normalise_tool_choice,
}
