"""What a request for a message becomes: the prompt, and how it is continued."""

from __future__ import annotations

import pytest

from fastovms.params import GrammarKind
from tests.api.chat_models import chat_model, prompt_of
from tests.api.messages.asking import BODY, PATH, THINKS, TOOL, USER, ask, make

__all__ = ["make"]

SAID = {"role": "assistant", "content": "Well, "}


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, "u:Hi;<thinking False>>"),
        ({"system": "S"}, "s:S;u:Hi;<thinking False>>"),
        (THINKS, "u:Hi;<thinking True>>"),
        ({"thinking": {"type": "disabled"}}, "u:Hi;<thinking False>>"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "u:Hi;<thinking True>>"),
        (
            {"output_config": {"effort": "high"}, "chat_template_kwargs": {"style": "s"}},
            "u:Hi;<effort high><thinking False><style s>>",
        ),
        ({"messages": [USER, SAID]}, "u:Hi;a:Well, "),
        ({"tools": [TOOL], "tool_choice": {"type": "none"}}, "u:Hi;<thinking False>>"),
        ({"tools": [TOOL]}, "<tool get_weather>u:Hi;<thinking False>>"),
    ],
)
async def test_prompts(make, fields, prompt):
    api = make()
    await ask(api, False, **fields)
    assert prompt_of(api) == prompt


async def test_the_operator_may_have_the_model_think(make):
    api = make(chat=chat_model(default_chat_template_kwargs={"enable_thinking": True}))
    await ask(api, False)
    assert prompt_of(api) == "u:Hi;<thinking True>>"


async def test_uses_of_tools_need_their_results(make):
    use = {"type": "tool_use", "id": "t", "name": "get_weather", "input": {}}
    body = {**BODY, "messages": [USER, {"role": "assistant", "content": [use]}]}
    status, error = await make().post(PATH, body)
    assert status == 400
    assert "must follow the last message" in error["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 0.5, "top_p": 0.9, "top_k": 7}, (0.5, 0.9, 7)),
        ({"top_k": -1, "temperature": 1}, (1, 1, 0)),
    ],
)
async def test_sampling(make, fields, expected):
    api = make()
    await ask(api, False, **fields)
    params = api.backend.submitted[0].params
    assert (params.temperature, params.top_p, params.top_k) == expected


@pytest.mark.parametrize(("asked", "given"), [(7, 7), (32_000, 1978)])
async def test_max_tokens_is_cut_to_what_the_context_leaves(make, asked, given):
    api = make()
    await ask(api, False, max_tokens=asked)
    assert api.backend.submitted[0].params.max_tokens == given


@pytest.mark.parametrize("name", ["output_config", "output_format"])
async def test_structured_answers(make, name):
    schema = {"type": "json_schema", "schema": {"type": "object"}}
    api = make('{"a":1}')
    await ask(api, False, **{name: {"format": schema} if name == "output_config" else schema})
    grammar = api.backend.submitted[0].params.grammar
    assert grammar.kind is GrammarKind.JSON_SCHEMA
    assert grammar.param.startswith(name)
