"""What the supervisor and a worker say to each other. Both are of one version, since one starts the other."""

from __future__ import annotations

import msgspec


class Start(msgspec.Struct, frozen=True, tag=True):
    """To a worker, first of all: what to serve.

    Attributes:
        number: The worker's own, for logs.
        config: The operator's choices, as JSON.
        owner_key: With which owners of responses are told apart, the same in all workers.
    """

    number: int
    config: bytes
    owner_key: bytes


class Started(msgspec.Struct, frozen=True, tag=True):
    """From a worker: it listens.

    Attributes:
        series: The name of each of the figures that its reports hold, with its labels.
    """

    series: list[str]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """From a worker: it cannot listen, and why."""

    reason: str


class Drain(msgspec.Struct, frozen=True, tag=True):
    """To a worker: finish what runs, in so many seconds, and end."""

    seconds: float


class Abort(msgspec.Struct, frozen=True, tag=True):
    """To a worker: end now."""


class Watch(msgspec.Struct, frozen=True, tag=True):
    """To a worker: somebody watches its picture, or nobody does any more."""

    is_on: bool


class Update(msgspec.Struct, frozen=True, tag=True):
    """From a worker: a snapshot of its picture or what has changed in it (:mod:`proxy.live`), as JSON."""

    data: bytes


class Collect(msgspec.Struct, frozen=True, tag=True):
    """To a worker: asks for a :class:`Report`."""


class Report(msgspec.Struct, frozen=True, tag=True):
    """From a worker: an answer, and without being asked once a second while anything changes, and at its end.

    Attributes:
        values: Its figures, in the order of :class:`Started`.
        general: Totals and backends of its picture, as JSON; empty where it has none.
    """

    values: list[float]
    general: bytes


class Inspect(msgspec.Struct, frozen=True, tag=True):
    """To a worker: asks what one turn said."""

    connection_id: str
    turn: int
    shows_text: bool


class Inspected(msgspec.Struct, frozen=True, tag=True):
    """From a worker: an answer, as JSON; None if it does not have it."""

    data: bytes | None


class Load(msgspec.Struct, frozen=True, tag=True):
    """Asks for a stored response: a worker the supervisor, and that all others."""

    owner: bytes
    response_id: str


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """An answer.

    Attributes:
        known: With how many workers the id is known.
        entry: The response, packed (:mod:`proxy.protocol.packed`); None where none is to be had.
    """

    known: int
    entry: bytes | None


class Find(msgspec.Struct, frozen=True, tag=True):
    """Asks for items of stored responses by their ids, as :class:`Load` does."""

    owner: bytes
    item_ids: list[str]


class Found(msgspec.Struct, frozen=True, tag=True):
    """An answer: those items that are there, by their ids."""

    items: dict[str, bytes]


class Delete(msgspec.Struct, frozen=True, tag=True):
    """Asks to forget a stored response, as :class:`Load` does."""

    owner: bytes
    response_id: str


class Deleted(msgspec.Struct, frozen=True, tag=True):
    """An answer: whether it was there, with anybody."""

    was_there: bool


Statement = Start | Started | Refused | Drain | Abort | Watch | Update | Report
Question = Collect | Inspect | Load | Find | Delete
Answer = Report | Inspected | Loaded | Found | Deleted
Message = Statement | Question | Answer
