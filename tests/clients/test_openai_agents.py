"""Tests of OpenAI's Agents SDK with the real server: its tool loop with both APIs, namespaces,
sessions that compact themselves, and hosted tools, which are ignored."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real_server import Server, start_server, stop_server

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    agents = pytest.importorskip(
        "agents", reason="openai-agents is missing: pip install -e '.[clients]'"
    )

NAME = "gpt-demo"
"""A model name of OpenAI's, because sessions compact themselves only for such names."""

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = start_server("--served-model-name", NAME)
    yield server
    stop_server(server)


@pytest.fixture
async def client(server):
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def weather_tool(asked: list[str]) -> Any:
    @agents.function_tool
    def get_weather(city: str) -> str:
        """Get the current weather in a city"""
        asked.append(city)
        return json.dumps({"temperature": 18, "condition": "sunny"})

    return get_weather


def make_agent(kind: str, client: Any, tools: list[Any]) -> Any:
    models = {
        "chat": agents.OpenAIChatCompletionsModel,
        "responses": agents.OpenAIResponsesModel,
    }
    model = models[kind](model=NAME, openai_client=client)
    settings = agents.ModelSettings(temperature=0)
    return agents.Agent(name="Assistant", model=model, tools=tools, model_settings=settings)


@pytest.mark.parametrize("kind", ["chat", "responses"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_agent_calls_its_tool_over_either_api(client, kind, streamed):
    asked: list[str] = []
    agent = make_agent(kind, client, [weather_tool(asked)])
    question = "What is the weather in Paris?"
    if streamed:
        result = agents.Runner.run_streamed(agent, question)
        async for _ in result.stream_events():
            pass
    else:
        result = await agents.Runner.run(agent, question)
    assert asked == ["Paris"]
    assert "18" in result.final_output


async def test_agent_with_a_hosted_tool_calls_its_own_tool(client):
    asked: list[str] = []
    tools = [agents.WebSearchTool(), weather_tool(asked)]
    agent = make_agent("responses", client, tools)
    result = await agents.Runner.run(agent, "What is the weather in Paris?")
    assert asked == ["Paris"]
    assert "18" in result.final_output


async def test_agent_calls_a_tool_of_a_namespace(client):
    asked: list[str] = []
    tools = agents.tool_namespace(
        name="mcp__weather", description="All about the weather.", tools=[weather_tool(asked)]
    )
    agent = make_agent("responses", client, tools)
    agent.model_settings = agents.ModelSettings(temperature=0, tool_choice="required")
    result = await agents.Runner.run(agent, "What is the weather in Paris?")
    assert asked == ["Paris"]
    called = [item.raw_item for item in result.new_items if item.type == "tool_call_item"]
    assert (called[0].name, called[0].namespace) == ("get_weather", "mcp__weather")
    assert result.final_output


@pytest.mark.parametrize("mode", ["input", "previous_response_id"])
async def test_compacting_session_keeps_its_facts(client, mode):
    from agents.memory import OpenAIResponsesCompactionSession

    session = OpenAIResponsesCompactionSession(
        session_id="a",
        underlying_session=agents.SQLiteSession("a"),
        client=client,
        model=NAME,
        compaction_mode=mode,
        should_trigger_compaction=lambda context: len(context["compaction_candidate_items"]) >= 2,
    )
    agent = make_agent("responses", client, [])
    for said in ("My name is Alice.", "What is 7 + 5?"):
        result = await agents.Runner.run(agent, said, session=session)
        assert result.final_output
    kept = await session.get_items()
    assert [item.get("type") for item in kept][-1] == "compaction"
    assert [item.get("role") for item in kept][:-1] == ["user"] * (len(kept) - 1)
    result = await agents.Runner.run(agent, "What is my name?", session=session)
    assert "Alice" in result.final_output
