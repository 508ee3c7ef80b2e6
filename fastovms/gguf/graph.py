"""Builds an OpenVINO graph from a GGUF file."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13
from openvino.op import util
from openvino.utils.node_factory import NodeFactory

from fastovms.errors import ConfigurationError
from fastovms.gguf.hyperparameters import ExpertSettings, Hyperparameters, RecurrentSettings
from fastovms.gguf.layers import Experts, mixture
from fastovms.gguf.nodes import Node, constant, dimension, index, number
from fastovms.gguf.positions import (
    CosSin,
    build_masks,
    cos_sin,
    rotate,
    rotation_of,
    rotation_of_windows,
)
from fastovms.gguf.reader import GgufFile
from fastovms.gguf.recurrent import (
    Stored,
    causal_convolution,
    gated_delta,
    selective_scan,
    short_convolution,
)
from fastovms.gguf.weights import Order, Weights

_INPUTS: Final = {"input_ids": 2, "attention_mask": 2, "position_ids": 2, "beam_idx": 1}
"""The names of the inputs, in the order of exports, and their ranks."""

_NEEDLESS: Final = "attn_rot_embd.weight"
"""Frequency tensors that old files repeat for each layer; they are ignored."""

_BY_HEADS: Final = [0, 2, 1, 3]


def build_decoder(file: GgufFile, parameters: Hyperparameters) -> ov.Model:
    """Returns the OpenVINO graph of the decoder. Before it reads any matrix, raises
    ConfigurationError if tensors are missing, have wrong shapes, or are unknown to this
    architecture."""
    weights = Weights(file, is_trial=True)
    _DecoderBuilder(weights, parameters).build()
    drafts = tuple(f"blk.{parameters.num_layers + n}." for n in range(parameters.num_draft_layers))
    unused = [
        name
        for name in weights.unused()
        if not name.endswith(_NEEDLESS) and not name.startswith(drafts)
    ]
    if unused:
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        raise ConfigurationError(
            f"architecture {parameters.name} is not supported with the tensor {unused[0]}{more}"
        )
    logits, sinks, inputs = _DecoderBuilder(Weights(file), parameters).build()
    return ov.Model([logits], sinks, inputs, "decoder")


class _Projected(NamedTuple):
    """Queries, keys and values, [batch, tokens, width]."""

    queries: Node
    keys: Node
    values: Node


class _DecoderBuilder:
    """Builds the graph of a decoder layer by layer."""

    def __init__(self, weights: Weights, parameters: Hyperparameters) -> None:
        self._weights = weights
        self._p = parameters
        self._architecture = parameters.architecture
        self._sinks: list[Node] = []
        self._inputs = {
            name: _parameter(name, rank)
            for name, rank in _INPUTS.items()
            if parameters.rotates or name != "position_ids"
        }
        self._beams = self._inputs["beam_idx"]
        self._batch = dimension(self._inputs["input_ids"], 0)

    def build(self) -> tuple[Node, list[Node], list[Node]]:
        """Returns the logits, the nodes that store states (KV cache), and the inputs."""
        p, inputs = self._p, self._inputs
        embeddings = self._embeddings()
        masks = build_masks(inputs["input_ids"], inputs["attention_mask"], p.window)
        angles = window_angles = None
        if p.rotates:
            positions = inputs["position_ids"]
            angles = window_angles = cos_sin(rotation_of(p, self._weights), positions)
            of_windows = rotation_of_windows(p) if masks.windowed is not None else None
            if of_windows is not None:
                window_angles = cos_sin(of_windows, positions)
        hidden = opset13.gather(embeddings, inputs["input_ids"], constant(np.array(0)))
        hidden = _scaled(hidden, p.scales.embeddings)
        for layer, has_window in enumerate(p.windowed_layers):
            mask = masks.windowed if has_window else masks.causal
            hidden = self._layer(layer, hidden, mask, window_angles if has_window else angles)
        hidden = self._norm(hidden, self._architecture.last_norm, p.hidden_size)
        logits = self._logits(hidden, embeddings)
        result = opset13.result(logits)
        result.output(0).set_names({"logits"})
        result.set_friendly_name("logits")
        return result, self._sinks, list(inputs.values())

    # Parts

    def _embeddings(self) -> Node:
        shape = self._weights.shape("token_embd.weight")
        self._num_tokens = shape[0]
        return self._weights.matrix("token_embd.weight", shape[0], self._p.hidden_size)

    def _logits(self, hidden: Node, embeddings: Node) -> Node:
        matrix = embeddings  # tied to the output
        if "output.weight" in self._weights:
            matrix = self._weights.matrix("output.weight", self._num_tokens, self._p.hidden_size)
        logits = self._biased(_times(hidden, matrix), "output", self._num_tokens)
        logits = _scaled(logits, 1 / self._p.scales.logits)
        if self._p.final_soft_cap:
            cap = number(self._p.final_soft_cap)
            logits = opset13.multiply(opset13.tanh(opset13.divide(logits, cap)), cap)
        return logits

    def _layer(self, layer: int, hidden: Node, mask: Node, angles: CosSin | None) -> Node:
        size, prefix, p = self._p.hidden_size, f"blk.{layer}", self._p
        normed = self._norm(hidden, f"{prefix}.attn_norm", size)
        if p.recurrent is not None and p.recurrent_layers[layer]:
            output = self._recurrent(layer, prefix, normed, p.recurrent)
        else:
            output = self._attention(layer, prefix, normed, mask, angles)
        if self._architecture.norms_outputs:
            output = self._norm(output, f"{prefix}.post_attention_norm", size)
        hidden = opset13.add(hidden, _scaled(output, p.scales.results))
        normed = self._norm(hidden, f"{prefix}.{self._architecture.mlp_norm}", size)
        if p.experts is None or layer < p.experts.num_dense_layers:
            output = self._mlp(prefix, normed)
        else:
            output = self._mixture(prefix, normed, p.experts)
        if self._architecture.norms_outputs:
            output = self._norm(output, f"{prefix}.post_ffw_norm", size)
        return opset13.add(hidden, _scaled(output, p.scales.results))

    def _recurrent(
        self, layer: int, prefix: str, hidden: Node, settings: RecurrentSettings
    ) -> Node:
        which = sum(self._p.recurrent_layers[:layer])
        if self._architecture.recurrence == "convolution":
            return self._convolution(which, prefix, hidden, settings.num_columns)
        if self._architecture.recurrence == "delta":
            return self._gated_delta(which, prefix, hidden, settings)
        return self._scan(which, prefix, hidden, settings)

    def _convolution(self, which: int, prefix: str, hidden: Node, num_columns: int) -> Node:
        size = self._p.hidden_size
        joined = self._linear(hidden, f"{prefix}.shortconv.in_proj", 3 * size, size)
        factors = self._weights.floats(f"{prefix}.shortconv.conv.weight", size, num_columns)
        mixed = self._kept(short_convolution(joined, factors, self._beams, which))
        mixed = opset13.transpose(mixed, index([0, 2, 1]))
        return self._linear(mixed, f"{prefix}.shortconv.out_proj", size, size)

    def _gated_delta(
        self, which: int, prefix: str, hidden: Node, settings: RecurrentSettings
    ) -> Node:
        size, num_heads, width = self._p.hidden_size, settings.num_heads, settings.value_size
        num_keys = 2 * settings.num_groups * settings.state_size
        rows = _head_order(settings) if self._architecture.tiles_heads else np.arange(num_heads)
        value_rows = (rows[:, None] * width + np.arange(width)).reshape(-1)
        key_rows = np.concatenate([np.arange(num_keys), num_keys + value_rows])
        num_rows = num_keys + num_heads * width
        if f"{prefix}.ssm_in.weight" in self._weights:
            key_rows, value_rows = _joint_orders(settings)
            num_all = num_rows + num_heads * width
            joined = self._linear(hidden, f"{prefix}.ssm_in", num_all, size, key_rows)
            gate = self._linear(hidden, f"{prefix}.ssm_in", num_all, size, value_rows)
        else:
            joined = self._linear(hidden, f"{prefix}.attn_qkv", num_rows, size, key_rows)
            gate = self._linear(hidden, f"{prefix}.attn_gate", num_heads * width, size, value_rows)
        if self._architecture.tiles_heads:
            shares = self._linear(hidden, f"{prefix}.ssm_beta", num_heads, size, rows)
            steps = self._linear(hidden, f"{prefix}.ssm_alpha", num_heads, size, rows)
        else:
            of_group = np.arange(2 * num_heads).reshape(settings.num_groups, 2, -1)
            shares, steps = (
                self._linear(
                    hidden, f"{prefix}.ssm_ba", 2 * num_heads, size, of_group[:, n].reshape(-1)
                )
                for n in range(2)
            )
        biases = self._weights.floats(f"{prefix}.ssm_dt.bias", num_heads)[rows]
        rates = self._weights.floats(f"{prefix}.ssm_a", num_heads)[rows]
        steps = opset13.softplus(opset13.add(steps, constant(biases.reshape(1, 1, -1))))
        gates = opset13.multiply(steps, constant(rates.reshape(1, 1, -1)))
        shape = num_rows, settings.num_columns
        factors = self._weights.floats(f"{prefix}.ssm_conv1d.weight", *shape)
        if self._architecture.tiles_heads:
            factors = factors[key_rows]
        joined = self._convolved(joined, factors, which)
        values = self._kept(
            gated_delta(
                joined,
                gates,
                opset13.sigmoid(shares),
                settings,
                self._p.norm_epsilon,
                self._beams,
                which,
            )
        )
        # Rows of heads, because the transformation gets the number of heads wrong.
        by_head = index([-1, width])
        values = self._norm(opset13.reshape(values, by_head, False), f"{prefix}.ssm_norm", width)
        gate = opset13.reshape(gate, index([0, 0, num_heads, width]), True)
        gated = opset13.multiply(values, opset13.swish(opset13.reshape(gate, by_head, False)))
        gated = opset13.reshape(gated, opset13.shape_of(gate), False)
        merged = opset13.reshape(gated, index([0, 0, num_heads * width]), True)
        columns = rows if self._architecture.tiles_heads else None
        out = self._weights.matrix(
            f"{prefix}.ssm_out.weight", size, num_heads * width, columns=columns
        )
        return _times(merged, out)

    def _scan(self, which: int, prefix: str, hidden: Node, settings: RecurrentSettings) -> Node:
        size, num_heads = self._p.hidden_size, settings.num_heads
        inner = num_heads * settings.value_size
        num_joined = inner + 2 * settings.num_groups * settings.state_size
        parts = index([inner, num_joined, num_heads])
        whole = self._linear(hidden, f"{prefix}.ssm_in", inner + num_joined + num_heads, size)
        gate, joined, steps = opset13.variadic_split(whole, index(-1), parts).outputs()
        floats = self._weights.floats
        factors = floats(f"{prefix}.ssm_conv1d.weight", num_joined, settings.num_columns)
        joined = self._convolved(
            joined, factors, which, floats(f"{prefix}.ssm_conv1d.bias", num_joined)
        )
        biases = floats(f"{prefix}.ssm_dt.bias", num_heads)
        steps = opset13.softplus(opset13.add(steps, constant(biases.reshape(1, 1, -1))))
        rates = floats(f"{prefix}.ssm_a", num_heads, 1).reshape(-1)
        values = self._kept(selective_scan(rates, steps, joined, settings, self._beams, which))
        values = opset13.reshape(values, index([0, 0, inner]), True)
        sizes = index([inner, num_joined - inner])
        given = opset13.variadic_split(joined, index(-1), sizes).output(0)
        skipped = floats(f"{prefix}.ssm_d", num_heads, 1).repeat(settings.value_size)
        values = opset13.add(values, opset13.multiply(given, constant(skipped.reshape(1, 1, -1))))
        gated = opset13.multiply(values, opset13.swish(gate))
        groups = settings.num_groups, inner // settings.num_groups
        gains = floats(f"{prefix}.ssm_norm.weight", *groups)
        if settings.num_groups > 1:
            gated = _root_normed(
                opset13.reshape(gated, index([0, 0, *groups]), True), self._p.norm_epsilon
            )
            gated = opset13.reshape(gated, index([0, 0, inner]), True)
        else:
            gated = _root_normed(gated, self._p.norm_epsilon)
        gated = opset13.multiply(gated, constant(gains.reshape(-1)))
        return self._linear(gated, f"{prefix}.ssm_out", size, inner)

    def _convolved(
        self,
        rows: Node,
        factors: NDArray[np.float32],
        which: int,
        biases: NDArray[np.float32] | None = None,
    ) -> Node:
        """Returns the activations of what a convolution returns, [batch, tokens, size]."""
        columns = opset13.transpose(rows, index([0, 2, 1]))
        columns = self._kept(causal_convolution(columns, factors, self._beams, which))
        rows = opset13.transpose(columns, index([0, 2, 1]))
        if biases is not None:
            rows = opset13.add(rows, constant(biases.reshape(1, 1, -1)))
        return opset13.swish(rows)

    def _kept(self, stored: Stored) -> Node:
        self._sinks.append(stored.sink)
        return stored.values

    def _attention(
        self, layer: int, prefix: str, hidden: Node, mask: Node, angles: CosSin | None
    ) -> Node:
        p, gates = self._p, None
        queries, keys, values = self._projections(prefix, hidden)
        if self._architecture.norms_projections:
            queries = self._norm(queries, f"{prefix}.attn_q_norm", p.num_heads * p.head_size)
            keys = self._norm(keys, f"{prefix}.attn_k_norm", p.num_kv_heads * p.head_size)
        if self._architecture.gates_attention:
            both = opset13.reshape(queries, index([0, 0, p.num_heads, 2 * p.head_size]), True)
            sizes = index([p.head_size, p.head_size])
            queries, gates = opset13.variadic_split(both, index(-1), sizes).outputs()
        queries = self._split_heads(queries, p.num_heads)
        keys = self._split_heads(keys, p.num_kv_heads)
        values = self._split_heads(values, p.num_kv_heads)
        if self._architecture.norms_heads:
            queries = self._norm(queries, f"{prefix}.attn_q_norm", p.head_size)
            keys = self._norm(keys, f"{prefix}.attn_k_norm", p.head_size)
        queries, keys = _transposed(queries), _transposed(keys)
        if angles is not None:
            num_rotated = p.rope.num_dimensions
            queries = rotate(queries, num_rotated, p.head_size, angles)
            keys = rotate(keys, num_rotated, p.head_size, angles)
        keys = self._with_past(f"past_key_values.{layer}.key", keys)
        values = self._with_past(f"past_key_values.{layer}.value", _transposed(values))
        inputs = [queries, keys, values, mask, number(p.scales.scores)]
        if self._architecture.has_sinks:
            sinks = self._weights.floats(f"{prefix}.attn_sinks.weight", p.num_heads)
            inputs.append(constant(sinks.reshape(1, -1, 1, 1)))
        # openvino.opset13's function has no argument for sinks.
        attended = NodeFactory("opset13").create(
            "ScaledDotProductAttention", inputs, {"causal": False}
        )
        width = p.num_heads * p.head_size
        merged = opset13.reshape(_transposed(attended), constant(np.array([0, 0, width])), True)
        if gates is not None:
            gates = opset13.reshape(gates, index([0, 0, width]), True)
            merged = opset13.multiply(merged, opset13.sigmoid(gates))
        return self._linear(merged, f"{prefix}.attn_output", p.hidden_size, width)

    def _projections(self, prefix: str, hidden: Node) -> _Projected:
        p = self._p
        width, kv_width = p.num_heads * p.head_size, p.num_kv_heads * p.head_size
        if self._architecture.fuses_projections:
            sizes = [width, kv_width, kv_width]
            fused = self._linear(hidden, f"{prefix}.attn_qkv", sum(sizes), p.hidden_size)
            parts = opset13.variadic_split(fused, constant(np.array(-1)), constant(np.array(sizes)))
            return _Projected(*parts.outputs())
        return _Projected(
            self._linear(
                hidden,
                f"{prefix}.attn_q",
                width * (2 if self._architecture.gates_attention else 1),
                p.hidden_size,
                self._row_order(p.num_heads),
            ),
            self._linear(
                hidden, f"{prefix}.attn_k", kv_width, p.hidden_size, self._row_order(p.num_kv_heads)
            ),
            self._linear(hidden, f"{prefix}.attn_v", kv_width, p.hidden_size),
        )

    def _row_order(self, num_heads: int) -> Order | None:
        """Returns the order of the file's rows in which the two dimensions of a rotated pair are
        half a head apart; None = the file already has this order."""
        if not self._architecture.interleaves_rotations or not self._p.rotates:
            return None
        rows = np.arange(num_heads * self._p.head_size)
        return rows.reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(-1)

    def _mlp(self, prefix: str, hidden: Node, ending: str = "") -> Node:
        size = self._p.hidden_size
        inner = self._weights.shape(f"{prefix}.ffn_down{ending}.weight")[-1]
        if self._architecture.fuses_projections:
            both = self._linear(hidden, f"{prefix}.ffn_up", 2 * inner, size)
            parts = opset13.split(both, constant(np.array(-1)), 2)
            gate, up = parts.outputs()
        else:
            gate = self._linear(hidden, f"{prefix}.ffn_gate{ending}", inner, size)
            up = self._linear(hidden, f"{prefix}.ffn_up{ending}", inner, size)
        if self._architecture.activation == "Gelu":
            gate = opset13.gelu(gate, "tanh")
        else:
            gate = opset13.swish(gate)
        product = opset13.multiply(gate, up)
        return self._linear(product, f"{prefix}.ffn_down{ending}", size, inner)

    def _mixture(self, prefix: str, hidden: Node, settings: ExpertSettings) -> Node:
        size, num_experts = self._p.hidden_size, settings.num_experts
        inner = self._weights.shape(f"{prefix}.ffn_down_exps.weight", 3)[-1]
        matrix = self._weights.matrix
        down = (f"{prefix}.ffn_down_exps.weight", num_experts, size, inner)
        name = f"{prefix}.ffn_gate_up_exps.weight"
        if name in self._weights:
            matrix(*down)  # refuses a wrong `inner` before memory is taken for it
            rows = np.arange(num_experts * 2 * inner).reshape(num_experts, 2, inner)
            shape = (num_experts, 2 * inner, size)
            gate, up = (matrix(name, *shape, order=rows[:, n].reshape(-1)) for n in range(2))
        else:
            shape = (num_experts, inner, size)
            gate, up = (matrix(f"{prefix}.ffn_{n}_exps.weight", *shape) for n in ("gate", "up"))
        bias, ranks = f"{prefix}.exp_probs_b.bias", None
        if bias in self._weights:
            ranks = self._weights.floats(bias, num_experts).reshape(1, -1)
        weights = Experts(
            matrix(f"{prefix}.ffn_gate_inp.weight", num_experts, size),
            gate,
            up,
            matrix(*down),
            self._expert_biases(prefix, num_experts, inner),
            ranks,
        )
        mixed = mixture(
            hidden,
            weights,
            settings.num_chosen,
            is_normalized=self._architecture.normalizes_shares,
            is_sigmoid=self._architecture.expert_gating == 2,
        )
        if not settings.has_shared:
            return mixed
        shared = self._mlp(prefix, hidden, "_shexp")
        if self._architecture.shared_experts == "gated":
            gate = self._linear(hidden, f"{prefix}.ffn_gate_inp_shexp", 1, size)
            shared = opset13.multiply(opset13.sigmoid(gate), shared)
        return opset13.add(mixed, shared)

    def _expert_biases(
        self, prefix: str, num_experts: int, inner: int
    ) -> tuple[NDArray[np.float32], ...]:
        if not self._architecture.has_sinks:
            return ()
        sizes = {"gate_exps": inner, "up_exps": inner, "down_exps": self._p.hidden_size}
        biases = [self._weights.floats(f"{prefix}.ffn_gate_inp.bias", num_experts)]
        for name, size in sizes.items():
            values = self._weights.floats(f"{prefix}.ffn_{name}.bias", num_experts, size)
            biases.append(values[:, None])
        return tuple(biases)

    # Operations

    def _linear(
        self,
        hidden: Node,
        name: str,
        num_rows: int,
        num_columns: int,
        order: Order | None = None,
    ) -> Node:
        matrix = self._weights.matrix(f"{name}.weight", num_rows, num_columns, order=order)
        return self._biased(_times(hidden, matrix), name, num_rows, order)

    def _biased(self, output: Node, name: str, size: int, order: Order | None = None) -> Node:
        if f"{name}.bias" not in self._weights:
            return output
        bias = self._weights.floats(f"{name}.bias", size)
        bias = bias if order is None else bias[order]
        return opset13.add(output, constant(bias.reshape(1, 1, -1)))

    def _norm(self, hidden: Node, name: str, size: int) -> Node:
        """Adds an RMS norm over the last dimension."""
        gains = self._weights.floats(f"{name}.weight", size)
        return opset13.multiply(_root_normed(hidden, self._p.norm_epsilon), constant(gains))

    def _split_heads(self, projected: Node, num_heads: int) -> Node:
        shape = np.array([0, 0, num_heads, self._p.head_size])
        return opset13.reshape(projected, constant(shape), True)

    def _with_past(self, name: str, current: Node) -> Node:
        """Appends keys or values to those in the state, and repeats each KV head for its query
        heads."""
        p = self._p
        sizes = [constant(np.array([n])) for n in (p.num_kv_heads, 0, p.head_size)]
        empty = opset13.broadcast(number(0), opset13.concat([self._batch, *sizes], 0))
        info = util.VariableInfo()
        info.data_shape = ov.PartialShape([-1, p.num_kv_heads, -1, p.head_size])
        info.data_type = ov.Type.f32
        info.variable_id = name
        variable = util.Variable(info)
        past = opset13.read_value(empty, variable)
        past = opset13.gather(past, self._beams, constant(np.array(0)))
        states = opset13.concat([past, current], 2)
        self._sinks.append(opset13.assign(states, variable))
        num_shared = p.num_heads // p.num_kv_heads
        if num_shared == 1:
            return states
        length = dimension(states, 2)
        sizes = [constant(np.array([n])) for n in (p.num_kv_heads, num_shared, p.head_size)]
        shape = opset13.concat([self._batch, *sizes[:2], length, sizes[2]], 0)
        repeated = opset13.broadcast(opset13.unsqueeze(states, constant(np.array(2))), shape)
        target = constant(np.array([0, p.num_heads, -1, p.head_size]))
        return opset13.reshape(repeated, target, True)


def _parameter(name: str, rank: int) -> Node:
    kind = ov.Type.i32 if name == "beam_idx" else ov.Type.i64
    node = opset13.parameter(ov.PartialShape([-1] * rank), kind)
    node.set_friendly_name(name)  # SDPAToPagedAttention finds the state by this name
    node.output(0).set_names({name})
    return node


def _times(hidden: Node, matrix: Node) -> Node:
    return opset13.matmul(hidden, matrix, False, True)


def _transposed(heads: Node) -> Node:
    """Returns a node with heads and tokens swapped."""
    return opset13.transpose(heads, constant(np.array(_BY_HEADS)))


def _scaled(rows: Node, factor: float) -> Node:
    return rows if factor == 1 else opset13.multiply(rows, number(factor))


def _root_normed(rows: Node, epsilon: float) -> Node:
    """Divides by the root of the mean square over the last dimension."""
    mean = opset13.reduce_mean(opset13.power(rows, number(2)), index([-1]), True)
    root = opset13.sqrt(opset13.add(mean, number(epsilon)))
    return opset13.multiply(rows, opset13.divide(number(1), root))


def _head_order(settings: RecurrentSettings) -> Order:
    """Returns the file's number of each head, where heads of one group follow one another."""
    return np.arange(settings.num_heads).reshape(-1, settings.num_groups).T.reshape(-1)


def _joint_orders(settings: RecurrentSettings) -> tuple[Order, Order]:
    """Returns the rows of queries, keys and values, and those of gates, in a matrix that has all of
    them group by group, as old files do."""
    size = settings.state_size
    width = settings.num_heads // settings.num_groups * settings.value_size
    rows = np.arange(settings.num_groups * 2 * (size + width)).reshape(settings.num_groups, -1)
    ends = np.cumsum([size, size, width])
    *parts, gates = (each.reshape(-1) for each in np.split(rows, ends, axis=1))
    return np.concatenate(parts), gates
