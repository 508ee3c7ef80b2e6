"""The prompt stands before its text where a request sets `echo`, with its tokens."""

from __future__ import annotations

import pytest

from fastovms.api.completions.echo import make_echo
from fastovms.api.request.prompting.prompts import Prompt
from fastovms.text.tokens.tokenizer import Tokenizer
from tests.api.completions.completion_requests import BODY, V1
from tests.fakes import token_logprobs
from tests.paths import FIXTURES


async def test_echo_without_logprobs_scores_nothing(make_api):
    api = make_api("z")
    await api.post(V1, {**BODY, "echo": True})
    assert api.backend.submitted[0].params.prompt_logprobs is None
    assert api.backend.submitted[0].params.logprobs is None


@pytest.mark.parametrize(
    ("skip_special_tokens", "text"), [(True, "Hello"), (False, "<|endoftext|>Hello")]
)
def test_an_echo_of_token_ids_shows_special_tokens_where_wanted(skip_special_tokens, text):
    tokenizer = Tokenizer.load(FIXTURES / "byte_level")
    prompt = Prompt(tokenizer.encode("<|endoftext|>Hello"))
    logprobs = [None] * len(prompt.token_ids)
    echo = make_echo(prompt, logprobs, tokenizer, len, skip_special_tokens=skip_special_tokens)
    assert (echo.text, echo.length) == (text, len(text))
    assert echo.tokens[1].offset == text.index("Hello")


@pytest.mark.parametrize("fixture", ["byte_level", "sentencepiece", "clean_up"])
@pytest.mark.parametrize(
    "text", ["Hello there, small world", "größe 😀 größe", "", "a", "<|endoftext|>x", "</s> y"]
)
def test_offsets_of_an_echoed_prompt(fixture, text):
    """The echoed text is what was sent, whatever special tokens stand before it or in it."""
    tokenizer = Tokenizer.load(FIXTURES / fixture)
    token_ids = tokenizer.encode(text)
    prompt = Prompt(token_ids, text)
    logprobs = [None, *(token_logprobs(token_id, 1) for token_id in token_ids[1:])]
    echo = make_echo(prompt, logprobs[: len(token_ids)], tokenizer, len)
    assert (echo.text, echo.length) == (text, len(text))
    offsets = [token.offset for token in echo.tokens]
    assert [token.token_id for token in echo.tokens] == token_ids
    assert offsets == sorted(offsets)
    assert not offsets or (offsets[0] == 0 and offsets[-1] <= len(text))
    if fixture == "byte_level" and text.isascii():
        pieces = [tokenizer.token_bytes(token_id).decode() for token_id in token_ids]
        starts = [len("".join(pieces[:place])) for place in range(len(pieces))]
        assert offsets == starts
