"""The graphs of draft heads with random weights, made without torch: EAGLE-3's, and a model's own.

They follow what optimum-intel exports. EAGLE-3's is a decoder layer whose attention takes the
normalised embedding of a token beside the normalised hidden state of the token before, `fc`, which
projects three hidden states of the target to one, and the table `d2t` as an output. In a model's
own head `fc` projects the normalised embedding and hidden state to the input of a plain layer.
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


class _HeadGraph(LlamaGraph):
    """Takes hidden states, and some of its matrices as they are given."""

    _NUM_JOINED = 1
    """The number of hidden states that attention takes, side by side."""

    def __init__(
        self,
        shape: Shape,
        seed: int,
        weights: Mapping[str, NDArray[np.float32]] | None,
        *,
        has_gammas: bool,
    ) -> None:
        """
        Args:
            weights: given matrices [rows, columns], by the ends of their names.
            has_gammas: whether norms have weights other than 1.
        """
        super().__init__(shape, shape.vocab_size, seed)
        self._weights = weights or {}
        self._has_gammas = has_gammas
        self._states = self._float_input("hidden_states", -1)
        self._sized = self._states

    @staticmethod
    def _float_input(name: str, width: int) -> Node:
        given = ops.parameter([-1, -1, width], np.float32, name=name)
        given.output(0).set_names({name})
        return given

    def _linear(self, inputs: Node, rows: int, columns: int, std: float, name: str) -> Node:
        given = self._given(name)
        if given is not None:
            return ops.matmul(inputs, ops.constant(given, name=f"{name}.weight"), False, True)
        if name.endswith(("q_proj", "k_proj", "v_proj")):
            columns *= self._NUM_JOINED
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


class OwnHeadGraph(_HeadGraph):
    """Builds `hidden_states, inputs_embeds, attention_mask, position_ids, beam_idx ->
    last_hidden_state` (multi-token prediction). The first two are f32 [B, Q, the model's width]."""

    def __init__(
        self,
        shape: Shape,
        seed: int = 0,
        *,
        weights: Mapping[str, NDArray[np.float32]] | None = None,
        has_gammas: bool = True,
    ) -> None:
        super().__init__(shape, seed, weights, has_gammas=has_gammas)

    def build(self) -> ov.Model:
        size = self._shape.hidden_size
        self._states.set_partial_shape(ov.PartialShape([-1, -1, size]))
        embedded = self._float_input("inputs_embeds", size)
        self._cos, self._sin = self._rotations()
        self._mask: Node = None
        joined = ops.concat(
            [
                self._norm(embedded, "pre_fc_norm_embedding"),
                self._norm(self._states, "pre_fc_norm_hidden"),
            ],
            -1,
        )
        hidden = self._linear(joined, size, 2 * size, (2 * size) ** -0.5, "fc")
        normed = self._norm(hidden, "layers.0.input_layernorm")
        hidden = ops.add(hidden, self._attention(normed, 0, "layers.0.self_attn"))
        normed = self._norm(hidden, "layers.0.post_attention_layernorm")
        hidden = self._norm(ops.add(hidden, self._mlp(normed, "layers.0.mlp")), "norm")
        hidden.output(0).set_names({"last_hidden_state"})
        result = ops.result(hidden, name="last_hidden_state")
        inputs = [self._states, embedded, self._attention_mask, self._position_ids]
        return ov.Model([result], self._assigns, [*inputs, self._beam_idx], "mtp")

    def _cached(self, new: Node, layer: int, kind: str) -> Node:
        """Converts keys and values to bfloat16 and back, as in a head in that type."""
        narrow = ops.convert(new, ov.Type.bf16)
        return super()._cached(ops.convert(narrow, np.float32), layer, kind)


class DraftHeadGraph(_HeadGraph):
    """Builds `input_ids, hidden_states, attention_mask, position_ids, beam_idx -> logits, d2t`.

    `hidden_states` is f32 [B, Q, 3 * the target's width].
    """

    _NUM_JOINED = 2

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
            weights, has_gammas: see `_HeadGraph`.
            has_table: whether the graph returns `d2t`.
        """
        super().__init__(shape, seed, weights, has_gammas=has_gammas)
        self._token_ids = token_ids
        self._target_size = target_size or shape.hidden_size
        self._has_table = has_table

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
