"""Three real llama-servers as replicas: conversations stay where their prompts are cached, and survive a `kill -9`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import pytest

from tests.rig.llama import MODEL, Llama, llama_server
from tests.rig.sdk import TERMINALS, WEATHER_TOOL, Item, Sockets, Turn, async_client, user
from tests.rig.slipstream import Slipstream, slipstream

pytestmark = pytest.mark.timeout(300)

_REPLICAS: Final = 3
_ROLLOUTS: Final = 6
_TURNS: Final = 6


@dataclass(frozen=True)
class Rig:
    """Slipstream in front of three replicas."""

    proxy: Slipstream
    replicas: list[Llama]

    def counts(self, name: str) -> dict[str, float]:
        """A family of its metrics by the labels, those that are not 0."""
        found = re.findall(rf"^slipstream_{name}\{{(.*)\}} (\S+)$", self.proxy.metrics(), re.MULTILINE)
        return {labels: float(value) for labels, value in found if float(value)}

    def routes(self) -> dict[tuple[str, str], float]:
        """What it has counted of routes, by result and reason."""
        found = self.counts("cache_lookups_total").items()
        matches = [
            (re.fullmatch(r'kind="route",reason="(\w+)",result="(\w+)"', labels), value) for labels, value in found
        ]
        return {(match[2], match[1]): value for match, value in matches if match is not None}

    def home(self, before: list[int]) -> Llama:
        """The replica that has worked since its prompts were counted, the only one."""
        after = [replica.tokens_read() for replica in self.replicas]
        (home,) = [index for index, (old, new) in enumerate(zip(before, after, strict=True)) if new > old]
        return self.replicas[home]

    def tokens_read(self) -> list[int]:
        """What each has worked on."""
        return [replica.tokens_read() for replica in self.replicas]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Fresh ones for each test, since one of them is killed."""
    with contextlib.ExitStack() as stack:
        replicas = [stack.enter_context(llama_server(tmp_path, slots=_ROLLOUTS)) for _ in range(_REPLICAS)]
        file = tmp_path / "slipstream.yaml"
        served = [{"name": "toy", "replicas": [replica.base_url for replica in replicas], "profile": "llamacpp"}]
        file.write_text(json.dumps({"backends": served}))
        yield Rig(stack.enter_context(slipstream(tmp_path, None, "--config", str(file))), replicas)


@dataclass
class Rollout:
    """An agent at work: it calls its tool, reads the output, is asked once more, and so on.

    Like any client it sends only what is new, and after an error all that was said, as a new chain.
    """

    sockets: Sockets
    fields: dict[str, Any]
    history: list[Item] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    errors: list[Item] = field(default_factory=list)

    async def turn(self, **more: Any) -> Turn:
        """Its next turn, until it is done."""
        new = self.turns[-1].tool_outputs("It rains there now.") if self.turns else []
        new = new or [user("What is the weather in Paris?")]
        asked: dict[str, Any] = {"input": new}
        if self.turns:
            asked["previous_response_id"] = self.turns[-1].response["id"]
        self.history += new
        turn = await self.sockets.turn(**self.fields, **more, **asked)
        if turn.types[-1] == "error":
            self.errors.append(turn.events[-1]["error"])
            turn = await self.sockets.turn(**self.fields, **more, input=self.history)
        self.history += turn.response["output"]
        self.turns.append(turn)
        return turn

    def seen(self) -> list[tuple[int, str, int]]:
        """Of each turn the tokens of the whole conversation as the backend read it, what it said, and its calls."""
        return [(turn.usage["input_tokens"], turn.text, len(turn.calls)) for turn in self.turns]


def fields(number: int) -> dict[str, Any]:
    """What the agents of one kind send with each turn; of equal length for all kinds."""
    instructions = f"You are agent {chr(ord('a') + number)}. Be brief."
    return {
        "model": MODEL,
        "temperature": 0,
        "store": False,
        "tools": [WEATHER_TOOL],
        "instructions": instructions,
        "max_output_tokens": 64,
    }


@contextlib.asynccontextmanager
async def rollout(base_url: str, number: int) -> AsyncIterator[Rollout]:
    """An agent with a connection of its own."""
    async with async_client(base_url) as client, client.responses.connect() as connection:
        yield Rollout(Sockets(connection), fields(number))


async def six_at_once(rig: Rig, during: Callable[[int], object] = bool) -> list[Rollout]:
    """An agent of each kind, all at work at the same time, turn by turn."""
    async with contextlib.AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(rollout(rig.proxy.base_url, number)) for number in range(_ROLLOUTS)]
        for number in range(_TURNS):
            async with asyncio.TaskGroup() as tasks:
                for agent in agents:
                    tasks.create_task(agent.turn())
                await asyncio.sleep(0)
                during(number)
        return agents


async def test_conversations_stay_where_they_are_cached_and_survive_the_death_of_a_replica(rig: Rig) -> None:
    """Six kinds of agents at once; then the same six again, and a replica is killed while their third turns run.

    At first each finds 95 % of its prompt in the cache from its second turn on. Then all of them end with what they had said
    the first time; a stream that was cut is all that any client may have noticed.
    """
    agents = await six_at_once(rig)
    for agent in agents:
        pairs = itertools.pairwise(agent.turns)
        shares = [after.cached_tokens / before.usage["input_tokens"] for before, after in pairs]
        assert min(shares) >= 0.95, shares
    routes = rig.routes()
    assert routes == {("new", "none"): _ROLLOUTS, ("hit", "same"): _ROLLOUTS * (_TURNS - 1)}
    assert sum(tokens > 0 for tokens in rig.tokens_read()) > 1

    victim = max(rig.replicas, key=lambda replica: replica.tokens_read())
    again = await six_at_once(rig, lambda number: victim.server.kill() if number == 2 else None)
    assert [agent.seen() for agent in again] == [agent.seen() for agent in agents]
    assert {error["code"] for agent in again for error in agent.errors} <= {"upstream_disconnected"}
    assert all(len(agent.errors) <= 1 for agent in again)
    assert sum(len(agent.errors) for agent in again) + rig.routes().get(("miss", "replica_failed"), 0) >= 1


async def test_kill_between_two_turns_costs_no_error(rig: Rig) -> None:
    """Agents of one kind share a warm replica; it dies, and the second one ends as if nothing had happened, on another."""
    before = rig.tokens_read()
    async with rollout(rig.proxy.base_url, 0) as expected:
        for _ in range(_TURNS):
            await expected.turn()
    async with rollout(rig.proxy.base_url, 0) as agent:
        for _ in range(3):
            await agent.turn()
        rig.home(before).server.kill()
        for _ in range(_TURNS - 3):
            await agent.turn()
    assert agent.errors == []
    assert agent.seen() == expected.seen()
    assert agent.turns[0].cached_tokens >= 0.9 * agent.turns[0].usage["input_tokens"]
    assert rig.routes()["miss", "replica_failed"] == 1
    assert agent.turns[4].cached_tokens >= 0.95 * agent.turns[3].usage["input_tokens"]


async def test_kill_in_the_middle_of_a_stream_is_one_error(rig: Rig) -> None:
    """What the client has seen cannot be taken back: it is told so, sends all once more, and gets its answer elsewhere."""
    async with async_client(rig.proxy.base_url) as client, client.responses.connect() as connection:
        story = {"model": MODEL, "input": "Tell me a story.", "ignore_eos": True, "max_output_tokens": 400}

        async def tell() -> AsyncIterator[dict[str, Any]]:
            """The events of a long answer."""
            await connection.send(cast("Any", {"type": "response.create", **story}))
            event: dict[str, Any] = {"type": ""}
            while event["type"] not in TERMINALS:
                event = json.loads(await connection.recv_bytes())
                yield event

        event: dict[str, Any] = {}
        async for event in tell():
            if event["type"] == "response.output_text.delta" and all(one.server.is_alive() for one in rig.replicas):
                next(replica for replica in rig.replicas if replica.is_busy()).server.kill()
        assert (event["type"], event["error"]["code"]) == ("error", "upstream_disconnected")
        async for event in tell():
            assert event["type"] != "error"
        assert event["response"]["usage"]["output_tokens"] == 400
