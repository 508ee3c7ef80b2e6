"""Tests of `fastovms/gguf/converter.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openvino as ov
import pytest

from bench.random_models.gguf_decoder import GgufModel, write_model
from fastovms.errors import ConfigurationError
from fastovms.gguf.converter import NOT_WRITTEN, REFUSED, main, named_ids, read_contents, text_files
from fastovms.gguf.tokenizer import TokenizerFields
from tests.gguf.raw_head import entry, head
from tests.gguf.test_hyperparameters import read
from tests.gguf.tiny_tokenizers import SPECIAL, byte_pairs

# The files beside the graphs, from a file's metadata.


def files(**metadata: Any) -> dict[str, str]:
    fields = TokenizerFields(byte_pairs())
    return text_files(metadata, read("llama"), fields, vocab_size=300)


def test_ends_are_found_by_their_names_too() -> None:
    config = json.loads(files()["config.json"])
    fields = TokenizerFields(byte_pairs())
    ends = {fields.tokens.index(name) for name in ("<|end_of_text|>", "<|im_end|>")}
    assert ends <= set(config["eos_token_id"])
    assert config["vocab_size"] == 300
    assert config["sliding_window"] is None


def test_special_tokens_are_named_in_the_config() -> None:
    fields = TokenizerFields(byte_pairs())
    ids = named_ids(fields)
    named = json.loads(files()["tokenizer_config.json"])
    assert named == {f"{name}_token": fields.tokens[ids[name]] for name in ids}
    assert named["bos_token"] in SPECIAL


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({}, {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}),
        ({"temp": 0.5}, {"temperature": 0.5, "top_k": 40, "top_p": 0.95, "min_p": 0.05}),
        ({"top_k": 7, "top_p": 1.0, "min_p": 0.1, "penalty_repeat": 1.1}, {
            "temperature": 0.8, "top_k": 7, "top_p": 1.0, "min_p": 0.1, "repetition_penalty": 1.1
        }),
    ],
)  # fmt: skip
def test_sampling_parameters_default_to_those_of_llama_cpp(
    stated: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = files(**{f"general.sampling.{key}": value for key, value in stated.items()})
    assert json.loads(found["generation_config.json"]) == expected


@pytest.mark.parametrize("key", ["tokenizer.chat_template.../x", "tokenizer.chat_template.a/b"])
def test_no_name_of_a_template_leaves_the_directory(key: str) -> None:
    assert files(**{key: "t"}).keys() == files().keys()


# The converter as a program: its output files, and the refusal of a file.


def test_contents_are_read_from_the_header_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(head([entry("general.architecture", "llama")]))
    with pytest.raises(ConfigurationError, match=r"m\.gguf cannot be served: llama.block_count"):
        read_contents(path)


def test_a_refusal_is_one_line_and_a_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "m.gguf", GgufModel("qwen2", settings={"block_count": 4}))
    assert main(str(tmp_path / "m.gguf"), str(tmp_path)) == REFUSED
    assert capsys.readouterr().err == (
        f"{tmp_path}/m.gguf cannot be served: the tensor blk.3.attn_norm.weight is missing\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_full_disk_is_reported_apart_from_a_refused_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "m.gguf", GgufModel())

    def save_model(*_: object, **__: object) -> None:
        raise RuntimeError("basic_ios::clear: iostream error")

    monkeypatch.setattr(ov, "save_model", save_model)
    assert main(str(tmp_path / "m.gguf"), str(tmp_path)) == NOT_WRITTEN
    [line] = capsys.readouterr().err.splitlines()
    assert "openvino_tokenizer.xml cannot be written" in line
    assert "MB are free" in line
