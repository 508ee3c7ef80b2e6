"""Tests that every wrong value in a chat is refused with an error that names its field, in both
dialects."""

from __future__ import annotations

import pytest

from fastovms.config import ModelLimits
from tests.api.chat_models import MESSAGES, chat_model, custom, tool
from tests.api.wrong_values import BOOLEAN, INTEGER, WRONG, names
from tests.fakes import model_info

V1 = "/v1/chat/completions"
V3 = "/v3/chat/completions"
BODY = {"model": "fake", "messages": MESSAGES}

OF_COMPLETIONS = {
    "prompt", "prompt_embeds", "suffix", "logprobs", "max_tokens", "echo", "stream_options",
}  # fmt: skip
SHARED = {name: values for name, values in WRONG.items() if name not in OF_COMPLETIONS}


def parts(*content: object) -> list:
    return [{"role": "user", "content": list(content)}]


def answer(**members: object) -> list:
    return [*MESSAGES, {"role": "assistant", **members}]


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
FILE = {"type": "file", "file": {"file_id": "f"}}

OF_CHAT: dict[str, list[object]] = {
    "max_tokens": [*INTEGER, -1, 0, 2**32, 10**30],
    "max_completion_tokens": [*INTEGER, -1, 0, 2**32, 10**30],
    "logprobs": [*BOOLEAN, 5],
    "top_logprobs": [*INTEGER, 1, -1],
    "tools": [5, {}, "x", [5], [None], ["get_weather"]],
    "tool_choice": [5, [], True, "maybe", "", "required", {}, {"type": "function"}],
    "parallel_tool_calls": BOOLEAN,
    "functions": [5, {}, "x", [5], [None], ["f"]],
    "function_call": [5, [], True, "maybe", "required"],
    "add_generation_prompt": BOOLEAN,
    "continue_final_message": BOOLEAN,
    "documents": [5, {}, "x", [5]],
    "chat_template": [5, "{{ messages }}"],
    "chat_template_kwargs": [5, [], "x"],
    "reasoning_effort": [5, "", "much", True],
    "enable_thinking": BOOLEAN,
    "include_reasoning": BOOLEAN,
    "return_prompt_text": BOOLEAN,
    "echo": BOOLEAN,
    "modalities": [5, "text", [5]],
    "metadata": [5, [], "x"],
    "store": BOOLEAN,
    "service_tier": [5, []],
    "prediction": [5, []],
    "verbosity": [5],
    "safety_identifier": [5],
    "prompt_cache_key": [5],
}
CASES = [
    *((name, value) for name, values in SHARED.items() for value in values),
    *((name, value) for name, values in OF_CHAT.items() for value in values),
    *(("messages", value) for value in (None, 5, True, {}, [], [5], ["Hi"], [None])),
]

WITHIN: list[tuple[str, dict[str, object]]] = [
    ("messages[0].role", {"messages": [{}]}),
    ("messages[0].role", {"messages": [{"role": None, "content": "a"}]}),
    ("messages[1].role", {"messages": [*MESSAGES, {"role": "", "content": "a"}]}),
    ("messages[0].role", {"messages": [{"role": ["user"]}]}),
    ("messages[0].role", {"messages": [{"role": "r" * 65, "content": "a"}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": 5}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": {"type": "text"}}]}),
    ("messages[0].name", {"messages": [{"role": "user", "content": "a", "name": 5}]}),
    ("messages[0].content[0]", {"messages": parts("a")}),
    ("messages[0].content[1]", {"messages": parts({"type": "text", "text": "a"}, None)}),
    ("messages[0].content[0].type", {"messages": parts({})}),
    ("messages[0].content[0].type", {"messages": parts({"type": 5})}),
    ("messages[0].content[0]", {"messages": parts({"type": "hologram"})}),
    ("messages[0].content[0].text", {"messages": parts({"type": "text"})}),
    ("messages[0].content[0].text", {"messages": parts({"type": "text", "text": ["a"]})}),
    ("messages[0].content[0].refusal", {"messages": parts({"type": "refusal", "text": "a"})}),
    ("messages[0].content[1]", {"messages": parts({"type": "text", "text": "a"}, IMAGE)}),
    ("messages[0].content[0]", {"messages": parts(SOUND)}),
    ("messages[0].content[0]", {"messages": parts(FILE)}),
    ("messages[1].tool_calls", {"messages": answer(tool_calls=5)}),
    ("messages[1].tool_calls[0]", {"messages": answer(tool_calls=["f"])}),
    ("messages[1].tool_calls[0].type", {"messages": answer(tool_calls=[{"type": "other"}])}),
    ("messages[1].tool_calls[0].custom", {"messages": answer(tool_calls=[{"type": "custom"}])}),
    ("messages[1].tool_calls[0].custom.input", {"messages": answer(tool_calls=[
        {"type": "custom", "custom": {"name": "f", "input": 5}}])}),
    ("messages[1].tool_calls[0].function", {"messages": answer(tool_calls=[{"id": "1"}])}),
    ("messages[1].tool_calls[0].id",
     {"messages": answer(tool_calls=[{"id": 1, "function": {"name": "f"}}])}),
    ("messages[1].tool_calls[0].function.name",
     {"messages": answer(tool_calls=[{"function": {"arguments": "{}"}}])}),
    ("messages[1].function_call.name", {"messages": answer(function_call={})}),
    ("messages[1].refusal", {"messages": answer(refusal=5)}),
    ("messages[1].reasoning_content", {"messages": answer(reasoning_content=5)}),
    ("messages[1].reasoning", {"messages": answer(reasoning=["a"])}),
    ("messages[0].tool_call_id", {"messages": [{"role": "tool", "tool_call_id": 5}]}),
    ("tools[0].type", {"tools": [{}]}),
    ("tools[0].type", {"tools": [{"type": "web_search"}]}),
    ("tools[1].type", {"tools": [tool(), {"type": "namespace", "name": "a", "tools": []}]}),
    ("tools[0].custom.name", {"tools": [{"type": "custom", "custom": {}}]}),
    ("tools[0].custom.description", {"tools": [custom(description=5)]}),
    ("tools[0].custom.format", {"tools": [custom(format="text")]}),
    ("tools[0].custom.format.type", {"tools": [custom(format={"type": "json"})]}),
    ("tools[0].custom.format.grammar.syntax", {"tools": [
        custom(format={"type": "grammar", "grammar": {"syntax": "gbnf", "definition": "a"}})]}),
    ("tools[0].custom.format.grammar.definition", {"tools": [
        custom(format={"type": "grammar", "grammar": {"syntax": "lark", "definition": "a: b"}})]}),
    ("tools[0].custom.format.definition", {"tools": [
        custom(format={"type": "grammar", "syntax": "regex", "definition": ""})]}),
    ("tools[1].custom", {"tools": [tool(), custom("get_weather")]}),
    ("functions[0].name", {"functions": [{}]}),
    ("functions[0].parameters", {"functions": [{"name": "f", "parameters": 5}]}),
    ("functions", {"functions": [{"name": "f"}], "tools": [tool()]}),
    ("function_call", {"functions": [{"name": "f"}], "function_call": "required"}),
    ("function_call.name", {"functions": [{"name": "f"}], "function_call": {}}),
    ("tools[0].function", {"tools": [{"type": "function", "function": 5}]}),
    ("tools[0].function.name", {"tools": [{"type": "function", "function": {}}]}),
    ("tools[0].function.name", {"tools": [tool("")]}),
    ("tools[0].function.name", {"tools": [tool(name=5)]}),
    ("tools[0].function.name", {"tools": [tool("x" * 300)]}),
    ("tools[0].function.description", {"tools": [tool(description=5)]}),
    ("tools[1].function.parameters", {"tools": [tool(), tool("b", parameters="{}")]}),
    ("tools[0].function.parameters.type", {"tools": [tool(parameters={"type": "array"})]}),
    ("tools[0].function.parameters.type", {"tools": [tool(parameters={"type": 5})]}),
    ("tools[0].function.strict", {"tools": [tool(strict="yes")]}),
    ("tools", {"tools": [tool()] * 1025}),
    ("tool_choice.function.name", {"tools": [tool()], "tool_choice":
        {"type": "function", "function": {}}}),
    ("tool_choice.function", {"tools": [tool()], "tool_choice":
        {"type": "function", "function": 5}}),
    ("tool_choice.allowed_tools.mode", {"tools": [tool()], "tool_choice":
        {"type": "allowed_tools", "allowed_tools": {"mode": "never", "tools": []}}}),
    ("tool_choice.allowed_tools.tools", {"tools": [tool()], "tool_choice":
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}}),
    ("tool_choice.allowed_tools.tools[0]", {"tools": [tool()], "tool_choice":
        {"type": "allowed_tools", "allowed_tools": {"tools": [5]}}}),
    ("modalities[1]", {"modalities": ["text", "audio"]}),
    ("chat_template_kwargs.add_generation_prompt",
     {"chat_template_kwargs": {"add_generation_prompt": 1}}),
    ("chat_template_kwargs.messages", {"chat_template_kwargs": {"messages": []}}),
    ("chat_template_kwargs.tools", {"chat_template_kwargs": {"tools": []}}),
    ("chat_template_kwargs.bos_token", {"chat_template_kwargs": {"bos_token": "x"}}),
    ("continue_final_message",
     {"continue_final_message": True, "add_generation_prompt": True}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": -1}),
    ("top_logprobs", {"logprobs": False, "top_logprobs": 2}),
    ("structured_outputs.regex", {"tools": [tool()], "tool_choice": "required",
                                  "structured_outputs": {"regex": "a"}}),
    ("guided_choice", {"tools": [tool()], "guided_choice": ["a"], "tool_choice":
        {"type": "function", "function": {"name": "get_weather"}}}),
    ("tools", {"tools": [tool("bad")], "tool_choice": "required"}),
    ("tools", {"tools": [tool("bad", strict=True)]}),
    ("messages[0]", {"messages": [{"role": "user", "content": "bad"}]}),
]  # fmt: skip
ONLY_V1: list[tuple[str, dict[str, object]]] = [
    ("tool_choice.allowed_tools", {"tools": [tool()], "tool_choice": {"type": "allowed_tools"}}),
    ("tool_choice", {"tools": [tool()], "tool_choice":
        {"type": "function", "function": {"name": "other"}}}),
    ("tool_choice.allowed_tools.tools[0]", {"tools": [tool()], "tool_choice":
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools":
            [{"type": "function", "function": {"name": "other"}}]}}}),
    ("tool_choice.type", {"tools": [tool()], "tool_choice": {"type": "web_search"}}),
    ("tool_choice", {"tools": [tool()], "tool_choice":
        {"type": "custom", "custom": {"name": "get_weather"}}}),
    ("function_call", {"functions": [{"name": "f"}], "function_call": {"name": "g"}}),
    ("function_call", {"function_call": {"name": "f"}}),
    ("tools[0].function", {"tools": [{"type": "function", "name": "f"}]}),
]  # fmt: skip
ONLY_V3: list[tuple[str, dict[str, object]]] = [
    ("tool_choice.tools", {"tools": [tool()], "tool_choice": {"type": "allowed_tools"}}),
    ("messages", {"messages": "Hi"}),
    ("max_tokens", {"max_tokens": None}),
    ("tools[0].name", {"tools": [{"type": "function"}]}),
    ("tool_choice.name", {"tools": [tool()], "tool_choice": {"type": "function"}}),
]


@pytest.fixture
def make(make_api):
    def make_chat(script="hello", **options):
        return make_api(script, model=model_info(), chat=chat_model(), **options)

    return make_chat


def fault(body: dict, path: str) -> str:
    return body["error"]["message"] if path == V1 else body["error"]


@pytest.mark.slow
@pytest.mark.parametrize(("field", "value"), CASES, ids=lambda value: repr(value)[:40])
async def test_wrong_chat_field_value_is_refused_by_name(make, field, value):
    for path in (V1, V3):
        api = make()
        body = {**BODY, field: value}
        status, refused = await api.post(path, body)
        if path == V3 and field == "tool_choice" and value == "required":
            assert status == 200, "without tools there is nothing to choose"
            continue
        body_level = path == V3 and field in ("model", "stream")
        assert status == (412 if body_level else 400), (path, refused)
        param = refused["error"]["param"] if path == V1 else None
        assert names(field, fault(refused, path), param), refused
        assert api.backend.submitted == []


@pytest.mark.parametrize(("place", "fields"), WITHIN, ids=lambda value: repr(value)[:60])
async def test_a_fault_within_a_field_is_named(make, place, fields):
    for path in (V1, V3):
        api = make()
        status, refused = await api.post(path, {**BODY, **fields})
        assert status == 400, (path, refused)
        assert place in fault(refused, path), refused
        if path == V1:
            assert refused["error"]["param"] == place
        assert api.backend.submitted == []


@pytest.mark.parametrize(("place", "fields"), ONLY_V1)
async def test_a_fault_for_openai_alone(make, place, fields):
    status, refused = await make().post(V1, {**BODY, **fields})
    assert (status, refused["error"]["param"]) == (400, place)


@pytest.mark.parametrize(("place", "fields"), ONLY_V3)
async def test_a_fault_for_ovms_alone(make, place, fields):
    status, refused = await make().post(V3, {**BODY, **fields})
    assert (status, place in refused["error"]) == (400, True), refused


async def test_a_schema_of_no_use_leaves_arguments_free_where_the_model_may_choose(make):
    api = make()
    await api.answer(V1, {**BODY, "tools": [tool("bad")]})
    assert api.backend.submitted[0].params.grammar is None


async def test_limits_of_the_operator(make):
    api = make(limits=ModelLimits(max_tokens_limit=10))
    for path, field, value, status in (
        (V3, "max_tokens", 9, 200),
        (V3, "max_tokens", 10, 400),
        (V3, "max_completion_tokens", 10, 200),
        (V3, "max_completion_tokens", 11, 400),
        (V1, "max_completion_tokens", 11, 200),
    ):
        found, body = await api.post(path, {**BODY, field: value})
        assert found == status, (path, field, value)
        if status == 400:
            assert field in fault(body, path)
        else:
            assert api.backend.submitted[-1].params.max_tokens == min(value, 10)


async def test_a_required_call_needs_a_model_whose_calls_are_known(make_api):
    chat = chat_model()
    plain = type(chat)(chat.template)
    api = make_api(model=model_info(), chat=plain)
    for choice, status in (("required", 400), ("auto", 200)):
        found, body = await api.post(V1, {**BODY, "tools": [tool()], "tool_choice": choice})
        assert found == status
        assert status == 200 or body["error"]["param"] == "tool_choice"


@pytest.mark.slow
async def test_the_model_is_the_first_fault_for_ovms(make):
    status, body = await make().post(V3, {"messages": 5})
    assert (status, "model" in body["error"]) == (412, True)
