"""Replays the requests of Codex, Claude Code and OpenAI's Agents SDK for JavaScript in tasks with
three calls: see `tests.clients.agents`.

Codex uses a WebSocket connection, on which each message continues the previous response.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from email.message import Message
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.clients.agents.recordings import load
from tests.clients.agents.server import NUM_CALLS

pytestmark = pytest.mark.slow

TRAFFIC = load()
DEADLINE = 120


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    record = tmp_path_factory.mktemp("agents") / "requests"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.clients.agents.server", str(record), "serve",
         "--port", "0", "--state-dir", ":memory:", "--log-level", "error"],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    yield process.stdout.readline().rstrip("\n").rpartition(" ")[2]
    process.kill()
    process.communicate()


def sent_by(agent: str) -> list[dict[str, Any]]:
    [sent] = [sent for name, sent in TRAFFIC.items() if name.startswith(agent)]
    return sent


def answer_to(url: str, entry: dict[str, Any]) -> tuple[Message, list[bytes]]:
    """Sends a recorded request and returns the headers and lines of its answer."""
    headers = {"Content-Type": "application/json", **entry["headers"]}
    request = urllib.request.Request(
        url + entry["path"], json.dumps(entry["body"]).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
        return answer.headers, answer.readlines()


def next_call(text: str) -> int:
    """Returns the number of the call in an answer; 0 = it is the last answer."""
    found = re.findall(r"RES%sT(\d)", text)
    assert found or "All is done." in text
    return int(found[-1]) if found else 0


def test_codex_session_calls_tools_until_the_final_answer(url: str) -> None:
    calls, last, tool_calls = [], "", set()
    with connect(
        f"{url.replace('http', 'ws')}/v1/responses", max_size=None, open_timeout=DEADLINE
    ) as socket:
        for entry in sent_by("codex"):
            body = entry["body"]
            if "previous_response_id" in body:
                body["previous_response_id"] = last
            socket.send(json.dumps(body))
            events = []
            while not events or events[-1]["type"] != "response.completed":
                events.append(json.loads(socket.recv(timeout=DEADLINE)))
                assert events[-1]["type"] not in ("error", "response.failed"), events[-1]
            response = events[-1]["response"]
            last = response["id"]
            items = [event["item"] for event in events if event["type"].endswith("item.done")]
            if body.get("generate") is False:
                assert (items, response["output"]) == ([], [])
                continue
            calls.append(next_call(json.dumps(items)))
            tool_calls |= {item["name"] for item in items if item["type"] == "function_call"}
            phases = [item["phase"] for item in items if item["type"] == "message"]
            assert phases == ["commentary" if calls[-1] else "final_answer"]
    assert calls == [*range(1, NUM_CALLS + 1), 0]
    assert tool_calls == {"exec_command"}


@pytest.mark.nightly
def test_claude_code_session_calls_tools_until_the_turn_ends(url: str) -> None:
    calls = []
    for entry in sent_by("claude"):
        headers, lines = answer_to(url, entry)
        assert "Warning" not in headers
        events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        texts = [delta.get("text") or delta.get("partial_json", "") for delta in deltas]
        calls.append(next_call("".join(texts)))
        [end] = [event["delta"] for event in events if event["type"] == "message_delta"]
        assert end["stop_reason"] == ("tool_use" if calls[-1] else "end_turn")
    assert calls == [*range(1, NUM_CALLS + 1), 0]


@pytest.mark.nightly
def test_agents_sdk_session_calls_shell_patch_and_computer(url: str) -> None:
    called = []
    for entry in sent_by("agents"):
        _, lines = answer_to(url, entry)
        if entry["body"].get("stream"):
            events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
            response = events[-1]["response"]
        else:
            response = json.loads(b"".join(lines))
        assert response["status"] == "completed"
        assert response["tools"] == entry["body"]["tools"]
        called.append([item["type"] for item in response["output"]][1:])
    calls = [["shell_call"], ["apply_patch_call"], ["shell_call"], []]
    assert called == [*calls, *calls, ["computer_call"], ["computer_call"]]
