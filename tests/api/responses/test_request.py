"""Tests of refused fields and of the field names in errors."""

from __future__ import annotations

import pytest

from fastovms.config import ModelLimits
from fastovms.errors import BackendUnavailable, Overloaded
from fastovms.params import GenerationRequest, unfinishable_grammar
from tests.api.responses.conftest import BODY, TOOL, V1, V3, ask

FORMAT = {"format": {"type": "json_object"}}


SCHEMA = {"format": {"type": "json_schema", "name": "x", "schema": {}}}


def call(**members: object) -> dict[str, object]:
    return {"input": [{"type": "function_call", "arguments": "{}", **members}]}


def parts(*content: object) -> dict[str, object]:
    return {"input": [{"role": "user", "content": list(content)}]}


MANY = {f"key{number}": "x" for number in range(17)}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"role": "tool", "content": ""}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        (parts({"type": "input_image", "image_url": "x"}), "input[0].content[0]"),
        (parts({"type": "input_file"}), "input[0].content[0]"),
        (parts({"type": "input_text"}), "input[0].content[0].text"),
        ({"input": [{"role": "user", "content": "Hi", "status": "odd"}]}, "input[0].status"),
        (call(name="x"), "input[0].call_id"),
        (call(name="x", call_id="a\nERROR forged"), "input[0].call_id"),
        (call(name="x", call_id="x", arguments="", id="a b"), "input[0].id"),
        ({"input": [{"type": "item_reference", "id": "\x1b[2J"}]}, "input[0].id"),
        (call(call_id="x"), "input[0].name"),
        (call(call_id="x", name="x", arguments={}), "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "x"}]}, "input[0].output"),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary"),
        ({"input": [{"type": 5}]}, "input[0].type"),
        ({"instructions": 5}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 2001}, "max_output_tokens"),
        ({"max_output_tokens": "5"}, "max_output_tokens"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"max_tool_calls": 10**30}, "max_tool_calls"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"top_logprobs": 10**30}, "top_logprobs"),
        ({"include": ["everything"]}, "include[0]"),
        ({"truncation": "some"}, "truncation"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"metadata": MANY}, "metadata"),
        ({"metadata": {"a": 5}}, "metadata.a"),
        ({"metadata": {"a" * 65: "x"}}, "metadata"),
        ({"safety_identifier": "x" * 65}, "safety_identifier"),
        ({"reasoning": {"effort": "some"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "some"}}, "reasoning.summary"),
        ({"text": {"format": 5}}, "text.format"),
        ({"text": {"format": {}}}, "text.format.type"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        (
            {"text": {"format": {"type": "json_schema", "schema": {"type": "bad"}}}},
            "text.format.schema",
        ),
        ({"text": {"verbosity": "some"}}, "text.verbosity"),
        ({"tools": [{**TOOL, "parameters": {"maximum": 10**30}}]}, "tools"),
        ({"input": [{"type": "mcp_call", "name": "a", "output": 10**30}]}, "input[0]"),
        ({"input": [{"type": "shell_call", "action": {"commands": [], "a": -(10**30)}}]},
         "input[0]"),
        ({"input": [{"type": "additional_tools",
                     "tools": [{**TOOL, "parameters": {"maximum": 10**30}}]}]}, "input[0]"),
        ({"response_format": {"type": "regex", "pattern": "a", "more": 10**30}}, "text"),
        ({"text": FORMAT, "response_format": {"type": "json_object"}}, "response_format"),
        ({"text": FORMAT, "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "x", "parameters": 5}]}, "tools[0].parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "some"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"conversation": "x", "previous_response_id": "y"}, "conversation"),
        ({"conversation": {}}, "conversation.id"),
        ({"conversation": {"id": "a\r\nb"}}, "conversation.id"),
        ({"conversation": "a b"}, "conversation"),
        ({"previous_response_id": "\x00"}, "previous_response_id"),
        ({"request_id": "a\r\nERROR forged"}, "request_id"),
        ({"background": True, "store": False}, "background"),
        ({"background": True, "n": 2}, "n"),
        ({"stream": True, "n": 2}, "n"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"stop": [""]}, "stop[0]"),
    ],
)  # fmt: skip
async def test_invalid_field_is_refused_by_its_place(make, fields, param):
    api = make()
    status, body = await ask(api, "POST", V1, {**BODY, **fields})
    assert status == 400
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["param"] == param
    assert not api.backend.submitted


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"input": ""}, 400),
        ({"input": []}, 400),
        ({"input": [{"role": "user", "content": []}]}, 400),
        ({"input": [{"type": "unknown"}]}, 400),
        ({"tools": [{"type": "web_search"}]}, 400),
        ({"stream_options": {"include_usage": True}, "stream": True}, 400),
        ({"logprobs": True, "stream": True}, 400),
        ({"reasoning": {"effort": "minimal"}}, 400),
        ({"max_output_tokens": 1996}, 400),
        ({"max_output_tokens": 101}, 400),
        ({"max_output_tokens": 100}, 200),
        ({"model": None}, 412),
        ({"stream": 1}, 412),
        ({"logprobs": True}, 200),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, 200),
    ],
)
async def test_ovms_refuses_what_openai_accepts(make, fields, status):
    api = make(limits=ModelLimits(max_tokens_limit=100))
    found, body = await ask(api, "POST", V3, {**BODY, **fields})
    assert found == status, body
    if status != 200:
        assert isinstance(body["error"], str)


async def test_fault_of_a_schema_has_its_place(make):
    schema = {"type": "json_schema", "name": "x", "schema": {"type": "bad"}}
    _, body = await ask(make(), "POST", V1, {**BODY, "text": {"format": schema}})
    assert body["error"]["message"].startswith("text.format.schema: bad JSON schema")


async def test_conflict_names_both_fields(make):
    body = {**BODY, "text": FORMAT, "structured_outputs": {"regex": "a"}}
    _, answer = await ask(make(), "POST", V1, body)
    assert answer["error"]["message"].startswith("text.format and structured_outputs.regex")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"text": SCHEMA}, "text.format.schema"),
        ({"text": FORMAT}, "text.format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
    ],
)
async def test_grammar_that_cannot_go_on_is_named_by_its_field(make, fields, name):
    def script(request: GenerationRequest, index: int) -> bytes:
        api.backend.refusal = unfinishable_grammar(request.params.grammar, "nothing may follow")
        return b"Hello!"

    api = make(script)
    body = {**BODY, **fields}
    status, answer = await ask(api, "POST", V1, body)
    assert (status, answer["error"]["param"]) == (400, name)
    assert answer["error"]["message"].startswith(f"{name}: ")

    for how in ({}, {"background": True}):
        api.backend.refusal = None
        *_, error, failed, _ = await api.stream(V1, {**body, **how})
        assert (error["type"], error["param"]) == ("error", name)
        assert error["message"] == answer["error"]["message"]
        assert failed["response"]["error"]["message"] == error["message"]
        _, kept = await ask(api, "GET", f"{V1}/{failed['response']['id']}")
        assert kept == failed["response"]


@pytest.mark.parametrize(
    ("error", "status"), [(Overloaded("busy"), 429), (BackendUnavailable("gone"), 503)]
)
@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"background": True}])
async def test_overload_is_a_429_and_unavailable_backend_a_503(make, error, status, fields):
    api = make()
    api.backend.submit_error = error
    found, _ = await ask(api, "POST", V1, {**BODY, **fields})
    assert found == status


async def test_body_that_is_no_object_is_refused(make):
    for path, expected in ((V1, 400), (V3, 412)):
        status, _ = await ask(make(), "POST", path, b"[]")
        assert status == expected
