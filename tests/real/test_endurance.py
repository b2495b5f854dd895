"""Many turns, one after the other: a backend that closes its connection behind each stream must not be noticed."""

from __future__ import annotations

import pytest

from tests.rig.llama import MODEL
from tests.rig.sdk import Sockets, async_client, user
from tests.rig.slipstream import Slipstream

pytestmark = pytest.mark.timeout(300)


@pytest.mark.load
@pytest.mark.parametrize(("profile", "count"), [("generic", 500), ("llamacpp", 100)])
async def test_client_runs_turns_back_to_back_without_an_error(
    proxy: Slipstream, llamacpp_proxy: Slipstream, profile: str, count: int
) -> None:
    """Hundreds of turns on one connection, each sent as soon as the one before is complete, and all complete."""
    running = proxy if profile == "generic" else llamacpp_proxy
    before = len(running.lines("turn"))
    outcomes = []
    async with async_client(running.base_url) as client, client.responses.connect() as connection:
        sockets = Sockets(connection)
        previous: dict[str, str] = {}
        for number in range(count):
            if number % 10 == 0:  # chains, of ten turns each
                previous = {}
            turn = await sockets.turn(
                model=MODEL, temperature=0, max_output_tokens=4, input=[user(f"Hello {number}")], **previous
            )
            outcomes.append(turn.types[-1])
            previous = {"previous_response_id": turn.response["id"]}
    assert outcomes == ["response.completed"] * count
    lines = running.turns(before + count)[before:]
    assert [line["outcome"] for line in lines] == ["completed"] * count
    assert {line["upstream_status"] for line in lines} == {200}
    assert {line["connection_id"] for line in lines} == {lines[0]["connection_id"]}
