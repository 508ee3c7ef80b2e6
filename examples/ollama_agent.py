"""Lets the model call functions with Ollama's client, which derives tools from functions, until it
answers.

The environment variable OLLAMA_HOST names the server's address.
"""

import os

import ollama

client = ollama.Client(host=os.environ.get("OLLAMA_HOST", "http://127.0.0.1:8000"))
MODEL = os.environ.get("MODEL", "demo_model")


def get_weather(city: str) -> str:
    """Get the current weather in a city

    Args:
        city: The city
    """
    print(f"get_weather({city!r})")
    return '{"temperature": 18, "condition": "sunny"}'


tools = {"get_weather": get_weather}
messages = [{"role": "user", "content": "What is the weather in Paris?"}]
with client:
    for _ in range(5):
        answer = client.chat(MODEL, messages, tools=tools.values(), options={"temperature": 0})
        messages.append(answer.message)
        if not answer.message.tool_calls:
            print(answer.message.content.strip())
            break
        for call in answer.message.tool_calls:
            name, arguments = call.function.name, call.function.arguments
            result = tools[name](**arguments)
            messages.append({"role": "tool", "tool_name": name, "content": result})
