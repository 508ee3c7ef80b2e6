"""Chats with the real server process and the demo model, through the openai client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from fastovms.server_config import DEMO_MODEL
from tests.real_server import Server, is_idle, server

__all__ = ["server"]

NAME = DEMO_MODEL.name
PARIS = [{"role": "user", "content": "What is the weather in Paris?"}]
SUM = [{"role": "user", "content": "What is 7 + 5?"}]
ANN = [{"role": "user", "content": "Give me a JSON object with name and age of Ann, 7."}]
THINKING = {"chat_template_kwargs": {"enable_thinking": True}}
GREEDY: dict[str, Any] = {"model": NAME, "temperature": 0, "max_tokens": 200}


class get_weather(BaseModel):
    """Get the current weather in a city"""

    city: str


class Person(BaseModel):
    name: str
    age: int


WEATHER = openai.pydantic_function_tool(get_weather)
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}


@pytest.fixture(params=["/v1", "/v3"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[openai.OpenAI]:
    with server.client(request.param) as client:
        yield client


def thoughts(message: Any) -> str:
    return getattr(message, "reasoning_content", "")


def test_an_answer_is_the_same_again_and_streamed(client):
    answers = [client.chat.completions.create(**GREEDY, messages=SUM) for _ in range(2)]
    choice = answers[0].choices[0]
    assert choice.message.content == answers[1].choices[0].message.content == "7 + 5 = 12."
    assert (choice.finish_reason, choice.message.role) == ("stop", "assistant")
    stream = client.chat.completions.create(
        **GREEDY, messages=SUM, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert [delta.role for delta in deltas if delta.role] == ["assistant"]
    assert "".join(delta.content or "" for delta in deltas) == choice.message.content
    assert chunks[-1].usage.completion_tokens == answers[0].usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == answers[0].usage.prompt_tokens


def test_chat_calls_its_tool_and_answers_from_the_result(client):
    asked = client.chat.completions.create(**GREEDY, messages=PARIS, tools=[WEATHER])
    assert asked.choices[0].finish_reason == "tool_calls"
    message = asked.choices[0].message
    [call] = message.tool_calls
    assert (call.type, call.function.name) == ("function", "get_weather")
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    result = {
        "role": "tool",
        "tool_call_id": call.id,
        "content": '{"temperature": 18, "condition": "sunny"}',
    }
    answer = client.chat.completions.create(
        **GREEDY, messages=[*PARIS, message, result], tools=[WEATHER]
    )
    assert answer.choices[0].message.content == "It is 18 degrees and sunny in Paris."
    assert answer.choices[0].finish_reason == "stop"


def test_streamed_tool_calls_equal_those_of_a_whole_answer(client):
    question = [{"role": "user", "content": "What is the weather in Paris and London?"}]
    whole = client.chat.completions.create(**GREEDY, messages=question, tools=[WEATHER])
    with client.chat.completions.stream(**GREEDY, messages=question, tools=[WEATHER]) as stream:
        done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion().choices[0]
    assert [event.parsed_arguments for event in done] == [
        get_weather(city="Paris"), get_weather(city="London"),
    ]  # fmt: skip
    assert final.finish_reason == "tool_calls"
    assert [call.function.arguments for call in final.message.tool_calls] == [
        call.function.arguments for call in whole.choices[0].message.tool_calls
    ]
    assert [call.index for call in final.message.tool_calls] == [0, 1]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "add"}),
        ({"type": "function", "function": {"name": "add"}}, {"add"}),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools":
            [{"type": "function", "function": {"name": "add"}}]}}, {"add"}),
    ],
)  # fmt: skip
def test_required_call_matches_the_schema_of_its_tool(client, choice, names, streamed):
    """Of a question that no tool fits, so that the grammar decides."""
    request = {
        **GREEDY,
        "messages": [{"role": "user", "content": "Hello!"}],
        "tools": [WEATHER, ADD],
        "tool_choice": choice,
    }
    if streamed:
        with client.chat.completions.stream(**request) as stream:
            found = stream.get_final_completion().choices[0]
    else:
        found = client.chat.completions.create(**request).choices[0]
    assert found.message.tool_calls
    assert not found.message.content
    for call in found.message.tool_calls:
        assert call.function.name in names
        arguments = json.loads(call.function.arguments)
        if call.function.name == "add":
            assert {type(arguments[name]) for name in "ab"} <= {int, float}
        else:
            assert isinstance(arguments["city"], str)


def test_reasoning_is_apart_from_content_and_follows_the_effort(client):
    answer = client.chat.completions.create(**GREEDY, messages=SUM, extra_body=THINKING)
    message = answer.choices[0].message
    assert message.content == "7 + 5 = 12."
    assert thoughts(message)
    reasoning_tokens = answer.usage.completion_tokens_details.reasoning_tokens
    assert 0 < reasoning_tokens < answer.usage.completion_tokens
    with client.chat.completions.stream(**GREEDY, messages=SUM, extra_body=THINKING) as stream:
        streamed = stream.get_final_completion().choices[0].message
    assert thoughts(streamed) == thoughts(message)
    assert streamed.content == message.content
    by_effort = client.chat.completions.create(**GREEDY, messages=SUM, reasoning_effort="low")
    assert thoughts(by_effort.choices[0].message) == thoughts(message)
    without = client.chat.completions.create(**GREEDY, messages=SUM, reasoning_effort="none")
    assert not thoughts(without.choices[0].message)
    assert without.usage.completion_tokens_details.reasoning_tokens == 0


def test_parsed_answer_is_an_object_of_the_given_type(client):
    answer = client.chat.completions.parse(**GREEDY, messages=ANN, response_format=Person)
    assert answer.choices[0].message.parsed == Person(name="Ann", age=7)
    with client.chat.completions.stream(**GREEDY, messages=ANN, response_format=Person) as stream:
        streamed = stream.get_final_completion().choices[0].message.parsed
    assert streamed == Person(name="Ann", age=7)
    thought = client.chat.completions.parse(
        **GREEDY, messages=ANN, response_format=Person, extra_body=THINKING
    )
    assert thought.choices[0].message.parsed == Person(name="Ann", age=7)
    called = client.chat.completions.parse(**GREEDY, messages=PARIS, tools=[WEATHER])
    [call] = called.choices[0].message.tool_calls
    assert call.function.parsed_arguments == get_weather(city="Paris")


def test_json_object_format_returns_a_json_object(client):
    request = {**GREEDY, "response_format": {"type": "json_object"}}
    answers = [client.chat.completions.create(**request, messages=ANN) for _ in range(2)]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content
    assert json.loads(answers[0].choices[0].message.content) == {"name": "Ann", "age": 7}
    other = client.chat.completions.create(
        **request, messages=SUM, extra_body={"chat_template_kwargs": {"enable_thinking": False}}
    )
    if other.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(other.choices[0].message.content), dict)


def test_streamed_samples_equal_those_of_a_whole_answer(client):
    request = {"model": NAME, "messages": SUM, "n": 3, "seed": 5, "temperature": 1.0}
    whole = client.chat.completions.create(**request, max_tokens=20)
    with client.chat.completions.stream(**request, max_tokens=20) as stream:
        snapshot = stream.until_done().current_completion_snapshot
    choices = [(choice.index, choice.message.content) for choice in snapshot.choices]
    assert choices == [(choice.index, choice.message.content) for choice in whole.choices]


def test_chat_log_probabilities_cover_the_content_and_are_streamed(client):
    request = {**GREEDY, "messages": SUM, "logprobs": True, "top_logprobs": 2}
    content = client.chat.completions.create(**request).choices[0].logprobs.content
    assert "".join(bytes(entry.bytes).decode() for entry in content) == "7 + 5 = 12."
    for entry in content:
        assert entry.logprob <= 0
        assert entry.top_logprobs[0].token == entry.token
        assert len(entry.top_logprobs) == 2
    streamed = [
        entry
        for chunk in client.chat.completions.create(**request, stream=True)
        for choice in chunk.choices
        if choice.logprobs
        for entry in choice.logprobs.content
    ]
    assert [entry.token for entry in streamed] == [entry.token for entry in content]


def test_continue_final_message_continues_the_answer(client):
    messages: Any = [*SUM, {"role": "assistant", "content": "7 + 5 ="}]
    answer = client.chat.completions.create(
        **GREEDY,
        messages=messages,
        extra_body={"continue_final_message": True, "add_generation_prompt": False},
    )
    assert answer.choices[0].message.content.strip() == "12."


async def test_concurrent_chats_answer_as_alone(server):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:

        async def call(position: int) -> None:
            if position % 2:
                answer = await client.chat.completions.create(**GREEDY, messages=SUM)
                assert answer.choices[0].message.content == "7 + 5 = 12."
                return
            stream = client.chat.completions.stream(**GREEDY, messages=PARIS, tools=[WEATHER])
            async with stream as events:
                final = await events.get_final_completion()
            [made] = final.choices[0].message.tool_calls
            assert made.function.parsed_arguments == get_weather(city="Paris")

        await asyncio.gather(*map(call, range(64)))
    assert is_idle(server.wait_until(is_idle))
