"""The shapes of models to make: those of well-known ones, and tiny ones for tests."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Shape:
    """A Llama-shaped model, named as in Hugging Face's configurations.

    Attributes:
        head_dim: 0 = what `hidden_size` leaves for each head.
        attention_bias: the projections to queries, keys and values have one (Qwen2).
        qk_norm: queries and keys are normalised before they are rotated (Qwen3).
        sliding_window: how many tokens each may see, itself among them; None = all (Mistral).
        num_experts: of each layer's mixture, with inner sizes of `intermediate_size` (Qwen3-MoE);
            0 = a layer has one MLP.
        num_experts_per_tok: how many of them each token takes.
        shared_expert: whether each token takes another one, too, times the sigmoid of a gate
            (Qwen3.5-MoE).
        convolutions: the layers whose attention is replaced by a short convolution (LFM 2).
        conv_tokens: how many tokens it spans.
        weight_format: of the matrices, one of `bench.random_models.weights.WEIGHT_FORMATS`: fp32,
            fp16, int8, or int4 with more after it (the embedding and the head are int8 then).
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    max_position_embeddings: int = 8192
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    head_dim: int = 0
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    num_experts: int = 0
    num_experts_per_tok: int = 2
    shared_expert: bool = False
    convolutions: tuple[int, ...] = ()
    conv_tokens: int = 3
    weight_format: str = "int8"

    def __post_init__(self) -> None:
        if not self.head_dim:
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)


_TINY = Shape(64, 160, 2, 4, 2, 512, max_position_embeddings=2048)

SHAPES = {
    "tiny": _TINY,
    # The four below differ from each other in everything that the engine could trip over.
    "tiny-qwen2": replace(
        _TINY, vocab_size=1700, attention_bias=True, tie_word_embeddings=True, weight_format="int4"
    ),
    "tiny-qwen3": Shape(
        96, 224, 3, 6, 1, 2048, 4096, 1_000_000.0, 1e-6, 32, qk_norm=True, weight_format="fp16"
    ),
    "tiny-mistral": replace(_TINY, sliding_window=40, num_key_value_heads=4, num_hidden_layers=3),
    "tiny-fp32": Shape(
        48, 100, 1, 3, 3, 1537, 1024, tie_word_embeddings=True, weight_format="fp32"
    ),
    "tiny-moe": replace(_TINY, intermediate_size=96, num_experts=6, qk_norm=True),
    "tiny-lfm2": replace(_TINY, num_hidden_layers=4, qk_norm=True, convolutions=(0, 2)),
    "demo": Shape(192, 512, 4, 6, 2, 1536, max_position_embeddings=2048),  # fastovms/demo_model
    "135m": Shape(576, 1536, 30, 9, 3, 49_152),  # SmolLM2-135M
    "360m": Shape(960, 2560, 32, 15, 5, 49_152),  # SmolLM2-360M
    "0.5b": Shape(896, 4864, 24, 14, 2, 151_936, rope_theta=1_000_000.0),  # Qwen2.5-0.5B
    "lfm2-350m": Shape(
        1024,
        4608,
        16,
        16,
        8,
        65_536,
        rope_theta=1_000_000.0,
        qk_norm=True,
        tie_word_embeddings=True,
        convolutions=(0, 1, 3, 4, 6, 7, 9, 11, 13, 15),
        weight_format="int4-sym-64",
    ),  # LFM2-350M
    "moe-700m": Shape(
        1024,
        512,
        12,
        16,
        4,
        49_152,
        rope_theta=1_000_000.0,
        qk_norm=True,
        num_experts=32,
        num_experts_per_tok=4,
        weight_format="int4-sym-64",
    ),  # the ratios of Qwen3-30B-A3B
    "1b": Shape(2048, 8192, 16, 32, 8, 128_256, rope_theta=500_000.0),  # Llama-3.2-1B
}
