"""Lists the models with a recurrent state, alone or beside attention."""

from __future__ import annotations

from typing import Final

from bench.architectures.architecture import (
    EXPERTS,
    LOCAL_EXPERTS,
    Architecture,
)

RECURRENT_MODELS: Final[dict[str, Architecture]] = {
    "qwen3_next": Architecture(
        "qwen3_next",
        {
            **EXPERTS,
            "num_hidden_layers": 4,
            "head_dim": 16,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        },
    ),
    "qwen3_5": Architecture(
        "qwen3_5_text",
        {
            "num_hidden_layers": 4,
            "head_dim": 16,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        },
        transformers="5.2",
    ),
    "granitemoehybrid": Architecture(
        "granitemoehybrid",
        {
            **LOCAL_EXPERTS,
            "num_hidden_layers": 3,
            "layer_types": ["mamba", "attention", "mamba"],
            "shared_intermediate_size": 64,
            "mamba_n_heads": 8,
            "mamba_d_head": 16,
            "mamba_d_state": 16,
        },
        transformers="5.5",
    ),
    "granitemoehybrid, dense": Architecture(
        "granitemoehybrid",
        {
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "num_hidden_layers": 3,
            "layer_types": ["mamba", "attention", "mamba"],
            "shared_intermediate_size": 128,
            "mamba_n_heads": 32,
            "mamba_d_head": 4,
            "mamba_n_groups": 2,
            "mamba_d_state": 16,
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.7,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.0,
        },
        transformers="5.5",
    ),
    "lfm2": Architecture(
        "lfm2",
        {
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "block_auto_adjust_ff_dim": False,
        },
    ),
    "lfm2_moe": Architecture(
        "lfm2_moe",
        {
            **EXPERTS,
            "num_hidden_layers": 4,
            "layer_types": ["conv", "full_attention", "conv", "full_attention"],
            "num_dense_layers": 2,
            "moe_intermediate_size": 32,
        },
        transformers="5.2",
    ),
    "mamba": Architecture(
        "mamba",
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "state_size": 8,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        is_bare=True,
    ),
    "falcon_mamba": Architecture(
        "falcon_mamba",
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "state_size": 8,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        is_bare=True,
    ),
    "zamba2": Architecture(
        "zamba2",
        {
            "num_key_value_heads": 4,
            "num_hidden_layers": 3,
            "layers_block_type": ["mamba", "hybrid", "mamba"],
            "mamba_d_state": 16,
            "n_mamba_heads": 4,
            "mamba_headdim": 32,
            "num_mem_blocks": 1,
        },
    ),
}
"""The architectures by their names in the table."""
