"""Tests of OpenAI's client for Python with the real server: tools of all kinds, and compaction."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest

from tests.real_server import NAME, server

__all__ = ["server"]

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
PATCH = """start: "*** Begin Patch" LF line+ "*** End Patch"
line: ("+" | "-") /[a-z ]{1,20}/ LF
%import common.LF"""
QUESTION = "What is the weather in Paris?"
MESSAGES = [{"role": "user", "content": QUESTION}]


def custom(name: str, syntax: str, definition: str) -> dict:
    form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    return {"type": "custom", "custom": {"name": name, "format": form}}


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    with server.client("/v1") as client:
        yield client


@pytest.mark.parametrize(
    ("tool", "begin", "end"),
    [
        (custom("day", "regex", DAY), "", ""),
        (custom("edit", "lark", PATCH), "*** B", "*** End Patch"),
    ],
)
def test_chat_with_a_custom_tool_follows_its_grammar(client, tool, begin, end):
    request = {
        "model": NAME,
        "messages": MESSAGES,
        "tools": [tool],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 600,
        "seed": 1,
    }
    choice = client.chat.completions.create(**request).choices[0]
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert (call.type, call.custom.name) == ("custom", tool["custom"]["name"])
    assert call.custom.input.startswith(begin)
    assert call.custom.input.endswith(end)
    assert begin or len(call.custom.input) == 10
    streamed = ""
    for chunk in client.chat.completions.create(**request, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or ():
            streamed += delta.custom["input"]
    assert streamed == call.custom.input
    result = {"role": "tool", "tool_call_id": call.id, "content": "done"}
    again = client.chat.completions.create(
        model=NAME, messages=[*MESSAGES, choice.message, result], tools=[tool], max_tokens=5
    )
    assert again.usage.prompt_tokens > 20


def test_chat_with_functions_returns_a_function_call(client):
    functions = [{"name": "get_weather", "parameters": PARAMETERS}]
    request = {"model": NAME, "messages": MESSAGES, "functions": functions, "temperature": 0}
    choice = client.chat.completions.create(**request).choices[0]
    assert choice.finish_reason == "function_call"
    assert choice.message.content is None
    assert choice.message.function_call.name == "get_weather"
    assert json.loads(choice.message.function_call.arguments) == {"city": "Paris"}
    deltas = [c.choices[0].delta for c in client.chat.completions.create(**request, stream=True)]
    told = [delta.function_call for delta in deltas if delta.function_call]
    assert told[0].name == "get_weather"
    assert "".join(d.arguments for d in told) == choice.message.function_call.arguments
    result = {"role": "function", "name": "get_weather", "content": '{"temperature": 18}'}
    answer = client.chat.completions.create(
        **{**request, "messages": [*MESSAGES, choice.message, result]}
    ).choices[0]
    assert answer.finish_reason == "stop"
    assert "18" in answer.message.content


def test_log_probabilities_are_those_of_the_content(client):
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]
    request = {"model": NAME, "messages": MESSAGES, "logprobs": True, "temperature": 0}
    called = client.chat.completions.create(**request, tools=tools).choices[0]
    assert called.message.tool_calls
    assert called.logprobs.content == []
    answered = client.chat.completions.create(**request).choices[0]
    told = "".join(entry.token for entry in answered.logprobs.content)
    assert told.strip() == answered.message.content.strip()


def test_response_with_a_namespace_names_it_in_the_call(client):
    function = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}
    namespace = {
        "type": "namespace",
        "name": "mcp__weather",
        "description": "",
        "tools": [function],
    }
    request = {"model": NAME, "tools": [namespace], "temperature": 0, "max_output_tokens": 100}
    with client.responses.stream(**request, input=QUESTION, tool_choice="required") as stream:
        added = [event.item for event in stream if event.type == "response.output_item.added"]
        first = stream.get_final_response()
    call = first.output[0]
    assert (call.type, call.name, call.namespace) == (
        "function_call", "get_weather", "mcp__weather",
    )  # fmt: skip
    assert added[0].namespace == "mcp__weather"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    given = [*MESSAGES, *[item.model_dump(exclude_unset=True) for item in first.output], result]
    by_items = client.responses.create(**request, input=given)
    chained = client.responses.create(**request, previous_response_id=first.id, input=[result])
    assert by_items.usage.input_tokens == chained.usage.input_tokens
    assert by_items.output_text == chained.output_text


def test_response_with_a_custom_tool_follows_its_grammar(client):
    tool = {"type": "custom", "name": "day", "format":
            {"type": "grammar", "syntax": "regex", "definition": DAY}}  # fmt: skip
    request = {"model": NAME, "input": QUESTION, "tools": [tool], "temperature": 0,
               "tool_choice": {"type": "custom", "name": "day"}}  # fmt: skip
    with client.responses.stream(**request) as stream:
        deltas = [e.delta for e in stream if e.type == "response.custom_tool_call_input.delta"]
        [call] = stream.get_final_response().output
    assert call.type == "custom_tool_call"
    assert "".join(deltas) == call.input
    assert len(call.input) == 10
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "a Sunday"}
    given = [*MESSAGES, call.model_dump(exclude_unset=True), result]
    assert client.responses.create(model=NAME, input=given, max_output_tokens=5).output


def test_compacted_conversation_keeps_its_facts(client):
    first = client.responses.create(model=NAME, input="My name is Alice.", temperature=0)
    compacted = client.responses.compact(model=NAME, previous_response_id=first.id)
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    assert compacted.usage.output_tokens > 0
    given = [item.model_dump(exclude_unset=True, warnings=False) for item in compacted.output]
    given.append({"role": "user", "content": "What is my name?"})
    answer = client.responses.create(model=NAME, input=given, temperature=0)
    assert "Alice" in answer.output_text


def test_decisions_have_a_typed_answer_for_each_question(client):
    """The answers agree with the log probabilities of a chat's first token."""
    questions = [
        {"type": "predicate", "name": "wet", "instructions": "The street is wet."},
        {"type": "choice", "instructions": "Who?", "choices": [{"value": "a"}, {"value": True}]},
        {"type": "score", "instructions": "How?", "levels": [{"label": "a"}, {"label": "b"}]},
    ]
    decision = client.decisions.create(model=NAME, input="It rains.", questions=questions)
    predicate, choice, score = decision.answers
    assert (predicate.type, predicate.name) == ("predicate", "wet")
    assert 0 < predicate.probability < 1
    assert sum(each.probability for each in choice.probabilities) == pytest.approx(1)
    assert [each.value for each in choice.probabilities] == ["a", True]
    assert 0 <= score.score <= 1
    assert decision.usage.input_tokens > 0


def test_a_text_that_repeats_itself_is_ended(client):
    """Also with drafts, which a text of one repeated token makes easy."""
    limits = {"max_pattern_size": 2, "min_count": 5}
    more = {"allowed_token_ids": [100], "repetition_detection": limits, "ignore_eos": True}
    given = {"model": NAME, "temperature": 0, "extra_body": more}
    done = client.completions.create(**given, prompt="Once", max_tokens=50)
    assert done.choices[0].finish_reason == "repetition"
    assert done.usage.completion_tokens == 5
    [*_, last] = client.chat.completions.create(**given, messages=MESSAGES, stream=True)
    assert last.choices[0].finish_reason == "repetition"
    assert last.choices[0].stop_reason == "repetition_detected"
    response = client.responses.create(**given, input="Hi")
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "repetition"
    message = client.post(
        "/messages",
        cast_to=dict,
        body={"model": NAME, "messages": MESSAGES, "max_tokens": 50, **more},
    )
    assert message["stop_reason"] == "end_turn"
    assert message["usage"]["output_tokens"] == 5
