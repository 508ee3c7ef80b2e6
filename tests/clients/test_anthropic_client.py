"""Tests of Anthropic's client with the real server: streams, tools, objects, token counts, lists of
models, and errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel

from tests.real_server import NAME, Server, server, start_server, stop_server

__all__ = ["server"]

QUESTION = "What is the weather in Paris?"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
}
WEATHER: Any = {"name": "get_weather", "description": "Tells the weather", "input_schema": CITY}

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0, timeout=60
    ) as client:
        yield client


def asked(text: str = QUESTION, **fields: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    return {
        "model": NAME,
        "max_tokens": 64,
        "messages": messages,
        "extra_body": {"temperature": 0},
        **fields,
    }


def test_create_returns_text_and_usage(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**asked("Hello", system="Be brief."))
    [block] = message.content
    assert block.type == "text"
    assert block.text
    assert message.stop_reason == "end_turn"
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) > 5
    assert message._request_id
    counted = client.messages.count_tokens(model=NAME, messages=asked("Hello")["messages"])
    assert counted.input_tokens > 5


def test_stream_gives_the_text_of_a_whole_message(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**asked("Once upon a time", stop_sequences=["."])) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    whole = client.messages.create(**asked("Once upon a time", stop_sequences=["."]))
    assert text == stream.get_final_text() == whole.content[0].text
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", ".")
    assert message.usage.output_tokens == whole.usage.output_tokens


def test_request_of_no_tokens_fills_the_prefix_cache(client: anthropic.Anthropic) -> None:
    system = "You are a helpful assistant, and tell of the weather in many cities. " * 8
    empty = client.messages.create(**asked("Hello", system=system, max_tokens=0))
    assert (empty.content, empty.stop_reason) == ([], "max_tokens")
    assert empty.usage.output_tokens == 0
    message = client.messages.create(**asked("Hello", system=system, max_tokens=1))
    assert (message.usage.cache_read_input_tokens or 0) > message.usage.input_tokens


def test_streamed_tool_input_accumulates_to_the_whole_input(client: anthropic.Anthropic) -> None:
    choice = {"type": "tool", "name": "get_weather"}
    with client.messages.stream(**asked(tools=[WEATHER], tool_choice=choice)) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    [use] = message.content
    assert use.type == "tool_use"
    assert use.input == snapshots[-1] == {"city": "Paris"}
    assert message.stop_reason == "tool_use"


def test_tool_runner_calls_the_tool_and_ends_the_turn(client: anthropic.Anthropic) -> None:
    cities = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Get the current weather in a city

        Args:
            city: the city
        """
        cities.append(city)
        return '{"temperature": 18, "condition": "sunny"}'

    for streamed in (False, True):
        runner = client.beta.messages.tool_runner(
            **asked(tools=[get_weather], max_iterations=4, stream=streamed)
        )
        final = runner.until_done()
        assert cities.pop() == "Paris"
        assert final.stop_reason == "end_turn"
        assert "18" in final.content[-1].text


async def test_asynchronous_client_streams_the_text_of_a_whole_message(server: Server) -> None:
    async with anthropic.AsyncAnthropic(
        base_url=server.url, auth_token="none", max_retries=0
    ) as client:
        message = await client.messages.create(**asked("Hello"))
        assert message.content
        async with client.messages.stream(**asked("Hello")) as stream:
            texts = [text async for text in stream.text_stream]
        assert "".join(texts) == message.content[0].text


class City(BaseModel):
    name: str
    is_big: bool


def test_parse_returns_an_object_of_the_output_format(client: anthropic.Anthropic) -> None:
    parsed = client.messages.parse(**asked("Is Paris big?", output_format=City))
    assert isinstance(parsed.parsed_output, City)
    with client.messages.stream(**asked("Is Paris big?", output_format=City)) as stream:
        assert stream.get_final_message().parsed_output == parsed.parsed_output


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"model": "other"}, anthropic.NotFoundError, "`other`"),
        ({"messages": []}, anthropic.BadRequestError, "messages"),
        ({"max_tokens": -1}, anthropic.BadRequestError, "max_tokens"),
        ({"messages": asked("word " * 4000)["messages"]}, anthropic.BadRequestError,
         "prompt is too long"),
        ({"extra_body": {"temperature": "hot"}}, anthropic.BadRequestError, "temperature"),
    ],
)  # fmt: skip
def test_invalid_request_raises_the_error_class_of_its_status(
    client: anthropic.Anthropic, fields: Any, error: Any, words: str
) -> None:
    with pytest.raises(error) as caught:
        client.messages.create(**{**asked("Hello"), **fields})
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert words in body["error"]["message"]
    assert body["request_id"] == caught.value.request_id


def test_batches_and_files_are_refused_by_name(client: anthropic.Anthropic) -> None:
    line: Any = {"custom_id": "a", "params": asked("Hello")}
    asking: list[tuple[Any, str]] = [
        (lambda: client.messages.batches.list(), "/v1/messages/batches"),
        (lambda: client.messages.batches.create(requests=[line]), "/v1/messages/batches"),
        (lambda: client.messages.batches.results("a"), "/v1/messages/batches/a"),
        (lambda: client.beta.files.list(), "GET /v1/files"),
        (lambda: client.beta.files.upload(file=("a.txt", b"a")), "POST /v1/files"),
        (lambda: client.beta.files.delete("a"), "DELETE /v1/files/a"),
        (lambda: client.beta.skills.list(), "/v1/skills"),
    ]
    for ask, words in asking:
        with pytest.raises(anthropic.NotFoundError, match=words) as caught:
            ask()
        assert caught.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]


def test_wrong_key_and_large_body_raise_errors_of_the_api() -> None:
    server = start_server("--api-key", "alpha", "--max-body", "4096")
    try:
        with anthropic.Anthropic(base_url=server.url, api_key="alpha", max_retries=0) as client:
            assert client.messages.create(**asked("Hello")).content
            with pytest.raises(anthropic.APIStatusError) as caught:
                client.messages.create(**asked("a" * 8192))
            assert caught.value.status_code == 413
            assert caught.value.body["error"]["type"] == "request_too_large"  # type: ignore[index]
        with (
            anthropic.Anthropic(base_url=server.url, api_key="beta", max_retries=0) as client,
            pytest.raises(anthropic.AuthenticationError) as refused,
        ):
            client.messages.create(**asked("Hello"))
        assert refused.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
    finally:
        stop_server(server)
