"""What a completion's body asks for."""

from __future__ import annotations

import pytest

from tests.api.completions.completion_requests import BODY, V1, V3, texts
from tests.fakes import model_info


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


async def test_long_prompts_are_encoded_off_the_loop(make_api):
    api = make_api(model=model_info(max_model_len=5000))
    status, body = await api.post(V1, {**BODY, "prompt": "x" * 4000})
    assert (status, body["usage"]["prompt_tokens"]) == (200, 4000)
