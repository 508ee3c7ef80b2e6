"""A Llama written for fast training on a CPU; its weights convert to the transformers class."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

ROPE_THETA = 10000.0
NORM_EPS = 1e-6


def llama_config(
    vocab_size: int, context_length: int, end_ids: list[int], pad_id: int
) -> LlamaConfig:
    """About two million parameters; head size 32, two query heads to a key head."""
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=32,
        max_position_embeddings=context_length,
        rope_theta=ROPE_THETA,
        rms_norm_eps=NORM_EPS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end_ids[0],
        pad_token_id=pad_id,
        dtype="float32",
    )


class Block(nn.Module):
    """Attention and gated MLP with fused projections."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        self.attention_norm = nn.Parameter(torch.ones(hidden))
        self.mlp_norm = nn.Parameter(torch.ones(hidden))
        self.qkv = nn.Linear(hidden, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=False)
        self.out = nn.Linear(self.heads * self.head_dim, hidden, bias=False)
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """`x` is [rows, length, hidden], `cos` and `sin` are [length, 1, head_dim / 2]."""
        rows, length, hidden = x.shape
        normed = F.rms_norm(x, (hidden,), self.attention_norm.to(x.dtype), NORM_EPS)
        qkv = self.qkv(normed).view(rows, length, -1, self.head_dim)
        qk, value = qkv.split([self.heads + self.kv_heads, self.kv_heads], 2)
        low, high = qk.chunk(2, -1)
        qk = torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
        query, key = qk.split([self.heads, self.kv_heads], 2)
        group = self.heads // self.kv_heads
        attended = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            key.repeat_interleave(group, 2).transpose(1, 2),
            value.repeat_interleave(group, 2).transpose(1, 2),
            attn_mask=mask,
        )
        x = x + self.out(attended.transpose(1, 2).reshape(rows, length, -1))
        normed = F.rms_norm(x, (hidden,), self.mlp_norm.to(x.dtype), NORM_EPS)
        gate, up = self.gate_up(normed).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class TrainingLlama(nn.Module):
    """Token ids to final hidden states in bfloat16; the embedding is also the output projection."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.Parameter(torch.ones(config.hidden_size))
        half = config.head_dim // 2
        angles = torch.arange(config.max_position_embeddings)[:, None] * ROPE_THETA ** (
            -torch.arange(half) / half
        )
        self.register_buffer("cos", angles.cos()[:, None], persistent=False)
        self.register_buffer("sin", angles.sin()[:, None], persistent=False)
        nn.init.normal_(self.embedding.weight, std=0.04)
        for name, weight in self.blocks.named_parameters():
            if weight.ndim == 2:
                depth = (2 * config.num_hidden_layers) ** 0.5
                std = 0.04 / depth if name.endswith(("out.weight", "down.weight")) else 0.04
                nn.init.normal_(weight, std=std)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """`ids` is [rows, length], `mask` [rows, 1, length, length] is added to the scores.

        Returns [rows, length, hidden].
        """
        length = ids.shape[1]
        with torch.autocast("cpu", torch.bfloat16):
            x = self.embedding(ids).bfloat16()
            cos, sin = self.cos[:length].bfloat16(), self.sin[:length].bfloat16()
            for block in self.blocks:
                x = block(x, cos, sin, mask)
            return F.rms_norm(x, x.shape[-1:], self.norm.bfloat16(), NORM_EPS)

    def losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy of each of the `targets` [rows, length], in float32."""
        logits = hidden @ self.embedding.weight.bfloat16().T
        losses = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
        return losses.view_as(targets)


def to_transformers(model: TrainingLlama, config: LlamaConfig) -> LlamaForCausalLM:
    """The same weights under the names that transformers and optimum-intel know."""
    state = {
        "model.embed_tokens.weight": model.embedding.weight,
        "lm_head.weight": model.embedding.weight,
        "model.norm.weight": model.norm,
    }
    sizes = [config.num_attention_heads * config.head_dim] + 2 * [
        config.num_key_value_heads * config.head_dim
    ]
    for index, block in enumerate(model.blocks):
        prefix = f"model.layers.{index}."
        state[prefix + "input_layernorm.weight"] = block.attention_norm
        state[prefix + "post_attention_layernorm.weight"] = block.mlp_norm
        for name, weight in zip("qkv", block.qkv.weight.split(sizes), strict=True):
            state[f"{prefix}self_attn.{name}_proj.weight"] = weight
        state[prefix + "self_attn.o_proj.weight"] = block.out.weight
        gate, up = block.gate_up.weight.chunk(2)
        state[prefix + "mlp.gate_proj.weight"] = gate
        state[prefix + "mlp.up_proj.weight"] = up
        state[prefix + "mlp.down_proj.weight"] = block.down.weight
    converted = LlamaForCausalLM(config)
    converted.load_state_dict({name: weight.detach().float() for name, weight in state.items()})
    return converted.eval()
