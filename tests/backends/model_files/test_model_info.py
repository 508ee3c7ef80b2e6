from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastovms.backends.model_files.model_info import UNLIMITED, read_model_info
from fastovms.backends.model_files.required_files import REQUIRED_FILES, VISION_FILES
from fastovms.errors import ConfigurationError
from fastovms.params import SamplingDefaults

CONFIG = {"vocab_size": 100, "max_position_embeddings": 2048, "eos_token_id": 2}


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "my-model"
    directory.mkdir()
    for name in REQUIRED_FILES:
        (directory / name).write_text('<?xml version="1.0"?>\n<net name="x" version="11">')
    (directory / "config.json").write_text(json.dumps(CONFIG))
    return directory


def write(model_dir: Path, config: dict, generation: dict | None = None) -> None:
    (model_dir / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (model_dir / "generation_config.json").write_text(json.dumps(generation))


def test_what_the_files_say(model_dir):
    info = read_model_info(model_dir)
    assert (info.name, info.vocab_size, info.max_model_len) == ("my-model", 100, 2048)
    assert info.eos_token_ids == {2}
    assert info.defaults == SamplingDefaults()
    assert info.config == CONFIG
    assert info.created == int((model_dir / "openvino_model.bin").stat().st_mtime)
    assert read_model_info(model_dir, name="other").name == "other"


def test_a_relative_directory_has_its_own_name(model_dir, monkeypatch):
    monkeypatch.chdir(model_dir)
    assert read_model_info(Path(".")).name == "my-model"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 10, "n_ctx": 20}, 10),
        ({"n_positions": 30}, 30),
        ({"seq_len": 31}, 31),
        ({"seq_length": 32}, 32),
        ({"n_ctx": 33}, 33),
        ({"max_seq_len": 35}, 35),
        ({"sliding_window": 34}, 34),
        ({"max_position_embeddings": None, "n_ctx": 35}, 35),
        ({"max_position_embeddings": "long", "n_ctx": 36}, 36),
        ({"text_config": {"max_position_embeddings": 37}}, 37),
        ({"n_ctx": 38, "text_config": {"max_position_embeddings": 39}}, 38),
        ({}, UNLIMITED),
    ],
)
def test_context_length(model_dir, config, expected):
    write(model_dir, {"vocab_size": 100, "eos_token_id": 2, **config})
    assert read_model_info(model_dir).max_model_len == expected


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 2}, None, {2}),
        ({"eos_token_id": [2, 3]}, None, {2, 3}),
        ({"eos_token_id": 2}, {"eos_token_id": [5, 6]}, {2, 5, 6}),
        ({"eos_token_id": 2}, {"eos_token_id": 0}, {0, 2}),
        ({"eos_token_id": 2}, {}, {2}),
        ({"text_config": {"eos_token_id": 7}}, {}, {7}),
        ({}, {}, set()),
    ],
)
def test_end_of_text_tokens(model_dir, config, generation, expected):
    write(model_dir, {"vocab_size": 100, "n_ctx": 10, **config}, generation)
    assert read_model_info(model_dir).eos_token_ids == expected


def test_sampling_defaults(model_dir):
    generation = {
        "do_sample": False,
        "temperature": 0.7,
        "top_p": 1,
        "top_k": 20,
        "min_p": 0.05,
        "max_new_tokens": 512,
        "repetition_penalty": 1.1,
    }
    write(model_dir, CONFIG, generation)
    assert read_model_info(model_dir).defaults == SamplingDefaults(
        temperature=0.7,
        top_p=1,
        top_k=20,
        min_p=0.05,
        max_new_tokens=512,
        repetition_penalty=1.1,
    )


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"17", b"\xff\xfe", b"[" * 100_000])
def test_broken_json(model_dir, name, content):
    (model_dir / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"{name} is not (valid JSON|a JSON object)"):
        read_model_info(model_dir)


@pytest.mark.parametrize("vocab_size", [None, "many", 1.5, True, 0])
def test_no_vocabulary(model_dir, vocab_size):
    write(model_dir, {**CONFIG, "vocab_size": vocab_size})
    with pytest.raises(ConfigurationError, match="vocab_size"):
        read_model_info(model_dir)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eos_token_id", "two"),
        ("eos_token_id", [1, "two"]),
        ("eos_token_id", True),
        ("temperature", "hot"),
        ("temperature", -1),
        ("temperature", 1e300),
        ("temperature", 10**400),
        ("repetition_penalty", 10**400),
        ("top_k", 10**400),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", 1.5),
        ("top_k", -1),
        ("min_p", 2),
        ("max_new_tokens", 0),
    ],
)
def test_wrong_generation_config(model_dir, name, value):
    write(model_dir, CONFIG, {name: value})
    with pytest.raises(ConfigurationError, match=rf"generation_config\.json: {name} must"):
        read_model_info(model_dir)


def test_a_vision_model(tmp_path):
    directory = tmp_path / "vision"
    directory.mkdir()
    for name in VISION_FILES:
        (directory / name).write_text('<?xml version="1.0"?>\n<net name="x" version="11">')
    (directory / "config.json").write_text(json.dumps({"text_config": CONFIG}))
    info = read_model_info(directory)
    assert (info.takes_images, info.vocab_size, info.eos_token_ids) == (True, 100, {2})
    assert info.created == int((directory / "openvino_language_model.bin").stat().st_mtime)
    (directory / "openvino_text_embeddings_model.xml").unlink()
    with pytest.raises(ConfigurationError, match=r"has no openvino_text_embeddings_model\.xml"):
        read_model_info(directory)
