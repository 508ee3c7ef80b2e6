"""Prompts are scored without a text."""

from __future__ import annotations

import pytest

from tests.api.request.tokens.test_logprob_formats import BODY, V1, V3, joined, whole
from tests.fakes import FakeStream, model_info, token_logprobs


async def test_a_failure_while_scoring_is_a_real_status(make_api):
    for fields in ({"stream": True, "max_tokens": 3}, {"max_tokens": 0}):
        api = make_api("z")
        api.backend.fail_after = 0
        stream = FakeStream()
        body = {**BODY, "prompt": ["a", "b"], "echo": True, "logprobs": 1, **fields}
        response = await api.call("POST", V1, body, stream)
        assert response.status == 500
        assert not stream.started
        assert api.backend.stats().num_running == 0


@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"prompt": ["ab", "cd"]}])
async def test_scoring_the_prompt_is_no_cache_hit(make_api, fields, max_tokens):
    """The generation that follows the scoring finds the prompt in the cache."""
    api = make_api("z")
    api.backend.num_cached_tokens = 1
    body = {**BODY, "echo": True, "logprobs": 1, "max_tokens": max_tokens, **fields}
    _, answer = await api.post(V1, body)
    events = await api.stream(V1, {**body, "stream_options": {"include_usage": True}})
    assert events[-2]["usage"] == answer["usage"]
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    _, answer = await api.post(V1, {**BODY, "prompt": ["ab", "cd"]})
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


@pytest.mark.parametrize("path", [V1, V3])
@pytest.mark.parametrize("num_tokens", [62, 63, 64])
async def test_a_prompt_is_scored_up_to_the_whole_context(make_api, path, num_tokens):
    text = "".join(chr(ord("a") + place % 26) for place in range(num_tokens))
    api = make_api("z", model=model_info(max_model_len=64))
    body = {**BODY, "prompt": [text, "ab"], "echo": True, "logprobs": 2, "max_tokens": 0}
    status, answer = await api.post(path, body)
    assert status == 200, answer
    logprobs = answer["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == answer["choices"][0]["text"] == text
    expected = [token_logprobs(ord(letter), 2).logprob for letter in text]
    assert logprobs["token_logprobs"] == [None, *expected[1:]]
    assert answer["usage"]["prompt_tokens"] == num_tokens + 2
    assert answer["usage"]["completion_tokens"] == 0
    assert joined(await api.stream(path, body)) == whole(answer)


async def test_scoring_may_fill_the_context_but_not_exceed_it(make_api):
    body = {**BODY, "echo": True, "max_tokens": 0}
    for length, expected in ((64, 200), (65, 400)):
        status, _ = await make_api().post(V1, {**body, "prompt": "x" * length})
        assert status == expected
