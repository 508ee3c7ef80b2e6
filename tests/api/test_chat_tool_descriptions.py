"""Tests of chats with tools for models whose template does not support tools."""

from __future__ import annotations

import logging

import pytest

from fastovms.api.served import ChatModel
from fastovms.text.template_files import make_template
from fastovms.text.tools import TOOL_FORMATS
from tests.api.chat_models import MESSAGES, call_text, prompt_of, tool, tool_choice
from tests.api.chats import BODY, V1, join, make
from tests.fakes import FakeStream

__all__ = ["make"]

SOURCE = """
{%- for message in messages %}
{%- if message.role == 'system' and not system %}{{ raise_exception('no system') }}{% endif %}
{%- if (message.role == 'assistant') != (loop.previtem is defined and
       loop.previtem.role == 'user') %}{{ raise_exception('turns must alternate') }}{% endif %}
{{- message.role }}:{{ message.content }};
{%- endfor %}>"""
SYSTEM = SOURCE.replace("and not system", "and False")
NOW = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
TOOLS = {"tools": [tool()]}
RESULTS = [
    *MESSAGES,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{
            "id": "1", "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
        }],
    },
    {"role": "tool", "tool_call_id": "1", "content": "18"},
]  # fmt: skip


def model(source: str = SOURCE, name: str = "json") -> ChatModel:
    return ChatModel(make_template({"default": source}, {}), TOOL_FORMATS[name])


@pytest.mark.parametrize(
    ("source", "begin"),
    [
        (SOURCE, "user:You can call these functions"),
        (SYSTEM, "system:You can call these functions"),
    ],
)
async def test_tools_are_listed_in_the_message_that_the_template_supports(make, source, begin):
    api = make(chat=model(source))
    await api.answer(V1, {**BODY, **TOOLS})
    prompt = prompt_of(api)
    assert prompt.startswith(begin)
    assert '"name": "get_weather", "description": "A tool"' in prompt
    assert prompt.endswith("Hi;>")


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["auto", "required", tool_choice("get_weather")])
@pytest.mark.parametrize("name", ["json", "hermes3"])
async def test_calls_are_found_and_streamed(make, choice, name):
    text = NOW if name == "json" else call_text()
    body = {**BODY, **TOOLS, "tool_choice": choice}
    answer = await make(text, chat=model(name=name)).answer(V1, body)
    [call] = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    events = await make(text, chat=model(name=name)).stream(V1, {**body, "stream": True})
    [[called, arguments]] = join(events)[0]["calls"]
    assert (called, arguments) == ("get_weather", call["function"]["arguments"])


@pytest.mark.parametrize(
    ("name", "told"), [("json", NOW), ("hermes3", f"<tool_call>{NOW}</tool_call>")]
)
async def test_tool_results_become_user_messages(make, name, told):
    api = make(chat=model(name=name))
    more = [*RESULTS, {"role": "user", "content": "So?"}]
    await api.answer(V1, {**BODY, "messages": more})
    result = "Result of the call of get_weather:\n18\n\nSo?"
    assert prompt_of(api) == f"user:Hi;assistant:{told};user:{result};>"


@pytest.mark.parametrize("streamed", [False, True])
async def test_model_without_a_tool_parser_warns(make, streamed, caplog):
    chat = ChatModel(make_template({"default": SOURCE}, {}))
    stream = FakeStream()
    with caplog.at_level(logging.WARNING):
        response = await make(NOW, chat=chat).call(
            "POST", V1, {**BODY, **TOOLS, "stream": streamed}, stream
        )
    headers = dict((stream if streamed else response).headers)
    assert "without a tool parser" in headers["Warning"]
    assert "without a tool parser" in caplog.text
    assert (
        await make(chat=chat).refused(V1, {**BODY, **TOOLS, "tool_choice": "required"})
        == "tool_choice"
    )
