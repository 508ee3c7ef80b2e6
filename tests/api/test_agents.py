"""Conversations of three turns with tools, in the requests of Codex 0.169 and Claude Code 2.1, with
the chat templates of five model families.

`agent_requests.json` has the last request of each client, recorded with the scripted model of these
tests and with long texts shortened. The assistant's turns in it are replaced with the API's
answers.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fastovms.api.served import ChatModel
from fastovms.config import ChatConfig
from fastovms.params import GenerationRequest
from fastovms.text.reasoning import detect_reasoning_format
from fastovms.text.template_files import make_template
from fastovms.text.tool_descriptions import written_call
from fastovms.text.tools import PLAIN_JSON, TOOL_FORMATS, detect_tool_format
from tests.fakes import FakeStream, model_info
from tests.paths import TEMPLATES

REQUESTS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("agent_requests.json").read_text()
)
AS_USER = {"is shown as a user turn"}
AS_TEXT = {*AS_USER, "is shown with its calls as text"}
NOTES = {
    "qwen3": (set(), set()),
    "llama3": (set(), set()),
    "mistral": (AS_USER, set()),
    "gptoss": (AS_USER, set()),
    "gemma3": (AS_TEXT, AS_TEXT),
}
"""The warnings for Claude Code and Codex: about a system message within the chat, and about
messages that the template does not support."""


def chat_model(name: str) -> ChatModel:
    source = (TEMPLATES / f"{name}.jinja").read_text()
    template = make_template({"default": source}, {"bos_token": "<s>", "eos_token": "</s>"})
    tools = detect_tool_format(source) or TOOL_FORMATS[PLAIN_JSON]
    return ChatModel(template, tools, detect_reasoning_format(source), ChatConfig())


def command(number: int) -> str:
    """Returns a command whose result the model cannot guess from the command."""
    return f"printf 'RES%sT{number}' UL"


def is_of_assistant(item: dict[str, Any]) -> bool:
    return item.get("role") == "assistant" or item.get("type") == "function_call"


def turns(history: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yields the messages that the client adds before each of its requests."""
    added: list[dict[str, Any]] = []
    for item in history:
        if not is_of_assistant(item):
            added.append(item)
        elif added:
            yield added
            added = []
    yield added


def answer_of(events: Sequence[Any]) -> list[dict[str, Any]]:
    """Returns the part of an answer that the client repeats in later requests."""
    events = [event for event in events if isinstance(event, dict)]
    items = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    if items:
        return items
    blocks: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks[event["index"]] = {**event["content_block"]}
        elif event["type"] == "content_block_delta":
            block, delta = blocks[event["index"]], event["delta"]
            if delta["type"] == "text_delta":
                block["text"] += delta["text"]
            elif delta["type"] == "input_json_delta":
                block["json"] = block.get("json", "") + delta["partial_json"]
    content = [
        {**{k: v for k, v in block.items() if k != "json"}, "input": json.loads(block["json"])}
        if "json" in block
        else block
        for block in blocks.values()
    ]
    return [{"role": "assistant", "content": content}]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "mistral", "llama3", "gptoss", "gemma3"])
@pytest.mark.parametrize("client", REQUESTS)
async def test_three_turns_with_tools(make_api, client, name):
    chat = chat_model(name)
    body = REQUESTS[client]
    key, path = ("input", "/v1/responses") if "input" in body else ("messages", "/v1/messages")
    prompts: list[str] = []
    tool = ("exec_command", "cmd") if key == "input" else ("Bash", "command")

    def script(request: GenerationRequest, index: int) -> list[int]:
        prompt = bytes(request.prompt_token_ids).decode()
        if not index and (not prompts or prompt != prompts[-1]):
            prompts.append(prompt)
        number = max(map(int, re.findall(r"TASK(\d)", prompt)))
        if f"RESULT{number}" in prompt:
            return list(f"Done with {number}.".encode())
        arguments = {tool[1]: command(number)}
        return list(written_call(chat.tool_format, tool[0], arguments).encode())

    info = dataclasses.replace(model_info(), max_model_len=10**6)
    api = make_api(script, chat=chat, model=info, tokens_per_step=7)
    history: list[dict[str, Any]] = []
    for number, added in enumerate(turns(body[key])):
        history += _with_ids(added, history)
        stream = FakeStream()
        assert await api.call("POST", path, {**body, key: history}, stream) is None
        answer = answer_of(stream.events)
        said = json.dumps(answer)
        task = number // 2 + 1
        is_result = number % 2
        assert (f"Done with {task}." if is_result else f"RES%sT{task}") in said
        wanted = [f"TASK{n}" for n in range(1, task + 1)]
        wanted += [f"RES%sT{n}" for n in range(1, task + is_result)]
        wanted += [f"RESULT{n}" for n in range(1, task + is_result)]
        wanted += [f"Done with {n}." for n in range(1, task)]
        prompt = prompts[-1]
        assert [text for text in wanted if text not in prompt] == []
        notes = dict(stream.headers).get("Warning", "")
        assert set(re.findall(r"is shown [a-z ]+", notes)) <= NOTES[name][key == "input"]
        assert not re.search(r"messages\[" if key == "input" else r"input\[", notes)
        if number and name != "mistral":  # whose template writes the tools before the last turn
            earlier, later = prompts[-2:]
            assert later.startswith(earlier[: len(earlier) * 9 // 10]), "the cache is of no use"
        history += answer
    assert len(prompts) == 6


def _with_ids(
    added: Sequence[dict[str, Any]], history: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns results of tools with the ids of the calls before them."""
    if not history:
        return list(added)
    last = history[-1]
    found = []
    for item in added:
        if item.get("type") == "function_call_output":
            item = {**item, "call_id": last["call_id"]}
        elif isinstance(item.get("content"), list) and "content" in last:
            blocks = [block for block in last["content"] if block.get("type") == "tool_use"]
            item = {
                **item,
                "content": [
                    {**part, "tool_use_id": blocks[0]["id"]} if "tool_use_id" in part else part
                    for part in item["content"]
                ],
            }
        found.append(item)
    return found
