"""Tests of the prompts of chats, which `fastovms/api/prompt.py` renders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastovms.api.rendering import TemplateRuns
from fastovms.text.template_files import make_template
from tests.api.chat_models import MESSAGES, TEMPLATE, chat_model, prompt_of, tool
from tests.api.chats import BODY, V1, V3, make

# Chats as the model reads them.


__all__ = ["make"]


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, "u:Hi;>"),
        ({"messages": "Hi"}, "u:Hi;>"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"},
                                                    {"type": "text", "text": "b"}]}]}, "u:a\nb;>"),
        ({"messages": [{"role": "user"}]}, "u:;>"),
        ({"messages": [{"role": "user", "content": None, "name": "Ann", "extra": [1]}]}, "u:;>"),
        ({"messages": [{"role": "system", "content": "S"}, *MESSAGES]}, "s:S;u:Hi;>"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": None, "refusal": "no"}]},
         "u:Hi;a:no;>"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": "A", "reasoning": "why"}]},
         "u:Hi;a:A(why);>"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": "A",
                                   "reasoning_content": "why"}]}, "u:Hi;a:A(why);>"),
        ({"messages": [{"role": "function", "name": "f", "content": "18"}]}, "t:18;>"),
        ({"messages": [{"role": "tool", "tool_call_id": "1", "content": "18"}]}, "t:18;>"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "c:x;>"),
        ({"add_generation_prompt": False}, "u:Hi;"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "u:Hi;"),
        ({"chat_template_kwargs": {"style": "terse"}}, "u:Hi;<style terse>>"),
        ({"enable_thinking": True}, "u:Hi;<thinking True>>"),
        ({"chat_template_kwargs": {"enable_thinking": False}, "enable_thinking": True},
         "u:Hi;<thinking False>>"),
        ({"reasoning_effort": "low"}, "u:Hi;<effort low><thinking True>>"),
        ({"reasoning_effort": "none"}, "u:Hi;<effort none><thinking False>>"),
        ({"reasoning_effort": "none", "enable_thinking": True},
         "u:Hi;<effort none><thinking True>>"),
        ({"documents": [{"title": "D", "text": "T"}]}, "u:Hi;<doc D>>"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": "Well"}],
          "continue_final_message": True}, "u:Hi;a:Well"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": "Well"}],
          "continue_final_message": True, "add_generation_prompt": False}, "u:Hi;a:Well"),
        ({"tools": [tool()]}, "<tool get_weather>u:Hi;>"),
        ({"tools": []}, "u:Hi;>"),
        ({"tools": [tool(), tool("add")], "tool_choice":
            {"type": "function", "function": {"name": "add"}}}, "<tool add>u:Hi;>"),
        ({"tools": [tool(), tool("add")], "tool_choice":
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools":
                [{"type": "function", "function": {"name": "add"}}]}}}, "<tool add>u:Hi;>"),
    ],
)  # fmt: skip
async def test_request_fields_are_rendered_into_the_prompt(make, fields, prompt):
    api = make()
    await api.answer(V1, {**BODY, **fields})
    assert prompt_of(api) == prompt


REFUSED_TEMPLATES = [
    ("{% if %}", "is malformed"),
    ("{{ 'a'", "is malformed"),
    ("x" * 300_000, "at most 262144 characters"),
    ("{{ " + "(" * 50_000 + " }}", "is malformed"),
    ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "takes more than"),
    ("{{ '{0:>3000000000}'.format(1) }}", "pads, repeats or rounds by more than"),
]  # fmt: skip


@pytest.mark.slow
async def test_template_of_a_request_needs_trust_and_has_limits(make):
    body = {**BODY, "chat_template": "{{ messages[0].content }}!"}
    status, answer = await make().post(V1, body)
    assert (status, answer["error"]["param"]) == (400, "chat_template")
    runs = TemplateRuns(TEMPLATE.budget)
    chat = replace(chat_model(trust_request_chat_template=True), run=runs.run)
    api = make(chat=chat)
    try:
        assert (await api.post(V1, body))[0] == 200
        assert prompt_of(api) == "Hi!"
        for source, reason in REFUSED_TEMPLATES:
            status, answer = await api.post(V1, {**body, "chat_template": source})
            error = answer["error"]
            assert (status, error["param"], reason in error["message"]) == (
                400,
                "chat_template",
                True,
            ), answer
        assert (await api.post(V1, body))[0] == 200
    finally:
        runs.close()


async def test_costly_template_is_rendered_in_a_process(make):
    source = "{% for i in range(200) %}{% for m in messages %}{% endfor %}{% endfor %}done"
    template = make_template({"default": source}, {})
    runs = TemplateRuns(template.budget)
    api = make(chat=replace(chat_model(), template=template, run=runs.run))
    few, many = [{"role": "user", "content": "a"}] * 10, [{"role": "user", "content": "a"}] * 1900
    try:
        for messages, num_starts in ((few, 0), (many, 1)):
            status, answer = await api.post(V1, {**BODY, "messages": messages})
            assert (status, prompt_of(api)) == (200, "done"), answer
            assert runs.num_outside == num_starts
    finally:
        runs.close()


async def test_template_variables_of_the_operator_are_defaults(make):
    chat = chat_model(default_chat_template_kwargs={"style": "terse", "enable_thinking": False})
    api = make(chat=chat)
    await api.post(V1, BODY)
    await api.post(
        V1, {**BODY, "chat_template_kwargs": {"style": "long"}, "reasoning_effort": "low"}
    )
    assert prompt_of(api, 0) == "u:Hi;<thinking False><style terse>>"
    assert prompt_of(api, 1) == "u:Hi;<effort low><thinking True><style long>>"


EXAMPLES = (
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4"},
)


@pytest.mark.parametrize(
    ("config", "messages", "prompt"),
    [
        ({"system_prompt": "Be brief."}, MESSAGES, "s:Be brief.;u:Hi;>"),
        ({"system_prompt": "Be brief."}, [{"role": "system", "content": "S"}, *MESSAGES],
         "s:S;u:Hi;>"),
        ({"system_prompt": "Be brief."}, [{"role": "developer", "content": "D"}, *MESSAGES],
         "s:D;u:Hi;>"),
        ({"example_messages": EXAMPLES}, MESSAGES, "u:2+2?;a:4;u:Hi;>"),
        ({"example_messages": EXAMPLES, "system_prompt": "Be brief."}, MESSAGES,
         "s:Be brief.;u:2+2?;a:4;u:Hi;>"),
        ({"example_messages": EXAMPLES}, [{"role": "system", "content": "S"}, *MESSAGES],
         "s:S;u:2+2?;a:4;u:Hi;>"),
    ],
)  # fmt: skip
async def test_messages_of_the_operator_precede_those_of_the_client(
    make, config, messages, prompt
) -> None:
    api = make(chat=chat_model(**config))
    for path in (V1, V3):
        await api.answer(path, {**BODY, "messages": messages})
        assert prompt_of(api) == prompt


async def test_errors_count_the_messages_of_the_client_alone(make) -> None:
    api = make(chat=chat_model(system_prompt="S", example_messages=EXAMPLES))
    messages = [*MESSAGES, {"role": "assistant", "content": "bad"}, *MESSAGES]
    assert await api.refused(V1, {**BODY, "messages": messages}) == "messages[1]"


async def test_model_without_a_template_refuses_chats_and_completes(make_api):
    api = make_api("x")
    for path in (V1, V3):
        status, body = await api.post(path, BODY)
        message = body["error"]["message"] if path == V1 else body["error"]
        assert (status, "no chat template" in message) == (400, True)
    assert (await api.post("/v1/completions", {"prompt": "a"}))[0] == 200
