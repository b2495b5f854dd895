"""The playbook fails when it should: a test tool that cannot fail would prove nothing."""

from __future__ import annotations

import pytest

from proxy.protocol.events import ClientGone
from tests.playbook import Playbook, answer, cancels, create, finishes, opens, sends, streams


def test_playbook_passes_a_dialogue_that_goes_as_written() -> None:
    """A dialogue that goes as it is written passes."""
    with Playbook() as book:
        book >> create(input="hi") << opens(model="m")
        for event in streams(1, answer("resp_a")):
            book >> event
        book << sends("response.created", "response.completed") << finishes(1)


def test_playbook_fails_on_another_order() -> None:
    """An order other than the expected one fails, and the dialogue is shown."""
    book = Playbook()
    with pytest.raises(AssertionError, match="came instead: OpenUpstream"):
        book >> create(input="hi") << sends("error")


def test_playbook_fails_on_silence() -> None:
    """An expected order that does not come fails."""
    with pytest.raises(AssertionError, match="nothing more came"):
        Playbook() >> ClientGone() << cancels(1)


def test_playbook_fails_on_orders_nobody_spoke_of() -> None:
    """A play that ends with an order left over fails."""
    with pytest.raises(AssertionError, match="nobody expected"), Playbook() as book:
        book >> create(input="hi")


def test_playbook_compares_whole_bodies() -> None:
    """A body that has more than was said does not fit when the whole of it was given."""
    book = Playbook()
    with pytest.raises(AssertionError, match="came instead"):
        book >> create(input=[], temperature=1) << opens({"model": "m", "input": []})
