"""Which architectures are compared, as small models of random weights.

Each has whatever makes its attention its own: windows far shorter than the texts, scaled positions,
biases, caps, experts, several kinds of layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

CONTEXT: Final = 256
"""Tokens."""

LONGEST_TEXT: Final = 160
"""A context that is long enough, where the graph holds a table of its square."""

WINDOW: Final = 24
SHORT_CONTEXT: Final = 64
"""Tokens that a model with scaled positions has learned unscaled."""

_BASE: Final[dict[str, Any]] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}

_WIDTHS: Final = frozenset(
    {
        "d_model",
        "ffn_dim",
        "head_dim",
        "hidden_size",
        "intermediate_size",
        "intermediate_size_mlp",
        "moe_intermediate_size",
        "n_embd",
        "word_embed_proj_dim",
    }
)
_FACTORS: Final = frozenset({"long_factor", "short_factor"})
"""One for each pair of a head's rotated numbers."""

_EXPERTS: Final[dict[str, Any]] = {"num_experts": 4, "num_experts_per_tok": 2}
_LOCAL_EXPERTS: Final[dict[str, Any]] = {"num_local_experts": 4, "num_experts_per_tok": 2}


@dataclass(frozen=True)
class Architecture:
    """A model type of transformers, and what its configuration has beside `_BASE`.

    Attributes:
        is_bare: its configuration has other names than `_BASE` for everything.
    """

    model_type: str
    settings: dict[str, Any] = field(default_factory=dict)
    is_bare: bool = False

    def config(self, vocab_size: int, *, narrow: bool = False) -> dict[str, Any]:
        """The arguments of its configuration; with half the widths, if it is to be `narrow`."""
        settings = {**({} if self.is_bare else _BASE), **self.settings}
        if narrow:
            settings = {name: _narrow(name, value) for name, value in settings.items()}
        return {**settings, "vocab_size": vocab_size}


def _narrow(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _narrow(key, inner) for key, inner in value.items()}
    if name in _WIDTHS:
        return value // 2
    return value[::2] if name in _FACTORS else value


def _rope(rope_type: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_scaling": {"rope_type": rope_type, **parameters}}


def _longrope(**parameters: Any) -> dict[str, Any]:
    return {
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0 + 0.1 * i for i in range(8)],
            "long_factor": [1.5 + 0.5 * i for i in range(8)],
            **parameters,
        },
        "original_max_position_embeddings": SHORT_CONTEXT,
    }


_GPT2: Final[dict[str, Any]] = {
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

ARCHITECTURES: Final[dict[str, Architecture]] = {
    "llama": Architecture("llama"),
    "llama, rope llama3": Architecture(
        "llama",
        _rope(
            "llama3",
            factor=4.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=SHORT_CONTEXT,
        ),
    ),
    "llama, rope linear": Architecture("llama", _rope("linear", factor=4.0)),
    "llama, rope yarn": Architecture(
        "llama", _rope("yarn", factor=4.0, original_max_position_embeddings=SHORT_CONTEXT)
    ),
    "llama, rope dynamic": Architecture(
        "llama", {**_rope("dynamic", factor=4.0), "max_position_embeddings": SHORT_CONTEXT}
    ),
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
    ),
    "mistral": Architecture("mistral", {"sliding_window": None}),
    "mistral, window": Architecture("mistral", {"sliding_window": WINDOW}),
    "mixtral": Architecture("mixtral", {**_LOCAL_EXPERTS, "sliding_window": None}),
    "qwen2": Architecture("qwen2"),
    "qwen2, window": Architecture(
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 1,
        },
    ),
    "qwen2_moe": Architecture(
        "qwen2_moe",
        {**_EXPERTS, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
    ),
    "qwen3": Architecture("qwen3", {"head_dim": 16}),
    "qwen3_moe": Architecture(
        "qwen3_moe", {**_EXPERTS, "head_dim": 16, "moe_intermediate_size": 32}
    ),
    "qwen3_next": Architecture(
        "qwen3_next",
        {
            **_EXPERTS,
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
    "gemma": Architecture("gemma", {"head_dim": 16}),
    "gemma2, soft caps": Architecture(
        "gemma2",
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 5.0,
        },
    ),
    "gemma3": Architecture(
        "gemma3_text",
        {
            "head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 16,
        },
    ),
    "phi": Architecture("phi", {"num_key_value_heads": 4}),
    "phi3": Architecture("phi3", {"sliding_window": None}),
    "phi3, window": Architecture("phi3", {"sliding_window": WINDOW}),
    "phi3, longrope": Architecture("phi3", {**_longrope(), "sliding_window": None}),
    "phimoe, longrope": Architecture(
        "phimoe",
        {
            **_LOCAL_EXPERTS,
            **_longrope(
                short_mscale=1.1, long_mscale=1.3, original_max_position_embeddings=SHORT_CONTEXT
            ),
            "sliding_window": None,
        },
    ),
    "gpt2": Architecture("gpt2", _GPT2, is_bare=True),
    "gpt_bigcode": Architecture("gpt_bigcode", _GPT2, is_bare=True),
    "gpt_neo, window": Architecture(
        "gpt_neo",
        {
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": WINDOW,
            "max_position_embeddings": LONGEST_TEXT,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        is_bare=True,
    ),
    "gpt_neox": Architecture("gpt_neox"),
    "gptj": Architecture("gptj", {**_GPT2, "rotary_dim": 8}, is_bare=True),
    "codegen": Architecture("codegen", {**_GPT2, "rotary_dim": 8}, is_bare=True),
    "gpt_oss, window": Architecture(
        "gpt_oss", {**_LOCAL_EXPERTS, "head_dim": 16, "sliding_window": WINDOW}
    ),
    "opt": Architecture(
        "opt", {"ffn_dim": 128, "word_embed_proj_dim": 64, "tie_word_embeddings": True}
    ),
    "bloom, ALiBi": Architecture(
        "bloom",
        {
            "hidden_size": 64,
            "n_layer": 2,
            "n_head": 4,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        is_bare=True,
    ),
    "mpt, ALiBi": Architecture(
        "mpt",
        {
            "d_model": 64,
            "n_layers": 2,
            "n_heads": 4,
            "max_seq_len": CONTEXT,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        is_bare=True,
    ),
    "falcon": Architecture("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon, multi-query": Architecture("falcon", {"multi_query": True}),
    "falcon, ALiBi": Architecture("falcon", {"alibi": True, "multi_query": False, "bias": True}),
    "stablelm": Architecture("stablelm"),
    "starcoder2": Architecture("starcoder2", {"sliding_window": None}),
    "starcoder2, window": Architecture("starcoder2", {"sliding_window": WINDOW}),
    "olmo": Architecture("olmo"),
    "olmo2": Architecture("olmo2"),
    "cohere": Architecture("cohere"),
    "cohere2, window": Architecture(
        "cohere2",
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW},
    ),
    "granite": Architecture(
        "granite", {"attention_multiplier": 0.2, "residual_multiplier": 0.5, "logits_scaling": 2.0}
    ),
    "granitemoe": Architecture("granitemoe", _LOCAL_EXPERTS),
    "granitemoehybrid": Architecture(
        "granitemoehybrid",
        {
            **_LOCAL_EXPERTS,
            "num_hidden_layers": 3,
            "layer_types": ["mamba", "attention", "mamba"],
            "shared_intermediate_size": 64,
            "mamba_n_heads": 8,
            "mamba_d_head": 16,
            "mamba_d_state": 16,
        },
    ),
    "exaone4, window": Architecture(
        "exaone4",
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW},
    ),
    "glm": Architecture("glm", {"head_dim": 16}),
    "glm4": Architecture("glm4", {"head_dim": 16}),
    "smollm3": Architecture("smollm3"),
    "persimmon": Architecture("persimmon", {"num_key_value_heads": 4}),
    "biogpt": Architecture("biogpt"),
    "xglm": Architecture(
        "xglm",
        {
            "d_model": 64,
            "ffn_dim": 128,
            "num_layers": 2,
            "attention_heads": 4,
            "max_position_embeddings": CONTEXT,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        is_bare=True,
    ),
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
    "arcee": Architecture("arcee"),
    "hunyuan_v1_dense": Architecture("hunyuan_v1_dense", {"head_dim": 16}),
    "bitnet": Architecture("bitnet"),
    "afmoe, window": Architecture(
        "afmoe",
        {
            **_EXPERTS,
            "layer_types": ["sliding_attention", "full_attention"],
            "head_dim": 16,
            "moe_intermediate_size": 32,
            "num_dense_layers": 1,
            "sliding_window": WINDOW,
        },
    ),
    "lfm2": Architecture(
        "lfm2",
        {
            "num_hidden_layers": 4,
            "layer_types": ["conv", "full_attention", "conv", "full_attention"],
            "block_auto_adjust_ff_dim": False,
        },
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
            "num_hidden_layers": 3,
            "layers_block_type": ["mamba", "hybrid", "mamba"],
            "mamba_d_state": 16,
            "n_mamba_heads": 4,
            "mamba_headdim": 32,
            "num_mem_blocks": 1,
        },
    ),
}
"""By the name in the table."""
