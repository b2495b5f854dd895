"""What the simulated backend says. No model is asked: it follows a script, and says so.

While the input holds fewer tool outputs than the script asks for, and there are functions to call, the answer is a thought
or a sentence and a call of the next function. After that, and where there is no function to call, it is a last message.
The same input gets the same words, whichever way it came.

Arguments come from the function's JSON Schema: one of its `examples` where it has some, else the least that fits. Nothing
is ever invented that a real tool could mistake for a wish: a string without an example is ``demo``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from proxy.demo.intake import Object, Request

FRAGMENT: Final = 5
"""Characters of a call's arguments that are a token."""

_MAX_DEPTH: Final = 8
"""How deep a schema is followed; one that refers to itself has no end."""

_MAX_ITEMS: Final = 16
"""How many elements an array gets, however many its schema asks for."""

_THOUGHTS: Final = (
    "The last result narrows it down, but two places could still be the cause, so the next one to look at is this.",
    "Nothing here explains the double charge yet. The retry path is what is left, and it has not been read so far.",
    "That confirms half of it. Before anything is changed, the tests that cover this path should be seen to fail.",
)
_SENTENCES: Final = (
    "I start with the place that the report names, and read what calls it before I go on.",
    "This is as expected. Next I check how the same case is handled elsewhere in the code.",
    "There is one more caller of it. I read that as well, so that the change will fit both of them.",
)
_PLAIN: Final = (
    "Hello! This answer comes from a simulated backend: no model read your {items}. "
    "It was streamed token by token all the same, as a model server would do it."
)
_LAST: Final = (
    "That was the last tool call: the results of {calls} are in, and in a real rollout the summary would stand here. "
    "This backend is a simulation; no model was asked."
)


@dataclass(frozen=True, slots=True)
class Thought:
    """A `reasoning` item, with its text in the open as open models have it."""

    text: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """A `message` item."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A `function_call` item.

    Attributes:
        name: The function.
        arguments: A JSON object, as text.
    """

    name: str
    arguments: str


Step = Thought | Sentence | Call
"""One output item to be."""


def answer(request: Request, tool_calls: int, tokens: int = 0) -> list[Step]:
    """What is answered.

    Args:
        request: The request.
        tool_calls: How many tool outputs the input holds when the work is done.
        tokens: How many tokens an answer has at least; what is said before a call, or at last, is repeated until it has.

    Returns:
        At least one step, in the order of the output.
    """
    done = request.tool_outputs
    functions = request.functions()
    if functions and done < tool_calls:
        function = functions[done % len(functions)]
        arguments = example(function.get("parameters") or {}, done // len(functions))
        call = Call(function["name"], orjson.dumps(arguments if isinstance(arguments, dict) else {}).decode())
        return [_padded(_remark(done), tokens - -(-len(call.arguments) // FRAGMENT)), call]
    if done:
        return [_padded(Sentence(_LAST.format(calls=_count(done, "call"))), tokens)]
    return [_padded(Sentence(_PLAIN.format(items=_count(len(request.items), "input item"))), tokens)]


def example(schema: Any, turn: int, depth: int = 0) -> Any:
    """A value that fits a JSON Schema, as far as the usual keywords go.

    Args:
        schema: The schema; what is not understood gives None.
        turn: Which of its `examples` to take, from 0, round and round.
        depth: How many schemas this one lies in.
    """
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    for name in ("examples", "enum"):
        values = schema.get(name)
        if isinstance(values, list) and values:
            return values[turn % len(values)]
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    for name in ("anyOf", "oneOf", "allOf"):
        options = schema.get(name)
        if isinstance(options, list) and options:
            return example(options[0], turn, depth + 1)
    return _of_type(schema, turn, depth)


def _of_type(schema: Object, turn: int, depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else None)
    match kind[0] if isinstance(kind, list) and kind else kind:
        case "object":
            properties, names = schema.get("properties"), schema.get("required")
            if not isinstance(properties, dict) or not isinstance(names, list):
                return {}
            return {name: example(properties.get(name), turn, depth + 1) for name in names if isinstance(name, str)}
        case "array":
            length = schema.get("minItems")
            return [example(schema.get("items"), turn, depth + 1)] * (
                min(length, _MAX_ITEMS) if type(length) is int else 0
            )
        case "string":
            return "demo"
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
        case _:
            return None


def _remark(done: int) -> Thought | Sentence:
    """What is said before a call: thoughts and sentences in turn, so that a rollout has both kinds of item."""
    if done % 2:
        return Thought(_THOUGHTS[done // 2 % len(_THOUGHTS)])
    return Sentence(_SENTENCES[done // 2 % len(_SENTENCES)])


def _padded(step: Thought | Sentence, tokens: int) -> Thought | Sentence:
    """The same over and over, for at least so many words, each of them a token."""
    words = step.text.split()
    if tokens <= len(words):
        return step
    return replace(step, text=" ".join(itertools.islice(itertools.cycle(words), tokens)))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
