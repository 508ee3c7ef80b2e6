"""Reads the sizes and settings of a GGUF file's decoder."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from fastovms.errors import ConfigurationError
from fastovms.gguf.architectures import Architecture, find_architecture
from fastovms.gguf.reader import Metadata, Value

_NEUTRAL: Final[Mapping[str, frozenset[Value | None]]] = {
    "attention.causal": frozenset({True}),
    "expert_count": frozenset({0}),
    "expert_used_count": frozenset({0}),
    "pooling_type": frozenset({0}),
}
"""Settings that are supported only with their neutral values."""

_MAX_LAYERS: Final = 512
"""As in llama.cpp (`LLAMA_MAX_LAYERS`)."""

_MAX_CONVOLUTION: Final = 64
"""The maximum number of tokens that a convolution spans; those of LFM 2 span 3."""

_MAX_EXPERTS: Final = 512
"""As in llama.cpp (`LLAMA_MAX_EXPERTS`)."""

_MAX_WIDTH: Final = 2**20
"""The maximum number of dimensions of all heads together."""

_MAX_COUNT: Final = 2**31 - 1

_IGNORED: Final = frozenset(
    {
        "vocab_size",
        "tensor_data_layout",
        "rope.scaling.finetuned",
        "feed_forward_length",
        "expert_feed_forward_length",
    }
)
"""Settings that have no effect, or repeat what the tensors' shapes show."""


@dataclass(frozen=True, slots=True)
class RopeSettings:
    """The RoPE parameters, in llama.cpp's terms.

    Attributes:
        num_dimensions: the number of rotated dimensions of a head.
        scaling: "none", "linear", "yarn" or "longrope". Files with longrope's tensors may omit it.
        factor: the divisor of positions.
        original_context: the context length of the original training, in tokens.
        attention_factor: the factor of cosines and sines.
        beta_fast, beta_slow: rotations in the original context between which yarn passes from
            unscaled to scaled frequencies.
        extrapolation: the share of unscaled frequencies in yarn, 0 to 1.
        rounds_yarn: whether the two dimensions at these rotations are rounded to integers.
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
    rounds_yarn: bool


@dataclass(frozen=True, slots=True)
class ExpertSettings:
    """The sizes of a mixture-of-experts layer.

    Attributes:
        num_experts: the number of experts.
        num_chosen: the number of experts per token.
        num_dense_layers: the number of first layers that have one MLP.
        has_shared: whether each layer has a shared expert.
    """

    num_experts: int
    num_chosen: int
    num_dense_layers: int
    has_shared: bool


@dataclass(frozen=True, slots=True)
class RecurrentSettings:
    """The sizes of the layers without attention. Those of short convolutions have a span only.

    Attributes:
        num_columns: the number of tokens that a convolution spans.
        num_groups: of heads: those of queries and keys of the delta rule, and those that share a
            state's inputs and outputs in Mamba 2.
        num_heads: the number of heads of values.
        state_size: the dimensions of a query and a key, or the size of a state.
        value_size: the dimensions of a value.
    """

    num_columns: int
    num_groups: int = 0
    num_heads: int = 0
    state_size: int = 0
    value_size: int = 0


@dataclass(frozen=True, slots=True)
class Scales:
    """What is multiplied.

    Attributes:
        scores: the factor of attention scores.
        embeddings, results: the factors of embeddings, and of what attention and MLPs return.
        logits: the divisor of the logits.
    """

    scores: float
    embeddings: float
    results: float = 1.0
    logits: float = 1.0


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The sizes and settings of a decoder.

    Attributes:
        num_draft_layers: the number of layers behind these that only draft tokens.
        num_layers, hidden_size, num_heads, num_kv_heads, head_size: the sizes of the model.
        context_length: the maximum length of a sequence in tokens.
        norm_epsilon: the epsilon of RMS norms.
        rope: the RoPE parameters of layers without a window, and of all layers if
            `window_rope_base` is None.
        window: the size of the sliding window in tokens, including the current one; 0 = none.
        windowed_layers: whether each layer has a window.
        recurrent_layers: whether each layer has no attention.
        recurrent: the sizes of these layers; None = all layers have attention.
        rotates: whether attention rotates queries and keys.
        window_rope_base: the RoPE base of layers with a window; None = as in the other layers.
        final_soft_cap: the soft cap of the logits; 0 = none.
        experts: None = each layer has one MLP.
    """

    name: str
    architecture: Architecture
    num_draft_layers: int
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
    recurrent_layers: tuple[bool, ...]
    recurrent: RecurrentSettings | None
    rotates: bool
    window_rope_base: float | None
    scales: Scales
    final_soft_cap: float
    experts: ExpertSettings | None


def read_hyperparameters(metadata: Metadata) -> Hyperparameters:
    """Reads the sizes and settings of a decoder. Raises ConfigurationError if the architecture is
    not supported, or a setting is missing, invalid or unknown. Unknown settings are refused because
    they may change the model's results."""
    name = metadata.get("general.architecture")
    architecture = find_architecture(name)
    settings = _Settings(metadata, str(name))
    _check_kind(metadata)
    num_layers = settings.count("block_count", most=_MAX_LAYERS)
    num_draft_layers = _draft_layers(settings, architecture, num_layers)
    num_layers -= num_draft_layers
    hidden_size = settings.count("embedding_length")
    num_heads = settings.count("attention.head_count")
    recurrent_layers = _recurrent_layers(settings, architecture, num_layers, num_draft_layers)
    num_kv_heads = settings.count("attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        raise ConfigurationError(
            f"{num_heads} query heads cannot share {num_kv_heads} KV heads: not a multiple"
        )
    head_size = settings.count("attention.key_length", hidden_size // num_heads)
    value_size = settings.count("attention.value_length", hidden_size // num_heads)
    if value_size != head_size:
        raise ConfigurationError(
            f"attention.value_length is {value_size}, but must be attention.key_length, {head_size}"
        )
    if num_heads * head_size > _MAX_WIDTH:
        raise ConfigurationError(
            f"{num_heads} heads of {head_size} dimensions have more than {_MAX_WIDTH} in all"
        )
    context_length = settings.count("context_length")
    window = settings.count("attention.sliding_window", 0, least=0)
    if architecture.window_period is None and 0 < window < context_length:
        raise ConfigurationError(f"{name} with a sliding window is not supported")
    if window >= context_length or architecture.window_period is None:
        window = 0
    per_head = head_size
    if num_layers in architecture.scales_by_hidden_size:
        per_head = hidden_size // num_heads
    parameters = Hyperparameters(
        name=str(name),
        architecture=architecture,
        num_draft_layers=num_draft_layers,
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
        recurrent_layers=recurrent_layers,
        recurrent=_recurrent(settings, architecture),
        rotates=not architecture.has_scales or settings.flag("rope.scaling.finetuned", True),
        window_rope_base=(
            settings.positive("rope.freq_base_swa", 10_000.0)
            if architecture.gives_windows_their_own_rotation
            else None
        ),
        scales=_scales(settings, architecture, hidden_size, per_head),
        final_soft_cap=settings.number("final_logit_softcapping", 0.0),
        experts=_experts(settings, architecture, num_layers),
    )
    settings.check_rest()
    return parameters


def _check_kind(metadata: Metadata) -> None:
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise ConfigurationError(f"general.type must be model, not {kind}")


def _draft_layers(settings: _Settings, architecture: Architecture, num_layers: int) -> int:
    """Returns the number of last layers that only draft tokens, which are not built."""
    if architecture.recurrence != "delta":
        return 0
    return settings.count("nextn_predict_layers", 0, least=0, most=num_layers - 1)


def _recurrent_layers(
    settings: _Settings, architecture: Architecture, num_layers: int, num_draft_layers: int
) -> tuple[bool, ...]:
    """Returns whether each layer has no attention. Replaces a list of KV heads by the number of KV
    heads of the other layers. As in llama.cpp, a list of the layers, which includes those that only
    draft, is preferred to an interval."""
    if not architecture.recurrence:
        return (False,) * num_layers
    if architecture.recurrence == "delta":
        period = settings.count("full_attention_interval", 4)
        listed = settings.take("attention.recurrent_layers", None)
        if listed is None:
            return tuple((layer + 1) % period != 0 for layer in range(num_layers))
        values = listed if isinstance(listed, list) else [listed]
        flags = [each for each in values if isinstance(each, bool)]
        is_whole = len(flags) == len(values) == num_layers + num_draft_layers
        if not is_whole or all(flags[:num_layers]):
            raise ConfigurationError(
                f"attention.recurrent_layers must have a boolean for each of {num_layers} layers "
                f"and {num_draft_layers} draft layers, not all of them true, not "
                f"{reprlib.repr(listed)}"
            )
        return tuple(flags[:num_layers])
    heads = settings.take("attention.head_count_kv", None)
    if not isinstance(heads, list):
        settings.put_back("attention.head_count_kv", heads)
        return (False,) * num_layers
    if len(heads) != num_layers or not any(heads):
        raise ConfigurationError(
            f"attention.head_count_kv must have a number for each of {num_layers} layers, not all "
            f"of them 0, not {reprlib.repr(heads)}"
        )
    settings.put_back("attention.head_count_kv", [each for each in heads if each != 0])
    return tuple(each == 0 for each in heads)


def _scales(
    settings: _Settings, architecture: Architecture, hidden_size: int, per_head: int
) -> Scales:
    scores = per_head**-0.5
    if not architecture.has_scales:
        return Scales(scores, hidden_size**0.5 if architecture.scales_embeddings else 1.0)
    return Scales(
        settings.positive("attention.scale", scores),
        settings.positive("embedding_scale", 1.0),
        settings.positive("residual_scale", 1.0),
        settings.positive("logit_scale", 1.0),
    )


def _recurrent(settings: _Settings, architecture: Architecture) -> RecurrentSettings | None:
    if not architecture.recurrence:
        return None
    if architecture.recurrence == "convolution":
        return RecurrentSettings(settings.count("shortconv.l_cache", most=_MAX_CONVOLUTION))
    num_heads = settings.count("ssm.time_step_rank", most=_MAX_WIDTH)
    num_groups = settings.count("ssm.group_count", most=num_heads)
    inner_size = settings.count("ssm.inner_size", most=_MAX_WIDTH)
    state_size = settings.count("ssm.state_size", most=_MAX_WIDTH // num_groups)
    if inner_size % num_heads or num_heads % num_groups:
        raise ConfigurationError(
            f"ssm.inner_size {inner_size} and ssm.group_count {num_groups} do not go with the "
            f"{num_heads} heads of ssm.time_step_rank"
        )
    return RecurrentSettings(
        settings.count("ssm.conv_kernel", most=_MAX_CONVOLUTION),
        num_groups,
        num_heads,
        state_size,
        inner_size // num_heads,
    )


def _experts(
    settings: _Settings, architecture: Architecture, num_layers: int
) -> ExpertSettings | None:
    has_experts = architecture.has_experts
    if has_experts is None:
        has_experts = settings.has("expert_count")
    if not has_experts:
        return None
    num_experts = settings.count("expert_count", most=_MAX_EXPERTS)
    gating = settings.count("expert_gating_func", architecture.expert_gating)
    if gating != architecture.expert_gating:
        raise ConfigurationError(
            f"expert_gating_func must be {architecture.expert_gating}, not {gating}"
        )
    shared_size = settings.count("expert_shared_feed_forward_length", 0, least=0)
    return ExpertSettings(
        num_experts,
        settings.count("expert_used_count", most=num_experts),
        settings.count("leading_dense_block_count", 0, least=0, most=num_layers),
        architecture.shared_experts == "gated"
        or (architecture.shared_experts == "plain" and shared_size > 0),
    )


def _rope(
    settings: _Settings, architecture: Architecture, head_size: int, context_length: int
) -> RopeSettings:
    num_dimensions = settings.count("rope.dimension_count", head_size)
    if num_dimensions > head_size or num_dimensions % 2:
        raise ConfigurationError(
            f"rope.dimension_count {num_dimensions} is not possible for heads of "
            f"{head_size} dimensions"
        )
    if architecture.interleaves_rotations and num_dimensions != head_size:
        raise ConfigurationError(
            f"only {num_dimensions} of {head_size} dimensions are rotated, which is not supported"
        )
    _check_sections(settings, num_dimensions)
    factor = settings.number("rope.scaling.factor", 0.0) or settings.number(
        "rope.scale_linear", 0.0
    )
    scaling = settings.text("rope.scaling.type", "linear")
    if scaling not in ("none", "linear", "yarn", "longrope"):
        raise ConfigurationError(
            f"rope.scaling.type must be none, linear, yarn or longrope, not {scaling}"
        )
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
        rounds_yarn=not architecture.has_sinks,  # gpt-oss's own configuration says so
    )


def _check_sections(settings: _Settings, num_dimensions: int) -> None:
    """Raises ConfigurationError if a token of a text has not one position in all dimensions. Those
    of images have several positions, each in some sections of the dimensions."""
    sections = settings.take("rope.dimension_sections", None)
    if sections is None:
        return
    counts = (
        [each for each in sections if isinstance(each, int)] if isinstance(sections, list) else []
    )
    if sum(counts[:3]) != num_dimensions // 2 or any(counts[3:]):
        raise ConfigurationError(
            f"rope.dimension_sections {reprlib.repr(sections)} must add up to {num_dimensions // 2}"
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
            raise ConfigurationError(
                "attention.sliding_window_pattern must have a boolean for each layer"
            )
        return tuple(bool(each) for each in pattern[:num_layers])
    if not isinstance(pattern, int) or pattern < 0:
        raise ConfigurationError(
            f"attention.sliding_window_pattern must be a number of layers, not {pattern}"
        )
    # As in llama.cpp, where 0 means all layers and 1 none.
    return tuple(pattern == 0 or layer % pattern < pattern - 1 for layer in range(num_layers))


class _Settings:
    """Reads the settings of a file's architecture, and records which ones were read."""

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

    def put_back(self, name: str, value: Value | None) -> None:
        if value is not None:
            self._left[name] = value

    def count(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = _MAX_COUNT
    ) -> int:
        """Returns an integer setting. A list with one value per layer is accepted if all values are
        equal."""
        value = self._left.pop(name, default)
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]
        if value is None:
            raise ConfigurationError(f"{self._prefix}{name} is missing")
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ConfigurationError(
                f"{self._prefix}{name} must be a count of {least} to {most}, not "
                f"{reprlib.repr(value)}"
            )
        return value

    def has(self, name: str) -> bool:
        """Returns whether a setting says something, and not 0."""
        return bool(self._left.get(name))

    def flag(self, name: str, default: bool) -> bool:
        value = self._left.pop(name, default)
        if not isinstance(value, bool):
            raise ConfigurationError(f"{self._prefix}{name} must be a boolean, not {value}")
        return value

    def positive(self, name: str, default: float) -> float:
        value = self.number(name, default)
        if value == 0:
            raise ConfigurationError(f"{self._prefix}{name} must be above 0")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a setting that is a finite, non-negative number."""
        value = self._left.pop(name, default)
        if value is None:
            raise ConfigurationError(f"{self._prefix}{name} is missing")
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < inf:
            raise ConfigurationError(f"{self._prefix}{name} must be a number, not {value}")
        return float(value)

    def text(self, name: str, default: str) -> str:
        value = self._left.pop(name, default)
        if not isinstance(value, str):
            raise ConfigurationError(f"{self._prefix}{name} must be a string, not {value}")
        return value

    def check_rest(self) -> None:
        """Raises ConfigurationError if a setting was not read and does not have its neutral
        value."""
        for name, value in sorted(self._left.items()):
            if name in _IGNORED:
                continue
            if isinstance(value, list) or value not in _NEUTRAL.get(name, ()):
                raise ConfigurationError(
                    f"the setting {self._prefix}{name} ({value}) is not supported"
                )
