"""Completions over fakes: bodies, streams, and what the model is asked."""

from __future__ import annotations

import pytest

from tests.api.completions.completion_requests import BODY, V1, texts


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
