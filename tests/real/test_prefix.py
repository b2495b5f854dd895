"""What is replayed is stable to the byte, so that the backend's prefix cache finds all of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.rig.llama import MODEL, Llama, llama_server
from tests.rig.sdk import WEATHER_TOOL, Sockets, Turn, async_client, user
from tests.rig.slipstream import Slipstream, slipstream

pytestmark = pytest.mark.timeout(300)

_TURNS = 20


@pytest.fixture(scope="module")
def llama_with_one_slot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    """A llama-server whose one slot sees every request, so that its cache is that of the turn before."""
    with llama_server(tmp_path_factory.mktemp("llama"), slots=1) as server:
        yield server


@pytest.fixture(params=["generic", "llamacpp"])
def proxy_of_one_slot(
    request: pytest.FixtureRequest, llama_with_one_slot: Llama, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Slipstream]:
    """Slipstream in front of it."""
    folder = tmp_path_factory.mktemp("proxy")
    with slipstream(folder, llama_with_one_slot.base_url, "--profile", request.param) as running:
        yield running


async def test_backend_finds_every_earlier_token_in_its_cache(proxy_of_one_slot: Slipstream) -> None:
    """Over a long rollout with tools, each turn has at least 95 % of the turn before it in the backend's cache."""
    async with async_client(proxy_of_one_slot.base_url) as client, client.responses.connect() as connection:
        turns = await _roll_out(Sockets(connection), _TURNS)
    shares = [after.cached_tokens / before.usage["input_tokens"] for before, after in itertools.pairwise(turns)]
    assert min(shares) >= 0.95, shares
    assert turns[-1].usage["input_tokens"] > 4 * turns[0].usage["input_tokens"]


async def test_client_branches_from_an_older_response(proxy_of_one_slot: Slipstream) -> None:
    """A second continuation of an old response sees the history up to there, and nothing of what came after it."""
    async with async_client(proxy_of_one_slot.base_url) as client, client.responses.connect() as connection:
        sockets = Sockets(connection)
        turns = await _roll_out(sockets, 8)
        branch = await sockets.turn(**turns[4].request)
    assert branch.request["previous_response_id"] == turns[3].response["id"]
    assert branch.usage["input_tokens"] == turns[4].usage["input_tokens"] < turns[7].usage["input_tokens"]
    assert branch.cached_tokens >= turns[3].usage["input_tokens"] * 0.95
    assert branch.types == turns[4].types


async def _roll_out(sockets: Sockets, count: int) -> list[Turn]:
    """An agent's work: it calls its tool, reads the output, is asked for more, and so on.

    After a few rounds so small a model no longer writes calls that can be read; then its calls count as text.
    """
    turns: list[Turn] = []
    items = [user("What is the weather in Paris?")]
    fields = {"model": MODEL, "temperature": 0, "tools": [WEATHER_TOOL], "max_output_tokens": 64}
    chained: dict[str, str] = {}
    for number in range(count):
        choice = "auto" if number < 6 else "none"
        turn = await sockets.turn(**fields, tool_choice=choice, input=items, **chained)
        turns.append(turn)
        items = turn.tool_outputs("It rains there now.") or [user(f"And in hour {number}?")]
        chained = {"previous_response_id": turn.response["id"]}
    return turns
