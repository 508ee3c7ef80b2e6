"""How answers are told."""

from __future__ import annotations

import re
from dataclasses import replace

import orjson
import pytest

from fastovms.api.routes import add_model_routes
from fastovms.api.wire.dialect import OLLAMA
from fastovms.api.wire.error_responses import last_frames
from fastovms.errors import RequestError
from fastovms.http.routing.router import Router
from tests.api.chat_models import call_text, tool
from tests.api.ollama.ollama_requests import (
    ASKED,
    CHAT,
    GENERATE,
    PROMPTED,
    THOUGHT,
    ask,
    lines,
    make,
)
from tests.fakes import FakeStream

__all__ = ["make"]
TIMES = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


async def test_a_chat(make):
    answer = await ask(make(), CHAT, ASKED)
    assert all(type(answer.pop(name)) is int for name in TIMES)
    assert answer == {
        "model": "fake",
        "created_at": "2025-06-15T15:06:40.500000Z",
        "message": {"role": "assistant", "content": "Hello!"},
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 6,
        "eval_count": 7,
    }
    *parts, last = await lines(make(), CHAT, ASKED)
    assert [part["message"]["content"] for part in parts] == list("Hello!")
    assert all(part["done"] is False and set(part) == {*answer} - {
        "done_reason", "prompt_eval_count", "eval_count"} for part in parts)  # fmt: skip
    assert {**answer, "message": {"role": "assistant", "content": ""}}.items() <= last.items()


async def test_each_line_has_its_time(make):
    api = make()
    times = iter(range(1_750_000_000, 1_750_000_100))
    api.context = replace(api.context, unix_time=lambda: next(times) + 0.5)
    api.router = Router()
    add_model_routes(api.router, api.context)
    made = [part["created_at"] for part in await lines(api, CHAT, ASKED)]
    assert made == sorted(set(made))
    assert len(made) == 7
    assert all(re.fullmatch(r"2025-06-15T15:0\d:\d\d\.500000Z", each) for each in made)


async def test_a_prompts_answer(make):
    answer = await ask(make(), GENERATE, PROMPTED)
    assert answer["response"] == "Hello!"
    *parts, last = await lines(make(), GENERATE, PROMPTED)
    assert "".join(part["response"] for part in parts) == "Hello!"
    assert last["response"] == ""
    assert last["context"] == answer["context"] == [*b"u:Hi;>Hello!"]
    assert not any("context" in part for part in parts)


@pytest.mark.parametrize(("path", "body"), [(CHAT, ASKED), (GENERATE, PROMPTED)])
async def test_thoughts(make, path, body):
    def told(part):
        message = part.get("message", part)
        return message.get("thinking", ""), message.get("content", message.get("response"))

    assert told(await ask(make(THOUGHT), path, body)) == ("hm, hm", "Hello!")
    parts = [told(part) for part in await lines(make(THOUGHT), path, body)]
    assert ["".join(texts) for texts in zip(*parts, strict=True)] == ["hm, hm", "Hello!"]


async def test_calls_are_told_whole(make):
    script = f"Well{call_text()}\n{call_text('add', '{}')}"
    body = {**ASKED, "tools": [tool(), tool("add", parameters={})]}
    message = (await ask(make(script), CHAT, body))["message"]
    functions = [
        {"index": 0, "name": "get_weather", "arguments": {"city": "Paris"}},
        {"index": 1, "name": "add", "arguments": {}},
    ]
    assert [call["function"] for call in message["tool_calls"]] == functions
    assert message["content"].strip() == "Well"
    ids = [call["id"] for call in message["tool_calls"]]
    assert len({*ids}) == 2
    *parts, last = await lines(make(script), CHAT, body)
    calls = [call for part in parts for call in part["message"].get("tool_calls", ())]
    assert [call["function"] for call in calls] == functions
    assert last["done_reason"] == "stop"


async def test_a_call_that_is_cut_is_left_out(make):
    script = call_text()
    body = {**ASKED, "tools": [tool()], "options": {"num_predict": len(script) - 20}}
    answer = await ask(make(script), CHAT, body)
    assert answer["message"] == {"role": "assistant", "content": ""}
    assert answer["done_reason"] == "length"


async def test_log_probabilities(make):
    body = {**ASKED, "logprobs": True, "top_logprobs": 2}
    answer = await ask(make(), CHAT, body)
    assert "".join(entry["token"] for entry in answer["logprobs"]) == "Hello!"
    assert all(len(entry["top_logprobs"]) == 2 for entry in answer["logprobs"])
    parts = await lines(make(), CHAT, body)
    told = [entry for part in parts for entry in part.get("logprobs", ())]
    assert told == answer["logprobs"]
    first = (await ask(make(), CHAT, {**ASKED, "logprobs": True}))["logprobs"][0]
    assert first["top_logprobs"] == []


async def test_a_stream_that_fails_ends_with_the_error(make):
    api = make()
    api.backend.fail_after = 2
    *_, last = await lines(api, CHAT, ASKED)
    assert last == {"error": "out of order"}


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029"])
@pytest.mark.parametrize("thought", ["", "<think>\nh{}m\n</think>\n\n"])
async def test_no_text_of_a_stream_ends_a_line(make, end, thought):
    stream = FakeStream()
    await make(f"{thought.format(end)}a{end}b").call("POST", CHAT, ASKED, stream)
    written = b"".join(stream.writes).decode()
    messages = [orjson.loads(line)["message"] for line in written.splitlines()]
    assert "".join(message["content"] for message in messages) == f"a{end}b"
    thoughts = "".join(message.get("thinking", "") for message in messages)
    assert thoughts == (f"h{end}m" if thought else "")


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029"])
def test_an_error_that_ends_a_stream_is_one_line(end):
    last = last_frames(RequestError(f"a{end}b"), OLLAMA).decode()
    assert [orjson.loads(line) for line in last.splitlines()] == [{"error": f"a{end}b"}]
