"""Uses litellm's `openai/` and `hosted_vllm/` providers: texts, streams, tools, structured answers,
responses."""

from __future__ import annotations

import json

import litellm
from person import Person

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
        },
    },
}


def main(url: str, name: str) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    for provider in ("openai", "hosted_vllm"):
        common = {
            "model": f"{provider}/{name}",
            "api_base": url,
            "api_key": "none",
            "messages": messages,
            "temperature": 0,
        }
        answer = litellm.completion(**common, max_tokens=20)
        assert answer.choices[0].message.content
        parts = list(
            litellm.completion(
                **common, max_tokens=20, stream=True, stream_options={"include_usage": True}
            )
        )
        text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        assert text == answer.choices[0].message.content
        assert parts[-1].usage.completion_tokens == answer.usage.completion_tokens

        called = litellm.completion(
            **common, max_tokens=200, tools=[TOOL], tool_choice="required"
        ).choices[0]
        (call,) = called.message.tool_calls
        assert called.finish_reason == "tool_calls", called
        assert set(json.loads(call.function.arguments)) == {"city"}

        made = litellm.completion(
            **{**common, "temperature": 1.3}, max_tokens=400, response_format=Person
        )
        Person.model_validate_json(made.choices[0].message.content)
    response = litellm.responses(
        model=f"openai/{name}", api_base=url, api_key="none", input="Hello", max_output_tokens=16
    )
    assert response.output[0].content[0].text
