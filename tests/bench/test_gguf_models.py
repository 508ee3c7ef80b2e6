"""Random GGUF models are whole: tensors of the right types, and a vocabulary that is the
tokenizer's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from bench.gguf_models import TYPES, main, write_decoder, write_encoder
from bench.random_models.encoder_graph import ENCODER_SHAPES
from bench.random_models.shapes import SHAPES
from fastovms.gguf.graph import build_decoder
from fastovms.gguf.reader import read_gguf, read_hyperparameters
from fastovms.gguf.tokenizer import TokenizerFields, make_tokenizer_json
from fastovms.server_config import DEMO_MODEL

TINY = replace(SHAPES["tiny"], vocab_size=1600)
TOKENIZER = DEMO_MODEL / "tokenizer.json"
END = 0


@pytest.mark.parametrize(
    ("name", "hidden_size", "layers", "head"),
    [
        ("q8_0", 64, "Q8_0", "Q8_0"),
        ("q4_0", 64, "Q4_0", "Q8_0"),
        ("q4_0", 256, "Q4_0", "Q6_K"),
        ("f16", 64, "F16", "F16"),
    ],
)
def test_matrices_are_of_their_types(
    name: str, hidden_size: int, layers: str, head: str, tmp_path: Path
) -> None:
    shape = replace(TINY, hidden_size=hidden_size, head_dim=hidden_size // 4)
    write_decoder(shape, TYPES[name], tmp_path / "a.gguf", TOKENIZER)
    tensors = read_gguf(tmp_path / "a.gguf").tensors
    assert tensors["token_embd.weight"].type.name == layers
    assert tensors["blk.1.ffn_down.weight"].type.name == layers
    assert tensors["output.weight"].type.name == head
    assert tensors["output.weight"].shape == (1600, hidden_size)


def test_written_gguf_file_builds_a_model(tmp_path: Path) -> None:
    write_decoder(TINY, TYPES["q8_0"], tmp_path / "a.gguf", TOKENIZER)
    file = read_gguf(tmp_path / "a.gguf")
    model = build_decoder(file, read_hyperparameters(file.metadata))
    assert model.output("logits").get_partial_shape()[-1].get_length() == 1600


def test_texts_have_the_tokens_that_the_tokenizer_gives_them(tmp_path: Path) -> None:
    write_decoder(TINY, TYPES["q8_0"], tmp_path / "a.gguf", TOKENIZER)
    fields = TokenizerFields(read_gguf(tmp_path / "a.gguf").metadata)
    assert len(fields.tokens) == 1600
    assert fields.token_id("eos") == END
    written = Tokenizer.from_str(json.dumps(make_tokenizer_json(fields)))
    text = "The capital of Norway is Oslo, and r\u00f8d is red."
    known = Tokenizer.from_file(str(TOKENIZER))
    assert written.encode(text).ids == known.encode(text).ids


def test_tokens_without_text_have_no_weight_in_the_output(tmp_path: Path) -> None:
    write_decoder(TINY, TYPES["q8_0"], tmp_path / "a.gguf", TOKENIZER)
    rows = read_gguf(tmp_path / "a.gguf").read_rows("output.weight")
    known = Tokenizer.from_file(str(TOKENIZER))
    texts = known.decode_batch([[i] for i in range(1600)])
    is_text = [bool(text) and "\N{REPLACEMENT CHARACTER}" not in text for text in texts]
    assert sum(is_text) > 1000
    assert not is_text[END]
    assert not is_text[-1]
    assert [bool(row.any()) for row in rows] == is_text


def test_an_encoder_has_its_words(tmp_path: Path) -> None:
    shape = ENCODER_SHAPES["tiny"]
    write_encoder(shape, TYPES["q8_0"], tmp_path / "a.gguf")
    file = read_gguf(tmp_path / "a.gguf")
    tokens = file.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert tokens[:4] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    assert tokens.index("\u2581house") < shape.vocab_size
    assert tokens.count("a") == tokens.count("\u2581a") == 1  # inside a word, and at its beginning
    assert file.metadata["bert.pooling_type"] == 2  # the first token's
    assert file.tensors["blk.1.ffn_up.weight"].type.name == "Q8_0"
    assert file.tensors["blk.1.ffn_up.bias"].shape == (shape.intermediate_size,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny", "q8_0", "{tmp}/a.gguf"], "--tokenizer: the tokenizer has 1536 tokens"),
        (["demo", "q8_0", "{tmp}/absent/a.gguf"], "no such file or directory: {tmp}/absent/a.gguf"),
        (["demo", "q8_0", "{tmp}/a.gguf", "--tokenizer", "{tmp}/none"], "directory: {tmp}/none"),
    ],
)
def test_invalid_arguments_are_refused_with_a_message(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([argument.format(tmp=tmp_path) for argument in arguments])
    assert stop.value.code == 2
    assert message.format(tmp=tmp_path) in capsys.readouterr().err
