"""Tests of `fastovms/parts/ollama/generation.py`."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import msgspec
import orjson
import pytest

from fastovms.api.generate import SampleDelta
from fastovms.api.offload import MUCH
from fastovms.api.served import ChatModel
from fastovms.app.routes import add_model_routes
from fastovms.errors import BackendUnavailable
from fastovms.http.routing import Router
from fastovms.parts.ollama.generation import AnswerCollector
from fastovms.text.scanning import CallArguments, CallBegin, CallEnd
from fastovms.text.template_files import make_template
from tests.api.chat_models import BROKEN, MESSAGES, call_text, chat_model, prompt_of, tool
from tests.api.ollama.ollama_requests import (
    ASKED,
    CHAT,
    GENERATE,
    PROMPTED,
    THOUGHT,
    ask,
    lines,
    make,
    refused,
)
from tests.fakes import ByteTokenizer, FakeStream

# The format of answers.


__all__ = ["make"]
TIMES = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


async def test_chat_answer_and_stream_have_the_members_of_ollama(make):
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


@pytest.mark.parametrize(
    ("path", "body", "script"),
    [
        (GENERATE, {"model": "fake", "prompt": "a" * MUCH}, "Hello!"),
        (CHAT, ASKED, "a" * MUCH),
    ],
)
async def test_long_answer_has_its_times(make, path, body, script):
    answer = await ask(make(script, max_model_len=3 * MUCH), path, body)
    assert all(type(answer[name]) is int for name in TIMES)


async def test_each_line_of_a_stream_has_its_time(make):
    api = make()
    times = iter(range(1_750_000_000, 1_750_000_100))
    api.context = replace(api.context, unix_time=lambda: next(times) + 0.5)
    api.router = Router()
    add_model_routes(api.router, api.context)
    made = [part["created_at"] for part in await lines(api, CHAT, ASKED)]
    assert made == sorted(set(made))
    assert len(made) == 7
    assert all(re.fullmatch(r"2025-06-15T15:0\d:\d\d\.500000Z", each) for each in made)


async def test_answer_to_a_prompt_has_its_context(make):
    answer = await ask(make(), GENERATE, PROMPTED)
    assert answer["response"] == "Hello!"
    *parts, last = await lines(make(), GENERATE, PROMPTED)
    assert "".join(part["response"] for part in parts) == "Hello!"
    assert last["response"] == ""
    assert last["context"] == answer["context"] == [*b"u:Hi;>Hello!"]
    assert not any("context" in part for part in parts)


@pytest.mark.parametrize(("path", "body"), [(CHAT, ASKED), (GENERATE, PROMPTED)])
async def test_reasoning_is_sent_as_thinking_apart_from_the_content(make, path, body):
    def told(part):
        message = part.get("message", part)
        return message.get("thinking", ""), message.get("content", message.get("response"))

    assert told(await ask(make(THOUGHT), path, body)) == ("hm, hm", "Hello!")
    parts = [told(part) for part in await lines(make(THOUGHT), path, body)]
    assert ["".join(texts) for texts in zip(*parts, strict=True)] == ["hm, hm", "Hello!"]


async def test_tool_calls_are_sent_whole(make):
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


@pytest.mark.parametrize("text", BROKEN)
async def test_markup_that_is_no_call_is_content(make, text):
    body = {**ASKED, "tools": [tool()]}
    assert (await ask(make(text), CHAT, body))["message"] == {"role": "assistant", "content": text}
    parts = await lines(make(text), CHAT, body)
    assert "".join(part["message"]["content"] for part in parts) == text
    assert not any("tool_calls" in part["message"] for part in parts)


def test_call_keeps_the_digits_of_its_numbers():
    written = '{"a":\n' + "9" * 30 + ', "b": 1e999}'
    pieces = [CallBegin(0, "f"), CallArguments(0, written), CallEnd(0, True)]
    collector = AnswerCollector(lambda: "call-1")
    [call] = collector.take(SampleDelta(0, "", pieces=pieces)).calls
    line = msgspec.json.encode(call)
    assert b"\n" not in line
    assert json.loads(line)["function"]["arguments"]["a"] == int("9" * 30)


async def test_cut_call_is_left_out(make):
    script = call_text()
    body = {**ASKED, "tools": [tool()], "options": {"num_predict": len(script) - 20}}
    answer = await ask(make(script), CHAT, body)
    assert answer["message"] == {"role": "assistant", "content": ""}
    assert answer["done_reason"] == "length"


async def test_logprobs_agree_in_whole_and_streamed_answers(make):
    body = {**ASKED, "logprobs": True, "top_logprobs": 2}
    answer = await ask(make(), CHAT, body)
    assert "".join(entry["token"] for entry in answer["logprobs"]) == "Hello!"
    assert all(len(entry["top_logprobs"]) == 2 for entry in answer["logprobs"])
    parts = await lines(make(), CHAT, body)
    told = [entry for part in parts for entry in part.get("logprobs", ())]
    assert told == answer["logprobs"]
    first = (await ask(make(), CHAT, {**ASKED, "logprobs": True}))["logprobs"][0]
    assert first["top_logprobs"] == []


async def test_failed_stream_ends_with_the_error(make):
    api = make()
    api.backend.fail_after = 2
    *_, last = await lines(api, CHAT, ASKED)
    assert last == {"error": "out of order"}


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029"])
@pytest.mark.parametrize("thought", ["", "<think>\nh{}m\n</think>\n\n"])
async def test_line_separators_of_a_text_are_escaped(make, end, thought):
    stream = FakeStream()
    await make(f"{thought.format(end)}a{end}b").call("POST", CHAT, ASKED, stream)
    written = b"".join(stream.writes).decode()
    messages = [orjson.loads(line)["message"] for line in written.splitlines()]
    assert "".join(message["content"] for message in messages) == f"a{end}b"
    thoughts = "".join(message.get("thinking", "") for message in messages)
    assert thoughts == (f"h{end}m" if thought else "")


# The prompts of chats and completions.


LONG = [{"role": role, "content": letter * 30}
        for role, letter in (("user", "a"), ("assistant", "b"), ("user", "c"))]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "prompt"),
    [
        (CHAT, ASKED, "u:Hi;>"),
        (CHAT, {**ASKED, "think": True}, "u:Hi;<thinking True>>"),
        (CHAT, {**ASKED, "think": False}, "u:Hi;<thinking False>>"),
        (CHAT, {**ASKED, "think": "low"}, "u:Hi;<effort low><thinking True>>"),
        (CHAT, {**ASKED, "tools": [tool()]}, "<tool get_weather>u:Hi;>"),
        (CHAT, {**ASKED, "tools": [{"function": tool()["function"]}]}, "<tool get_weather>u:Hi;>"),
        (CHAT, {**ASKED, "messages": [*MESSAGES, {"role": "assistant", "content": "Well"}]},
         "u:Hi;a:Well"),
        (GENERATE, PROMPTED, "u:Hi;>"),
        (GENERATE, {**PROMPTED, "system": "Be brief."}, "s:Be brief.;u:Hi;>"),
        (GENERATE, {**PROMPTED, "context": [*b"before "]}, "before u:Hi;>"),
    ],
)  # fmt: skip
async def test_request_fields_are_rendered_into_the_prompt(make, path, body, prompt):
    api = make()
    await ask(api, path, body)
    assert prompt_of(api) == prompt


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (CHAT, {**ASKED, "messages": [{"role": "user", "content": "bad"}]}, "no such role: bad"),
        (CHAT, {**ASKED, "tools": [{"type": "function"}]}, "tools[0].function must be an object"),
        (CHAT, {**ASKED, "messages": [{**MESSAGES[0], "images": ["aGk="]}]},
         "messages[0].images: this model takes no images"),
        (GENERATE, {**PROMPTED, "images": ["aGk="]}, "images: this model takes no images"),
        (GENERATE, {**PROMPTED, "context": [-1]}, "context[0] must be a token id"),
        (GENERATE, {**PROMPTED, "context": [1] * 1995}, "context"),
    ],
)  # fmt: skip
async def test_invalid_messages_tools_images_or_context_are_refused(make, path, body, message):
    assert message in await refused(make(), path, body)


async def test_model_without_tools_or_reasoning_refuses_them(make):
    chat = chat_model()
    bare = type(chat)(make_template({"default": "{{ messages[0].content }}"}, {}))
    error = await refused(make(chat=bare), CHAT, {**ASKED, "tools": [tool()]})
    assert error == 'tools: "fake" does not support tools'
    for think in (True, "low"):
        error = await refused(make(chat=bare), CHAT, {**ASKED, "think": think})
        assert error == 'think: "fake" does not support thinking'
    await ask(make(chat=bare), CHAT, {**ASKED, "think": False})


async def test_older_messages_are_dropped_if_the_context_is_full(make):
    api = make(max_model_len=80)
    await ask(api, CHAT, {**ASKED, "messages": LONG})
    assert prompt_of(api) == f"u:{'c' * 30};>"
    error = await refused(make(max_model_len=80), CHAT,
                          {**ASKED, "messages": LONG, "truncate": False})  # fmt: skip
    assert "maximum context length is 80 tokens" in error
    api = make(max_model_len=80)  # the answer gets half of the context at most
    body = {**ASKED, "messages": LONG, "options": {"num_predict": 1000}}
    assert (await ask(api, CHAT, body))["eval_count"] == 7


# Raw prompts without a template.


FIM = {"<|fim_prefix|>": 1, "<|fim_suffix|>": 2, "<|fim_middle|>": 3}


@pytest.mark.parametrize("chat", [None, ChatModel()])
async def test_raw_prompt_is_not_rendered(make, chat):
    api = make("<think>a</think>", chat=chat)
    answer = await ask(api, GENERATE, {**PROMPTED, "raw": True})
    assert prompt_of(api) == "Hi"
    assert answer["response"] == "<think>a</think>"
    assert "context" not in answer
    *parts, last = await lines(make("abc", chat=chat), GENERATE, {**PROMPTED, "raw": True})
    assert "".join(part["response"] for part in parts) == "abc"
    assert last["done_reason"] == "stop"


async def test_model_without_a_template_completes_prompts(make):
    api = make("yes", chat=ChatModel())
    answer = await ask(api, GENERATE, {**PROMPTED, "context": [*b"So "]})
    assert prompt_of(api) == "So Hi"
    assert answer["context"] == [*b"So Hiyes"]
    error = await refused(make(chat=ChatModel()), GENERATE, {**PROMPTED, "system": "Be brief."})
    assert "has no chat template" in error


async def test_suffix_fills_in_the_middle(make):
    api = make("z", tokenizer=ByteTokenizer(**FIM))
    assert (await ask(api, GENERATE, {**PROMPTED, "suffix": "xy"}))["response"] == "z"
    assert list(api.backend.submitted[0].prompt_token_ids) == [1, *b"Hi", 2, *b"xy", 3]
    error = await refused(make(), GENERATE, {**PROMPTED, "suffix": "xy"})
    assert error == 'suffix: "fake" does not support insert'


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"raw": True, "system": "a"}, "system cannot be used when raw is true"),
        ({"raw": True, "context": [1]}, "context cannot be used when raw is true"),
        ({"suffix": "a", "images": ["aGk="]}, "images cannot be used when suffix is given"),
        ({"raw": True, "think": True}, "think cannot be used with raw"),
        ({"template": "{{ .Prompt }}"}, "template is not supported"),
        ({"raw": True, "prompt": "a" * 10**6}, "maximum context length"),
    ],
)
async def test_contradicting_fields_of_a_prompt_are_refused(make, fields, message):
    assert message in await refused(make(), GENERATE, {**PROMPTED, **fields})


# The endpoints that generate: streams, loading and unloading of models, and usage.


EMPTY = ((CHAT, {"model": "fake", "messages": []}), (GENERATE, {"model": "fake"}))


class Holder:
    """Stands for the pool that loads and unloads models."""

    loads_on_demand = True

    def __init__(self) -> None:
        self.moves: list[str] = []
        self.is_there = True

    def try_acquire(self, name):
        self.moves.append(f"take {name}")
        return (lambda: self.moves.append(f"give back {name}")) if self.is_there else None

    async def acquire(self, name, client):
        raise BackendUnavailable("not now")

    def is_permanent(self, name):
        return False

    def dismiss(self, name):
        self.moves.append(f"dismiss {name}")


@pytest.mark.parametrize(("path", "body"), EMPTY)
async def test_empty_request_loads_or_unloads_the_model(make, path, body):
    for fields, reason, moves in (
        ({}, "load", ["take fake", "give back fake"]),
        ({"keep_alive": "5m"}, "load", ["take fake", "give back fake"]),
        ({"keep_alive": 0}, "unload", ["dismiss fake"]),
    ):
        api = make()
        api.context.models.holder = holder = Holder()
        response = await api.call("POST", path, {**body, **fields}, is_admin=True)
        answer = orjson.loads(response.body)
        assert (answer["done"], answer["done_reason"]) == (True, reason)
        assert holder.moves == moves
        assert not api.backend.submitted


@pytest.mark.parametrize(("path", "body"), EMPTY)
async def test_keep_alive_of_a_permanent_model_warns(make, path, body):
    api = make()
    for is_loaded, reason in ((True, "load"), (False, "unload")):
        if not is_loaded:
            [known] = api.context.models.known
            known.served = None
        response = await api.call("POST", path, {**body, "keep_alive": 0})
        assert orjson.loads(response.body)["done_reason"] == reason
        assert "keep_alive changes nothing" in dict(response.headers)["Warning"]


async def test_model_that_cannot_be_loaded_is_unavailable(make):
    api = make()
    api.context.models.holder = holder = Holder()
    holder.is_there = False
    stream = FakeStream()
    response = await api.call("POST", CHAT, ASKED, stream)
    assert response.status == 503
    assert not stream.started


async def test_requests_are_counted_and_logged(make):
    api = make()
    body = {**ASKED, "stream": False, "options": {"num_ctx": 10**6}}
    response = await api.call("POST", CHAT, body)
    assert "options.num_ctx is 1000000" in dict(response.headers)["Warning"]
    fields = api.last_request.log_fields
    assert (fields["model"], fields["prompt_tokens"], fields["completion_tokens"]) == ("fake", 6, 7)
    assert api.metrics.finished["stop"] == 1


@pytest.mark.parametrize("path", [CHAT, GENERATE])
async def test_body_or_options_that_are_no_object_are_refused(make, path):
    assert "JSON object" in await refused(make(), path, [])
    assert "options must be an object" in await refused(
        make(), path, {"model": "fake", "options": 5}
    )
