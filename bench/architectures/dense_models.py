"""Lists the models whose layers have attention and one MLP."""

from __future__ import annotations

from typing import Final

from bench.architectures.architecture import (
    CONTEXT,
    GPT2,
    LONGEST_TEXT,
    SHORT_CONTEXT,
    WINDOW,
    Architecture,
    longrope,
    rope,
)

DENSE_MODELS: Final[dict[str, Architecture]] = {
    "llama": Architecture("llama"),
    "llama, rope llama3": Architecture(
        "llama",
        rope(
            "llama3",
            factor=4.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=SHORT_CONTEXT,
        ),
    ),
    "llama, rope linear": Architecture("llama", rope("linear", factor=4.0)),
    "llama, rope yarn": Architecture(
        "llama", rope("yarn", factor=4.0, original_max_position_embeddings=SHORT_CONTEXT)
    ),
    "llama, rope dynamic": Architecture(
        "llama",
        {**rope("dynamic", factor=4.0), "max_position_embeddings": SHORT_CONTEXT},
        note="up to the unscaled length",
    ),
    "mistral": Architecture("mistral", {"sliding_window": None}),
    "mistral, window": Architecture("mistral", {"sliding_window": WINDOW}),
    "qwen2": Architecture("qwen2"),
    "qwen2, window": Architecture(
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 1,
        },
    ),
    "qwen3": Architecture("qwen3", {"head_dim": 16}),
    "gemma": Architecture("gemma", {"head_dim": 16}),
    "gemma2": Architecture(
        "gemma2",
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 50.0,
        },
    ),
    "gemma2, stronger soft caps": Architecture(
        "gemma2",
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 5.0,
        },
        note="of 5, not 50",
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
    "gemma3n, window": Architecture(
        "gemma3n_text",
        {
            "head_dim": 16,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "sliding_window": WINDOW,
            "laurel_rank": 8,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": 1536,
        },
        needs_cache=True,
        transformers="5.0",
    ),
    "phi": Architecture("phi", {"num_key_value_heads": 4}),
    "phi3": Architecture("phi3", {"sliding_window": None}),
    "phi3, window": Architecture("phi3", {"sliding_window": WINDOW}),
    "phi3, longrope": Architecture("phi3", {**longrope(), "sliding_window": None}),
    "gpt2": Architecture("gpt2", GPT2, is_bare=True),
    "gpt_bigcode": Architecture("gpt_bigcode", GPT2, is_bare=True),
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
    "gptj": Architecture("gptj", {**GPT2, "rotary_dim": 8}, is_bare=True),
    "codegen": Architecture("codegen", {**GPT2, "rotary_dim": 8}, is_bare=True),
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
    "arcee": Architecture("arcee"),
    "hunyuan_v1_dense": Architecture("hunyuan_v1_dense", {"head_dim": 16}),
    "bitnet": Architecture("bitnet"),
}
"""The architectures by their names in the table."""
