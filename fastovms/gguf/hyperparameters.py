"""Reads the sizes and settings of a decoder from a GGUF file's metadata.

A setting that is not known here is refused by its name: it may well change what the model computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from fastovms.errors import ConfigurationError
from fastovms.gguf.architectures import Architecture, find_architecture
from fastovms.gguf.file_reader import Metadata, Value

_NEUTRAL: Final[Mapping[str, frozenset[Value | None]]] = {
    "attention.causal": frozenset({True}),
    "expert_count": frozenset({0}),
    "expert_used_count": frozenset({0}),
    "pooling_type": frozenset({0}),
}
"""Settings that must say nothing out of the ordinary, and their ordinary values."""

_MAX_LAYERS: Final = 512
"""As in llama.cpp (`LLAMA_MAX_LAYERS`)."""

_MAX_WIDTH: Final = 2**20
"""The most dimensions of all heads together."""

_MAX_COUNT: Final = 2**31 - 1

_IGNORED: Final = frozenset(
    {"vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "feed_forward_length"}
)
"""Settings that change nothing, or that say what the tensors' shapes say."""


@dataclass(frozen=True, slots=True)
class RopeSettings:
    """How positions turn queries and keys, in llama.cpp's terms.

    Attributes:
        num_dimensions: how many dimensions of a head are rotated.
        base: the base of the frequencies.
        scaling: "none", "linear", "yarn" or "longrope", which files need not name that have its
            tensors.
        factor: what positions are divided by.
        original_context: the context for which the model was first trained, in tokens.
        attention_factor: what cosines and sines are multiplied by.
        beta_fast, beta_slow: rotations in the original context between which yarn passes from
            unscaled to scaled frequencies.
        extrapolation: how much of the unscaled frequencies yarn mixes in.
    """

    num_dimensions: int
    base: float
    scaling: str
    factor: float
    original_context: int
    attention_factor: float
    beta_fast: float
    beta_slow: float
    extrapolation: float


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The sizes of a decoder.

    Attributes:
        num_layers, hidden_size, num_heads, num_kv_heads, head_size: as usual.
        context_length: the longest text, in tokens.
        norm_epsilon: the epsilon of the root mean square norms.
        rope: the settings of layers without a window, and of all where `window_rope_base` is None.
        window: tokens that a layer with a sliding window sees, the current one included; 0 = no
            layer has one.
        windowed_layers: whether each layer has a window.
        window_rope_base: the base of the frequencies in layers with a window.
        score_scale: what attention's scores are multiplied by.
        final_soft_cap: the soft cap of the logits; 0 = none.
    """

    name: str
    architecture: Architecture
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    context_length: int
    norm_epsilon: float
    rope: RopeSettings
    window: int
    windowed_layers: tuple[bool, ...]
    window_rope_base: float | None
    score_scale: float
    final_soft_cap: float


def read_hyperparameters(metadata: Metadata) -> Hyperparameters:
    """Reads the sizes and settings of a file's decoder.

    Raises:
        ConfigurationError: the architecture is not one that can be built, a setting is missing or
            wrong, or there is one that is not known.
    """
    name = metadata.get("general.architecture")
    architecture = find_architecture(name)
    settings = _Settings(metadata, str(name))
    _check_kind(metadata)
    num_layers = settings.count("block_count", most=_MAX_LAYERS)
    hidden_size = settings.count("embedding_length")
    num_heads = settings.count("attention.head_count")
    num_kv_heads = settings.count("attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        raise ConfigurationError(f"{num_heads} heads cannot share {num_kv_heads} keys and values")
    head_size = settings.count("attention.key_length", hidden_size // num_heads)
    value_size = settings.count("attention.value_length", hidden_size // num_heads)
    if value_size != head_size:
        raise ConfigurationError(f"values have {value_size} dimensions and keys have {head_size}")
    if num_heads * head_size > _MAX_WIDTH:
        raise ConfigurationError(
            f"{num_heads} heads of {head_size} dimensions have more than {_MAX_WIDTH} in all"
        )
    context_length = settings.count("context_length")
    window = settings.count("attention.sliding_window", 0, least=0)
    if architecture.window_period is None and 0 < window < context_length:
        raise ConfigurationError(f"{name} with a sliding window is not taken")
    if window >= context_length or architecture.window_period is None:
        window = 0
    per_head = head_size
    if num_layers in architecture.scales_by_hidden_size:
        per_head = hidden_size // num_heads
    parameters = Hyperparameters(
        name=str(name),
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        context_length=context_length,
        norm_epsilon=settings.number("attention.layer_norm_rms_epsilon"),
        rope=_rope(settings, architecture, head_size, context_length),
        window=window,
        windowed_layers=_windowed_layers(settings, architecture, num_layers, window),
        window_rope_base=(
            settings.positive("rope.freq_base_swa", 10_000.0)
            if architecture.gives_windows_their_own_rotation
            else None
        ),
        score_scale=per_head**-0.5,
        final_soft_cap=settings.number("final_logit_softcapping", 0.0),
    )
    settings.check_rest()
    return parameters


def _check_kind(metadata: Metadata) -> None:
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise ConfigurationError(f"it is of general.type {kind}, not a model")
    parts = metadata.get("split.count", 0)
    if isinstance(parts, int) and parts > 1:
        raise ConfigurationError(
            f"it is one of {parts} parts: join them (llama-gguf-split --merge)"
        )


def _rope(
    settings: _Settings, architecture: Architecture, head_size: int, context_length: int
) -> RopeSettings:
    num_dimensions = settings.count("rope.dimension_count", head_size)
    if num_dimensions > head_size or num_dimensions % 2:
        raise ConfigurationError(f"rope.dimension_count {num_dimensions} of {head_size} dimensions")
    if architecture.interleaves_rotations and num_dimensions != head_size:
        raise ConfigurationError(f"only {num_dimensions} of {head_size} dimensions are rotated")
    factor = settings.number("rope.scaling.factor", 0.0) or settings.number(
        "rope.scale_linear", 0.0
    )
    scaling = settings.text("rope.scaling.type", "linear")
    if scaling not in ("none", "linear", "yarn", "longrope"):
        raise ConfigurationError(f"rope.scaling.type {scaling} is not known")
    return RopeSettings(
        num_dimensions=num_dimensions,
        base=settings.positive("rope.freq_base", 10_000.0),
        scaling=scaling,
        factor=factor or 1.0,
        original_context=settings.count("rope.scaling.original_context_length", context_length),
        attention_factor=settings.positive("rope.scaling.attn_factor", 1.0)
        * settings.positive("rope.scaling.yarn_attn_factor", 1.0),
        beta_fast=settings.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=settings.positive("rope.scaling.yarn_beta_slow", 1.0),
        extrapolation=settings.number("rope.scaling.yarn_ext_factor", 1.0),
    )


def _windowed_layers(
    settings: _Settings, architecture: Architecture, num_layers: int, window: int
) -> tuple[bool, ...]:
    pattern = settings.take("attention.sliding_window_pattern", None)
    if not window:
        return (False,) * num_layers
    if pattern is None:
        pattern = 0 if architecture.window_period == 1 else architecture.window_period
    if isinstance(pattern, list):
        if len(pattern) < num_layers or not all(isinstance(each, bool) for each in pattern):
            raise ConfigurationError("attention.sliding_window_pattern is not one of all layers")
        return tuple(bool(each) for each in pattern[:num_layers])
    if not isinstance(pattern, int) or pattern < 0:
        raise ConfigurationError(f"attention.sliding_window_pattern {pattern} is not a period")
    # As in llama.cpp, where 0 means all layers and 1 none.
    return tuple(pattern == 0 or layer % pattern < pattern - 1 for layer in range(num_layers))


class _Settings:
    """The settings of an architecture, as far as they have been taken."""

    def __init__(self, metadata: Metadata, architecture: str) -> None:
        prefix = f"{architecture}."
        self._prefix = prefix
        self._left = {
            key.removeprefix(prefix): value
            for key, value in metadata.items()
            if key.startswith(prefix)
        }

    def take(self, name: str, default: Value | None) -> Value | None:
        return self._left.pop(name, default)

    def count(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = _MAX_COUNT
    ) -> int:
        """Returns an integer, or that of a list with one for each layer if all are the same."""
        value = self._left.pop(name, default)
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]
        if value is None:
            raise ConfigurationError(f"{self._prefix}{name} is missing")
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ConfigurationError(
                f"{self._prefix}{name} must be a count of {least} to {most}, not {value}"
            )
        return value

    def positive(self, name: str, default: float) -> float:
        value = self.number(name, default)
        if value == 0:
            raise ConfigurationError(f"{self._prefix}{name} must be above 0")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a finite number that is not negative."""
        value = self._left.pop(name, default)
        if value is None:
            raise ConfigurationError(f"{self._prefix}{name} is missing")
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < inf:
            raise ConfigurationError(f"{self._prefix}{name} must be a number, not {value}")
        return float(value)

    def text(self, name: str, default: str) -> str:
        value = self._left.pop(name, default)
        if not isinstance(value, str):
            raise ConfigurationError(f"{self._prefix}{name} must be a text, not {value}")
        return value

    def check_rest(self) -> None:
        """Raises ConfigurationError: a setting has not been taken and is not neutral."""
        for name, value in sorted(self._left.items()):
            if name in _IGNORED:
                continue
            if isinstance(value, list) or value not in _NEUTRAL.get(name, ()):
                raise ConfigurationError(f"the setting {self._prefix}{name} ({value}) is not taken")
