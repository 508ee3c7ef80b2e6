"""GGUF files: what their heads say, and that what is made of them is a model like others."""

from __future__ import annotations

import json
from pathlib import Path

import openvino_genai
import pytest

from fastovms.backends.gguf.gguf import find_gguf, model_directory
from fastovms.backends.model_files.model_info import read_model_info
from fastovms.backends.model_files.vocabulary import load_grammar_compiler
from fastovms.config import EngineConfig
from fastovms.disk_cache import DiskCache
from fastovms.engine.engine import Engine
from fastovms.engine.model.model import PagedModel
from fastovms.errors import ConfigurationError
from fastovms.params import Grammar, GrammarKind, SamplingParams
from fastovms.text.tokens.tokenizer import Tokenizer
from tests.backends.gguf.gguf_file import TOKENS, entry, head, write_gguf
from tests.engine.reference import EXACT, run, tokens

VARIANTS = {
    "llama": {"architecture": "llama"},
    "qwen2": {
        "architecture": "qwen2",
        "is_quantized": False,
        "is_tied": True,
        "has_bias": True,
    },
}


@pytest.fixture(scope="module", params=VARIANTS)
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("gguf")
    write_gguf(base / "my-model.gguf", **VARIANTS[request.param])
    return model_directory(base / "my-model.gguf", DiskCache(base / "cache"), base)


def test_what_is_made_of_a_file_is_a_whole_model(model_dir: Path) -> None:
    info = read_model_info(model_dir)
    assert (info.vocab_size, info.max_model_len) == (len(TOKENS), 512)
    assert info.eos_token_ids == {0, 2}
    assert not (model_dir / "model.gguf").is_symlink()
    assert "messages" in (model_dir / "chat_template.jinja").read_text()
    names = json.loads((model_dir / "tokenizer_config.json").read_text())
    assert names == {"bos_token": TOKENS[1], "eos_token": TOKENS[0]}


def test_its_texts_are_those_of_the_reference(model_dir: Path) -> None:
    tokenizer = Tokenizer.load(model_dir)
    prompts = [tokenizer.encode(text) for text in ("hello there", "what is this?", "x" * 40)]
    assert tokenizer.decode(prompts[0]) == "hello there"
    model = PagedModel.load(model_dir, properties=EXACT)
    model.allocate_cache(50)
    engine = Engine(model, EngineConfig(), num_blocks=50, max_model_len=512)
    outputs = run(engine, prompts, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    config = openvino_genai.GenerationConfig(max_new_tokens=20, ignore_eos=True, do_sample=False)
    pipeline = openvino_genai.LLMPipeline(model_dir, "CPU", ATTENTION_BACKEND="SDPA", **EXACT)
    for i, text in enumerate(("hello there", "what is this?", "x" * 40)):
        expected = pipeline.generate([text], config).texts[0]
        assert tokenizer.decode(tokens(outputs[i, 0])) == expected


def test_grammars_know_its_tokens(model_dir: Path) -> None:
    compiler = load_grammar_compiler(model_dir, read_model_info(model_dir))
    assert compiler is not None
    grammar = Grammar(GrammarKind.REGEX, "hell (yes|no)")
    compiler.compile(grammar)
    state = compiler.start(grammar, 0)
    forced = [TOKENS[i] for i in state.forced_tokens([])]
    assert "".join(forced).replace("\u0120", " ") == "hell "


def test_a_file_is_converted_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("fastovms.backends.gguf.gguf._run_converter", lambda path, target: None)
    file, cache = tmp_path / "m.gguf", DiskCache(tmp_path / "cache")
    write_gguf(file)
    first = model_directory(file, cache, tmp_path)
    assert model_directory(file, cache, tmp_path) == first
    assert caplog.text.count("converting") == 1
    write_gguf(file, "qwen2")
    assert model_directory(file, cache, tmp_path) != first
    uncached = model_directory(file, DiskCache(None), tmp_path)
    assert uncached.parent == tmp_path


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


def test_several_files_in_a_directory_are_named(tmp_path: Path) -> None:
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigurationError, match=r"several GGUF files: name one of a.gguf, b.gguf"):
        find_gguf(tmp_path)


def test_an_architecture_that_openvino_does_not_read_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "mamba")
    with pytest.raises(ConfigurationError, match=r"OpenVINO cannot read .*m\.gguf: .*'mamba'"):
        model_directory(tmp_path / "m.gguf", DiskCache(tmp_path / "cache"), tmp_path)
    assert not list((tmp_path / "cache").iterdir())


def test_a_file_without_a_tokenizer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastovms.backends.gguf.gguf._run_converter", lambda path, target: None)
    (tmp_path / "m.gguf").write_bytes(head([entry("general.architecture", "llama")]))
    with pytest.raises(ConfigurationError, match="holds no tokenizer"):
        model_directory(tmp_path / "m.gguf", DiskCache(None), tmp_path)
