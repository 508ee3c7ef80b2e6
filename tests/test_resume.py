"""A real server is killed while responses run in the background: it goes on with them, and their
texts are those that they would have been."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import openai
from openai.types.responses import Response

from tests.real_server import NAME, start_server, stop_server

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 60}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "name": "get_weather", "parameters": SCHEMA}
REQUESTS: tuple[dict[str, Any], ...] = (
    {"input": "Tell me a story.", "temperature": 0, "extra_body": {"ignore_eos": True}},
    {
        "input": "Tell me a story.",
        "extra_body": {"ignore_eos": True, "seed": 5, "frequency_penalty": 0.5, "min_tokens": 50},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    },
    {
        "input": "Who are you?",
        "extra_body": {"seed": 7},
        "text": {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}},
    },
    {
        "input": "What is the weather?",
        "extra_body": {"seed": 9},
        "tools": [TOOL],
        "tool_choice": "required",
    },
)


def start(client: openai.OpenAI, fields: dict[str, Any]) -> str:
    fields = {"model": NAME, "max_output_tokens": 90, **fields}
    return client.responses.create(background=True, **fields).id


def wait_for(client: openai.OpenAI, id: str) -> Response:
    deadline = time.monotonic() + 60
    while (response := client.responses.retrieve(id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return response


def comparable(response: Response) -> dict[str, Any]:
    """A response without what each has of its own."""
    fields = response.model_dump(exclude={"id", "created_at", "completed_at"})
    for item in fields["output"]:
        for name in ("id", "call_id"):
            item.pop(name, None)
    return fields


def test_responses_go_on_after_a_kill(tmp_path: Path) -> None:
    flags = ("--state-dir", str(tmp_path), "--precision", "exact", "--no-enable-prefix-caching")
    server = start_server(*flags)
    try:
        with server.client("/v1") as client:
            whole = [wait_for(client, start(client, fields)) for fields in REQUESTS]
            ids = [start(client, fields) for fields in REQUESTS]
            seen = []
            for event in client.responses.retrieve(ids[0], stream=True):
                seen.append(event)
                if event.sequence_number >= 12:
                    server.process.kill()
                    break
        stop_server(server)
        server = start_server(*flags)
        with server.client("/v1") as client:
            last = seen[-1].sequence_number
            seen += client.responses.retrieve(ids[0], stream=True, starting_after=last)
            assert [event.sequence_number for event in seen] == list(range(len(seen)))
            assert seen[-1].type == "response.incomplete"
            for id, expected in zip(ids, whole, strict=True):
                response = wait_for(client, id)
                assert comparable(response) == comparable(expected)
                events = list(client.responses.retrieve(id, stream=True))
                assert [event.sequence_number for event in events] == list(range(len(events)))
                assert events[-1].response == response
                if id == ids[0]:
                    assert events == seen
    finally:
        stop_server(server)
