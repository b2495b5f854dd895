"""Records, facts and orders: plain data whose labels are from closed sets."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from proxy.protocol import effects, events
from proxy.protocol.chain import EvictionReason
from proxy.protocol.errors import MissReason
from proxy.protocol.records import LookupReason, Outcome, TurnEnded
from proxy.protocol.terminals import TerminalKind


def test_labels_cover_what_the_core_says() -> None:
    """Every reason for a miss and every terminal event is a label."""
    assert set(get_args(MissReason)) <= set(get_args(LookupReason))
    assert set(get_args(TerminalKind)) <= set(get_args(Outcome))
    assert "failed_continuation" in get_args(EvictionReason)


def test_record_begins_as_a_refusal() -> None:
    """A turn that never starts was refused, and counts nothing."""
    record = TurnEnded(1, None, 10)
    assert record.outcome == "refused"
    assert record.lookup is None
    assert record.usage.input_tokens == 0


@pytest.mark.parametrize("kind", [*get_args(events.Event), *get_args(effects.Effect)])
def test_facts_and_orders_cannot_be_changed_but_for_the_two_of_the_hot_path(kind: type[msgspec.Struct]) -> None:
    """What is said stays said; only bytes and frames, made once a read, may be used again."""
    is_hot = kind in (events.UpstreamBytes, effects.SendFrames)
    assert kind.__struct_config__.frozen is not is_hot
