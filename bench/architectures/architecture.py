"""Describes small models with random weights by the arguments of their configurations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

CONTEXT: Final = 256
"""The context length in tokens."""

LONGEST_TEXT: Final = 160
"""A sufficient context length for models whose graph contains a square table of it."""

WINDOW: Final = 24
SHORT_CONTEXT: Final = 64
"""The number of tokens for which a model with scaled positions was trained without scaling."""

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
        "mamba_d_head",
        "moe_intermediate_size",
        "n_embd",
        "word_embed_proj_dim",
    }
)
_FACTORS: Final = frozenset({"long_factor", "short_factor"})
"""One scaling factor for each pair of rotated dimensions of a head."""

EXPERTS: Final[dict[str, Any]] = {"num_experts": 4, "num_experts_per_tok": 2}
LOCAL_EXPERTS: Final[dict[str, Any]] = {"num_local_experts": 4, "num_experts_per_tok": 2}


@dataclass(frozen=True)
class Architecture:
    """A model type of transformers, with the fields of its configuration that differ from `_BASE`.

    Attributes:
        needs_cache: whether the references must be generated with transformers' cache, because
            results differ without one (for example where layers share keys). Other references are
            generated without a cache, because some caches of transformers 5.5 give wrong results
            (longrope).
        note: a remark for its row of the table.
        transformers: the version of transformers with which optimum-intel exports it.
        is_bare: whether its configuration shares no field with `_BASE`.
    """

    model_type: str
    settings: dict[str, Any] = field(default_factory=dict)
    is_bare: bool = False
    needs_cache: bool = False
    note: str = ""
    transformers: str = "4.57"

    def config(self, vocab_size: int, *, narrow: bool = False) -> dict[str, Any]:
        """Returns the arguments of its configuration, with half the widths if `narrow` is set."""
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


def rope(rope_type: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_scaling": {"rope_type": rope_type, **parameters}}


def longrope(**parameters: Any) -> dict[str, Any]:
    return {
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0 + 0.1 * i for i in range(8)],
            "long_factor": [1.5 + 0.5 * i for i in range(8)],
            **parameters,
        },
        "original_max_position_embeddings": SHORT_CONTEXT,
    }


GPT2: Final[dict[str, Any]] = {
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
