"""What Claude Code sends: cached blocks of the system, streams with thinking and tools, several
results at once, counted tokens, and the headers and fields of many betas."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real_server import DEADLINE, NAME, Server, start_server, stop_server

CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
HEADERS = {
    "x-api-key": "alpha",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,"
    "fine-grained-tool-streaming-2025-05-14,context-management-2025-06-27,prompt-caching-scope-2026-01-05",
    "anthropic-dangerous-direct-browser-access": "true",
    "x-app": "cli",
    "user-agent": "claude-cli/2.1.37 (external, cli)",
    "x-stainless-lang": "js",
    "x-stainless-retry-count": "0",
}
SYSTEM = [
    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.37.1a2; cch=00000;"},
    {"type": "text", "text": "You are a helpful assistant.", **CACHED},
]


def tool(name: str, *parameters: str) -> dict[str, Any]:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": list(parameters),
        "additionalProperties": False,
    }
    return {"name": name, "description": f"Does what {name} does", "input_schema": schema}


TOOLS = [tool("Bash", "command"), tool("Read", "file_path"), {**tool("Glob", "pattern"), **CACHED}]
REMINDER = {"type": "text", "text": "<system-reminder>Be brief.</system-reminder>"}
FIELDS: dict[str, Any] = {
    "model": NAME,
    "max_tokens": 32000,
    "system": SYSTEM,
    "metadata": {"user_id": "user_0a1b_account__session_2c3d"},
    "temperature": 1,
    "stream": True,
    "thinking": {"type": "enabled", "budget_tokens": 31999},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "medium"},
    "tools": TOOLS,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = start_server("--api-key", "alpha")
    yield server
    stop_server(server)


def send(server: Server, path: str, body: dict[str, Any]) -> tuple[Any, str]:
    request = urllib.request.Request(
        f"{server.url}{path}",
        json.dumps(body).encode(),
        {**HEADERS, "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
        return answer.headers, answer.read().decode()


def events(text: str) -> list[Any]:
    return [json.loads(frame.partition("\ndata: ")[2]) for frame in text.split("\n\n")[:-1]]


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(words: str, **members: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **members}


def use(number: int, command: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash",
            "input": {"command": command}}  # fmt: skip


def result(number: int, content: Any, **members: Any) -> dict[str, Any]:
    return {"tool_use_id": f"toolu_{number}", "type": "tool_result", "content": content, **members}


HISTORY = [
    user(REMINDER, text("List the files")),
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I should look.", "signature": "abc="},
            use(1, "ls"),
            use(2, "pwd"),
        ],
    },
    user(
        result(1, "a.py\nb.py", is_error=False),
        result(2, [text("permission denied")], is_error=True),
        text("[Request interrupted by user]"),
    ),
    user(text("Go on", **CACHED)),
]


def test_turn_with_history_streams_message_events_without_warnings(server: Server) -> None:
    headers, answer = send(
        server, "/v1/messages?beta=true", {**FIELDS, "max_tokens": 40, "messages": HISTORY}
    )
    assert headers["Content-Type"].startswith("text/event-stream")
    assert "Warning" not in headers
    kinds = [event["type"] for event in events(answer)]
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds[-2:] == ["message_delta", "message_stop"]


def test_the_next_turn_comes_from_the_cache(server: Server) -> None:
    usages = []
    for number in range(2):
        billing = text(f"x-anthropic-billing-header: cc_version=2.1.37.1a2; cch={number:05x};")
        system = [billing, *SYSTEM[1:]]
        body = {**FIELDS, "max_tokens": 2, "system": system, "messages": HISTORY}
        start = events(send(server, "/v1/messages?beta=true", body)[1])[0]
        usages.append(start["message"]["usage"])
    assert usages[1]["cache_read_input_tokens"] > usages[1]["input_tokens"]


def test_count_tokens_grows_with_the_tools(server: Server) -> None:
    body = {"model": NAME, "messages": HISTORY, "tools": TOOLS, "system": SYSTEM}
    counted = json.loads(send(server, "/v1/messages/count_tokens?beta=true", body)[1])
    fewer = {**body, "tools": TOOLS[:1]}
    less = json.loads(send(server, "/v1/messages/count_tokens?beta=true", fewer)[1])
    assert counted["input_tokens"] > less["input_tokens"] > 20


def test_title_request_with_a_schema_returns_an_object(server: Server) -> None:
    """The small model is asked for objects, without thinking or a stream."""
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string", "maxLength": 20}},
        "required": ["title"],
        "additionalProperties": False,
    }
    body = {
        "model": NAME,
        "max_tokens": 100,
        "system": SYSTEM,
        "messages": [user(text("hello"))],
        "tools": [],
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
        "metadata": FIELDS["metadata"],
    }
    message = json.loads(send(server, "/v1/messages?beta=true", body)[1])
    assert set(json.loads(message["content"][0]["text"])) == {"title"}


def test_quota_probe_generates_one_token(server: Server) -> None:
    body = {"model": NAME, "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]}
    message = json.loads(send(server, "/v1/messages?beta=true", body)[1])
    assert message["stop_reason"] == "max_tokens"
    assert message["usage"]["output_tokens"] == 1


def test_server_tool_is_ignored_with_a_warning_header(server: Server) -> None:
    """Tools of Anthropic's servers are passed over, and the client is told."""
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    body = {**FIELDS, "max_tokens": 2, "messages": HISTORY[:1], "tools": [search]}
    headers, _ = send(server, "/v1/messages?beta=true", body)
    assert "web_search_20250305" in headers["Warning"]
