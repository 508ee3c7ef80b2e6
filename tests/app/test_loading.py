"""Models are checked before any of them is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.app.loading import check_models, read_info
from fastovms.config import DEMO_MODEL, EngineConfig, ModelConfig
from fastovms.errors import ConfigurationError
from fastovms.params import SamplingDefaults


def model(*names: str, path: Path = DEMO_MODEL, **engine: object) -> ModelConfig:
    return ModelConfig(path, names or ("m",), EngineConfig(**engine))  # type: ignore[arg-type]


def test_models_that_can_be_served() -> None:
    check_models([model("a", "b"), model("c")])


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([model("a", "b"), model("b")], "2 models have the name b"),
        ([model("a"), model("b", path=Path("none"))], "none"),
        (
            [model(precision="exact", plugin_config={"INFERENCE_PRECISION_HINT": "bf16"})],
            "--precision exact cannot be used with plugin_config INFERENCE_PRECISION_HINT bf16",
        ),
        ([model(draft_model=Path("/nope"))], "the draft model cannot be used: .*/nope"),
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


def test_what_the_files_and_the_operator_say() -> None:
    info = read_info(model("a", max_model_len=7))
    assert (info.name, info.max_model_len) == ("a", 7)


def test_defaults_of_the_files_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text('{"temperature": 0.5}')
    for has_defaults, temperature in ((True, 0.5), (False, SamplingDefaults().temperature)):
        asked = ModelConfig(DEMO_MODEL, ("a",), generation_config=path, has_defaults=has_defaults)
        assert read_info(asked).defaults.temperature == temperature
