"""Lets the model call functions with Anthropic's client, whose runner executes the calls and
returns the results to the model until it answers."""

import os

import anthropic

client = anthropic.Anthropic(
    base_url=os.environ.get("ANTHROPIC_BASE_URL", "http://127.0.0.1:8000"),
    api_key=os.environ.get("ANTHROPIC_API_KEY", "unused"),
)
MODEL = os.environ.get("MODEL", "demo_model")


@anthropic.beta_tool
def get_weather(city: str) -> str:
    """Get the current weather in a city

    Args:
        city: the city
    """
    print(f"get_weather({city!r})")
    return '{"temperature": 18, "condition": "sunny"}'


runner = client.beta.messages.tool_runner(
    model=MODEL,
    max_tokens=64,
    tools=[get_weather],
    messages=[{"role": "user", "content": "What is the weather in Paris?"}],
    extra_body={"temperature": 0},
)
for message in runner:
    for block in message.content:
        if block.type == "text" and block.text.strip():
            print(block.text.strip())
