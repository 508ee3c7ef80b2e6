"""Calls to custom tools, and those of requests with `functions`, over fakes."""

from __future__ import annotations

import json
import logging

import pytest

from fastovms.params import GrammarKind
from tests.api.chat_models import (
    MESSAGES,
    PARAMETERS,
    call_text,
    custom,
    grammar_format,
    prompt_of,
    tool,
)
from tests.api.chats import BODY, V1, V3, make
from tests.fakes import FakeStream

__all__ = ["make"]

TEXT = 'print("é")\n'
WRITTEN = call_text("write", json.dumps({"input": TEXT}))
FUNCTIONS = [{"name": "get_weather", "parameters": PARAMETERS}, {"name": "add"}]

NULLS = {
    **dict.fromkeys(("refusal", "audio", "reasoning", "reasoning_content")),
    "annotations": [],
}


def deltas(events: list) -> list[dict]:
    return [event["choices"][0]["delta"] for event in events if event != "[DONE]"]


@pytest.mark.parametrize("path", [V1, V3])
async def test_calls_to_custom_tools(make, path):
    api = make(WRITTEN + call_text())
    body = {**BODY, "tools": [custom(), tool()]}
    _, answer = await api.post(path, body)
    choice = answer["choices"][0]
    first, second = choice["message"]["tool_calls"]
    assert first == {
        "id": first["id"], "type": "custom", "custom": {"name": "write", "input": TEXT},
    }  # fmt: skip
    assert second["function"] == {"name": "get_weather", "arguments": '{"city":"Paris"}'}
    assert choice["finish_reason"] == "tool_calls"
    events = await api.stream(path, body)
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"
    [begin], *others = [delta["tool_calls"] for delta in deltas(events) if "tool_calls" in delta]
    assert begin == {
        "id": begin["id"], "type": "custom", "index": 0, "custom": {"name": "write", "input": ""},
    }  # fmt: skip
    told = [call["custom"]["input"] for [call] in others if call["index"] == 0]
    assert "".join(told) == TEXT
    assert len(told) > 5, "the text is told as it is written"


async def test_the_model_is_told_of_a_custom_tool_as_of_a_function(make):
    api = make(WRITTEN)
    body = {**BODY, "tools": [custom(description="Runs code.")], "tool_choice": "required"}
    assert (await api.post(V1, body))[0] == 200
    assert prompt_of(api) == "<tool write>u:Hi;>"
    grammar = api.backend.submitted[0].params.grammar
    assert grammar.kind is GrammarKind.CALLS
    assert '"required": ["input"]' in repr(grammar.tree)


async def test_custom_calls_in_the_history(make):
    api = make()
    call = {"id": "1", "type": "custom", "custom": {"name": "write", "input": "a\n"}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ]
    assert (await api.post(V1, {**BODY, "messages": messages, "tools": [custom()]}))[0] == 200
    shown = prompt_of(api).replace('"', "'")
    assert "{write {'input': 'a\\n'}}" in shown.replace("\\\\", "\\")
    assert shown.endswith("t:done;>")


@pytest.mark.parametrize("choice", [None, {"type": "custom", "custom": {"name": "write"}}])
async def test_a_grammar_of_a_custom_tool_is_enforced(make, choice):
    api = make(WRITTEN)
    tools = [custom(format=grammar_format("[a-z]{3}", "regex"))]
    assert (await api.post(V1, {**BODY, "tools": tools, "tool_choice": choice}))[0] == 200
    assert '"pattern": "^(?:[a-z]{3})$"' in repr(api.backend.submitted[0].params.grammar.tree)


async def test_a_grammar_of_a_custom_tool_that_is_no_grammar_is_a_fault(make):
    tools = [custom(format=grammar_format("bad", "regex"))]
    status, answer = await make().post(V1, {**BODY, "tools": tools})
    assert (status, answer["error"]["param"]) == (400, "tools[0].custom.format.grammar.definition")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_grammar_that_cannot_be_enforced_is_warned_of(make, streamed, caplog):
    tools = [custom(format=grammar_format('start: "(" start ")" | "x"'))]
    body = {**BODY, "tools": tools, "stream": streamed}
    stream = FakeStream()
    with caplog.at_level(logging.WARNING):
        response = await make().call("POST", V1, body, stream)
    headers = dict((stream if streamed else response).headers)
    assert "tools[0].custom.format.grammar.definition is told" in headers["Warning"]
    assert "tools[0].custom.format.grammar.definition is told" in caplog.text


@pytest.mark.parametrize(
    ("choice", "content", "reason"),
    [(None, "Well.", "function_call"), ({"name": "get_weather"}, None, "stop")],
)
async def test_functions(make, choice, content, reason):
    api = make("Well." + call_text() + call_text("add"))
    body = {**BODY, "functions": FUNCTIONS, "function_call": choice}
    _, answer = await api.post(V1, body)
    [found] = answer["choices"]
    assert found["message"] == {
        "role": "assistant",
        "content": content,
        **NULLS,
        "function_call": {"name": "get_weather", "arguments": '{"city":"Paris"}'},
    }
    assert found["finish_reason"] == reason
    events = await api.stream(V1, body)
    assert events[-2]["choices"][0]["finish_reason"] == reason
    told = deltas(events)
    assert told[0] == {"role": "assistant", "content": None}
    begin, *others = [delta["function_call"] for delta in told if "function_call" in delta]
    assert begin == {"name": "get_weather", "arguments": ""}
    assert [set(delta) for delta in others] == [{"arguments"}] * len(others)
    assert "".join(delta["arguments"] for delta in others) == '{"city":"Paris"}'


async def test_without_a_call_functions_change_nothing(make):
    for choice in ("auto", "none"):
        body = {**BODY, "functions": FUNCTIONS, "function_call": choice}
        _, answer = await make("Hello!").post(V1, body)
        [found] = answer["choices"]
        message = {"role": "assistant", "content": "Hello!", **NULLS, "function_call": None}
        assert found["message"] == message
        assert found["finish_reason"] == "stop"


async def test_functions_in_the_history(make):
    api = make()
    called = {"name": "add", "arguments": '{"a": 1}'}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "function_call": called},
        {"role": "function", "name": "add", "content": "2"},
    ]
    body = {**BODY, "messages": messages, "functions": FUNCTIONS}
    assert (await api.post(V1, body))[0] == 200
    shown = prompt_of(api).replace('"', "'")
    assert shown == "<tool get_weather><tool add>u:Hi;a:{add {'a': 1}};t:2;>"
