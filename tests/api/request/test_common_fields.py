"""Sampling parameters, as requests, models and dialects give them."""

from __future__ import annotations

import pytest

from fastovms.params import SamplingDefaults, SamplingParams
from tests.api.completions.completion_requests import BODY, V1, V3
from tests.fakes import EOS, model_info


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        (V1, {}, SamplingParams(max_tokens=16)),
        (V1, {"max_tokens": None}, SamplingParams(max_tokens=16)),
        (V1, {"max_tokens": 7}, SamplingParams(max_tokens=7)),
        (V1, {"max_tokens": 1000}, SamplingParams(max_tokens=62)),
        (V1, {"top_k": -1}, SamplingParams(max_tokens=16)),
        (V1, {"top_k": 0}, SamplingParams(max_tokens=16)),
        (V1, {"top_k": 10**30}, SamplingParams(max_tokens=16)),
        (V1, {"top_k": 5}, SamplingParams(max_tokens=16, top_k=5)),
        (V1, {"min_p": 1, "top_p": 1}, SamplingParams(max_tokens=16, min_p=1)),
        (V1, {"seed": -(2**63)}, SamplingParams(max_tokens=16, seed=-(2**63))),
        (V1, {"temperature": 0, "top_p": 0.5}, SamplingParams(16, temperature=0, top_p=0.5)),
        (V1, {"ignore_eos": True, "n": 3}, SamplingParams(max_tokens=16, ignore_eos=True, n=3)),
        (V1, {"best_of": 2, "n": 2}, SamplingParams(max_tokens=16, n=2)),
        (V1, {"frequency_penalty": 2, "presence_penalty": -2, "repetition_penalty": 1.5},
         SamplingParams(16, frequency_penalty=2, presence_penalty=-2, repetition_penalty=1.5)),
        (V1, {"min_tokens": 16}, SamplingParams(16, min_tokens=16)),
        (V1, {"num_assistant_tokens": 3, "max_ngram_size": 2},
         SamplingParams(16, num_assistant_tokens=3, max_ngram_size=2)),
        (V1, {"num_assistant_tokens": 2**32 - 1, "max_ngram_size": 2**32 - 1},
         SamplingParams(16, num_assistant_tokens=32, max_ngram_size=16)),
        (V1, {"num_assistant_tokens": 0}, SamplingParams(16, num_assistant_tokens=0)),
        (V1, {"num_assistant_tokens": 0, "assistant_confidence_threshold": 0.5},
         SamplingParams(16, assistant_confidence_threshold=0.5)),
        (V1, {"prompt_logprobs": 0, "logprobs": 2},
         SamplingParams(16, prompt_logprobs=0, logprobs=2)),
        (V3, {"min_tokens": 62}, SamplingParams(top_k=40, min_tokens=62)),
        (V3, {}, SamplingParams(top_k=40)),
        (V3, {"top_k": -1}, SamplingParams()),
        (V3, {"top_k": 3, "best_of": 1}, SamplingParams(top_k=3)),
        (V3, {"seed": 2**32 - 1, "n": 2}, SamplingParams(top_k=40, seed=2**32 - 1, n=2)),
    ],
)  # fmt: skip
async def test_sampling_params(make_api, path, fields, expected):
    api = make_api("x")
    status, answer = await api.post(path, {**BODY, **fields})
    assert status == 200, answer
    params = api.backend.submitted[0].params
    assert params.eos_token_ids == {EOS}
    assert [
        getattr(params, name) for name in SamplingParams.__slots__ if name != "eos_token_ids"
    ] == [getattr(expected, name) for name in SamplingParams.__slots__ if name != "eos_token_ids"]


async def test_the_models_defaults_come_between_request_and_dialect(make_api):
    defaults = SamplingDefaults(
        temperature=0.6,
        top_p=0.9,
        top_k=20,
        min_p=0.1,
        max_new_tokens=30,
        repetition_penalty=1.1,
        frequency_penalty=0.2,
        presence_penalty=0.3,
    )
    api = make_api("x", model=model_info(defaults=defaults))
    fields = {"temperature": 0, "top_k": 5, "max_tokens": 3, "repetition_penalty": 1}
    for path in (V1, V3):
        await api.post(path, BODY)
        await api.post(path, {**BODY, **fields, "frequency_penalty": 0, "presence_penalty": 0})
    assert [
        (p.max_tokens, p.temperature, p.top_p, p.top_k, p.min_p, p.repetition_penalty,
         p.frequency_penalty, p.presence_penalty)
        for p in (request.params for request in api.backend.submitted)
    ] == [
        (16, 0.6, 0.9, 20, 0.1, 1.1, 0.2, 0.3),
        (3, 0, 0.9, 5, 0.1, 1, 0, 0),
        (30, 0.6, 0.9, 20, 0.1, 1.1, 0.2, 0.3),
        (3, 0, 0.9, 5, 0.1, 1, 0, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("streamed", [False, True])
async def test_place_in_the_queue_and_in_the_cache(make_api, streamed):
    api = make_api("x")
    body = {**BODY, "priority": -5, "cache_salt": "tenant", "echo": True, "logprobs": 0}
    if streamed:
        await api.stream(V1, body)
    else:
        await api.post(V1, body)
    queued = [(request.priority, request.cache_salt) for request in api.backend.submitted]
    assert set(queued) == {(-5, "tenant")}
    await api.post(V1, BODY)
    assert (api.backend.submitted[-1].priority, api.backend.submitted[-1].cache_salt) == (0, None)
