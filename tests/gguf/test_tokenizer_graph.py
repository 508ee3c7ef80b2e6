"""OpenVINO's tokenizers give what Hugging Face's library gives for the same tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import openvino as ov
import pytest
import tokenizers

from fastovms.gguf.config_files import named_ids
from fastovms.gguf.pre_tokenizers import PRE_TOKENIZERS
from fastovms.gguf.tokenizer_graph import build_tokenizer
from fastovms.gguf.tokenizer_json import TokenizerFields, make_tokenizer_json
from fastovms.text.tokens.tokenizer import Tokenizer
from tests.gguf.tiny_tokenizers import TEXTS, byte_pairs, sentencepiece

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
def test_tokens_and_texts(name: str, tmp_path: Path) -> None:
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
    """Bytes that are no characters are shown as such, and put together when they become some."""
    ours, _, fields = make(KINDS[name], tmp_path)
    vocab = {ours.token_bytes(i): i for i in range(len(fields.tokens) - 1, -1, -1)}
    ids = [vocab[bytes([byte])] for byte in "\u00e9x".encode()]
    assert ours.decode(ids) == "\u00e9x"
    assert ours.decode([ids[0], ids[2]]) == "\ufffdx"
    assert ours.decode([*ids[1:2], ids[2]]) == "\ufffdx"


def test_what_a_token_is_known_without_the_detokenizer(tmp_path: Path) -> None:
    """Which makes streams fast."""
    ours, _, _ = make(KINDS["llama-bpe"], tmp_path)
    stream = ours.detokenizer()
    assert type(stream).__name__ == "TableDetokenizer"
