"""Tests of `fastovms/api/prompt.py`."""

from __future__ import annotations

import threading

import pytest

from fastovms.api.prompt import PromptEncoder, Truncation, encode_prompts
from fastovms.errors import InvalidField
from tests.fakes import ByteTokenizer, model_info

# Errors name a field as the client has sent it.


class CountingTokenizer(ByteTokenizer):
    """One token for `chars_per_token` characters; records the size of its inputs."""

    def __init__(self, chars_per_token: int) -> None:
        self._chars_per_token = chars_per_token
        self.encoded: list[int] = []

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.encoded.append(len(text))
        return [0] * (len(text) // self._chars_per_token)


async def encode(prompts: list, tokenizer: CountingTokenizer) -> list[int]:
    """Encodes numbers of tokens for a context of 100."""
    model = model_info(max_model_len=100)
    encoded = encode_prompts(prompts, PromptEncoder(tokenizer, model, True))
    return [len(prompt.token_ids) for prompt in encoded]


async def test_a_prompt_is_encoded_once():
    tokenizer = CountingTokenizer(1)
    assert await encode(["a" * 800, [1, 2], "b"], tokenizer) == [800, 2, 1]
    assert tokenizer.encoded == [800, 1]


async def test_of_a_text_far_too_long_only_the_beginning_is_encoded():
    tokenizer = CountingTokenizer(5)
    with pytest.raises(InvalidField) as caught:
        await encode(["a", "b" * 20_000], tokenizer)
    assert tokenizer.encoded == [1, 800]
    assert (caught.value.param, caught.value.code) == ("prompt[1]", "context_length_exceeded")
    assert "more than 100 tokens" in caught.value.message


async def test_a_long_text_of_few_tokens_is_encoded_whole():
    tokenizer = CountingTokenizer(200)
    assert await encode(["a" * 20_000], tokenizer) == [100]
    assert tokenizer.encoded == [800, 20_000]


V1 = "/v1/completions"
V3 = "/v3/completions"
BODY = {"model": "fake", "prompt": "abcdef"}


@pytest.mark.parametrize("path", [V1, V3])
@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 2}, "ef"),
        ({"truncate_prompt_tokens": 2, "truncation_side": "left"}, "ef"),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, "ab"),
        ({"truncate_prompt_tokens": 6}, "abcdef"),
        ({"truncate_prompt_tokens": 64}, "abcdef"),
        ({"truncate_prompt_tokens": None, "truncation_side": "right"}, "abcdef"),
        ({"truncate_prompt_tokens": 2, "prompt": [97, 98, 99]}, "bc"),
        ({"truncate_prompt_tokens": -1, "prompt": "x" * 500 + "y"}, "x" * 53 + "y"),
        ({"truncate_prompt_tokens": -1, "prompt": [120] * 500}, "x" * 54),
        ({"truncate_prompt_tokens": 3, "prompt": [120] * 500}, "xxx"),
    ],
)
async def test_truncation_keeps_the_requested_side_of_the_prompt(make_api, path, fields, kept):
    api = make_api("z")
    body = {**BODY, "max_tokens": 10, "echo": True, **fields}
    answer = await api.answer(path, body)
    assert bytes(api.backend.submitted[0].prompt_token_ids).decode() == kept
    assert answer["choices"][0]["text"] == kept + "z"
    assert answer["usage"]["prompt_tokens"] == len(kept)


@pytest.mark.parametrize(
    ("path", "max_tokens", "kept"),
    [
        (V1, 1, 63),
        (V1, 32, 32),
        (V1, 33, 63),
        (V1, 64, 63),
        (V1, 10**6, 63),
        (V1, 0, 64),
        (V3, 32, 32),
        (V3, 60, 4),
        (V3, 64, None),
        (V3, 0, 64),
    ],
)
async def test_truncation_to_what_the_context_holds(make_api, path, max_tokens, kept):
    api = make_api("z")
    body = {"truncate_prompt_tokens": -1, "max_tokens": max_tokens, "echo": True}
    status, answer = await api.post(path, {**BODY, "prompt": "x" * 500, **body})
    assert status == (400 if kept is None else 200), answer
    if kept is None:
        assert "max_tokens" in answer["error"]
    else:
        assert answer["usage"]["prompt_tokens"] == kept


@pytest.mark.parametrize("keeps_end", [False, True])
async def test_of_a_long_text_only_what_is_kept_is_encoded(keeps_end):
    tokenizer = CountingTokenizer(1)
    model, truncation = model_info(max_model_len=100), Truncation(10, keeps_end)
    encoder = PromptEncoder(tokenizer, model, True, truncation)
    [prompt] = encode_prompts(["a" * 20_000], encoder)
    assert (len(prompt.token_ids), prompt.text) == (10, None)
    assert max(tokenizer.encoded) < 400


class WatchedTokenizer(ByteTokenizer):
    """Records the threads in which it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[threading.Thread] = set()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.threads.add(threading.current_thread())
        return super().encode(text)

    def token_bytes(self, token_id: int) -> bytes:
        self.threads.add(threading.current_thread())
        return super().token_bytes(token_id)


@pytest.mark.parametrize(
    ("path", "body", "on_the_loop"),
    [
        (V1, BODY, True),
        (V1, {**BODY, "prompt": "x" * 3000}, False),
        (V1, {**BODY, "prompt": ["x"] * 50}, False),
        (V1, {**BODY, "prompt": [120], "bad_words": ["a"]}, True),
        (V1, {**BODY, "prompt": [120], "bad_words": ["a", "b", "c", "d", "e"]}, False),
        (V1, {**BODY, "prompt": [120], "logprobs": 3}, True),
        (V1, {**BODY, "prompt": [120] * 900, "logprobs": 3, "echo": True}, False),
        (V1, {**BODY, "prompt": [120] * 900, "logprobs": 3, "echo": True, "max_tokens": 0}, False),
        (V1, {**BODY, "prompt": [120] * 900, "prompt_logprobs": 3}, False),
        ("/tokenize", {"prompt": "a"}, True),
        ("/tokenize", {"prompt": "x" * 3000}, False),
        ("/v3/tokenize", {"model": "fake", "text": ["a"] * 50}, False),
    ],
)
async def test_long_texts_are_encoded_in_a_thread(make_api, path, body, on_the_loop):
    tokenizer = WatchedTokenizer()
    api = make_api("z", model=model_info(max_model_len=5000), tokenizer=tokenizer)
    await api.answer(path, body)
    assert (threading.main_thread() in tokenizer.threads) == on_the_loop
    assert len(tokenizer.threads) == 1
