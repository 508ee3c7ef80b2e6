"""What chats and prompts become."""

from __future__ import annotations

import pytest

from fastovms.text.templating.chat_template import ChatTemplate
from tests.api.chat_models import MESSAGES, chat_model, prompt_of, tool
from tests.api.ollama.ollama_requests import (
    ASKED,
    CHAT,
    GENERATE,
    PROMPTED,
    ask,
    make,
    refused,
)

__all__ = ["make"]
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
async def test_prompts(make, path, body, prompt):
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
async def test_refusals(make, path, body, message):
    assert message in await refused(make(), path, body)


async def test_tools_and_thoughts_of_models_that_have_none(make):
    chat = chat_model()
    bare = type(chat)(ChatTemplate({"default": "{{ messages[0].content }}"}, {}))
    error = await refused(make(chat=bare), CHAT, {**ASKED, "tools": [tool()]})
    assert error == 'tools: "fake" does not support tools'
    error = await refused(make(chat=bare), CHAT, {**ASKED, "think": True})
    assert error == 'think: "fake" does not support thinking'


async def test_older_messages_are_dropped_where_there_is_no_room(make):
    api = make(max_model_len=80)
    await ask(api, CHAT, {**ASKED, "messages": LONG})
    assert prompt_of(api) == f"u:{'c' * 30};>"
    error = await refused(make(max_model_len=80), CHAT,
                          {**ASKED, "messages": LONG, "truncate": False})  # fmt: skip
    assert "maximum context length is 80 tokens" in error
    api = make(max_model_len=80)  # the answer gets half of the context at most
    body = {**ASKED, "messages": LONG, "options": {"num_predict": 1000}}
    assert (await ask(api, CHAT, body))["eval_count"] == 7


async def test_the_context_goes_on(make):
    first = await ask(make("yes"), GENERATE, PROMPTED)
    assert first["context"] == [*b"u:Hi;>yes"]
    api = make("no")
    second = await ask(api, GENERATE, {**PROMPTED, "context": first["context"]})
    assert prompt_of(api) == "u:Hi;>yesu:Hi;>"
    assert second["context"] == [*b"u:Hi;>yesu:Hi;>no"]
