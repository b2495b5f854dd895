"""What a measured rollout consists of: sizes, and a task that has them with any model.

A simulated backend calls the tools, and each call gets an output, as in an agent's rollout. A model decides for itself, and
no small one keeps on calling tools for twenty turns; so it is told not to (`tool_choice: none`), and what the tool would
have said goes to it as the user's next message. Whatever it answers goes back to it, as an agent does. Should it call a tool
all the same, its call is answered.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

from proxy.rollout import text
from proxy.rollout.dialogue import Object, Terms

_SALT_WORDS: Final = ("blue", "gold", "gray", "pink")
"""One token each in the vocabularies in use, so that salts differ and prompts are of one length."""

_SALT_LENGTH: Final = 24

_TOOL_SIZE: Final = 1_500
"""About as long is one of Codex's definitions of a tool."""

_MESSAGE_SIZE: Final = 2_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large everything is, in bytes; none is below 0.

    Attributes:
        instructions: In the field of that name, which every turn has again.
        tools: Likewise, as JSON, roughly.
        metadata: The `client_metadata` of each WebSocket message; over HTTP there is none.
        history: What was said before the first turn.
        tool_output: What a tool says.
    """

    instructions: int
    tools: int
    metadata: int
    history: int
    tool_output: int


PRESETS: Final = {
    # Codex CLI 0.171 with a model that it does not know, captured over 20 tool calls: tools 18.2 kB in each turn, outputs of
    # 4.1 kB, metadata of 1.2 kB, a first request of 40 kB over HTTP with its system prompt in `input`.
    "codex": Sizes(instructions=0, tools=18_200, metadata=1_230, history=20_500, tool_output=4_300),
    # openai-agents-python 0.24 with the same tools' outputs: instructions and tools of 16 kB in each turn.
    "agents": Sizes(instructions=8_000, tools=8_000, metadata=0, history=0, tool_output=4_100),
    # For servers with a context of some thousand tokens.
    "small": Sizes(instructions=400, tools=800, metadata=0, history=0, tool_output=200),
}
"""Sizes of requests by the kind of agent."""

COMPRESSING: Final = frozenset({"codex", "agents"})
"""Those of them that offer permessage-deflate, and compress what they send where it is accepted."""


class Rollout:
    """One rollout; see :class:`~proxy.rollout.measure.Task`. No two have a beginning in common that a cache could keep.

    Args:
        model: The model to ask.
        sizes: How large everything is.
        turns: How many, at least 1.
        output_tokens: How many tokens an answer may have at most.
        calls_tools: Have the model call tools, as only a simulated one does reliably.
    """

    def __init__(self, model: str, sizes: Sizes, *, turns: int, output_tokens: int, calls_tools: bool) -> None:
        self._salt = " ".join(secrets.choice(_SALT_WORDS) for _ in range(_SALT_LENGTH))
        self._sizes = sizes
        self._turns = turns
        fields: Object = {"model": model, "store": False, "temperature": 0, "max_output_tokens": output_tokens}
        if sizes.instructions:
            fields["instructions"] = self._salted(text.lines("source", 0, sizes.instructions))
        if sizes.tools:
            fields |= {"tools": self._tools(), "tool_choice": "auto" if calls_tools else "none"}
        metadata = {"client_metadata": {"turn": text.lines("source", 1, sizes.metadata)}} if sizes.metadata else {}
        self.terms = Terms(fields, metadata)

    def opening(self) -> list[Object]:
        """The history, and a question."""
        messages = [
            _message("user" if number % 2 == 0 else "assistant", text.lines("source", 100 + number, size))
            for number, size in enumerate(_portions(self._sizes.history, _MESSAGE_SIZE))
        ]
        if len(messages) % 2:
            messages.append(_message("assistant", "Go on."))  # templates want them in turn
        messages.append(_message("user", "Find out why an order is charged twice, and fix it."))
        messages[0]["content"] = self._salted(messages[0]["content"])
        return messages

    def after(self, output: list[Object], turn: int) -> list[Object]:
        """What the tools say, or a user in their place."""
        if turn >= self._turns:
            return []
        said = text.lines("source", 1000 + turn, self._sizes.tool_output) or "."
        calls = [item["call_id"] for item in output if item["type"] == "function_call"]
        if not calls:
            return [_message("user", said)]
        return [
            {"type": "function_call_output", "call_id": call_id, "output": said if number == 0 else "ok"}
            for number, call_id in enumerate(calls)
        ]

    def _tools(self) -> list[Object]:
        path = {"type": "string", "description": "A path.", "examples": list(text.PATHS)}
        parameters = {"type": "object", "properties": {"path": path}, "required": ["path"]}
        tools: list[Object] = []
        for number, size in enumerate(_portions(self._sizes.tools, _TOOL_SIZE)):
            # What there is besides the description takes about 300 bytes.
            words = text.lines("source", 10 + number, max(size - 300, 0))
            description = words if number else self._salted(words)
            tools.append(
                {"type": "function", "name": f"tool_{number}", "description": description, "parameters": parameters}
            )
        return tools

    def _salted(self, words: str) -> str:
        return f"{self._salt}\n{words}"


def _portions(total: int, size: int) -> list[int]:
    """A total in portions of a size, the last one smaller."""
    return [min(size, total - begin) for begin in range(0, total, size)]


def _message(role: str, words: str) -> Object:
    return {"type": "message", "role": role, "content": words}
