"""Tests of `fastovms/gguf/tokenizer.py`."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import openvino as ov
import pytest
import tokenizers

from bench.random_models.gguf_decoder import BYTE_PAIRS
from fastovms.errors import ConfigurationError
from fastovms.gguf.converter import named_ids
from fastovms.gguf.tokenizer import (
    PRE_TOKENIZERS,
    TokenizerFields,
    build_tokenizer,
    make_tokenizer_json,
)
from fastovms.text.detokenizer import TableDetokenizer
from fastovms.text.tokenizer import Tokenizer
from tests.gguf.tiny_tokenizers import TEXTS, byte_pairs, sentencepiece

# The conversion of a file's tokenizer, and its refusals.


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
def test_encoding_adds_begin_and_end_tokens(
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


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_markup_that_a_file_calls_normal_is_special(kind: str) -> None:
    metadata = byte_pairs() if kind == "gpt2" else sentencepiece()
    tokens = [*metadata["tokenizer.ggml.tokens"]]
    kinds = [*metadata["tokenizer.ggml.token_type"]]
    added = ["<|im_start|>", "<|im_end|> ", "<end_of_turn>", "[STOP]", "<a|b>", "[NO]"]
    ids = {token: len(tokens) + i for i, token in enumerate(added)}
    metadata = {
        **metadata,
        "tokenizer.ggml.tokens": [*tokens, *added],
        "tokenizer.ggml.token_type": [*kinds, *[1] * len(added)],
        "tokenizer.ggml.eot_token_id": ids["[STOP]"],
    }
    if kind == "llama":
        scores = metadata["tokenizer.ggml.scores"]
        metadata["tokenizer.ggml.scores"] = [*scores, *[0.0] * len(added)]
    fields = TokenizerFields(metadata)
    special = fields.special_ids() & set(ids.values())
    assert special == {ids[name] for name in ("<|im_start|>", "<end_of_turn>", "[STOP]")}
    assert {ids["<end_of_turn>"], ids["[STOP]"]} <= fields.end_ids()
    assert ids["<|im_start|>"] not in fields.end_ids()


@pytest.mark.parametrize("others", [[], ["<|return|>", "<|call|>"]])
def test_end_of_a_message_ends_an_answer_but_in_harmony(others: list[str]) -> None:
    tokens = [*BYTE_PAIRS["tokenizer.ggml.tokens"], "<|end|>", *others]
    kinds = [*BYTE_PAIRS["tokenizer.ggml.token_type"], *[3] * (1 + len(others))]
    vocabulary = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    fields = TokenizerFields({**BYTE_PAIRS, **vocabulary})
    ends = {tokens[i] for i in fields.end_ids()}
    assert ends >= {*others, "<|im_end|>"}
    assert ("<|end|>" in ends) == (not others)


def test_tokenizer_reads_markup_that_a_file_calls_normal_as_one_token(tmp_path: Path) -> None:
    metadata = {**LLAMA_3, "tokenizer.ggml.token_type": [1] * len(LLAMA_3["tokenizer.ggml.tokens"])}
    ours, _, fields = make(metadata, tmp_path)
    end = fields.tokens.index("<|im_end|>")
    assert ours.encode("hello<|im_end|>", add_special_tokens=False)[-1] == end
    assert end in fields.end_ids() & ours.special_token_ids


def test_sentencepiece_pairs_join_by_their_scores() -> None:
    """As in SentencePiece, pair by pair."""
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
        ({}, "the file has no tokenizer$"),
        ({"tokenizer.ggml.model": "gpt2"}, "tokenizer.ggml.tokens is missing"),
        (
            {**LLAMA_3, "tokenizer.ggml.model": "t5"},
            "the tokenizer t5 is not supported; supported are",
        ),
        (
            {**LLAMA_3, "tokenizer.ggml.pre": "kimi-k2"},
            "the pre-tokenizer kimi-k2 is not supported",
        ),
        (byte_pairs(), "tokenizer.ggml.pre is missing"),
        ({**LLAMA_3, "tokenizer.ggml.merges": []}, "tokenizer.ggml.merges is missing"),
        (
            {**LLAMA_3, "tokenizer.ggml.merges": ["h e", "he"]},
            "merges has 'he', which is not a pair",
        ),
        ({**LLAMA_3, "tokenizer.ggml.pre": ["llama-bpe"]}, "the pre-tokenizer .* is not supported"),
        ({**LLAMA_3, "tokenizer.ggml.tokens": ["a", "b", "a"]}, "two tokens have the text 'a'"),
        ({**LLAMA_3, "tokenizer.ggml.token_type": [1]}, "token_type has 1 values for"),
        (
            {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b"]},
            "the vocabulary has no special token",
        ),
        ({**LLAMA_3, "tokenizer.ggml.bos_token_id": 9999}, "bos_token_id is missing"),
        ({**sentencepiece(), "tokenizer.ggml.scores": [1.0]}, "scores has 1 values for"),
        ({**sentencepiece(), "tokenizer.ggml.scores": None}, "tokenizer.ggml.scores is missing"),
        (
            {**sentencepiece(), "tokenizer.ggml.remove_extra_whitespaces": True},
            "a tokenizer that removes spaces is not supported",
        ),
    ],
)
def test_unsupported_tokenizer_is_refused_by_name(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_tokenizer_json(TokenizerFields(metadata))


# Texts are split into words as by the models' own tokenizers.


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("llama-bpe", "12345 67", ["123", "45", " ", "67"]),
        ("qwen2", "12345 67", ["1", "2", "3", "4", "5", " ", "6", "7"]),
        ("qwen35", "12 e\u0301a", ["1", "2", " e\u0301a"]),
        ("gpt-2", "12345 67", ["12345", " 67"]),
        ("smollm", "12345 67", ["1", "2", "3", "4", "5", " ", "6", "7"]),
        ("default", "12345", ["123", "45"]),
        ("llama-bpe", "DON'T we'll", ["DON", "'T", " we", "'ll"]),
        ("gpt-2", "DON'T we'll", ["DON", "'", "T", " we", "'ll"]),
        ("gpt-4o", "DON'T camelCase", ["DON'T", " camel", "Case"]),
        ("tekken", "McDonald's", ["Mc", "Donald", "'s"]),
        ("llama-bpe", "a\n\n  b ;\n", ["a", "\n\n", " ", " b", " ;\n"]),
        ("gpt-2", "a\n\n  b ;\n", ["a", "\n\n ", " b", " ;", "\n"]),
        ("deepseek-v3", "\u65e5\u672c\u306f x1234", ["\u65e5\u672c\u306f", " x", "123", "4"]),
    ],
)
def test_texts_are_cut_as_by_the_models_own_tokenizers(
    pre: str, text: str, expected: list[str]
) -> None:
    tokenizer = loaded({**LLAMA_3, "tokenizer.ggml.pre": pre})
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in pieces] == expected


def test_unicode_is_composed_where_the_model_expects_it() -> None:
    composed = loaded({**LLAMA_3, "tokenizer.ggml.pre": "qwen2"})
    assert composed.encode("e\u0301").ids == composed.encode("\u00e9").ids
    as_written = loaded({**LLAMA_3, "tokenizer.ggml.pre": "deepseek-r1-qwen"})
    assert as_written.encode("e\u0301").ids != as_written.encode("\u00e9").ids


# OpenVINO's tokenizers equal Hugging Face's library for the same tokenizer.json.


NAMES = {pre_tokenizer: name for name, pre_tokenizer in PRE_TOKENIZERS.items()}
KINDS: dict[str, dict[str, Any]] = {
    name: {**byte_pairs(), "tokenizer.ggml.pre": name}
    for name in ("llama-bpe", *sorted(NAMES.values()))
}
KINDS["sentencepiece"] = sentencepiece()
KINDS["sentencepiece of Gemma"] = {**sentencepiece(), "tokenizer.ggml.add_space_prefix": False}
KINDS["sentencepiece of Phi 3"] = {**sentencepiece(), "general.name": "Phi 3"}


class Pair(NamedTuple):
    ours: Tokenizer
    expected: tokenizers.Tokenizer
    fields: TokenizerFields


def make(metadata: dict[str, Any], directory: Path) -> Pair:
    fields = TokenizerFields(metadata)
    made = make_tokenizer_json(fields)
    models = build_tokenizer(made, named_ids(fields))
    ov.save_model(models.tokenizer, directory / "openvino_tokenizer.xml")
    ov.save_model(models.detokenizer, directory / "openvino_detokenizer.xml")
    return Pair(Tokenizer.load(directory), tokenizers.Tokenizer.from_str(json.dumps(made)), fields)


@pytest.mark.parametrize("name", KINDS)
def test_tokens_and_texts_equal_those_of_tokenizers(name: str, tmp_path: Path) -> None:
    ours, expected, fields = make(KINDS[name], tmp_path)
    assert ours.special_token_ids == fields.special_ids()
    assert ours.vocab_size == len(fields.tokens)
    for text in TEXTS:
        for adds in (True, False):
            ids = expected.encode(text, add_special_tokens=adds).ids
            assert ours.encode(text, add_special_tokens=adds) == ids, text
        for skips in (True, False):
            shown = expected.decode(ids, skip_special_tokens=skips)
            assert ours.decode(ids, skip_special_tokens=skips) == shown


@pytest.mark.parametrize("name", ["llama-bpe", "sentencepiece of Gemma"])
def test_no_byte_is_lost(name: str, tmp_path: Path) -> None:
    """Incomplete characters are shown as bytes, and joined when they are complete."""
    ours, _, fields = make(KINDS[name], tmp_path)
    vocab = {ours.token_bytes(i): i for i in range(len(fields.tokens) - 1, -1, -1)}
    ids = [vocab[bytes([byte])] for byte in "\u00e9x".encode()]
    assert ours.decode(ids) == "\u00e9x"
    assert ours.decode([ids[0], ids[2]]) == "\ufffdx"
    assert ours.decode([*ids[1:2], ids[2]]) == "\ufffdx"


@pytest.mark.parametrize("name", ["llama-bpe", "sentencepiece", "sentencepiece of Gemma"])
def test_streams_are_the_whole_texts(name: str, tmp_path: Path) -> None:
    """Token by token from a table, for speed; the expected texts are those of Hugging Face's
    library."""
    ours, expected, fields = make(KINDS[name], tmp_path)
    rng = random.Random(0)
    for skips in (True, False):
        for _ in range(200):
            ids = rng.choices(range(len(fields.tokens)), k=40)
            stream = ours.detokenizer(skip_special_tokens=skips)
            assert isinstance(stream, TableDetokenizer)
            text = "".join(stream.push([token_id]) for token_id in ids) + stream.flush()
            assert text == ours.decode(ids, skip_special_tokens=skips)
            if "\ufffd" not in text:  # the number of replacement characters may differ
                assert text == expected.decode(ids, skip_special_tokens=skips)
