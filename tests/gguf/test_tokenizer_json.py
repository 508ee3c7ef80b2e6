"""What is made of a file's tokenizer, and what is refused."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
import tokenizers

from fastovms.errors import ConfigurationError
from fastovms.gguf.tokenizer_json import TokenizerFields, make_tokenizer_json
from tests.gguf.tiny_tokenizers import byte_pairs, sentencepiece

LLAMA_3 = {**byte_pairs(), "tokenizer.ggml.pre": "llama-bpe"}


def loaded(metadata: dict[str, Any]) -> tokenizers.Tokenizer:
    made = make_tokenizer_json(TokenizerFields(metadata))
    return tokenizers.Tokenizer.from_str(json.dumps(made))


@pytest.mark.parametrize(
    ("metadata", "begin", "end"),
    [
        (LLAMA_3, [1], []),
        ({**LLAMA_3, "tokenizer.ggml.pre": "qwen2"}, [], []),
        ({**LLAMA_3, "tokenizer.ggml.add_bos_token": False}, [], []),
        ({**LLAMA_3, "tokenizer.ggml.add_eos_token": True}, [1], [0]),
        (sentencepiece(), [1], []),
        ({**sentencepiece(), "tokenizer.ggml.add_bos_token": False}, [], []),
    ],
)
def test_what_texts_begin_and_end_with(
    metadata: dict[str, Any], begin: list[int], end: list[int]
) -> None:
    tokenizer = loaded(metadata)
    whole = tokenizer.encode("hello").ids
    assert whole == [*begin, *tokenizer.encode("hello", add_special_tokens=False).ids, *end]


def test_tokens_are_special_that_are_no_text() -> None:
    tokenizer = loaded(sentencepiece())
    ids = tokenizer.encode("<start_of_turn>a[multimodal]", add_special_tokens=False).ids
    assert ids[0] == 3
    assert ids[-1] == 4
    assert tokenizer.decode(ids) == "a[multimodal]"


def test_better_scores_join_first() -> None:
    """As SentencePiece does it, pair by pair."""
    metadata = sentencepiece()
    tokens = metadata["tokenizer.ggml.tokens"]
    scores = dict(zip(tokens, metadata["tokenizer.ggml.scores"], strict=True))
    text = "\u2581hello\u2581there,\u2581hello\u2581world"
    symbols = list(text)
    while True:
        pairs = [a + b for a, b in pairwise(symbols)]
        known = [(-scores[pair], i) for i, pair in enumerate(pairs) if pair in scores]
        if not known:
            break
        _, i = min(known)
        symbols[i : i + 2] = [pairs[i]]
    assert loaded(metadata).encode("hello there, hello world").tokens[1:] == symbols


@pytest.mark.parametrize(
    ("name", "swallows"),
    [("Phi-3 Mini 4k Instruct", True), ("phi3", True), ("Gemma", False), (None, False)],
)
def test_phi_3_swallows_spaces_behind_tokens(name: str | None, swallows: bool) -> None:
    metadata = sentencepiece() if name is None else {**sentencepiece(), "general.name": name}
    added = make_tokenizer_json(TokenizerFields(metadata))["added_tokens"]
    found = {token["content"] for token in added if token["rstrip"]}
    assert found == ({"</s>", "<start_of_turn>"} if swallows else set())


def test_empty_tokens_get_names() -> None:
    tokens = [*LLAMA_3["tokenizer.ggml.tokens"][:-2], "", ""]
    fields = TokenizerFields({**LLAMA_3, "tokenizer.ggml.tokens": tokens})
    assert fields.tokens[-1] == f"[EMPTY_{len(tokens) - 1}]"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "it holds no tokenizer$"),
        ({"tokenizer.ggml.model": "gpt2"}, "it holds no tokenizer.ggml.tokens"),
        ({**LLAMA_3, "tokenizer.ggml.model": "t5"}, "the tokenizer t5 is not taken; those taken"),
        ({**LLAMA_3, "tokenizer.ggml.pre": "kimi-k2"}, "the pre-tokenizer kimi-k2 is not taken"),
        (byte_pairs(), "it names no tokenizer.ggml.pre"),
        ({**LLAMA_3, "tokenizer.ggml.merges": []}, "it holds no tokenizer.ggml.merges"),
        ({**LLAMA_3, "tokenizer.ggml.merges": ["h e", "he"]}, "merges has 'he', which is no pair"),
        ({**LLAMA_3, "tokenizer.ggml.pre": ["llama-bpe"]}, "the pre-tokenizer .* is not taken"),
        ({**LLAMA_3, "tokenizer.ggml.tokens": ["a", "b", "a"]}, "two of its tokens are 'a'"),
        ({**LLAMA_3, "tokenizer.ggml.token_type": [1]}, "token_type has 1 values for"),
        (
            {**LLAMA_3, "tokenizer.ggml.token_type": [1] * len(LLAMA_3["tokenizer.ggml.tokens"])},
            "none of its tokens is special",
        ),
        ({**LLAMA_3, "tokenizer.ggml.bos_token_id": 9999}, "missing, bos_token_id"),
        ({**sentencepiece(), "tokenizer.ggml.scores": [1.0]}, "scores has 1 values for"),
        ({**sentencepiece(), "tokenizer.ggml.scores": None}, "it holds no tokenizer.ggml.scores"),
        (
            {**sentencepiece(), "tokenizer.ggml.remove_extra_whitespaces": True},
            "a tokenizer that removes spaces is not taken",
        ),
    ],
)
def test_what_is_not_taken_is_named(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_tokenizer_json(TokenizerFields(metadata))
