"""The graph of an EAGLE-3 draft head with random weights, made without torch.

It follows what optimum-intel exports: a decoder layer whose attention takes the normalised
embedding of a token beside the normalised hidden state of the token before, `fc`, which projects
three hidden states of the target to one, and the table `d2t` as an output.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

from bench.random_models.graph import LlamaGraph
from bench.random_models.shapes import Shape
from bench.random_models.weights import Node

NUM_TARGET_LAYERS = 3


class DraftHeadGraph(LlamaGraph):
    """Builds `input_ids, hidden_states, attention_mask, position_ids, beam_idx -> logits, d2t`.

    `hidden_states` is f32 [B, Q, 3 * the target's width].
    """

    def __init__(
        self,
        shape: Shape,
        token_ids: NDArray[np.int64],
        seed: int = 0,
        *,
        target_size: int | None = None,
        weights: Mapping[str, NDArray[np.float32]] | None = None,
        has_table: bool = True,
        has_gammas: bool = True,
    ) -> None:
        """
        Args:
            shape: of the head; its vocabulary is the target's.
            token_ids: the target's id of each token of the head's own vocabulary.
            target_size: the width of the target's hidden states; None = the head's.
            weights: given matrices [rows, columns], by the ends of their names.
            has_table: whether the graph returns `d2t`.
            has_gammas: whether norms have weights other than 1.
        """
        super().__init__(shape, shape.vocab_size, seed)
        self._token_ids = token_ids
        self._target_size = target_size or shape.hidden_size
        self._weights = weights or {}
        self._has_table = has_table
        self._has_gammas = has_gammas
        self._states = ops.parameter([-1, -1, -1], np.float32, name="hidden_states")
        self._states.output(0).set_names({"hidden_states"})
        self._sized = self._states

    def build(self) -> ov.Model:
        size = self._shape.hidden_size
        self._cos, self._sin = self._rotations()
        self._mask: Node = None
        embedded = self._embedding()
        columns = NUM_TARGET_LAYERS * self._target_size
        hidden = self._linear(self._states, size, columns, columns**-0.5, "model.fc")
        name = "model.midlayer"
        joined = ops.concat(
            [
                self._norm(embedded, f"{name}.input_layernorm"),
                self._norm(hidden, f"{name}.hidden_norm"),
            ],
            -1,
        )
        hidden = ops.add(hidden, self._attention(joined, 0, f"{name}.self_attn"))
        normed = self._norm(hidden, f"{name}.post_attention_layernorm")
        hidden = ops.add(hidden, self._mlp(normed, f"{name}.mlp"))
        num_tokens = len(self._token_ids)
        normed = self._norm(hidden, "model.norm")
        logits = self._linear(normed, num_tokens, size, self._head_std, "model.lm_head")
        logits.output(0).set_names({"logits"})
        results = [ops.result(logits, name="logits")]
        if self._has_table:
            table = ops.constant(self._token_ids - np.arange(num_tokens), name="model.d2t")
            table.output(0).set_names({"d2t"})
            results.append(ops.result(table, name="d2t"))
        inputs = [self._input_ids, self._states, self._attention_mask, self._position_ids]
        return ov.Model(results, self._assigns, [*inputs, self._beam_idx], "head")

    def _linear(self, inputs: Node, rows: int, columns: int, std: float, name: str) -> Node:
        given = self._given(name)
        if given is not None:
            return ops.matmul(inputs, ops.constant(given, name=f"{name}.weight"), False, True)
        if name.endswith(("q_proj", "k_proj", "v_proj")):
            columns *= 2
        return super()._linear(inputs, rows, columns, std, name)

    def _residual(self, inputs: Node, columns: int, gain: float, name: str) -> Node:
        given = self._given(name)
        if given is not None:
            return ops.matmul(inputs, ops.constant(given, name=f"{name}.weight"), False, True)
        return super()._residual(inputs, columns, gain, name)

    def _gamma(self, size: int) -> NDArray[np.float32]:
        return super()._gamma(size) if self._has_gammas else np.ones(size, np.float32)

    def _given(self, name: str) -> NDArray[np.float32] | None:
        return next((w for end, w in self._weights.items() if name.endswith(end)), None)
