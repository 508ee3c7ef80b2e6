"""Uses pydantic-ai's agents over chats and responses: texts, streams, tools, structured answers in
each of its ways."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated

from person import Person
from pydantic import Field
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings


def get_weather(city: Annotated[str, Field(max_length=20)]) -> str:
    """Get the weather of a city."""
    return f"sunny in {city}"


async def use(model: OpenAIChatModel | OpenAIResponsesModel) -> None:
    short = ModelSettings(temperature=0, max_tokens=200)
    talker = Agent(model, model_settings=short)
    answer = await talker.run("Hello")
    assert answer.output
    assert answer.usage.output_tokens
    async with talker.run_stream("Hello") as stream:
        assert await stream.get_output() == answer.output

    for output in (ToolOutput(Person), NativeOutput(Person)):
        agent = Agent(
            model,
            output_type=output,
            retries=0,
            model_settings=ModelSettings(temperature=1.3, max_tokens=400),
        )
        for _ in range(3):
            assert isinstance((await agent.run("Who is it?")).output, Person)
    prompted = Agent(model, output_type=PromptedOutput(dict[str, int]), retries=2)
    with suppress(UnexpectedModelBehavior):  # so small a model need not find an answer
        assert isinstance((await prompted.run("Numbers")).output, dict)

    worker = Agent(model, output_type=get_weather, retries=0, model_settings=short)
    assert (await worker.run("The weather in Paris?")).output.startswith("sunny in")


def main(url: str, name: str) -> None:
    provider = OpenAIProvider(base_url=url, api_key="none")
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        asyncio.run(use(kind(name, provider=provider)))
