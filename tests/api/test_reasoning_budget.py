"""Tests of the limit on reasoning in all APIs: fields, efforts and flags."""

from __future__ import annotations

from typing import Any

import pytest

from fastovms.api.served import ChatModel
from fastovms.config import ChatConfig
from fastovms.errors import FieldFault
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.template import ChatTemplate
from fastovms.text.template_files import make_template
from fastovms.text.tools import TOOL_FORMATS
from tests.api.chat_models import MESSAGES, SOURCE, chat_model, tool
from tests.fakes import model_info

PLAIN = make_template({"default": SOURCE.replace("reasoning_effort", "nothing")}, {})
CHAT = ("/v1/chat/completions", {"messages": MESSAGES})
OVMS = ("/v3/chat/completions", {"messages": MESSAGES})
RESPONSES = ("/v1/responses", {"input": "Hi", "store": False})
CLAUDE = ("/v1/messages", {"messages": MESSAGES, "max_tokens": 99})
OLLAMA = ("/api/chat", {"messages": MESSAGES, "stream": False})


def model(template: ChatTemplate = PLAIN, **config: Any) -> ChatModel:
    thoughts = REASONING_FORMATS["qwen3"]
    return ChatModel(template, TOOL_FORMATS["hermes3"], thoughts, ChatConfig(**config))


@pytest.fixture
def make(make_api):
    def make_one(chat: ChatModel):
        return make_api("Hi", model=model_info(max_model_len=2000), chat=chat)

    return make_one


async def budget_of(api: Any, endpoint: tuple[str, dict[str, Any]], fields: dict[str, Any]) -> Any:
    path, body = endpoint
    await api.answer(path, {"model": "fake", **body, **fields})
    return api.backend.submitted[-1].params.reasoning_budget


@pytest.mark.parametrize(
    ("endpoint", "fields", "config", "limit"),
    [
        (CHAT, {}, {}, None),
        (CHAT, {"thinking_token_budget": 7}, {}, 7),
        (CHAT, {"thinking_token_budget": 0}, {"reasoning_budget": 9}, 0),
        (CHAT, {"thinking_token_budget": -1}, {"reasoning_budget": 9}, None),
        (CHAT, {"thinking_token_budget": None}, {"reasoning_budget": 9}, 9),
        (CHAT, {}, {"reasoning_budget": 0}, 0),
        (CHAT, {"reasoning_effort": "minimal"}, {"reasoning_budget": 9}, 512),
        (CHAT, {"reasoning_effort": "low"}, {}, 1024),
        (CHAT, {"reasoning_effort": "medium"}, {}, 8192),
        (CHAT, {"reasoning_effort": "high"}, {}, 24576),
        (CHAT, {"reasoning_effort": "max"}, {}, None),
        (CHAT, {"reasoning_effort": "max"}, {"reasoning_budget": 9}, 9),
        (CHAT, {"chat_template_kwargs": {"reasoning_effort": "low"}}, {}, 1024),
        (CHAT, {}, {"default_chat_template_kwargs": {"reasoning_effort": "low"}}, 1024),
        (CHAT, {"reasoning_effort": "low", "thinking_token_budget": 3}, {}, 3),
        (OVMS, {"thinking_token_budget": 7}, {}, 7),
        (RESPONSES, {"thinking_token_budget": 7}, {}, 7),
        (RESPONSES, {"reasoning": {"effort": "low"}}, {}, 1024),
        (CLAUDE, {"thinking": {"type": "enabled", "budget_tokens": 1500}}, {}, 1500),
        (CLAUDE, {"thinking": {"type": "adaptive"}}, {"reasoning_budget": 9}, 9),
        (CLAUDE, {"output_config": {"effort": "low"}}, {}, 1024),
        (OLLAMA, {"think": "low"}, {}, 1024),
        (OLLAMA, {"think": True}, {"reasoning_budget": 9}, 9),
    ],
)  # fmt: skip
async def test_the_limit_of_a_request(make, endpoint, fields, config, limit):
    budget = await budget_of(make(model(**config)), endpoint, fields)
    assert (budget and budget.num_tokens) == limit if limit is None else budget.num_tokens == limit


async def test_a_template_with_levels_of_its_own_gets_the_effort_alone(make):
    api = make(chat_model())
    assert await budget_of(api, CHAT, {"reasoning_effort": "low"}) is None


@pytest.mark.parametrize(
    ("name", "fields", "begin", "closing", "others"),
    [
        ("qwen3", {}, b"<think>", b"Enough.</think>", ()),
        ("qwen3", {"tools": [tool()]}, b"<think>", b"Enough.</think>", (b"<tool_call>",)),
        ("gptoss", {}, b"<|channel|>analysis<|message|>", b"Enough.<|end|><|start|>assistant", ()),
        ("mistral", {}, b"[THINK]", b"Enough.[/THINK]", ()),
    ],
)
async def test_how_reasoning_is_ended(make, name, fields, begin, closing, others):
    config = ChatConfig(reasoning_budget=5, reasoning_budget_message="Enough.")
    chat = ChatModel(PLAIN, TOOL_FORMATS["hermes3"], REASONING_FORMATS[name], config)
    budget = await budget_of(make(chat), CHAT, fields)
    assert budget.tags[0].begin == begin
    assert bytes(budget.tags[0].closing_token_ids) == closing
    assert budget.other_ends == others


@pytest.mark.parametrize(("opened", "is_inside"), [(True, True), (False, False)])
async def test_whether_the_prompt_has_opened_reasoning(make, opened, is_inside):
    fields = {"thinking_token_budget": 5, "chat_template_kwargs": {"opened": opened}}
    assert (await budget_of(make(model()), CHAT, fields)).is_inside is is_inside


async def test_thinking_budget_of_a_model_without_reasoning_warns(make):
    api = make(ChatModel(PLAIN, None, None, ChatConfig(reasoning_budget=5)))
    assert await budget_of(api, CHAT, {}) is None
    response = await api.call(
        "POST", CHAT[0], {"model": "fake", **CHAT[1], "thinking_token_budget": 5}
    )
    warnings = [value for name, value in response.headers if name.lower() == "warning"]
    assert any("thinking_token_budget" in str(value) for value in warnings)


@pytest.mark.parametrize(("fields", "status"), [({"thinking_token_budget": 5}, 400), ({}, 200)])
async def test_a_backend_that_cannot_limit_reasoning(make, fields, status):
    """It refuses a request with a limit, and warns if the operator has set one."""
    api = make(model(reasoning_budget=9))

    def check(params):
        if params.reasoning_budget is not None:
            raise FieldFault("thinking_token_budget", " is not supported by it")

    api.backend.check = check
    response = await api.call("POST", CHAT[0], {"model": "fake", **CHAT[1], **fields})
    assert response.status == status
    if status == 400:
        assert b'"param":"thinking_token_budget"' in response.body
    else:
        assert "reasoning is not limited" in str(response.headers)


async def test_completions_have_no_reasoning_to_limit(make):
    body = {"model": "fake", "prompt": "Hi"}
    status, answer = await make(model()).post(
        "/v1/completions", {**body, "thinking_token_budget": 5}
    )
    assert (status, answer["error"]["param"]) == (400, "thinking_token_budget")
