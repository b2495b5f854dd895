"""What the random dialogues of `test_session_controls_stateful.py` are made of: a naive model of what was said.

The model knows nothing of transcripts, lanes or caches. It keeps plain lists of items as a backend would read them, and
what a client can see.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from proxy.protocol import compaction
from tests.playbook import call, message, response, sse

PROMPT = json.loads(compaction.PROMPT_ITEM)
PREFACE = "The earlier part of this conversation was replaced"


@dataclass
class Summary:
    """What stands for a conversation: the texts of the user's messages, and what the backend wrote about the rest."""

    texts: list[str]
    text: str


def text_of(item: dict[str, Any]) -> str:
    """The text of a message, in either of its two forms."""
    content = item.get("content", "")
    return content if isinstance(content, str) else str(content[0]["text"])


def users_texts(history: Sequence[Any]) -> list[str]:
    """The texts of all messages of the user's own, in order."""
    texts = []
    for item in history:
        if isinstance(item, Summary):
            texts += item.texts
        elif item.get("role") == "user" and not text_of(item).startswith(PREFACE):
            texts.append(text_of(item))
    return texts


def is_same(sent: list[Any], history: list[Any]) -> bool:
    """Whether a backend is told just this history."""
    if not history or not isinstance(history[0], Summary):
        return sent == history
    texts = history[0].texts
    count = len(texts)
    return (
        [text_of(item) for item in sent[:count]] == texts
        and len(sent) > count
        and text_of(sent[count]).endswith(history[0].text)
        and sent[count + 1 :] == history[1:]
    )


@dataclass
class Steering:
    """Input that was accepted.

    Attributes:
        lane: The lane in whose order that runs.
        response_id: The response that was steered.
        item: What the backend is to read.
        state: What has become of it.
        turn: The turn that began with it.
    """

    lane: str | None
    response_id: str
    item: dict[str, Any]
    state: Literal["accepted", "pending", "used", "back"] = "accepted"
    turn: int | None = None


@dataclass
class Asked:
    """A turn, from what was asked for to what came of it.

    Attributes:
        lane: Its `stream_id`.
        previous: The response that it continues.
        items: What it brings.
        appends: It continues whatever is there.
        is_warmup: It wants no answer.
        store: It may be stored, as far as it says.
        history: All that a backend has to know of before it speaks; None until it has begun.
        said: Finished items of its answer that stand behind that.
        injected: Outputs that came meanwhile.
        summary: What the backend wrote when it was asked for a summary.
        absorbed: How many items of the history that stands for.
        began: The client has seen it begin.
    """

    lane: str | None
    previous: str | None = None
    items: list[Any] = field(default_factory=list)
    appends: bool = False
    is_warmup: bool = False
    store: bool = True
    history: list[Any] | None = None
    said: list[Any] = field(default_factory=list)
    injected: list[Any] = field(default_factory=list)
    summary: str | None = None
    absorbed: int = 0
    began: bool = False

    @property
    def whole(self) -> list[Any]:
        """All that was said."""
        assert self.history is not None
        return [*self.history, *self.said, *self.injected]

    def shorten(self) -> None:
        """Put the summary in the place of what it stands for."""
        assert self.history is not None
        assert self.summary is not None
        before, rest = self.history[: self.absorbed], self.history[self.absorbed :]
        self.history, self.summary = [Summary(users_texts(before), self.summary), *rest], None


@dataclass
class Exchange:
    """An exchange as the backend knows it.

    Attributes:
        events: What is still to be sent, each event with the item that it finishes.
        backend_id: The id of what it answers.
        known: All that the backend was told.
        is_summary: It is asked for a summary.
        continues: It was told an id and what is new.
        is_open: Its head was sent.
        is_cut: All was sent but the blank line behind the last event.
        is_finished: Nobody waits for the rest of it.
    """

    events: list[tuple[bytes, Any]]
    backend_id: str
    known: list[Any]
    is_summary: bool
    continues: bool
    is_open: bool = False
    is_cut: bool = False
    is_finished: bool = False


@dataclass
class Open:
    """A response that the client sees running.

    Attributes:
        response_id: Its id.
        last: Its newest number.
        calls: Ids of the calls that it has finished.
        answered: Those of them that were answered meanwhile.
        is_disturbed: The proxy has said something in between.
    """

    response_id: str
    last: int
    calls: list[str] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)
    is_disturbed: bool = False


@dataclass(frozen=True)
class Backend:
    """How a backend answers.

    Attributes:
        numbers: It numbers its events.
        lists: Its last event lists the whole output.
    """

    numbers: bool
    lists: bool

    def answer(self, response_id: str, items: list[Any], kind: str, tokens: int | None) -> list[tuple[bytes, Any]]:
        """All events of an answer, each with the item that it finishes."""
        events: list[tuple[dict[str, Any], Any]] = [
            ({"type": "response.created", "response": response(response_id, "in_progress")}, None)
        ]
        for index, item in enumerate(items):
            members = {"output_index": index, "item": item}
            events.append(({"type": "response.output_item.added", **members}, None))
            events.append(({"type": "response.output_text.delta", "item_id": item["id"], "delta": "x"}, None))
            events.append(({"type": "response.output_item.done", **members}, item))
        usage = {"input_tokens": tokens, "output_tokens": 1, "total_tokens": (tokens or 0) + 1}
        final = response(response_id, kind, items if self.lists else [], usage=usage if tokens is not None else None)
        events.append(({"type": f"response.{kind}", "response": final}, None))
        numbers = [{"sequence_number": number} if self.numbers else {} for number in range(len(events))]
        return [(sse({**event, **number}), item) for (event, item), number in zip(events, numbers, strict=True)]


def said(turn: int, nth: int, wishes: Sequence[str]) -> list[Any]:
    """Items of an answer: messages and calls."""
    return [
        call(f"call_{turn}_{nth}_{index}") if wish == "call" else message("so", f"msg_{turn}_{nth}_{index}")
        for index, wish in enumerate(wishes)
    ]
