"""Describes small models of random weights, by the arguments of their configurations."""

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
        "mamba_d_head",
        "moe_intermediate_size",
        "n_embd",
        "word_embed_proj_dim",
    }
)
_FACTORS: Final = frozenset({"long_factor", "short_factor"})
"""One for each pair of a head's rotated numbers."""

EXPERTS: Final[dict[str, Any]] = {"num_experts": 4, "num_experts_per_tok": 2}
LOCAL_EXPERTS: Final[dict[str, Any]] = {"num_local_experts": 4, "num_experts_per_tok": 2}


@dataclass(frozen=True)
class Architecture:
    """A model type of transformers, and what its configuration has beside `_BASE`.

    Attributes:
        needs_cache: whether transformers computes it otherwise without a cache, as where layers
            share keys. Else references are computed without one, since what it holds may be of
            another kind than what is asked of it (as with longrope in transformers 5.5).
        note: what to know of its row in the table.
        transformers: the version with which optimum-intel exports it.
        is_bare: its configuration has other names than `_BASE` for everything.
    """

    model_type: str
    settings: dict[str, Any] = field(default_factory=dict)
    is_bare: bool = False
    needs_cache: bool = False
    note: str = ""
    transformers: str = "4.57"

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
