"""Tests of `fastovms/backends/model_files.py`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastovms.api.prompt import context_exceeded
from fastovms.backends.engine_thread import fit_cache
from fastovms.backends.model_files import (
    MAX_DIFFERENCE,
    UNLIMITED,
    Comparison,
    NotComparable,
    check_graph,
    count_weights,
    fingerprint_of,
    fit_vocabulary,
    limit_context,
    log_gaps,
    log_missing,
    read_model_info,
)
from fastovms.backends.model_task import REQUIRED_FILES, VISION_FILES, check_files
from fastovms.errors import ConfigurationError, UnsupportedModel
from fastovms.params import ModelInfo, SamplingDefaults, WeightCount
from fastovms.parts.embeddings.served import read_info
from fastovms.parts.grammars.trials import load_grammar_compiler
from fastovms.system.disk import DiskCache
from tests.backends.listener import FAKE
from tests.fakes import model_info
from tests.paths import TINY_VLM

# Models with equal files are the same model.


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "openvino_model.bin").write_bytes(bytes(range(256)) * 32 * 1024)
    return directory


def test_copied_model_has_the_same_fingerprint(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    (copy / "README.md").write_text("a copy")
    assert fingerprint_of(copy) == fingerprint_of(model)


@pytest.mark.parametrize("name", ["config.json", "openvino_model.bin"])
def test_changed_files_have_another_fingerprint(model: Path, name: str) -> None:
    before = fingerprint_of(model)
    data = (model / name).read_bytes()
    for other in (data.translate(bytes([*range(1, 256), 0])), data + b"\0", data[:-1] + b"\0"):
        (model / name).write_bytes(other)
        assert fingerprint_of(model) != before
    (model / name).write_bytes(data)
    assert fingerprint_of(model) == before


# The description of a model's weights, from its graphs.


CONSTANT = '<layer type="Const"><data element_type="{}" shape="{}" offset="{}" size="1"/></layer>\n'


def graph(*constants: tuple[str, str, int]) -> str:
    return "".join(CONSTANT.format(*constant) for constant in constants)


def test_weights_are_counted_once_without_scales_in_all_graphs(tmp_path: Path) -> None:
    assert count_weights(tmp_path) is None
    embedding = ("u8", "100, 8", 0)
    (tmp_path / "openvino_model.xml").write_text(
        graph(
            embedding,
            embedding,
            ("f16", "100, 1", 800),
            ("u4", "10, 4, 256", 1000),
            ("u4", "10, 4, 1", 9000),
            ("f16", "10, 4, 1", 9100),
            ("f32", "1, 1, 8", 9200),
            ("i64", "", 9300),
        )
    )
    (tmp_path / "openvino_tokenizer.xml").write_text(graph(("u8", "99999", 0)))
    assert count_weights(tmp_path) == WeightCount(800 + 10 * 4 * 256 + 8, "u4")
    vision = count_weights(TINY_VLM)
    assert vision is not None
    assert vision.num_parameters > 250_000


# Limits of a model's context, and the warnings about them.


CONTEXT_LENGTH_MODEL = model_info(max_model_len=500)


def test_the_operator_may_offer_less_context() -> None:
    assert limit_context(CONTEXT_LENGTH_MODEL, None) is CONTEXT_LENGTH_MODEL
    assert limit_context(CONTEXT_LENGTH_MODEL, 7).max_model_len == 7
    with pytest.raises(ConfigurationError, match=r"at most 500, .* not 10000000"):
        limit_context(CONTEXT_LENGTH_MODEL, 10_000_000)


@pytest.mark.parametrize("num_tokens", [500, 10_000])
def test_cache_of_the_whole_context_leaves_the_model_info_unchanged(num_tokens: int) -> None:
    assert fit_cache(CONTEXT_LENGTH_MODEL, num_tokens) is CONTEXT_LENGTH_MODEL


def test_small_cache_is_logged_and_named_in_errors(caplog: pytest.LogCaptureFixture) -> None:
    model = fit_cache(CONTEXT_LENGTH_MODEL, 40)
    assert model.max_model_len == 40
    assert "context length reduced from 500 to the 40 tokens that the KV cache" in caplog.text
    assert context_exceeded("the prompt has 60 tokens", model, "prompt").message == (
        "This model's maximum context length is 40 tokens, but the prompt has 60 tokens. "
        "The KV cache of this server holds no more; without that limit it would be 500 tokens."
    )
    told = context_exceeded("the prompt has 900 tokens", CONTEXT_LENGTH_MODEL, "prompt").message
    assert told.endswith("500 tokens, but the prompt has 900 tokens.")


@pytest.mark.parametrize(
    ("width", "vocab_size", "eos_token_ids"),
    [(97, 97, {5}), (100, 100, {5, 99}), (None, 97, {5, 99})],
)
def test_vocabulary_size_follows_the_weights(
    width: int | None, vocab_size: int, eos_token_ids: set[int]
) -> None:
    model = fit_vocabulary(replace(FAKE, eos_token_ids=frozenset({5, 99})), width)
    assert (model.vocab_size, set(model.eos_token_ids)) == (vocab_size, eos_token_ids)


@pytest.mark.parametrize("text", [None, "garbage", "{}"])
def test_without_a_good_tokenizer_json_there_are_no_grammars(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    assert load_grammar_compiler(tmp_path, FAKE) is None
    assert "structured outputs are not available" in caplog.text


# Properties that an exported graph lacks are logged.


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, ""),
        ({"attn_logit_softcapping": None}, ""),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping (50), the soft cap"),
        ({"text_config": {"attn_logit_softcapping": 30.5}}, "attn_logit_softcapping (30.5)"),
        ({"rope_scaling": None}, ""),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, ""),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "no dynamic scaling"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "no dynamic scaling"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, ""),
    ],
)
def test_unsupported_config_fields_are_logged(
    config: dict[str, Any], expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    log_gaps(ModelInfo("m", 0, 1000, 100, frozenset(), config=config))
    assert expected in caplog.text
    assert bool(caplog.text) is bool(expected)


# A model is compared with its paged graph once, and refused if they differ.


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, ...]:
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    paths = tuple(model_dir / name for name in ("openvino_model.xml", "openvino_model.bin"))
    for path in paths:
        path.write_bytes(b"1")
    return paths


def comparison(
    files: tuple[Path, ...], difference: Callable[[], float], **changes: str
) -> Comparison:
    return Comparison(
        **{"kind": "graph", "subject": "somebody's transformation", **changes},
        files=files,
        difference=difference,
        weights_size=2**30,
    )


class Difference:
    """Returns the same difference each time.

    Attributes:
        count: the number of comparisons.
    """

    def __init__(self, value: float) -> None:
        self.value = value
        self.count = 0

    def __call__(self) -> float:
        self.count += 1
        return self.value


@pytest.mark.parametrize("value", [0.0, MAX_DIFFERENCE])
def test_a_small_difference_is_found_once(
    files: tuple[Path, ...], tmp_path: Path, value: float
) -> None:
    difference, cache = Difference(value), DiskCache(tmp_path / "cache")
    check_graph(comparison(files, difference), cache)
    check_graph(comparison(files, difference), cache)
    assert difference.count == 1
    files[1].write_bytes(b"another")
    check_graph(comparison(files, difference), cache)
    assert difference.count == 2


@pytest.mark.parametrize("value", [2 * MAX_DIFFERENCE, float("nan"), float("inf")])
def test_a_large_difference_is_refused_at_every_start(
    files: tuple[Path, ...], tmp_path: Path, value: float
) -> None:
    difference, cache = Difference(value), DiskCache(tmp_path / "cache")
    for _ in range(2):
        with pytest.raises(
            UnsupportedModel, match="somebody's transformation leaves out part"
        ) as refusal:
            check_graph(comparison(files, difference), cache)
        assert str(files[0].parent) in str(refusal.value)
    assert difference.count == 1


@pytest.mark.parametrize("content", ["", "{", "[]", '"0"', "null"])
def test_broken_cached_result_is_measured_again(
    files: tuple[Path, ...], tmp_path: Path, content: str
) -> None:
    difference, cache = Difference(0.0), DiskCache(tmp_path / "cache")
    check_graph(comparison(files, difference), cache)
    (kept,) = (tmp_path / "cache").rglob("difference.json")
    kept.write_text(content)
    check_graph(comparison(files, difference), cache)
    check_graph(comparison(files, difference), cache)
    assert difference.count == 2


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (
            RuntimeError("Exception from a.cpp:3:\nno such kernel"),
            r"computed with .*: no such kernel",
        ),
        (NotComparable("it has an input of another kind"), None),
    ],
)
def test_graph_that_cannot_be_compared_is_refused_or_served_with_a_warning(
    files: tuple[Path, ...],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    refusal: str | None,
) -> None:
    def difference() -> float:
        raise error

    cache = DiskCache(tmp_path / "cache")
    if refusal is not None:
        with pytest.raises(UnsupportedModel, match=refusal):
            check_graph(comparison(files, difference), cache)
        return
    check_graph(comparison(files, difference), cache)
    assert "is computed as exported is skipped: it has an input" in caplog.text
    with pytest.raises(UnsupportedModel):
        check_graph(comparison(files, Difference(1.0)), cache)


def test_comparison_without_memory_is_skipped_and_logged(
    files: tuple[Path, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    difference, cache = Difference(1.0), DiskCache(tmp_path / "cache")
    check_graph(comparison(files, difference), cache, available=lambda: 2**30)
    assert difference.count == 0
    assert "too little memory" in caplog.text
    with pytest.raises(UnsupportedModel):
        check_graph(comparison(files, difference), cache, available=lambda: 2 * 2**30)
    assert difference.count == 1


@pytest.mark.parametrize("change", [{"kind": "pipeline"}, {"version": "2"}])
def test_comparison_of_another_kind_or_version_is_not_reused(
    files: tuple[Path, ...], tmp_path: Path, change: dict[str, str]
) -> None:
    cache = DiskCache(tmp_path / "cache")
    check_graph(comparison(files, Difference(0.0)), cache)
    with pytest.raises(UnsupportedModel):
        check_graph(comparison(files, Difference(1.0), **change), cache)


def write(directory: Path, config: object, **more: object) -> None:
    """Writes a model without weights, and further JSON files by their names without the suffix."""
    for name in REQUIRED_FILES:
        (directory / name).write_text('<?xml version="1.0"?>\n<net name="x" version="11">')
    for name, content in {"config": config, **more}.items():
        if content is not None:
            (directory / f"{name}.json").write_text(json.dumps(content))


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
def test_encoder_length_is_read_from_config_and_tokenizer(tmp_path, config, tokenizer, length):
    write(tmp_path, {"vocab_size": 100, **config}, tokenizer_config=tokenizer)
    info = read_info(tmp_path, name="a")
    assert (info.name, info.vocab_size, info.max_model_len) == ("a", 100, length)


def test_encoder_without_graph_or_vocab_size_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"it has no openvino_model\.xml"):
        read_info(tmp_path, name="a")
    write(tmp_path, {})
    with pytest.raises(ConfigurationError, match="has no vocab_size"):
        read_info(tmp_path, name="a")


CONFIG = {"vocab_size": 100, "max_position_embeddings": 2048, "eos_token_id": 2}


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "my-model"
    directory.mkdir()
    write(directory, CONFIG)
    return directory


def test_model_info_is_read_from_the_files(model_dir):
    info = read_model_info(model_dir)
    assert (info.name, info.vocab_size, info.max_model_len) == ("my-model", 100, 2048)
    assert info.eos_token_ids == {2}
    assert info.defaults == SamplingDefaults()
    assert info.config == CONFIG
    assert info.created == int((model_dir / "openvino_model.bin").stat().st_mtime)
    assert read_model_info(model_dir, name="other").name == "other"


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
def test_context_length_comes_from_the_first_usable_config_field(model_dir, config, expected):
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
def test_end_tokens_are_those_of_all_configs(model_dir, config, generation, expected):
    write(model_dir, {"vocab_size": 100, "n_ctx": 10, **config}, generation_config=generation)
    assert read_model_info(model_dir).eos_token_ids == expected


def test_sampling_defaults_come_from_generation_config(model_dir):
    told = {"temperature": 0.7, "top_p": 1, "top_k": 20, "min_p": 0.05, "max_new_tokens": 512}
    told["repetition_penalty"] = 1.1
    write(model_dir, CONFIG, generation_config={"do_sample": False, **told})
    assert read_model_info(model_dir).defaults == SamplingDefaults(**told)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"17", b"\xff\xfe", b"[" * 100_000])
def test_invalid_json_file_is_a_configuration_error(model_dir, name, content):
    (model_dir / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"{name} is not (valid JSON|a JSON object)"):
        read_model_info(model_dir)


@pytest.mark.parametrize("vocab_size", [None, "many", 1.5, True, 0])
def test_invalid_vocab_size_is_a_configuration_error(model_dir, vocab_size):
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
def test_wrong_generation_config_is_refused_by_name(model_dir, name, value):
    write(model_dir, CONFIG, generation_config={name: value})
    with pytest.raises(ConfigurationError, match=rf"generation_config\.json: {name} must"):
        read_model_info(model_dir)


def test_vision_model_info_is_read_and_its_files_are_required(tmp_path):
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


# Directories that are models.


@pytest.mark.parametrize("missing", REQUIRED_FILES)
def test_missing_required_file_is_named(model_dir, missing):
    (model_dir / missing).unlink()
    with pytest.raises(ConfigurationError, match=f"has no {missing}$"):
        check_files(model_dir)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("nowhere", r"nowhere does not exist$"),
        ("config.json", r"config\.json is neither a directory of a model nor a GGUF file$"),
    ],
)
def test_path_other_than_a_model_directory_is_refused(model_dir, path, reason):
    with pytest.raises(ConfigurationError, match=reason):
        check_files(model_dir / path)


@pytest.mark.parametrize("name", [name for name in REQUIRED_FILES if name.endswith(".xml")])
@pytest.mark.parametrize("content", [b"", b"<net/>", b"version https://git-lfs", b"\xff" * 5000])
def test_file_that_is_no_graph_is_named(model_dir, name, content):
    (model_dir / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"{name} is not an OpenVINO model$"):
        check_files(model_dir)


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("openvino_encoder_model.xml", "it is an encoder-decoder model"),
        ("adapter_config.json", r"it is an adapter \(LoRA\)"),
        ("model-00001-of-00002.safetensors", "it is a PyTorch model; export it"),
        ("model.onnx", "it is an ONNX model"),
    ],
)
def test_a_directory_of_another_kind_is_named(model_dir, file, reason):
    (model_dir / "openvino_model.xml").unlink()
    (model_dir / file).write_text("")
    with pytest.raises(ConfigurationError, match=reason):
        check_files(model_dir)


def test_override_without_an_effect_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    log_missing(model_info(), {"seed": 1, "temperature": 0.5, "eos_token_id": 7, "mood": 1})
    assert "--override-generation-config: mood, seed has no effect; known are" in caplog.text
    caplog.clear()
    log_missing(model_info(), {"top_k": 5})
    assert not caplog.records
