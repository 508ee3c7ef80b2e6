"""Stored responses of the real server process on the demo model: tools, chains, crashes."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.real_server import NAME, Server, start_server, stop_server

WEATHER = "What's the weather like in San Francisco?"
LOCATION = {"type": "string", "description": "The city and state, e.g. San Francisco, CA"}
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {"location": LOCATION},
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


def ask(server: Server, **body: Any) -> dict[str, Any]:
    """Returns a response that is completed or cut by a limit of the request."""
    reply = server.send("POST", "/v1/responses", {"model": NAME, "temperature": 0, **body})
    response: dict[str, Any] = reply.json
    assert response["status"] in ("completed", "incomplete"), response
    return response


def test_response_calls_its_tool_and_answers_from_the_result(server):
    first = ask(server, input=WEATHER, tools=[TOOL])
    [call] = [item for item in first["output"] if item["type"] == "function_call"]
    assert call["name"] == "get_weather"
    assert "San Francisco" in json.loads(call["arguments"])["location"]
    output = {
        "type": "function_call_output",
        "call_id": call["call_id"],
        "output": '{"temperature":"18","condition":"sunny"}',
    }
    question = {"type": "message", "role": "user", "content": WEATHER}
    second = ask(server, input=[question, *first["output"], output], tools=[TOOL])
    assert "18" in second["output"][0]["content"][0]["text"]


def test_chained_response_computes_only_its_new_turn(server):
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


@pytest.mark.nightly
def test_response_continues_one_stored_before_a_restart(tmp_path):
    with serving(tmp_path) as server:
        first = ask(server, input="My name is Alice.")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    with serving(tmp_path) as server:
        second = ask(server, input="What is my name?", previous_response_id=first["id"])
        assert "Alice" in second["output"][0]["content"][0]["text"]


@pytest.mark.nightly
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


async def test_acknowledged_responses_survive_a_crash(tmp_path):
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
