"""How many tokens a request may ask for: of the model, its context and the operator."""

from __future__ import annotations

import pytest

from fastovms.config.api_config import ApiConfig
from fastovms.config.model_config import ModelLimits
from fastovms.params import SamplingDefaults
from tests.api.chat_models import chat_model
from tests.api.completions.completion_requests import BODY, V1, V3
from tests.api.wrong_values import names
from tests.fakes import model_info


async def test_limits_of_the_operator(make_api):
    limits = ModelLimits(max_tokens_limit=10, best_of_limit=4)
    api = make_api(limits=limits)
    for field, value in (("max_tokens", 10), ("best_of", 4)):
        status, answer = await api.post(V3, {**BODY, field: value})
        assert (status, names(field, answer["error"])) == (400, True)
        assert (await api.post(V3, {**BODY, field: value - 1}))[0] == 200
        assert (await api.post(V1, {**BODY, field: value}))[0] == 200
    await api.post(V3, BODY)
    await api.post(V1, {**BODY, "max_tokens": 50})
    assert [request.params.max_tokens for request in api.backend.submitted[-2:]] == [10, 10]


CHAT = {"model": "fake", "messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize(
    ("max_new_tokens", "limit", "status"),
    [
        (None, 10, 200),
        (None, 63, 400),
        (100, 63, 400),
        (62, 63, 200),  # the model's own default is cut
        (100, None, 200),
        (None, None, 200),
    ],
)
async def test_the_operators_limit_must_fit_where_it_is_the_default(
    make_api, max_new_tokens, limit, status
):
    """OVMS refuses it, as it refuses a number that the request gives."""
    for path, body, field in (
        ("completions", BODY, "max_tokens"),
        ("chat/completions", CHAT, "max_tokens"),
        ("responses", {"model": "fake", "input": "a"}, "max_output_tokens"),
    ):
        api = make_api(
            model=model_info(defaults=SamplingDefaults(max_new_tokens=max_new_tokens)),
            limits=ModelLimits(max_tokens_limit=limit),
            chat=chat_model(),
        )
        found, answer = await api.post(f"/v3/{path}", body)
        assert found == status, answer
        assert status == 200 or f"and {field} 63, the default)" in answer["error"]
        assert (await api.post(f"/v1/{path}", body))[0] == 200


@pytest.mark.parametrize("prompt", ["x" * 64, [5] * 64, ["a", "x" * 64], [[1], [5] * 64]])
async def test_prompt_that_fills_the_context(make_api, prompt):
    status, answer = await make_api().post(V1, {**BODY, "prompt": prompt})
    assert status == 400
    assert answer["error"]["code"] == "context_length_exceeded"
    assert answer["error"]["param"] == ("prompt[1]" if len(prompt) == 2 else "prompt")
    assert "64 tokens and one must be left to generate" in answer["error"]["message"]
    status, answer = await make_api().post(V3, {**BODY, "prompt": prompt})
    assert (status, "64 tokens" in answer["error"]) == (400, True)


@pytest.mark.parametrize("prompt", [[5] * 300_000, "x" * 300_000, ["a", [5] * 300_000], [5] * 65])
async def test_prompt_far_too_long(make_api, prompt):
    api = make_api()
    for path in (V1, V3):
        status, _ = await api.post(path, {**BODY, "prompt": prompt})
        assert status == 400
    assert api.backend.submitted == []


async def test_max_tokens_beyond_the_context(make_api):
    api = make_api()
    status, answer = await api.post(V3, {**BODY, "max_tokens": 63})
    assert status == 400
    assert "65 tokens (2 in the prompt and max_tokens 63)" in answer["error"]
    assert (await api.post(V3, {**BODY, "max_tokens": 62}))[0] == 200
    assert (await api.post(V1, {**BODY, "max_tokens": 63}))[0] == 200


async def test_bounded_number_of_prompts_and_choices(make_api):
    api = make_api(config=ApiConfig(max_prompts=4, max_choices=6))
    for fields, param in (
        ({"prompt": ["a"] * 5}, "prompt"),
        ({"prompt": [[1]] * 5}, "prompt"),
        ({"prompt": ["a"] * 4, "n": 2}, "n"),
        ({"n": 7}, "n"),
    ):
        status, answer = await api.post(V1, {**BODY, **fields})
        assert (status, answer["error"]["param"]) == (400, param)
    assert (await api.post(V1, {**BODY, "prompt": ["a"] * 3, "n": 2}))[0] == 200
