"""Tests of GGUF files that become model directories and are served like others."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from bench.common.numpy_decoder import NumpyDecoder
from bench.random_models.gguf_decoder import BYTE_PAIRS, TINY, TOKENS, GgufModel, write_model
from fastovms.backends.model_files import read_model_info
from fastovms.config import EngineConfig
from fastovms.engine.model.compilation import load_model
from fastovms.errors import ConfigurationError
from fastovms.gguf.model_directory import (
    NotStored,
    find_gguf,
    gguf_size,
    is_converted,
    model_directory,
)
from fastovms.params import Grammar, GrammarKind, SamplingParams
from fastovms.parts.grammars.trials import load_grammar_compiler
from fastovms.system.disk import DiskCache
from tests.engine.engines import full_engine, text
from tests.engine.reference import EXACT, run, run_reference

VARIANTS = {
    "llama": GgufModel(types=(Type.Q4_K, Type.Q6_K)),
    "qwen3moe": GgufModel("qwen3moe", types=(Type.Q4_K, Type.Q6_K, Type.Q8_0)),
    "lfm2": GgufModel("lfm2", types=(Type.Q4_0, Type.Q8_0), is_tied=True),
    "lfm2moe": GgufModel("lfm2moe", types=(Type.Q4_K, Type.Q6_K), is_tied=True),
    "qwen35moe": GgufModel("qwen35moe", types=(Type.Q4_K, Type.Q6_K, Type.IQ4_NL)),
    "granitehybrid": GgufModel(
        "granitehybrid", types=(Type.Q4_K, Type.Q6_K), settings={"expert_count": TINY.num_experts}
    ),
    "gpt-oss": GgufModel(
        "gpt-oss",
        types=(Type.Q8_0, Type.MXFP4),
        biases=("attn_q", "attn_k", "attn_v", "attn_output"),
        settings={"attention.sliding_window": 9},
    ),
    "mistral": GgufModel(types=(Type.Q8_0,), settings={"attention.sliding_window": 9}),
    "gemma3": GgufModel(
        "gemma3",
        types=(Type.Q5_0,),
        is_tied=True,
        settings={
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": 3,
            "rope.freq_base": 1e6,
        },
    ),
    "phi3": GgufModel(
        "phi3",
        settings={"rope.scaling.original_context_length": 28, "rope.scaling.attn_factor": 1.19},
        extra={
            "rope_factors_short.weight": np.linspace(1, 2, TINY.head_size // 2),
            "rope_factors_long.weight": np.linspace(1, 8, TINY.head_size // 2),
        },
    ),
}


@pytest.fixture(scope="module", params=VARIANTS)
def gguf_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("gguf")
    write_model(base / "my-model.gguf", VARIANTS[request.param])
    return base / "my-model.gguf"


@pytest.fixture(scope="module")
def model_dir(gguf_file: Path) -> Path:
    return model_directory(gguf_file, DiskCache(gguf_file.parent / "cache"), gguf_file.parent)


def test_converted_directory_is_a_complete_model(model_dir: Path) -> None:
    info = read_model_info(model_dir)
    assert (info.vocab_size, info.max_model_len) == (len(TOKENS), 512)
    assert info.eos_token_ids == {0, 2}
    assert "messages" in (model_dir / "chat_template.jinja").read_text()
    names = json.loads((model_dir / "tokenizer_config.json").read_text())
    assert names == {"bos_token": TOKENS[1], "eos_token": TOKENS[0]}


@pytest.mark.nightly(but=("llama", "gemma3", "lfm2moe", "qwen35moe", "granitehybrid", "gpt-oss"))
def test_paged_engine_computes_the_logits_of_the_gguf_file(
    gguf_file: Path, model_dir: Path
) -> None:
    """In prompts that are longer than the windows, beside each other and token by token. One of
    them passes the end of the original context, where Phi 3 begins to rotate in another way."""
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, len(TOKENS), size).tolist() for size in (24, 33, 5)]
    model = load_model(model_dir, properties=EXACT)
    model.allocate_cache(50)
    engine = full_engine(model, EngineConfig(), num_blocks=50, max_model_len=512)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
    outputs = run(engine, prompts, params)
    reference = NumpyDecoder(gguf_file)
    for i, prompt in enumerate(prompts):
        generated = text(outputs[str(i), 0])
        texts = [[*prompt, *generated[:size]] for size in range(len(generated))]
        expected = np.array([reference.log_probabilities(text)[-1] for text in texts])
        found = [each.logprob for output in outputs[str(i), 0] for each in output.logprobs or ()]
        chosen = expected[range(len(generated)), generated]
        np.testing.assert_allclose(found, chosen, atol=1e-3)
        assert (expected.max(axis=1) - chosen < 1e-3).all()


@pytest.mark.nightly(but=("llama",))
def test_genai_computes_the_logits_of_the_gguf_file(gguf_file: Path, model_dir: Path) -> None:
    prompt = np.random.default_rng(2).integers(0, len(TOKENS), 20).tolist()
    (output,) = run_reference(model_dir, [prompt], 8)
    generated = list(output.generated_ids)
    expected = NumpyDecoder(gguf_file).log_probabilities([*prompt, *generated])
    expected = expected[len(prompt) - 1 : -1]
    assert (expected.max(axis=1) - expected[range(len(generated)), generated] < 1e-3).all()


def test_grammars_know_its_tokens(model_dir: Path) -> None:
    compiler = load_grammar_compiler(model_dir, read_model_info(model_dir))
    assert compiler is not None
    grammar = Grammar(GrammarKind.REGEX, "hell (yes|no)")
    compiler.compile(grammar)
    state = compiler.start(grammar, 0)
    forced = [TOKENS[i] for i in state.forced_tokens([])]
    assert "".join(forced).replace("\u0120", " ") == "hell "


def test_a_file_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted: list[Path] = []
    monkeypatch.setattr(
        "fastovms.gguf.model_directory._convert", lambda path, target: converted.append(target)
    )
    file, cache = tmp_path / "m.gguf", DiskCache(tmp_path / "cache")
    file.write_bytes(b"1")
    first = model_directory(file, cache, tmp_path)
    assert model_directory(file, cache, tmp_path) == first
    assert len(converted) == 1
    file.write_bytes(b"22")
    assert model_directory(file, cache, tmp_path) != first
    assert len(converted) == 2
    assert model_directory(file, DiskCache(None), tmp_path) == converted[2]
    assert converted[2].parent == tmp_path


def test_a_conversion_that_has_begun_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    converted: list[Path] = []

    def convert(path: Path, target: Path) -> None:
        converted.append(path)
        begun.set()
        may_end.wait()
        (target / "whole").touch()

    monkeypatch.setattr("fastovms.gguf.model_directory._convert", convert)
    file, cache = tmp_path / "m.gguf", DiskCache(tmp_path / "cache")
    file.write_bytes(b"1")
    threading.Thread(target=model_directory, args=(tmp_path, cache, tmp_path)).start()
    begun.wait()
    assert not is_converted(file, cache)
    threading.Timer(0.1, may_end.set).start()
    assert (model_directory(file, cache, tmp_path) / "whole").exists()
    assert is_converted(file, cache)
    assert converted == [file]


@pytest.mark.parametrize("place", ["cache", "both"])
def test_a_conversion_goes_where_there_is_room_and_names_the_disk_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    write_model(tmp_path / "m.gguf", GgufModel())
    full = tmp_path / "cache" if place == "cache" else tmp_path
    usage = shutil.disk_usage(tmp_path)

    def disk_usage(path: Path) -> object:
        return usage._replace(free=4096) if path.is_relative_to(full) else usage

    monkeypatch.setattr("fastovms.gguf.model_directory.shutil.disk_usage", disk_usage)
    cache = DiskCache(tmp_path / "cache")
    with pytest.raises(NotStored):
        model_directory(tmp_path / "m.gguf", cache, None)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    if place == "cache":
        directory = model_directory(tmp_path / "m.gguf", cache, scratch)
        assert (directory / "openvino_model.xml").exists()
        [warning] = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert "at each start" in warning
        assert "--cache-dir" in warning
    else:
        message = r"scratch: .* are free on its disk.*--cache-dir: .* are free on its disk"
        with pytest.raises(ConfigurationError, match=message):
            model_directory(tmp_path / "m.gguf", cache, scratch)


def test_templates_and_defaults_of_sampling_are_kept(tmp_path: Path) -> None:
    more = {"tokenizer.chat_template.tool_use": "tools", "general.sampling.temp": 0.5}
    write_model(tmp_path / "m.gguf", GgufModel(tokenizer={**BYTE_PAIRS, **more}))
    directory = model_directory(tmp_path / "m.gguf", DiskCache(None), tmp_path)
    assert (directory / "additional_chat_templates" / "tool_use.jinja").read_text() == "tools"
    assert read_model_info(directory).defaults.temperature == 0.5


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["a.gguf"], "a.gguf"),
        (["a.gguf", "openvino_model.xml"], None),
        (["config.json"], None),
        ([], None),
    ],
)
def test_a_directory_with_a_single_file_means_that_file(
    tmp_path: Path, files: list[str], expected: str | None
) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert find_gguf(tmp_path) == (tmp_path / expected if expected else None)
    for name in files:
        assert find_gguf(tmp_path / name) == (tmp_path / name if ".gguf" in name else None)


def test_gguf_without_its_suffix_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    blob, other = tmp_path / "sha256-abc", tmp_path / "other"
    blob.write_bytes(b"GGUF\3\0\0\0")
    other.write_bytes(b"GGU")
    assert (find_gguf(blob), find_gguf(other)) == (blob, None)


def test_several_files_in_a_directory_are_named(tmp_path: Path) -> None:
    for name in ("b.gguf", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf"):
        (tmp_path / name).touch()
    message = r"several GGUF files: name one of a-00001-of-00002.gguf, b.gguf$"
    with pytest.raises(ConfigurationError, match=message):
        find_gguf(tmp_path)


def test_model_in_parts_is_one_model_whichever_part_is_named(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", GgufModel(), tensors_per_part=10)
    parts = sorted(tmp_path.glob("m-*.gguf"))
    cache = DiskCache(tmp_path / "cache")
    directories = {model_directory(path, cache, None) for path in (*parts, tmp_path)}
    assert len(directories) == 1
    assert read_model_info(directories.pop()).vocab_size == len(TOKENS)
    assert gguf_size(parts[1]) == sum(part.stat().st_size for part in parts)
    parts[2].touch()
    assert not is_converted(parts[0], cache)
    parts[0].unlink()
    with pytest.raises(ConfigurationError, match=f"does not have {parts[0].name}$"):
        find_gguf(tmp_path)


def test_a_model_that_is_not_taken_is_named(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", GgufModel(extra={"blk.0.attn_sinks.weight": np.ones(4)}))
    message = r"m\.gguf cannot be served: architecture llama is not supported with the tensor"
    with pytest.raises(ConfigurationError, match=message):
        model_directory(tmp_path / "m.gguf", DiskCache(tmp_path / "cache"), tmp_path)
    assert not list((tmp_path / "cache").iterdir())


def test_a_converter_that_dies_is_no_empty_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastovms.gguf.model_directory._CONVERTER", "fastovms.no_such_module")
    write_model(tmp_path / "m.gguf", GgufModel())
    with pytest.raises(ConfigurationError, match=r"m\.gguf could not be converted: .*No module"):
        model_directory(tmp_path / "m.gguf", DiskCache(None), tmp_path)
