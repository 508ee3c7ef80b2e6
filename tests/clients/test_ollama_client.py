"""Tests of Ollama's client with the real server: chats, streams, tools, formats, models."""

from __future__ import annotations

import json
from collections.abc import Iterator

import ollama
import pytest

from tests.real_server import NAME, Server, start_server, stop_server

ASKED = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0, "num_predict": 40}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "enum": ["x", "y"]}},
          "required": ["a"]}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = start_server()
    yield server
    stop_server(server)


@pytest.fixture
def client(server: Server) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url) as client:
        yield client


def get_weather(city: str) -> str:
    """Get the current weather in a city

    Args:
        city: The city
    """
    return f"It is sunny in {city}, 18 degrees."


def test_model_is_listed_shown_running_and_pulled(client):
    [model] = client.list().models
    assert model.model == NAME
    assert model.size > 0
    assert "tools" in client.show(NAME).capabilities
    assert [running.model for running in client.ps().models] == [NAME]
    assert client.pull(NAME).status == "success"
    assert [part.status for part in client.pull(NAME, stream=True)][-1] == "success"


def test_streamed_chat_equals_the_whole_one(client):
    whole = client.chat(f"{NAME}:latest", ASKED, options=GREEDY)
    assert "Paris" in whole.message.content
    assert whole.eval_count > 0
    assert whole.eval_duration > 0
    parts = list(client.chat(NAME, ASKED, stream=True, options=GREEDY))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts][-2:] == [False, True]


def test_generate_continues_a_context_and_streams_a_raw_prompt(client):
    first = client.generate(NAME, "What is the capital of France?", options=GREEDY)
    assert "Paris" in first.response
    again = client.generate(NAME, "Thanks!", context=first.context, options=GREEDY)
    assert again.prompt_eval_count > len(first.context)
    raw = client.generate(NAME, "Once upon", raw=True, stream=True, options={"num_predict": 4})
    assert len("".join(part.response for part in raw)) > 4


def test_chat_with_a_schema_returns_valid_json(client):
    answer = client.chat(NAME, ASKED, format=SCHEMA, options=GREEDY)
    assert json.loads(answer.message.content)["a"] in ("x", "y")


def test_chat_with_a_function_calls_it_and_uses_its_result(client):
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = client.chat(NAME, messages, tools=[get_weather], options=GREEDY)
    [call] = answer.message.tool_calls
    assert call.function.arguments == {"city": "Paris"}
    result = get_weather(**call.function.arguments)
    messages += [answer.message, {"role": "tool", "tool_name": "get_weather", "content": result}]
    last = client.chat(NAME, messages, tools=[get_weather], options=GREEDY)
    assert "18" in last.message.content


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"model": "x"}, 404), ({"options": {"temperature": 9}}, 400), ({"format": {"type": 5}}, 400)],
)
def test_invalid_chat_raises_a_response_error_with_its_status(client, fields, status):
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat(**{"model": NAME, "messages": ASKED, **fields})
    assert caught.value.status_code == status
