"""What the feed says, read as types."""

from __future__ import annotations

import msgspec
import orjson
import pytest

from proxy.live import Live
from proxy.observe import ConnectionRecord, Exchange, TurnRecord, TurnStarted
from proxy.picture import Backend, Totals
from proxy.protocol.inspection import Inspection, Part, Side
from proxy.protocol.records import TurnEnded
from proxy.protocol.terminals import Usage
from proxy.top import updates


def picture() -> Live:
    """One connection with a turn that runs, one that went well, and one that did not."""
    live = Live([("upstream", "http://backend/v1")], inspects=True)
    live.connection_opened(ConnectionRecord("conn_1", "client", 0.0))
    live.turn_started(TurnStarted("conn_1", 3, "lane", 0.0, 0.1))
    said = Inspection(Side((Part("item", "message", "user", 6, '"canary"'),), 2))
    good = TurnEnded(
        1,
        None,
        10,
        0.0,
        "completed",
        lookup="hit",
        reason="tip",
        usage=Usage(9, 8, 7),
        inspection=said,
        upstream_bytes=5,
    )
    live.turn_ended(TurnRecord("conn_1", good, 0.5, Exchange(status=200, connect=0.1)))
    bad = TurnEnded(2, "lane", 10, 0.0, "refused", error_code="invalid", error_source="downstream", error_status=400)
    live.turn_ended(TurnRecord("conn_1", bad, 0.5, None))
    return live


def test_everything_shown_is_really_sent() -> None:
    """Each member has the name that the proxy gives it, and its type; nothing is a default by mistake."""
    sent = orjson.loads(picture().snapshot())
    read = updates.read_update(picture().snapshot())
    assert (read.kind, read.open, read.inspects) == ("snapshot", 1, True)
    good, bad = sent["turns"]
    for shown, raw in (
        (updates.Totals, sent["totals"]),
        (updates.Backend, sent["backends"][0]),
        (updates.Connection, sent["connections"][0]),
        (updates.Running, sent["connections"][0]["running"][0]),
        (updates.Turn, good | bad),
    ):
        assert set(shown.__struct_fields__) <= raw.keys()
    assert (read.turns[0].word, read.turns[0].cached_tokens, read.turns[0].status) == ("hit", 8, 200)
    assert (read.turns[1].kind, read.turns[1].error_code, read.turns[1].own) == ("bad", "invalid", None)
    assert read.connections[0].running[0].lane == "lane"


def test_totals_and_backends_are_those_of_the_picture() -> None:
    """The types here are the proxy's own, or less."""
    assert set(updates.Totals.__struct_fields__) <= set(Totals.__dataclass_fields__)
    assert set(updates.Backend.__struct_fields__) <= Backend("b").row().keys()


def test_unknown_members_are_no_harm() -> None:
    """Another version's feed may say more."""
    raw = orjson.loads(picture().snapshot())
    raw |= {"more": 1}
    raw["turns"][0]["more"] = {"a": []}
    assert len(updates.read_update(orjson.dumps(raw)).turns) == 2


async def test_what_was_said_is_read() -> None:
    """Both sides, of which one may be missing."""
    live = picture()
    for shows_text, text in ((False, '"••••••"'), (True, '"canary"')):
        found = await live.inspection("conn_1", 1, shows_text=shows_text)
        assert found is not None
        said = updates.read_said(found)
        assert (said.masked, said.upstream, said.sent.omitted) == (not shows_text, None, 2)
        assert said.sent.parts[0].text == text


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"kind": "other"}', b"<html>", b"\xff"])
def test_what_is_no_update_is_an_error(data: bytes) -> None:
    """It is not taken for an empty one."""
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        updates.read_update(data)
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        updates.read_said(data)
