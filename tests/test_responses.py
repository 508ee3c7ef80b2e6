"""Stored responses of the real server process on the demo model: Open Responses' compliance cases,
chains, crashes."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.open_responses import check_event, check_response
from tests.real_server import NAME, Server, start_server, stop_server

WEATHER = "What's the weather like in San Francisco?"
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {
            "location": {
                "type": "string",
                "description": "The city and state, e.g. San Francisco, CA",
            }
        },
        "required": ["location"],
    },
}


@contextmanager
def serving(state_dir: Path | str, *flags: str) -> Iterator[Server]:
    server = start_server("--state-dir", str(state_dir), *flags)
    try:
        yield server
    finally:
        stop_server(server)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(":memory:") as server:
        yield server


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def post(server: Server, **body: Any) -> bytes:
    request = urllib.request.Request(
        f"{server.url}/v1/responses",
        json.dumps({"model": NAME, "temperature": 0, **body}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        data: bytes = response.read()
    return data


def ask(server: Server, **body: Any) -> dict[str, Any]:
    response: dict[str, Any] = json.loads(post(server, stream=False, **body))
    check_response(response)
    return response


def stream(server: Server, **body: Any) -> list[dict[str, Any]]:
    """The events, each checked; its `event:` line must be its type."""
    *frames, done, end = post(server, stream=True, **body).decode().split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    events = []
    for number, frame in enumerate(frames):
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        check_event(event)
        events.append(event)
    check_response(events[-1]["response"])
    return events


# The compliance cases of Open Responses


def test_response_to_a_user_message_is_completed(server):
    response = ask(server, input=[user("Say hello in exactly 3 words.")])
    assert response["status"] == "completed"
    assert response["output"]


def test_streamed_response_ends_with_a_completed_event(server):
    events = stream(server, input=[user("Count from 1 to 5.")])
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["status"] == "completed"


def test_response_with_a_system_message_is_completed(server):
    system = {
        "type": "message",
        "role": "system",
        "content": "You are a pirate. Always respond in pirate speak.",
    }
    response = ask(server, input=[system, user("Say hello.")])
    assert response["status"] == "completed"
    assert response["output"]


def test_response_calls_the_given_tool(server):
    response = ask(server, input=[user(WEATHER)], tools=[TOOL])
    [call] = [item for item in response["output"] if item["type"] == "function_call"]
    assert call["name"] == "get_weather"
    assert "San Francisco" in json.loads(call["arguments"])["location"]


def test_tool_calling_streaming(server):
    events = stream(server, input=[user(WEATHER)], tools=[TOOL])
    kinds = [event["type"] for event in events]
    assert "response.function_call_arguments.delta" in kinds
    assert "response.function_call_arguments.done" in kinds
    for kind in ("response.output_item.added", "response.output_item.done"):
        assert any(
            event["type"] == kind and event["item"]["type"] == "function_call" for event in events
        )


def test_function_call_roundtrip(server):
    choice = {"type": "function", "name": "get_weather"}
    first = ask(server, input=WEATHER, tools=[TOOL], tool_choice=choice)
    [call] = [item for item in first["output"] if item["type"] == "function_call"]
    output = {
        "type": "function_call_output",
        "call_id": call["call_id"],
        "output": '{"temperature":"18","condition":"sunny"}',
    }
    second = ask(server, input=[user(WEATHER), *first["output"], output], tools=[TOOL])
    assert second["status"] == "completed"
    assert second["output"]


def test_response_uses_earlier_turns_of_its_input(server):
    answer = {
        "type": "message",
        "role": "assistant",
        "content": "Hello Alice! Nice to meet you. How can I help you today?",
    }
    response = ask(server, input=[user("My name is Alice."), answer, user("What is my name?")])
    assert response["status"] == "completed"
    assert "Alice" in response["output"][0]["content"][0]["text"]


def test_previous_response_id(server):
    first = ask(server, input="My name is Alice.")
    second = ask(server, input="What is my name?", previous_response_id=first["id"])
    assert second["status"] == "completed"
    assert "Alice" in second["output"][0]["content"][0]["text"]


def test_reasoning_is_an_item(server):
    events = stream(server, input="What is 7 + 5?", reasoning={"effort": "high"})
    response = events[-1]["response"]
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


# What goes on


def test_a_chain_is_computed_once(server):
    """The prompt of each turn is that of the one before it, and some more."""
    response = ask(server, input="Once upon a time there was a dog. " * 30, max_output_tokens=8)
    length = response["usage"]["input_tokens"]
    for _ in range(3):
        previous = response["usage"]
        response = ask(
            server, input="Hello.", previous_response_id=response["id"], max_output_tokens=8
        )
        cached = response["usage"]["input_tokens_details"]["cached_tokens"]
        assert cached > previous["input_tokens"] - 64
        assert response["usage"]["input_tokens"] - cached < length / 2


def test_response_continues_one_stored_before_a_restart(tmp_path):
    with serving(tmp_path) as server:
        first = ask(server, input="My name is Alice.")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
    with serving(tmp_path) as server:
        second = ask(server, input="What is my name?", previous_response_id=first["id"])
        assert "Alice" in second["output"][0]["content"][0]["text"]


def test_background_response_without_resume_fails_after_a_crash(tmp_path):
    with serving(tmp_path, "--no-resume") as server, server.client("/v1") as client:
        queued = client.responses.create(
            model=NAME,
            input="Tell me a story.",
            background=True,
            extra_body={"ignore_eos": True},
        )
        assert queued.status == "queued"
        server.process.kill()
    with serving(tmp_path, "--no-resume") as server, server.client("/v1") as client:
        found = client.responses.retrieve(queued.id)
        assert found.status == "failed"
        assert found.error is not None
        assert "was stopped" in found.error.message
        events = list(client.responses.retrieve(queued.id, stream=True, starting_after=3))
        # Before the end there may be what was kept before the crash.
        assert [event.type for event in events[-2:]] == ["error", "response.failed"]
        assert [event.sequence_number for event in events] == [*range(4, 4 + len(events))]
        with pytest.raises(openai.BadRequestError):
            client.responses.cancel(queued.id)


async def store_until_killed(server: Server, num_clients: int, num_kept: int) -> dict[str, Any]:
    """The responses that were acknowledged, by id. The server is killed when there are enough."""
    kept: dict[str, Any] = {}

    async def keep_asking(client: openai.AsyncOpenAI, number: int) -> None:
        previous_id = None
        try:
            while True:
                response = await client.responses.create(
                    model=NAME,
                    input=f"Count from {number} to {number + 3}.",
                    previous_response_id=previous_id,
                    max_output_tokens=12,
                    temperature=0,
                )
                kept[response.id] = response.to_dict()
                previous_id = response.id
                if len(kept) >= num_kept:
                    server.process.kill()
        except openai.APIConnectionError:
            return

    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60
    ) as client:
        await asyncio.gather(*(keep_asking(client, number) for number in range(num_clients)))
    return kept


async def test_whatever_was_acknowledged_survives_a_crash(tmp_path):
    with serving(tmp_path) as server:
        kept = await store_until_killed(server, num_clients=100, num_kept=150)
    assert len(kept) >= 150
    with serving(tmp_path) as server, server.client("/v1") as client:
        for id, response in kept.items():
            assert client.responses.retrieve(id).to_dict() == response
        last = client.responses.create(
            model=NAME, input="And now?", previous_response_id=next(reversed(kept))
        )
        assert last.status in ("completed", "incomplete")
    connection = sqlite3.connect(tmp_path / "state.db")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    [[count]] = connection.execute("SELECT count(*) FROM objects")
    assert count > len(kept)
    connection.close()
