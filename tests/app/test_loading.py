"""Tests that all models are checked before any of them is loaded."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import openvino_tokenizers  # noqa: F401 - it asks the real `ov.Core` when it is imported
import pytest

from fastovms.app import compiling, loading
from fastovms.app.compiling import begin_loading, compile_ahead, on_device, read_info, weights_size
from fastovms.app.loading import check_models, load_models
from fastovms.config import EngineConfig
from fastovms.errors import ConfigurationError
from fastovms.gguf.model_directory import NotStored
from fastovms.params import SamplingDefaults, Task
from fastovms.parts.embeddings import served
from fastovms.server_config import DEMO_MODEL, MediaConfig, ModelConfig
from tests.fakes import FakeBackend, model_info


def model(*names: str, path: Path = DEMO_MODEL, **engine: object) -> ModelConfig:
    return ModelConfig(path, names or ("m",), EngineConfig(**engine))  # type: ignore[arg-type]


def test_models_that_can_be_served() -> None:
    check_models([model("a", "b"), model("c")])


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([model("a", "b"), model("b")], "2 models have the name b"),
        ([model("a", lora_modules={"b": Path("b")}), model("b")], "2 models have the name b"),
        ([model("a"), model("b", path=Path("none"))], "none"),
        (
            [model(precision="exact", plugin_config={"INFERENCE_PRECISION_HINT": "bf16"})],
            "--precision exact cannot be used with plugin_config INFERENCE_PRECISION_HINT bf16",
        ),
        ([model(draft_model=Path("/nope"))], "the draft model cannot be used: .*/nope"),
        (
            [model(cache_size=99_999)],
            r"--cache-size 99999 GiB is more than .*: at most [\d.]+ GiB$",
        ),
        ([model(plugin_config={"KV_CACHE_PRECISION": "u3"})], "KV_CACHE_PRECISION must be .*u3"),
    ],
)
def test_the_commonest_mistakes(models: list[ModelConfig], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_models(models)


def test_a_broken_gguf_file_is_found_before_it_is_converted(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ConfigurationError, match=r"m\.gguf"):
        check_models([model(path=path)])


def test_options_of_the_operator_override_those_of_the_files() -> None:
    info = read_info(model("a", max_model_len=7))
    assert (info.name, info.max_model_len) == ("a", 7)


def test_defaults_of_the_files_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text('{"temperature": 0.5}')
    for has_defaults, temperature in ((True, 0.5), (False, SamplingDefaults().temperature)):
        asked = ModelConfig(DEMO_MODEL, ("a",), generation_config=path, has_defaults=has_defaults)
        assert read_info(asked).defaults.temperature == temperature


class FakeCore:
    """Stands for a machine with a GPU."""

    available_devices = ("CPU", "GPU")

    def get_property(self, device: str, name: str) -> object:
        return {"DEVICE_TYPE": "Type.DISCRETE", "FULL_DEVICE_NAME": f"the {device}"}.get(name)


@pytest.mark.parametrize(
    ("engine", "device", "line"),
    [
        ({}, "GPU", "model m: --device AUTO chooses GPU: the GPU is a discrete GPU"),
        (
            {"device": "auto"},
            "GPU",
            "model m: --device AUTO chooses GPU: the GPU is a discrete GPU",
        ),
        ({"device": "CPU"}, "CPU", None),
        ({"device": "GPU.7"}, "GPU.7", None),
        (
            {"enable_lora": True},
            "CPU",
            "model m: --device AUTO chooses CPU: adapters are served on the CPU only",
        ),
    ],
)
def test_device_chosen_by_auto_is_logged(
    caplog: pytest.LogCaptureFixture, engine: dict[str, object], device: str, line: str | None
) -> None:
    core: Any = FakeCore()
    with caplog.at_level(logging.INFO):
        assert on_device(model(**engine), core).engine.device == device
    assert caplog.messages == ([] if line is None else [line])


@pytest.mark.parametrize("device", ["AUTO", "GPU"])
def test_the_cpu_takes_over_from_a_gpu_that_auto_has_chosen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, device: str
) -> None:
    tried = []

    def compile_backend(path: Path, info: object, engine: EngineConfig, **_: object) -> Any:
        tried.append(engine.device)
        if engine.device != "CPU":
            raise ConfigurationError("GPU cannot run the model: no memory")
        return lambda *_: FakeBackend(lambda request, index: [], model_info())

    monkeypatch.setattr(compiling, "compile_backend", compile_backend)
    monkeypatch.setattr(compiling.ov, "Core", FakeCore)
    if device == "GPU":
        with pytest.raises(ConfigurationError, match="no memory"):
            load_models([model(device=device)], MediaConfig())
        assert tried == ["GPU"]
        return
    load_models([model(device=device)], MediaConfig())
    assert tried == ["GPU", "CPU"]
    assert (
        "model m: --device AUTO takes the CPU, because GPU cannot run the model: no memory"
        in caplog.messages
    )


def test_the_cpu_takes_over_for_an_encoder(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = []

    def load_encoder(path: Path, info: object, engine: EngineConfig, *_: object) -> Any:
        tried.append(engine.device)
        raise ConfigurationError(f"{engine.device} cannot run the model: no memory")

    monkeypatch.setattr(loading, "task_of", lambda model: Task.EMBEDDINGS)
    monkeypatch.setattr(served, "load_encoder", load_encoder)
    monkeypatch.setattr(compiling.ov, "Core", FakeCore)
    with pytest.raises(ConfigurationError, match="CPU cannot run the model"):
        load_models([model(device="AUTO")], MediaConfig())
    assert tried == ["GPU", "CPU"]
    assert (
        "model m: --device AUTO takes the CPU, because GPU cannot run the model: no memory"
        in caplog.messages
    )


def fake_backend(monkeypatch: pytest.MonkeyPatch, fault: Exception | None = None) -> list[Path]:
    """Returns the list to which the paths of compiled models are added."""
    compiled: list[Path] = []

    def compile_backend(path: Path, *_: object, **__: object) -> Any:
        compiled.append(path)
        if fault is not None:
            raise fault
        return lambda *_: FakeBackend(lambda request, index: [], model_info())

    monkeypatch.setattr(compiling, "compile_backend", compile_backend)
    return compiled


def test_a_model_that_was_compiled_ahead_is_used_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiled = fake_backend(monkeypatch)
    with caplog.at_level(logging.INFO):
        ahead = compile_ahead(model())
        for count in (1, 2):  # once by the load that takes it, once by a later load
            load_models([model()], MediaConfig(), ahead=ahead)
            assert compiled == [DEMO_MODEL] * count
    assert caplog.messages[0] == f"loading m from {DEMO_MODEL}"
    assert len([line for line in caplog.messages if line.startswith("loading m")]) == 2


def test_model_that_differs_from_the_one_compiled_ahead_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = fake_backend(monkeypatch)
    load_models([model()], MediaConfig(), ahead=compile_ahead(model(max_num_seqs=2)))
    assert compiled == [DEMO_MODEL] * 2


def test_a_fault_ahead_is_reported_by_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = fake_backend(monkeypatch, ConfigurationError("no memory"))
    with pytest.raises(ConfigurationError, match="no memory"):
        load_models([model()], MediaConfig(), ahead=compile_ahead(model()))
    assert compiled == [DEMO_MODEL]


@pytest.mark.parametrize(
    ("free", "swap", "device", "expected"),
    [
        (10.0, 0.0, "CPU", ""),
        (1.05, 0.0, "CPU", "warning"),  # it fits, but leaves too little memory for the others
        (0.9, 0.2, "CPU", "warning"),  # it would be swapped
        (0.9, 0.0, "CPU", "refused"),
        (0.9, 0.0, "AUTO", "refused"),
        (0.9, 0.0, "GPU", ""),  # the GPU has its own memory
    ],
)
def test_a_model_larger_than_the_memory_is_refused_before_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    free: float,
    swap: float,
    device: str,
    expected: str,
) -> None:
    subject = model(device=device)
    size = weights_size(subject)

    def available(*, with_swap: bool = False) -> int:
        return int(size * (free + swap * with_swap))

    monkeypatch.setattr(compiling, "available_memory", available)
    if expected == "refused":
        with pytest.raises(ConfigurationError, match=r"m has .* of weights, but .* are free"):
            begin_loading(subject)
    else:
        begin_loading(subject)
    assert any("of weights" in line for line in caplog.messages) == (expected == "warning")


def test_a_model_that_compiles_ahead_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = fake_backend(monkeypatch)
    monkeypatch.setattr(compiling, "available_memory", lambda **_: 1)
    with pytest.raises(ConfigurationError, match="of weights"):
        load_models([model()], MediaConfig(), ahead=compile_ahead(model()))
    assert not compiled


def test_a_conversion_that_cannot_be_stored_ahead_is_made_by_the_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled = fake_backend(monkeypatch)
    scratches: list[Path | None] = []

    def directory(path: Path, cache: object, scratch: Path | None) -> Path:
        scratches.append(scratch)
        if scratch is None:
            raise NotStored
        return path

    monkeypatch.setattr(compiling, "model_directory", directory)
    load_models([model()], MediaConfig(), ahead=compile_ahead(model()))
    assert scratches[0] is None
    assert scratches[1] is not None
    assert compiled == [DEMO_MODEL]


def test_compile_ahead_without_a_disk_cache_compiles_no_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = fake_backend(monkeypatch)
    monkeypatch.setattr(compiling.DiskCache, "is_kept", False)
    assert compile_ahead(model()) is None
    assert not compiled
