"""A program for the environment of pydantic-ai: an agent in WebSocket mode, whose runs go on from each other.

Its arguments are the server's base URL and whether responses are to be stored. Each line of JSON that it reads is what the agent
is told, and it answers with what came of it, or the error, as a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from pydantic_ai import Agent  # type: ignore[import-not-found]
from pydantic_ai.exceptions import AgentRunError  # type: ignore[import-not-found]
from pydantic_ai.models.openai import OpenAIResponsesModel  # type: ignore[import-not-found]
from pydantic_ai.providers.openai import OpenAIProvider  # type: ignore[import-not-found]


def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"In {city} it rains."


async def main(base_url: str, store: str) -> None:
    """Run the agent."""
    provider = OpenAIProvider(base_url=base_url, api_key="unused")
    settings: dict[str, Any] = {"openai_transport": "websocket"}
    if store != "by default":
        settings["openai_store"] = store == "stored"
    model = OpenAIResponsesModel("scripted", provider=provider, settings=settings)
    agent = Agent(model, instructions="Be brief.", tools=[get_weather])
    history: list[Any] = []
    async with agent:
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                result = await agent.run(json.loads(line), message_history=history)
            except AgentRunError as error:
                answer = {"error": str(error)}
            else:
                history, answer = result.all_messages(), {"text": result.output}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


asyncio.run(main(*sys.argv[1:]))
