"""Lets the model call a function of this program repeatedly before it answers."""

import json
import os

from openai import OpenAI

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
client = OpenAI(base_url=BASE_URL, api_key=os.environ.get("OPENAI_API_KEY", "unused"))


def get_weather(city: str) -> dict[str, object]:
    """Stands for a weather service."""
    return {"temperature": 18, "condition": "sunny"}


FUNCTIONS = {"get_weather": get_weather}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]

messages = [{"role": "user", "content": "What is the weather in Paris?"}]
while True:
    choice = client.chat.completions.create(
        model="demo_model", messages=messages, tools=TOOLS, temperature=0
    ).choices[0]
    messages.append(choice.message)
    if choice.finish_reason != "tool_calls":
        break
    for call in choice.message.tool_calls:
        arguments = json.loads(call.function.arguments)
        result = FUNCTIONS[call.function.name](**arguments)
        print(f"{call.function.name}({arguments}) -> {result}")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
print(choice.message.content)
