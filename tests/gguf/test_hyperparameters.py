"""What is read of a decoder's settings, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest

from fastovms.errors import ConfigurationError
from fastovms.gguf.hyperparameters import Hyperparameters, read_hyperparameters

SIZES: dict[str, Any] = {
    "block_count": 4,
    "context_length": 512,
    "embedding_length": 64,
    "feed_forward_length": 128,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


def read(architecture: str = "llama", /, **settings: Any) -> Hyperparameters:
    """Names have underscores in place of dots, two of them in place of one."""
    named = {name.replace("__", "."): value for name, value in settings.items()}
    of_architecture = {
        f"{architecture}.{name}": value for name, value in {**SIZES, **named}.items()
    }
    metadata = {"general.architecture": architecture, **of_architecture}
    return read_hyperparameters({name: each for name, each in metadata.items() if each is not None})


def test_sizes_and_defaults() -> None:
    parameters = read(attention__head_count_kv=None)
    assert (parameters.head_size, parameters.num_kv_heads) == (16, 4)
    assert parameters.score_scale == 0.25
    assert parameters.rope.num_dimensions == 16
    assert (parameters.rope.base, parameters.rope.factor) == (10_000, 1)
    assert parameters.rope.original_context == 512
    assert not any(parameters.windowed_layers)


@pytest.mark.parametrize(
    ("architecture", "settings", "windowed"),
    [
        ("llama", {}, "0000"),
        ("llama", {"attention__sliding_window": 0}, "0000"),
        ("llama", {"attention__sliding_window": 8}, "1111"),
        ("llama", {"attention__sliding_window": 512}, "0000"),
        ("phi3", {"attention__sliding_window": 8}, "1111"),
        ("gemma3", {"attention__sliding_window": 8}, "1111"),
        ("gemma3", {"attention__sliding_window": 8, "block_count": 8}, "11111011"),
        (
            "gemma3",
            {"attention__sliding_window": 8, "attention__sliding_window_pattern": 3},
            "1101",
        ),
        (
            "gemma3",
            {"attention__sliding_window": 8, "attention__sliding_window_pattern": 1},
            "0000",
        ),
        (
            "gemma3",
            {
                "attention__sliding_window": 8,
                "attention__sliding_window_pattern": [True, False, False, True],
            },
            "1001",
        ),
    ],
)
def test_windows(architecture: str, settings: dict[str, Any], windowed: str) -> None:
    layers = read(architecture, **settings).windowed_layers
    assert "".join(str(int(has_window)) for has_window in layers) == windowed


def test_the_largest_gemma_3_scales_by_its_hidden_size() -> None:
    assert (
        read("gemma3", attention__key_length=32, attention__value_length=32).score_scale == 32**-0.5
    )
    large = read("gemma3", attention__key_length=32, attention__value_length=32, block_count=62)
    assert large.score_scale == 0.25


@pytest.mark.parametrize(
    ("architecture", "settings", "message"),
    [
        ("mamba", {}, "architecture mamba is not taken; those taken are llama, qwen2"),
        ("gemma2", {}, "architecture gemma2 is not taken: its attention has a soft cap"),
        ("llama", {"expert_count": 8}, r"the setting llama.expert_count \(8\) is not taken"),
        ("llama", {"logit_scale": 0.5}, r"the setting llama.logit_scale \(0.5\) is not taken"),
        ("qwen3", {"pooling_type": 3}, r"the setting qwen3.pooling_type \(3\) is not taken"),
        ("llama", {"attention__causal": False}, "llama.attention.causal"),
        ("qwen2", {"attention__sliding_window": 8}, "qwen2 with a sliding window is not taken"),
        ("llama", {"context_length": None}, "llama.context_length is missing"),
        ("llama", {"block_count": "4"}, "llama.block_count must be a count of 1 to 512, not 4"),
        ("llama", {"attention__head_count_kv": [2, 2, 1, 2]}, r"head_count_kv must be a count"),
        ("llama", {"attention__head_count_kv": 3}, "4 heads cannot share 3 keys and values"),
        ("llama", {"attention__value_length": 32}, "values have 32 dimensions and keys have 16"),
        ("llama", {"rope__dimension_count": 8}, "only 8 of 16 dimensions are rotated"),
        ("phi3", {"rope__dimension_count": 7}, "rope.dimension_count 7 of 16 dimensions"),
        ("llama", {"rope__scaling__type": "dynamic"}, "rope.scaling.type dynamic is not known"),
        ("llama", {"rope__scaling__factor": float("nan")}, "rope.scaling.factor must be a number"),
        ("llama", {"rope__freq_base": float("inf")}, "rope.freq_base must be a number, not inf"),
        ("llama", {"rope__freq_base": 0.0}, "llama.rope.freq_base must be above 0"),
        ("llama", {"block_count": 2**32 - 1}, "block_count must be a count of 1 to 512, not 4294"),
        ("llama", {"context_length": 2**62}, "context_length must be a count of 1 to 2147483647"),
        ("llama", {"attention__head_count": 2**30, "attention__key_length": 16,
                   "attention__value_length": 16}, "heads of 16 dimensions have more than 1048576"),
        ("gemma3", {"attention__sliding_window": 8, "attention__sliding_window_pattern": [True]},
         "attention.sliding_window_pattern is not one of all layers"),
        ("gemma3", {"attention__sliding_window": 8, "attention__sliding_window_pattern": "x"},
         "attention.sliding_window_pattern x is not a period"),
    ],
)  # fmt: skip
def test_what_is_not_taken_is_named(
    architecture: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(architecture, **settings)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "it names no general.architecture"),
        ({"general.architecture": "llama", "general.type": "adapter"}, "general.type adapter"),
        ({"general.architecture": "llama", "split.count": 3}, "one of 3 parts"),
    ],
)
def test_files_that_are_no_whole_models(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_hyperparameters(metadata)


def test_equal_values_of_all_layers_are_one() -> None:
    assert read(attention__head_count_kv=[2, 2, 2, 2]).num_kv_heads == 2
