"""Completions with a suffix: the model fills in the middle."""

from __future__ import annotations

import pytest

from tests.api.completion_requests import BODY, V1, V3
from tests.fakes import ByteTokenizer, model_info

FIM = {"<|fim_prefix|>": 1, "<|fim_suffix|>": 2, "<|fim_middle|>": 3}


class BeginningTokenizer(ByteTokenizer):
    """Puts a token before every text."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [99] * add_special_tokens + super().encode(text)


@pytest.mark.parametrize("path", [V1, V3])
async def test_suffix_adds_the_fill_in_the_middle_tokens(make_api, path):
    body = {**BODY, "suffix": "xy", "prompt": ["a", "b"], "return_token_ids": True}
    api = make_api("z", tokenizer=ByteTokenizer(**FIM))
    _, answer = await api.post(path, body)
    inputs = [list(request.prompt_token_ids) for request in api.backend.submitted]
    assert inputs == [[1, 97, 2, 120, 121, 3], [1, 98, 2, 120, 121, 3]]
    assert [choice["text"] for choice in answer["choices"]] == ["z", "z"]
    assert [choice["prompt_token_ids"] for choice in answer["choices"]] == inputs
    assert answer["usage"]["prompt_tokens"] == 12
    api = make_api("z", tokenizer=BeginningTokenizer(**FIM))
    await api.post(path, {**body, "prompt": "a"})
    await api.post(path, {**body, "prompt": [97], "add_special_tokens": False})
    inputs = [list(request.prompt_token_ids) for request in api.backend.submitted]
    assert inputs == [[99, 1, 97, 2, 120, 121, 3], [1, 97, 2, 120, 121, 3]]


async def test_prompt_and_suffix_must_fit_together(make_api):
    api = make_api("z", tokenizer=ByteTokenizer(**FIM), model=model_info(max_model_len=20))
    for suffix, status in (("x" * 14, 200), ("x" * 15, 400), ("x" * 10_000, 400)):
        found, answer = await api.post(V1, {**BODY, "suffix": suffix, "max_tokens": 1})
        assert found == status, answer
    assert answer["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("suffix", ["", None])
async def test_no_suffix_needs_no_tokens(make_api, suffix):
    assert (await make_api("z").post(V1, {**BODY, "suffix": suffix, "echo": True}))[0] == 200
