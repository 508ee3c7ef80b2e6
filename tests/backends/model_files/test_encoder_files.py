from __future__ import annotations

import json

import pytest

from fastovms.backends.model_files.encoder_files import read_encoder_info
from fastovms.backends.model_files.model_info import UNLIMITED
from fastovms.errors import ConfigurationError

IR = '<net name="a" version="11"></net>'


def write(directory, config: dict, tokenizer: dict | None = None) -> None:
    for name in ("openvino_model.xml", "openvino_tokenizer.xml"):
        (directory / name).write_text(IR)
    (directory / "openvino_model.bin").write_bytes(b"")
    (directory / "config.json").write_text(json.dumps(config))
    if tokenizer is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer))


@pytest.mark.parametrize(
    ("config", "tokenizer", "length"),
    [
        ({"max_position_embeddings": 512}, None, 512),
        ({"max_position_embeddings": 512}, {"model_max_length": 256}, 256),
        ({"max_position_embeddings": 512}, {"model_max_length": 10**30}, 512),
        ({"max_position_embeddings": 514, "model_type": "xlm-roberta"}, None, 512),
        ({"max_position_embeddings": 515, "model_type": "roberta", "pad_token_id": 2}, None, 512),
        ({}, None, UNLIMITED),
        ({"text_config": {"max_position_embeddings": 9}}, None, 9),
    ],
)
def test_lengths(tmp_path, config, tokenizer, length):
    write(tmp_path, {"vocab_size": 100, **config}, tokenizer)
    info = read_encoder_info(tmp_path, name="a")
    assert (info.name, info.vocab_size, info.max_model_len) == ("a", 100, length)


def test_missing(tmp_path):
    with pytest.raises(ConfigurationError, match=r"it has no openvino_model\.xml"):
        read_encoder_info(tmp_path, name="a")
    write(tmp_path, {})
    with pytest.raises(ConfigurationError, match="has no vocab_size"):
        read_encoder_info(tmp_path, name="a")
