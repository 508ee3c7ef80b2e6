"""What Codex sends (codex-rs: `ResponsesApiRequest`, `ResponseItem`): streams that are not kept,
tools of MCP's servers in namespaces, patches as text with a grammar, and history without ids."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real_server import DEADLINE, NAME, Server, server

__all__ = ["server"]

PATCH = r"""start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | delete_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
filename: /[a-z]{1,8}/
add_line: "+" /[a-z ]{0,20}/ LF -> line
%import common.LF
"""
SHELL = {
    "type": "function",
    "name": "shell",
    "description": "Runs a command.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "array", "items": {"type": "string"}}},
        "required": ["command"],
        "additionalProperties": False,
    },
}
APPLY_PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files. This is a FREEFORM tool, so do not wrap the patch in JSON.",
    "format": {"type": "grammar", "syntax": "lark", "definition": PATCH},
}
WEATHER = {
    "type": "namespace",
    "name": "mcp__weather",
    "description": "Tools in the mcp__weather namespace.",
    "tools": [
        {
            "type": "function",
            "name": "get_weather",
            "description": "Get the current weather in a city",
            "strict": False,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                           "required": ["city"]},
        }
    ],
}  # fmt: skip
HOSTED = [{"type": "web_search", "external_web_access": False}, {"type": "tool_search"}]


def message(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


QUESTION = [
    message("developer", "<permissions>read only</permissions>"),
    message("user", "<environment_context><cwd>/tmp</cwd></environment_context>"),
    message("user", "What is the weather in Paris?"),
]


def request(items: list[dict[str, Any]], **members: Any) -> dict[str, Any]:
    return {
        "model": NAME,
        "instructions": "You are a coding agent.",
        "input": items,
        "tools": [SHELL, APPLY_PATCH, WEATHER, *HOSTED],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": None,
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "019a1b2c",
        "temperature": 0,
        **members,
    }


def events(server: Server, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a stream, whose lines are as Codex's reader of streams wants them."""
    sent = urllib.request.Request(
        f"{server.url}/v1/responses",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Accept": "text/event-stream"},
    )
    with urllib.request.urlopen(sent, timeout=DEADLINE) as answer:
        assert "web_search" in answer.headers["Warning"]
        name = ""
        for line in answer:
            key, _, value = line.decode().strip().partition(": ")
            if key == "event":
                name = value
            elif key == "data" and value != "[DONE]":
                event = json.loads(value)
                assert event["type"] == name
                yield event


def turn(server: Server, body: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """The items of an answer without their ids, as Codex keeps them, and what came in pieces."""
    found = list(events(server, body))
    is_cut = "max_output_tokens" in body
    assert found[-1]["type"] in ("response.completed", *(["response.incomplete"] * is_cut))
    assert found[-1]["response"]["usage"]["total_tokens"] > 0
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    pieces = [event["delta"] for event in found if event["type"].endswith(".delta")]
    return [{key: item[key] for key in item if key != "id"} for item in done], pieces


def test_a_tool_of_a_namespace_is_called_and_answered(server):
    choice = {"type": "function", "name": "get_weather", "namespace": "mcp__weather"}
    [call], pieces = turn(server, request(QUESTION, tool_choice=choice))
    assert (call["type"], call["name"], call["namespace"]) == (
        "function_call", "get_weather", "mcp__weather",
    )  # fmt: skip
    assert "".join(pieces) == call["arguments"]
    assert json.loads(call["arguments"])["city"]
    output = {"type": "function_call_output", "call_id": call["call_id"],
              "output": [{"type": "input_text", "text": '{"temperature": 18}'}]}  # fmt: skip
    items, _ = turn(server, request([*QUESTION, call, output], max_output_tokens=200))
    assert items


def test_a_patch_follows_its_grammar(server):
    choice = {"type": "custom", "name": "apply_patch"}
    body = request(QUESTION, tool_choice=choice, temperature=1, seed=3, max_output_tokens=600)
    [call], pieces = turn(server, body)
    assert (call["type"], call["name"], call["status"]) == (
        "custom_tool_call", "apply_patch", "completed",
    )  # fmt: skip
    assert "".join(pieces) == call["input"]
    lines = call["input"].splitlines()
    assert (lines[0], lines[-1]) == ("*** Begin Patch", "*** End Patch")
    assert all(
        line.startswith(("+", "*** Add File: ", "*** Delete File: ")) for line in lines[1:-1]
    )
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Done."}
    items, _ = turn(server, request([*QUESTION, call, output], max_output_tokens=200))
    assert items


@pytest.mark.parametrize("tools", [[], [SHELL, APPLY_PATCH, WEATHER]])
def test_the_history_is_compacted(server, tools):
    call = {"type": "custom_tool_call", "status": "completed", "call_id": "1",
            "name": "apply_patch", "input": "*** Begin Patch\n"}  # fmt: skip
    output = {"type": "custom_tool_call_output", "call_id": "1", "output": "Done."}
    body = {
        "model": NAME,
        "input": [*QUESTION, call, output],
        "instructions": "You are a coding agent.",
        "tools": tools,
        "parallel_tool_calls": True,
    }
    sent = urllib.request.Request(
        f"{server.url}/v1/responses/compact",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(sent, timeout=DEADLINE) as answer:
        items = json.load(answer)["output"]
    assert [item["type"] for item in items] == ["message"] * 3 + ["compaction"]
    assert [item["role"] for item in items[:-1]] == ["developer", "user", "user"]
    more, _ = turn(server, request([*items, message("user", "Go on.")], max_output_tokens=20))
    assert more
