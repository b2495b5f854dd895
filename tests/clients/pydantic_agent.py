"""A program for the environment of pydantic-ai: two runs of an agent in WebSocket mode, the second going on from the first.

Its argument is the server's base URL; it writes what each run came to as a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys

from pydantic_ai import Agent  # type: ignore[import-not-found]
from pydantic_ai.models.openai import OpenAIResponsesModel  # type: ignore[import-not-found]
from pydantic_ai.providers.openai import OpenAIProvider  # type: ignore[import-not-found]


def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"In {city} it rains."


async def main(base_url: str) -> None:
    """Run the agent."""
    provider = OpenAIProvider(base_url=base_url, api_key="unused")
    settings = {"openai_transport": "websocket"}
    model = OpenAIResponsesModel("scripted", provider=provider, settings=settings)
    agent = Agent(model, instructions="Be brief.", tools=[get_weather])
    async with agent:
        first = await agent.run("What is the weather in Paris?")
        second = await agent.run("And tomorrow?", message_history=first.all_messages())
    for result in (first, second):
        sys.stdout.write(json.dumps(result.output) + "\n")


asyncio.run(main(sys.argv[1]))
