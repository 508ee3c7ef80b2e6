"""Tables how the decoders that are built from GGUF files differ from each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fastovms.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Architecture:
    """How a decoder of pre-normed attention and gated MLP layers differs from that of Qwen 2.

    Attributes:
        interleaves_rotations: the file has rotary dimensions in pairs of neighbours, as llama.cpp
            orders the rows of Llama's queries and keys.
        fuses_projections: one tensor holds queries, keys and values, and one both halves of the
            gated MLP.
        norms_heads: each head's queries and keys are normed before they are rotated.
        norms_outputs: what attention and MLP give is normed before it is added.
        activation: the gated MLP's, by OpenVINO's name of it.
        scales_embeddings: whether embeddings are multiplied by the square root of their size.
        window_period: of so many layers all but the last see the sliding window only; 1 = all
            layers do, where the file names a window; None = none does, and no file may name one.
        gives_windows_their_own_rotation: layers with a window rotate by another base, unscaled.
        scales_by_hidden_size: depths, in layers, at which scores are divided by the square root of
            hidden size per head, not of the size of a head.
    """

    interleaves_rotations: bool = False
    fuses_projections: bool = False
    norms_heads: bool = False
    norms_outputs: bool = False
    activation: str = "Swish"
    scales_embeddings: bool = False
    window_period: int | None = None
    gives_windows_their_own_rotation: bool = False
    scales_by_hidden_size: frozenset[int] = frozenset()


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    # Llama 1 to 3, Mistral and what else has their form.
    "llama": Architecture(interleaves_rotations=True, window_period=1),
    "qwen2": Architecture(),
    "qwen3": Architecture(norms_heads=True),
    "phi3": Architecture(fuses_projections=True, window_period=1),
    "gemma": Architecture(activation="Gelu", scales_embeddings=True),
    "gemma3": Architecture(
        norms_heads=True,
        norms_outputs=True,
        activation="Gelu",
        scales_embeddings=True,
        window_period=6,
        gives_windows_their_own_rotation=True,
        scales_by_hidden_size=frozenset({62}),  # that of 27B
    ),
}
"""The architectures that are built, by `general.architecture`."""

_REFUSED: Final[Mapping[str, str]] = {
    "gemma2": "its attention has a soft cap, which OpenVINO's paged attention cannot compute",
}
"""Architectures that might be expected, and why they are not taken."""


def find_architecture(name: object) -> Architecture:
    """Returns an architecture.

    Raises:
        ConfigurationError: it is not one that can be built.
    """
    if not isinstance(name, str):
        raise ConfigurationError("it names no general.architecture")
    if name in _REFUSED:
        raise ConfigurationError(f"architecture {name} is not taken: {_REFUSED[name]}")
    if name not in ARCHITECTURES:
        taken = ", ".join(ARCHITECTURES)
        raise ConfigurationError(f"architecture {name} is not taken; those taken are {taken}")
    return ARCHITECTURES[name]
