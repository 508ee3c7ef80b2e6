"""Uses smolagents' `OpenAIServerModel`: texts, streams, tools, an agent's steps."""

from __future__ import annotations

from smolagents import OpenAIServerModel, ToolCallingAgent, tool
from smolagents.models import ChatMessage


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city.

    Args:
        city: its name.
    """
    return f"sunny in {city}"


def main(url: str, name: str) -> None:
    model = OpenAIServerModel(
        model_id=name, api_base=url, api_key="none", temperature=0, max_tokens=200
    )
    messages = [ChatMessage(role="user", content=[{"type": "text", "text": "Hello"}])]
    answer = model.generate(messages, stop_sequences=["\n\n"])
    assert answer.content
    streamed = "".join(
        part.content or "" for part in model.generate_stream(messages, stop_sequences=["\n\n"])
    )
    assert streamed == answer.content

    called = model.generate(messages, tools_to_call_from=[get_weather])
    (call,) = called.tool_calls
    assert call.function.name == "get_weather"

    agent = ToolCallingAgent(tools=[get_weather], model=model, max_steps=2, verbosity_level=0)
    agent.run("The weather in Paris?")
    assert agent.memory.steps
