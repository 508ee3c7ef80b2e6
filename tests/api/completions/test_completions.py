"""Completions over fakes: bodies, streams, and what the model is asked."""

from __future__ import annotations

import asyncio

import pytest

from fastovms.params import SamplingDefaults, SamplingParams
from tests.api.completions.completion_requests import BODY, STREAM, V1, V3, texts
from tests.fakes import EOS, FakeStream, model_info


async def test_unary_body_of_openai(make_api):
    status, body = await make_api("hello").post(V1, BODY)
    assert status == 200
    assert body == {
        "id": "cmpl-" + 32 * "0",
        "object": "text_completion",
        "created": 1_750_000_000,
        "model": "fake",
        "system_fingerprint": "fp_test",
        "choices": [
            {
                "index": 0,
                "text": "hello",
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 6,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


@pytest.mark.parametrize("path", ["/v3/completions", "/v3/v1/completions"])
async def test_unary_body_of_ovms(make_api, path):
    status, body = await make_api("hello").post(path, BODY)
    assert status == 200
    assert set(body) == {"object", "created", "model", "choices", "usage"}
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "hello", "logprobs": None, "finish_reason": "stop"}
    ]


async def test_stream_of_openai(make_api):
    stream = FakeStream()
    body = {**STREAM, "stream_options": {"include_usage": True}}
    assert await make_api("hi").call("POST", V1, body, stream) is None
    *chunks, usage, done = stream.events
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["h", "i", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "stop"]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert all(chunk["object"] == "text_completion" for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert {event["id"] for event in (*chunks, usage)} == {"cmpl-" + 32 * "0"}
    assert done == "[DONE]"
    assert len(stream.writes) == 3, "the last delta, usage and end share one write"


async def test_stream_of_ovms_opens_with_a_handshake_when_the_first_token_has_no_text(make_api):
    events = await make_api("é").stream(V3, BODY)
    assert events[0]["object"] == "text_completion.chunk"
    assert "id" not in events[0]
    assert [event["choices"][0]["text"] for event in events[:-1]] == ["", "é", ""]
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None, None, "stop"]
    events = await make_api("é").stream(V1, BODY)
    assert [event["choices"][0]["text"] for event in events[:-1]] == ["é", ""]


async def test_running_usage(make_api):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await make_api("hi").stream(V1, {**BODY, "stream_options": options})
    assert [event["usage"]["completion_tokens"] for event in events[:-1]] == [1, 2, 3, 3]
    events = await make_api("hi").stream(V1, {**BODY, "stream_options": {}})
    assert not any("usage" in event for event in events[:-1])


def spell(request, index: int) -> list[int]:
    """A text that tells prompts and samples apart."""
    return [*request.prompt_token_ids, *f"-{index}!".encode()]


@pytest.mark.parametrize("tokens_per_step", [1, 2, 100])
async def test_several_prompts_and_samples(make_api, tokens_per_step):
    api = make_api(spell, tokens_per_step=tokens_per_step)
    body = {**BODY, "prompt": ["x", "yy"], "n": 2, "stream_options": None}
    status, answer = await api.post(V1, body)
    assert status == 200
    wanted = ["x-0!", "x-1!", "yy-0!", "yy-1!"]
    assert [choice["text"] for choice in answer["choices"]] == wanted
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 5 + 5 + 6 + 6
    assert [request.params.n for request in api.backend.submitted] == [2, 2]
    events = await api.stream(V1, {**body, "stream_options": {"include_usage": True}})
    assert list(dict(sorted(texts(events).items())).values()) == wanted
    finished = [e["choices"][0]["finish_reason"] for e in events[:-2]]
    assert finished.count("stop") == 4
    assert events[-2]["usage"] == answer["usage"]


@pytest.mark.parametrize("prompt", ["ab", ["ab"], [97, 98], [[97, 98]]])
async def test_prompt_forms(make_api, prompt):
    api = make_api("z")
    status, body = await api.post(V1, {"prompt": prompt, "echo": True})
    assert status == 200
    assert body["choices"][0]["text"] == "abz"
    assert list(api.backend.submitted[0].prompt_token_ids) == [97, 98]


@pytest.mark.parametrize("path", [V1, V3])
async def test_echo(make_api, path):
    body = {**BODY, "prompt": ["ab", "c"], "n": 2, "echo": True}
    events = await make_api("zz").stream(path, body)
    assert texts(events) == {0: "abzz", 1: "abzz", 2: "czz", 3: "czz"}
    first = {e["choices"][0]["index"]: e["choices"][0]["text"] for e in reversed(events[:-1])}
    assert first == {0: "abz", 1: "abz", 2: "cz", 3: "cz"}


@pytest.mark.parametrize("path", [V1, V3])
async def test_echo_of_the_prompt_alone(make_api, path):
    api = make_api("never")
    body = {**BODY, "max_tokens": 0, "echo": True, "n": 2}
    _, answer = await api.post(path, body)
    assert [choice["text"] for choice in answer["choices"]] == ["ab", "ab"]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length", "length"]
    assert answer["usage"]["completion_tokens"] == 0
    assert texts(await api.stream(path, body)) == {0: "ab", 1: "ab"}
    assert api.backend.submitted == []


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


async def test_the_clients_request_id(make_api):
    api = make_api("x" * 60)
    api.backend.paused = True
    body = {**BODY, "request_id": "mine"}
    answers = [asyncio.create_task(api.post(V1, body)) for _ in range(2)]
    await asyncio.sleep(0)
    api.backend.paused = False
    api.backend.step()
    assert [(await answer)[1]["id"] for answer in answers] == ["cmpl-mine", "cmpl-mine"]
    ids = [request.request_id for request in api.backend.submitted]
    assert len(set(ids)) == 2, "two clients may choose the same id"
    assert "id" not in (await api.post(V3, body))[1]


async def test_model_may_be_left_out_in_openais_dialect(make_api):
    status, body = await make_api().post(V1, {"prompt": "a"})
    assert (status, body["model"]) == (200, "fake")


async def test_values_that_ask_for_nothing_are_accepted(make_api):
    fields = {
        "logprobs": None,
        "suffix": None,
        "logit_bias": {},
        "use_beam_search": False,
        "bad_words": [],
        "stop_token_ids": [],
        "allowed_token_ids": None,
        "spaces_between_special_tokens": False,
        "thinking_token_budget": -1,
        "stop": [],
        "user": "me",
        "unknown": {"a": [1]},
        "response_format": {"type": "text"},
        "stream_options": None,
        "n": None,
        "echo": None,
        "seed": None,
    }
    for path in (V1, V3):
        status, body = await make_api().post(path, {**BODY, **fields})
        assert status == 200, body


async def test_cached_tokens_are_reported(make_api):
    api = make_api()
    api.backend.num_cached_tokens = 1
    _, body = await api.post(V1, {**BODY, "prompt": ["ab", "cd"]})
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


async def test_long_prompts_are_encoded_off_the_loop(make_api):
    api = make_api(model=model_info(max_model_len=5000))
    status, body = await api.post(V1, {**BODY, "prompt": "x" * 4000})
    assert (status, body["usage"]["prompt_tokens"]) == (200, 4000)
