"""What the simulated backend takes: requests of the Responses API, checked as a server must that keeps nothing.

It is strict where a proxy could go wrong: whatever needs memory between requests is refused, so are fields that exist on
a WebSocket only, and a transcript in which a tool call and its output do not find each other. Fields that it does not
know are ignored, since clients grow faster than simulations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import orjson

Object = dict[str, Any]
"""A JSON object."""

_SOCKET_FIELDS: Final = ("type", "generate", "stream_id")
"""Fields of a `response.create` message that the HTTP API does not have."""

_TYPES: Final[dict[str, tuple[type | tuple[type, ...], str]]] = {
    "instructions": (str, "a string"),
    "max_output_tokens": (int, "an integer"),
    "metadata": (dict, "an object"),
    "parallel_tool_calls": (bool, "a boolean"),
    "reasoning": (dict, "an object"),
    "store": (bool, "a boolean"),
    "stream": (bool, "a boolean"),
    "temperature": ((int, float), "a number"),
    "text": (dict, "an object"),
    "tool_choice": ((str, dict), "a string or an object"),
    "tools": (list, "an array"),
    "top_p": ((int, float), "a number"),
}
"""What a field has to be where it is given and not null."""


class Refusal(Exception):
    """A request that the simulated backend does not serve.

    Args:
        message: Why, in words for the client's developer.
        param: The field at fault, or None.
        code: `error.code`, or None.
        status: HTTP status, 400..499.
    """

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = "invalid_value", status: int = 400
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status

    def body(self) -> bytes:
        """The error in the form of OpenAI's API."""
        error = {"message": self.message, "type": "invalid_request_error", "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})


@dataclass(frozen=True, slots=True)
class Request:
    """One request that was found good.

    Attributes:
        fields: The body.
        items: The input as items, at least one; a string became a user's message.
    """

    fields: Object
    items: list[Object]

    @property
    def is_streamed(self) -> bool:
        """Whether events are wanted rather than one object."""
        return self.fields.get("stream") is True

    @property
    def max_output_tokens(self) -> int | None:
        """How many tokens the answer may have, at least 1; None for no limit."""
        return self.fields.get("max_output_tokens")

    @property
    def tool_outputs(self) -> int:
        """How many `function_call_output` items the input holds."""
        return sum(item.get("type") == "function_call_output" for item in self.items)

    def functions(self) -> list[Object]:
        """The tools that may be called now: functions, as far as `tool_choice` allows them."""
        choice = self.fields.get("tool_choice")
        if choice == "none":
            return []
        functions = [tool for tool in self.fields.get("tools") or [] if tool["type"] == "function"]
        if isinstance(choice, dict) and choice.get("type") == "function":
            return [tool for tool in functions if tool["name"] == choice.get("name")]
        return functions

    def prompt(self) -> bytes:
        """The text that a server would feed to its model.

        As a chat template does it: tools and instructions first, then the items, without ids and states, which differ
        from one run to the next and mean nothing to a model.
        """
        head = [orjson.dumps(self.fields.get("tools") or []), (self.fields.get("instructions") or "").encode()]
        return b"\n".join([*head, *(orjson.dumps(_without_ids(item)) for item in self.items)])


def _without_ids(item: Object) -> Object:
    return {name: value for name, value in item.items() if name not in ("id", "status", "call_id")}


def read(body: bytes) -> Request:
    """Read a request.

    Args:
        body: The HTTP body.

    Raises:
        Refusal: it is none, or one that cannot be served without memory.
    """
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise Refusal(f"The body is not valid JSON: {exc}.", code="invalid_json") from exc
    if not isinstance(fields, dict):
        raise Refusal("The body must be a JSON object.", code="invalid_type")
    _refuse_memory(fields)
    _check_types(fields)
    _check_tools(fields.get("tools") or [])
    items = _items(fields.get("input"))
    _check_calls(items)
    return Request(fields, items)


def _refuse_memory(fields: Object) -> None:
    """Refuse what a stateless server cannot do, and what only a WebSocket has."""
    for name in ("previous_response_id", "conversation"):
        if fields.get(name) is not None:
            raise Refusal(
                f"'{name}' is not supported: this backend keeps nothing between requests. Send the whole history.",
                param=name,
                code="unsupported_parameter",
            )
    if fields.get("background"):
        raise Refusal("'background' is not supported.", param="background", code="unsupported_parameter")
    for name in _SOCKET_FIELDS:
        if name in fields:
            raise Refusal(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")


def _check_types(fields: Object) -> None:
    model = fields.get("model")
    if model is None or model == "":
        raise Refusal("'model' is required.", param="model", code="missing_required_parameter")
    if not isinstance(model, str):
        raise Refusal("'model' must be a string.", param="model", code="invalid_type")
    for name, (types, words) in _TYPES.items():
        value = fields.get(name)
        # To Python a boolean is an integer; to JSON it is not.
        is_boolean = isinstance(value, bool) and types is not bool
        if value is not None and (is_boolean or not isinstance(value, types)):
            raise Refusal(f"'{name}' must be {words}.", param=name, code="invalid_type")
    limit = fields.get("max_output_tokens")
    if limit is not None and limit < 1:
        raise Refusal(
            "'max_output_tokens' must be at least 1.", param="max_output_tokens", code="integer_below_min_value"
        )


def _check_tools(tools: Iterable[Any]) -> None:
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
            raise Refusal("A tool must be an object with a 'type'.", param=f"tools[{index}]", code="invalid_type")
        if tool["type"] == "function" and not isinstance(tool.get("name"), str):
            param = f"tools[{index}].name"
            raise Refusal(f"'{param}' is required.", param=param, code="missing_required_parameter")


def _items(value: Any) -> list[Object]:
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": value}]}]
    if value is None or value == []:
        raise Refusal("'input' is required.", param="input", code="missing_required_parameter")
    if not isinstance(value, list):
        raise Refusal("'input' must be a string or an array of items.", param="input", code="invalid_type")
    for index, item in enumerate(value):
        if not isinstance(item, dict) or not isinstance(item.get("type", item.get("role")), str):
            raise Refusal("An item must be an object with a 'type'.", param=f"input[{index}]", code="invalid_type")
        if item.get("type") == "item_reference":
            raise Refusal(f"Item with id '{item.get('id')}' not found: nothing is kept here.", param=f"input[{index}]")
    return value


def _check_calls(items: Iterable[Object]) -> None:
    """Every output follows its call, and every call has its output: what a lost or doubled item would break."""
    waiting: set[str] = set()
    for index, item in enumerate(items):
        kind = item.get("type")
        if kind not in ("function_call", "function_call_output"):
            continue
        call_id = item.get("call_id")
        if not isinstance(call_id, str):
            param = f"input[{index}].call_id"
            raise Refusal(f"'{param}' is required.", param=param, code="missing_required_parameter")
        if kind == "function_call":
            waiting.add(call_id)
        elif call_id in waiting:
            waiting.remove(call_id)
        else:
            raise Refusal(f"No tool call found for the function call output with call_id {call_id}.", param="input")
    if waiting:
        raise Refusal(f"No tool output found for the function call {min(waiting)}.", param="input")
