"""Lists the architectures of GGUF files, and the differences between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from fastovms.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Architecture:
    """How an architecture differs from Qwen 2: a decoder with pre-normed attention and gated MLP
    layers.

    Attributes:
        interleaves_rotations: rotary pairs are neighbouring dimensions, as llama.cpp orders the
            rows of Llama's queries and keys.
        fuses_projections: one tensor holds queries, keys and values, and one holds both halves of
            the gated MLP.
        norms_heads: each head's queries and keys are normed before they are rotated.
        norms_outputs: outputs of attention and MLP are normed before they are added.
        activation: the activation of the gated MLP, by OpenVINO's name.
        scales_embeddings: whether embeddings are multiplied by the square root of their size.
        window_period: in each group of this many layers, all but the last use the sliding window; 1
            = all layers do, if the file sets a window; None = windows are not supported.
        gives_windows_their_own_rotation: layers with a window use another, unscaled RoPE base.
        recurrence: what some layers have instead of attention: "convolution" (LFM 2), "delta" (the
            gated delta rule of Qwen 3 Next) or "scan" (Mamba 2); "" = all layers have attention.
        tiles_heads: value heads of the delta rule alternate between the groups in the file.
        has_scales: the file sets factors of embeddings, scores, layers' results and logits, and
            `rope.scaling.finetuned` says whether queries and keys are rotated, as in Granite.
        gates_attention: the query projection returns a gate for each head, too.
        norms_projections: queries, and keys, of all heads are normed together before RoPE.
        mlp_norm: the name of the norm before the MLP or the experts.
        has_sinks: attention has sinks, and experts have biases and a limit, as in gpt-oss.
        last_norm: the name of the norm before the output.
        has_experts: layers have a mixture of experts instead of one MLP; None = if the file sets
            `expert_count`.
        shared_experts: "gated" = each layer has a shared expert, times the sigmoid of a gate;
            "plain" = without a gate, if the file sets its size; "" = none.
        expert_gating: the value of `expert_gating_func`: 1 = softmax, 2 = sigmoid.
        normalizes_shares: the routing weights of the chosen experts are normalized to sum 1.
        scales_by_hidden_size: numbers of layers (model sizes) at which scores are divided by the
            square root of hidden size per head instead of the head size.
    """

    interleaves_rotations: bool = False
    fuses_projections: bool = False
    norms_heads: bool = False
    norms_outputs: bool = False
    activation: str = "Swish"
    scales_embeddings: bool = False
    window_period: int | None = None
    gives_windows_their_own_rotation: bool = False
    recurrence: str = ""
    tiles_heads: bool = False
    has_scales: bool = False
    gates_attention: bool = False
    norms_projections: bool = False
    mlp_norm: str = "ffn_norm"
    has_sinks: bool = False
    last_norm: str = "output_norm"
    has_experts: bool | None = False
    normalizes_shares: bool = False
    shared_experts: str = ""
    expert_gating: int = 1
    scales_by_hidden_size: frozenset[int] = frozenset()


_QWEN3_NEXT: Final = Architecture(
    norms_heads=True,
    gates_attention=True,
    recurrence="delta",
    mlp_norm="post_attention_norm",
    has_experts=True,
    normalizes_shares=True,
    shared_experts="gated",
)
_LFM2: Final = Architecture(norms_heads=True, recurrence="convolution", last_norm="token_embd_norm")
_GRANITE: Final = Architecture(
    interleaves_rotations=True,
    has_scales=True,
    has_experts=None,
    normalizes_shares=True,
    shared_experts="plain",
)

ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    # Llama 1 to 3, Mistral, Mixtral and models of the same architecture.
    "llama": Architecture(
        interleaves_rotations=True, window_period=1, has_experts=None, normalizes_shares=True
    ),
    "qwen2": Architecture(),
    "qwen2moe": Architecture(has_experts=True, shared_experts="gated"),
    "qwen3": Architecture(norms_heads=True),
    "qwen3moe": Architecture(norms_heads=True, has_experts=True, normalizes_shares=True),
    "qwen3next": _QWEN3_NEXT,
    "qwen35": replace(_QWEN3_NEXT, tiles_heads=True, has_experts=False, shared_experts=""),
    "qwen35moe": replace(_QWEN3_NEXT, tiles_heads=True),
    "granite": _GRANITE,
    "granitemoe": _GRANITE,
    "granitehybrid": replace(_GRANITE, recurrence="scan"),
    "olmoe": Architecture(norms_projections=True, has_experts=True),
    "phi3": Architecture(fuses_projections=True, window_period=1),
    "gemma": Architecture(activation="Gelu", scales_embeddings=True),
    "gemma3": Architecture(
        norms_heads=True,
        norms_outputs=True,
        activation="Gelu",
        scales_embeddings=True,
        window_period=6,
        gives_windows_their_own_rotation=True,
        scales_by_hidden_size=frozenset({62}),  # the number of layers of the 27B model
    ),
    "gpt-oss": Architecture(
        mlp_norm="post_attention_norm", has_sinks=True, has_experts=True, window_period=2
    ),
    "lfm2": _LFM2,
    "lfm2moe": replace(_LFM2, has_experts=True, normalizes_shares=True, expert_gating=2),
}
"""The supported architectures, by `general.architecture`."""

_REFUSED: Final[Mapping[str, str]] = {
    "gemma2": "its attention has a soft cap, which OpenVINO's paged attention cannot compute",
}
"""Well-known architectures that are not supported, and the reason for each."""


def find_architecture(name: object) -> Architecture:
    """Returns the architecture of this name. Raises ConfigurationError if it is not supported."""
    if not isinstance(name, str):
        raise ConfigurationError("general.architecture is missing")
    if name in _REFUSED:
        raise ConfigurationError(f"architecture {name} is not supported: {_REFUSED[name]}")
    if name not in ARCHITECTURES:
        taken = ", ".join(ARCHITECTURES)
        raise ConfigurationError(f"architecture {name} is not supported; supported are {taken}")
    return ARCHITECTURES[name]
