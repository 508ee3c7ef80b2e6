"""How much of a context fits, and how its tokens are counted."""

from __future__ import annotations

import pytest

from fastovms.config.model_config import ModelLimits
from fastovms.text.templating.chat_template import ChatTemplate
from tests.api.chat_models import prompt_of
from tests.api.responses.conftest import BODY, TOOL, V1, V3, ask


def turns(number: int) -> list[dict[str, str]]:
    return [
        {"role": role, "content": f"{role[0]}{turn:04}"}
        for turn in range(number)
        for role in ("user", "assistant")
    ]


LONG = [{"role": "system", "content": "rules"}, *turns(100), {"role": "user", "content": "last"}]


async def test_a_context_that_is_too_long_is_refused(make):
    api = make(context=200)
    status, body = await ask(api, "POST", V1, {**BODY, "input": LONG})
    assert status == 400
    assert body["error"]["code"] == "context_length_exceeded"
    assert body["error"]["param"] == "input"
    assert "200 tokens" in body["error"]["message"]


async def test_a_context_that_is_too_long_loses_its_oldest_messages(make):
    api = make(context=200)
    body = {**BODY, "input": LONG, "truncation": "auto", "max_output_tokens": 20}
    status, body = await ask(api, "POST", V1, body)
    assert status == 200
    prompt = prompt_of(api)
    assert prompt.startswith("s:rules;u:u0")
    assert prompt.endswith("a:a0099;u:last;>")
    assert 180 - 16 < len(prompt) <= 180


async def test_more_messages_than_the_context_has_tokens_are_not_rendered(make, monkeypatch):
    rendered = []
    render = ChatTemplate.render

    def note(self, messages, **options):
        rendered.append(len(messages))
        return render(self, messages, **options)

    monkeypatch.setattr(ChatTemplate, "render", note)
    api = make(context=200)
    body = {**BODY, "input": [{"role": "user", "content": "x"}] * 5000}
    status, answer = await ask(api, "POST", V1, body)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert answer["error"]["param"] == "input"
    assert "5000 items" in answer["error"]["message"]
    assert not rendered
    status, _ = await ask(api, "POST", V1, {**body, "truncation": "auto"})
    assert status == 200
    assert max(rendered) <= 200


@pytest.mark.parametrize(
    ("path", "max_output_tokens", "limit", "num_kept"),
    [
        (V1, 190, None, 100),  # an answer that may be cut leaves half of the context
        (V1, None, 80, 175),
        (V3, 80, None, 120),
        (V3, 150, None, 50),
        (V3, None, 80, 120),
    ],
)
async def test_messages_make_room_for_the_answer(make, path, max_output_tokens, limit, num_kept):
    api = make(context=200, limits=ModelLimits(max_tokens_limit=limit))
    body = {**BODY, "input": LONG, "truncation": "auto", "max_output_tokens": max_output_tokens}
    status, answer = await ask(api, "POST", path, body)
    assert status == 200, answer
    assert num_kept - 16 < answer["usage"]["input_tokens"] <= num_kept


async def test_a_last_message_that_is_too_long_is_refused(make):
    body = {**BODY, "input": [*turns(3), {"role": "user", "content": "x" * 300}]}
    status, body = await ask(make(context=200), "POST", V1, {**body, "truncation": "auto"})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_large_max_output_tokens_is_cut_to_what_fits(make):
    api = make("x" * 300, context=200)
    _, body = await ask(api, "POST", V1, {**BODY, "max_output_tokens": 200})
    assert body["status"] == "incomplete"
    assert body["usage"]["total_tokens"] == 200


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"instructions": "Be kind."},
        {"tools": [TOOL]},
        {"input": LONG},
        {"reasoning": {"effort": "low"}},
    ],
)
async def test_tokens_are_counted_as_usage_does(make, fields):
    api = make(context=4000)
    _, body = await ask(api, "POST", V1, {**BODY, **fields})
    status, counted = await ask(api, "POST", f"{V1}/input_tokens", {**BODY, **fields})
    assert status == 200
    expected = body["usage"]["input_tokens"]
    assert counted == {"object": "response.input_tokens", "input_tokens": expected}
