"""Tests of `fastovms/gguf/hyperparameters.py`."""

from __future__ import annotations

from typing import Any

import pytest

from fastovms.errors import ConfigurationError
from fastovms.gguf.hyperparameters import Hyperparameters, read_hyperparameters

# What is read of a decoder's settings, and which are refused.


SIZES: dict[str, Any] = {
    "block_count": 4,
    "context_length": 512,
    "embedding_length": 64,
    "feed_forward_length": 128,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


OF_STATES: dict[str, Any] = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 64,
}


def read(architecture: str = "llama", /, **settings: Any) -> Hyperparameters:
    """Names have underscores in place of dots, two of them in place of one."""
    sizes = {
        **SIZES,
        **(OF_STATES if architecture in ("qwen35", "qwen35moe", "granitehybrid") else {}),
    }
    named = {name.replace("__", "."): value for name, value in settings.items()}
    of_architecture = {
        f"{architecture}.{name}": value for name, value in {**sizes, **named}.items()
    }
    metadata = {"general.architecture": architecture, **of_architecture}
    return read_hyperparameters({name: each for name, each in metadata.items() if each is not None})


def test_hyperparameters_have_defaults() -> None:
    parameters = read(attention__head_count_kv=None)
    assert (parameters.head_size, parameters.num_kv_heads) == (16, 4)
    assert parameters.scales.scores == 0.25
    assert parameters.rope.num_dimensions == 16
    assert (parameters.rope.base, parameters.rope.factor) == (10_000, 1)
    assert parameters.rope.original_context == 512
    assert not any(parameters.windowed_layers)


@pytest.mark.parametrize(
    ("architecture", "window", "pattern", "num_layers", "windowed"),
    [
        ("llama", None, None, 4, "0000"),
        ("llama", 0, None, 4, "0000"),
        ("llama", 8, None, 4, "1111"),
        ("llama", 512, None, 4, "0000"),
        ("phi3", 8, None, 4, "1111"),
        ("gemma3", 8, None, 4, "1111"),
        ("gemma3", 8, None, 8, "11111011"),
        ("gemma3", 8, 3, 4, "1101"),
        ("gemma3", 8, 1, 4, "0000"),
        ("gemma3", 8, [True, False, False, True], 4, "1001"),
    ],
)
def test_sliding_window_applies_to_layers_of_the_architecture(
    architecture: str, window: int | None, pattern: object, num_layers: int, windowed: str
) -> None:
    settings = {"attention__sliding_window": window, "attention__sliding_window_pattern": pattern}
    layers = read(architecture, block_count=num_layers, **settings).windowed_layers
    assert "".join(str(int(has_window)) for has_window in layers) == windowed


def test_listed_recurrent_layers_precede_an_interval() -> None:
    listed = [True, False, True, True, False]
    settings = {"attention__recurrent_layers": listed, "full_attention_interval": 2}
    parameters = read("qwen35", block_count=5, nextn_predict_layers=1, **settings)
    assert parameters.recurrent_layers == (True, False, True, True)


def test_the_largest_gemma_3_scales_by_its_hidden_size() -> None:
    assert (
        read("gemma3", attention__key_length=32, attention__value_length=32).scales.scores
        == 32**-0.5
    )
    large = read("gemma3", attention__key_length=32, attention__value_length=32, block_count=62)
    assert large.scales.scores == 0.25


@pytest.mark.parametrize(
    ("architecture", "settings", "message"),
    [
        ("mamba", {}, "architecture mamba is not supported; supported are llama, qwen2, qwen2moe"),
        ("gemma2", {}, "architecture gemma2 is not supported: its attention has a soft cap"),
        ("llama", {"expert_count": 8}, "llama.expert_used_count is missing"),
        ("qwen3", {"expert_count": 8}, r"the setting qwen3.expert_count \(8\) is not supported"),
        ("qwen35", {"ssm__time_step_rank": None}, "qwen35.ssm.time_step_rank is missing"),
        ("qwen35", {"ssm__conv_kernel": 99}, "ssm.conv_kernel must be a count of 1 to 64, not 99"),
        ("qwen35", {"ssm__group_count": 3}, "ssm.group_count 3 do not go with the 4 heads"),
        ("qwen35", {"ssm__inner_size": 66}, "ssm.inner_size 66 and .* with the 4 heads of ssm"),
        ("qwen35", {"ssm__state_size": 2**20}, "ssm.state_size must be a count of 1 to 524288,"),
        ("qwen35", {"full_attention_interval": 0}, "full_attention_interval must be a count of 1"),
        ("qwen35", {"attention__recurrent_layers": [True, False]},
         r"recurrent_layers must have a boolean for each of 4 layers .* not \[True, False\]"),
        ("qwen35", {"attention__recurrent_layers": [1, 1, 1, 0]}, r"not \[1, 1, 1, 0\]"),
        ("qwen35", {"attention__recurrent_layers": [True] * 4}, "not all of them true, not"),
        ("lfm2", {"attention__recurrent_layers": [True] * 4, "shortconv__l_cache": 3},
         r"the setting lfm2.attention.recurrent_layers \(.*\) is not supported"),
        ("qwen35", {"nextn_predict_layers": 4}, "nextn_predict_layers must be a count of 0 to 3"),
        ("qwen35", {"rope__dimension_sections": [2, 2, 1, 0]}, "sections .* must add up to 8$"),
        ("qwen35moe", {}, "qwen35moe.expert_count is missing"),
        ("granitehybrid", {"attention__head_count_kv": [0, 2, 0]}, "for each of 4 layers, not all"),
        ("granitehybrid", {"rope__scaling__finetuned": 1}, "finetuned must be a boolean, not 1"),
        ("granitehybrid", {"expert_count": 8, "expert_used_count": 9},
         "expert_used_count must be a count of 1 to 8, not 9"),
        ("lfm2moe", {"expert_count": 8, "expert_used_count": 2, "shortconv__l_cache": 3,
                     "expert_gating_func": 1}, "expert_gating_func must be 2, not 1"),
        ("lfm2moe", {"expert_count": 8, "expert_used_count": 2, "shortconv__l_cache": 3,
                     "leading_dense_block_count": 5}, "block_count must be a count of 0 to 4"),
        ("lfm2", {"attention__head_count_kv": [0, 0, 0, 0]}, "for each of 4 layers, not all"),
        ("lfm2", {"attention__head_count_kv": [0, 2]}, r"for each of 4 layers.* not \[0, 2\]"),
        ("lfm2", {"attention__head_count_kv": [0, 2, 1, 2]}, "head_count_kv must be a count"),
        ("lfm2", {"attention__head_count_kv": [0, 2, 0, 2]}, "lfm2.shortconv.l_cache is missing"),
        ("llama", {"attention__head_count_kv": [0, 2, 0, 2]}, "head_count_kv must be a count"),
        ("qwen3moe", {}, "qwen3moe.expert_count is missing"),
        ("qwen3moe", {"expert_count": 513}, "expert_count must be a count of 1 to 512, not 513"),
        ("qwen3moe", {"expert_count": 8, "expert_used_count": 9},
         "expert_used_count must be a count of 1 to 8, not 9"),
        ("qwen3moe", {"expert_count": 8, "expert_used_count": 2, "expert_gating_func": 2},
         "expert_gating_func must be 1, not 2"),
        ("llama", {"logit_scale": 0.5}, r"the setting llama.logit_scale \(0.5\) is not supported"),
        ("qwen3", {"pooling_type": 3}, r"the setting qwen3.pooling_type \(3\) is not supported"),
        ("llama", {"attention__causal": False}, "llama.attention.causal"),
        ("qwen2", {"attention__sliding_window": 8}, "qwen2 with a sliding window is not supported"),
        ("llama", {"context_length": None}, "llama.context_length is missing"),
        ("llama", {"block_count": "4"}, "llama.block_count must be a count of 1 to 512, not '4'"),
        ("llama", {"attention__head_count_kv": [2, 2, 1, 2]}, r"head_count_kv must be a count"),
        ("llama", {"attention__head_count_kv": 3}, "4 query heads cannot share 3 KV heads"),
        ("llama", {"attention__value_length": 32}, "attention.value_length is 32, but must be"),
        ("llama", {"rope__dimension_count": 8}, "only 8 of 16 dimensions are rotated"),
        ("phi3", {"rope__dimension_count": 7}, "rope.dimension_count 7 is not possible"),
        ("llama", {"rope__scaling__type": "dynamic"}, "must be none, linear, yarn or longrope"),
        ("llama", {"rope__scaling__factor": float("nan")}, "rope.scaling.factor must be a number"),
        ("llama", {"rope__freq_base": float("inf")}, "rope.freq_base must be a number, not inf"),
        ("llama", {"rope__freq_base": 0.0}, "llama.rope.freq_base must be above 0"),
        ("llama", {"block_count": 2**32 - 1}, "block_count must be a count of 1 to 512, not 4294"),
        ("llama", {"context_length": 2**62}, "context_length must be a count of 1 to 2147483647"),
        ("llama", {"attention__head_count": 2**30, "attention__key_length": 16,
                   "attention__value_length": 16}, "heads of 16 dimensions have more than 1048576"),
        ("gemma3", {"attention__sliding_window": 8, "attention__sliding_window_pattern": [True]},
         "attention.sliding_window_pattern must have a boolean for each layer"),
        ("gemma3", {"attention__sliding_window": 8, "attention__sliding_window_pattern": "x"},
         "attention.sliding_window_pattern must be a number of layers, not x"),
    ],
)  # fmt: skip
def test_unsupported_metadata_is_refused_by_name(
    architecture: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(architecture, **settings)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "general.architecture is missing"),
        ({"general.architecture": 5}, "general.architecture is missing"),
        ({"general.architecture": "llama", "general.type": "adapter"}, "type must be model"),
    ],
)
def test_file_that_is_no_whole_model_is_refused(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_hyperparameters(metadata)


def test_equal_values_of_all_layers_are_one() -> None:
    assert read(attention__head_count_kv=[2, 2, 2, 2]).num_kv_heads == 2
