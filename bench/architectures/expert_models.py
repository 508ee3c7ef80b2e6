"""Lists the mixtures of experts."""

from __future__ import annotations

from typing import Final

from bench.architectures.architecture import (
    CONTEXT,
    EXPERTS,
    LOCAL_EXPERTS,
    SHORT_CONTEXT,
    WINDOW,
    Architecture,
    longrope,
)

EXPERT_MODELS: Final[dict[str, Architecture]] = {
    "llama4, attention chunks": Architecture(
        "llama4_text",
        {
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "layer_types": ["chunked_attention", "full_attention"],
            "no_rope_layers": [1, 0],
            "intermediate_size": 64,
            "intermediate_size_mlp": 64,
            "head_dim": 16,
            "attention_chunk_size": WINDOW,
        },
        note="up to one chunk",
    ),
    "mixtral": Architecture("mixtral", {**LOCAL_EXPERTS, "sliding_window": None}),
    "qwen2_moe": Architecture(
        "qwen2_moe",
        {**EXPERTS, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
    ),
    "qwen3_moe": Architecture(
        "qwen3_moe", {**EXPERTS, "head_dim": 16, "moe_intermediate_size": 32}
    ),
    "phimoe, longrope": Architecture(
        "phimoe",
        {
            **LOCAL_EXPERTS,
            **longrope(
                short_mscale=1.1, long_mscale=1.3, original_max_position_embeddings=SHORT_CONTEXT
            ),
            "sliding_window": None,
        },
    ),
    "gpt_oss, window": Architecture(
        "gpt_oss", {**LOCAL_EXPERTS, "head_dim": 16, "sliding_window": WINDOW}
    ),
    "granitemoe": Architecture("granitemoe", LOCAL_EXPERTS),
    "dbrx": Architecture(
        "dbrx",
        {
            "d_model": 64,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": CONTEXT,
            "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8},
            "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        is_bare=True,
    ),
    "deepseek_v2": Architecture(
        "deepseek_v2",
        {
            "num_key_value_heads": 4,
            "kv_lora_rank": 32,
            "q_lora_rank": None,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 16,
            "v_head_dim": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 32,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    "afmoe, window": Architecture(
        "afmoe",
        {
            **EXPERTS,
            "layer_types": ["sliding_attention", "full_attention"],
            "head_dim": 16,
            "moe_intermediate_size": 32,
            "num_dense_layers": 1,
            "sliding_window": WINDOW,
        },
        transformers="5.5",
    ),
}
"""The architectures by their names in the table."""
