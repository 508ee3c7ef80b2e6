"""Builds layers with states of constant size as optimum-intel exports them: short convolutions, the
gated delta rule and Mamba 2. OpenVINO's transformation to paged attention recognizes the loops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13

from fastovms.gguf.hyperparameters import RecurrentSettings
from fastovms.gguf.nodes import Node, constant, dimension, index, number

Floats = NDArray[np.float32]


class Stored(NamedTuple):
    """The output of a layer, and the node that stores its state."""

    values: Node
    sink: Node


def short_convolution(joined: Node, weights: Floats, beams: Node, which: int) -> Stored:
    """Returns `c * convolution(b * x)`, [batch, size, tokens].

    Args:
        joined: b, c and x, concatenated, [batch, tokens, 3 * size].
        weights: the weights of the last tokens, [size, columns].
        beams: the rows of the states that the batch continues, [batch].
        which: the index of the layer among the model's convolutions.
    """
    size = len(weights)
    columns = opset13.transpose(joined, index([0, 2, 1]))
    b, c, x = opset13.variadic_split(columns, index(-2), index([size, size, size])).outputs()
    convolved = causal_convolution(opset13.multiply(b, x), weights, beams, which)
    return convolved._replace(values=opset13.multiply(c, convolved.values))


def causal_convolution(columns: Node, weights: Floats, beams: Node, which: int) -> Stored:
    """Returns the weighted sums of the last tokens' columns, [batch, size, tokens]. The state is
    these columns.

    Args:
        columns: [batch, size, tokens].
    """
    size, num_columns = weights.shape
    past = _past("conv", which, columns, [size, num_columns], beams)
    text = opset13.concat([past, columns], -1)
    end, one, axis = index([np.iinfo(np.int64).max]), index([1]), index([2])
    state = opset13.slice(text, index([-num_columns]), end, one, axis)
    filters = constant(weights.reshape(size, 1, 1, num_columns))
    convolved = opset13.group_convolution(text, filters, [1], [0], [0], [1])
    convolved.set_friendly_name(f"{which}.conv/aten::_convolution/GroupConvolution")
    start = opset13.multiply(dimension(columns, 2), index(-1))
    found = opset13.slice(convolved, start, end, one, axis)
    return Stored(found, opset13.assign(state, _variable("conv", which)))


def gated_delta(
    joined: Node,
    gates: Node,
    shares: Node,
    settings: RecurrentSettings,
    epsilon: float,
    beams: Node,
    which: int,
) -> Stored:
    """Returns the output of the gated delta rule, [batch, tokens, heads, value_size].

    Args:
        joined: queries, keys and values, concatenated, [batch, tokens, width].
        gates: the logarithms of the factors by which states decay, [batch, tokens, heads].
        shares: beta, the share of each difference that is added to the state, [batch, tokens,
            heads].
        epsilon: is added to the squared lengths of queries and keys.
    """
    num_heads, size, width = settings.num_heads, settings.state_size, settings.value_size
    sizes = index([settings.num_groups * size] * 2 + [num_heads * width])
    parts = opset13.variadic_split(joined, index(-1), sizes).outputs()
    queries, keys = (_unit_heads(each, settings, epsilon) for each in parts[:2])
    values = opset13.reshape(parts[2], index([0, 0, num_heads, width]), True)
    queries, keys, values = (
        opset13.transpose(each, index([0, 2, 1, 3])) for each in (queries, keys, values)
    )
    root = opset13.gather(opset13.shape_of(queries), index(3), index(0))
    root = opset13.power(opset13.convert(root, "f32"), number(0.5))
    queries = opset13.divide(queries, root)
    gates, shares = (opset13.transpose(each, index([0, 2, 1])) for each in (gates, shares))
    memory = _past("ssm", which, joined, [num_heads, size, width], beams)
    buffer = opset13.broadcast(number(0), opset13.shape_of(values))

    heads = [-1, num_heads]
    q, k = _inputs([*heads, 1, size], [*heads, 1, size])
    v, g, share = _inputs([*heads, 1, width], [*heads, 1], [*heads, 1])
    before, results = _inputs([*heads, size, width], [*heads, -1, width])
    kept = opset13.multiply(before, opset13.unsqueeze(opset13.exp(g), index(-1)))
    key = opset13.unsqueeze(opset13.squeeze(k, index(2)), index(-1))
    known = opset13.reduce_sum(opset13.multiply(kept, key), index(-2), False)
    added = opset13.multiply(opset13.subtract(opset13.squeeze(v, index(2)), known), share)
    after = opset13.add(kept, opset13.multiply(key, opset13.unsqueeze(added, index(-2))))
    query = opset13.unsqueeze(opset13.squeeze(q, index(2)), index(-1))
    found = opset13.reduce_sum(opset13.multiply(after, query), index(-2), True)
    body = _Body((q, k, v, g, share), before, results, after, found, axis=2)
    loop = body.loop(dimension(joined, 1), (queries, keys, values, gates, shares), memory, buffer)
    sink = _last(loop, which)
    return Stored(opset13.transpose(loop.output(0), index([0, 2, 1, 3])), sink)


def _unit_heads(flat: Node, settings: RecurrentSettings, epsilon: float) -> Node:
    """Returns the vectors of each head, scaled to length 1, [batch, tokens, heads, size]."""
    heads = opset13.reshape(flat, index([0, 0, settings.num_groups, settings.state_size]), True)
    num_repeated = settings.num_heads // settings.num_groups
    if num_repeated > 1:
        groups = np.repeat(np.arange(settings.num_groups), num_repeated)
        heads = opset13.gather(heads, constant(groups), index(2))
    total = opset13.reduce_sum(opset13.multiply(heads, heads), index([-1]), True)
    root = opset13.sqrt(opset13.add(total, number(epsilon)))
    return opset13.multiply(heads, opset13.divide(number(1), root))


def selective_scan(
    rates: Floats,
    steps: Node,
    joined: Node,
    settings: RecurrentSettings,
    beams: Node,
    which: int,
) -> Stored:
    """Returns the output of Mamba 2's selective scan, [batch, tokens, heads, value_size].

    Args:
        rates: A, the negative decay rate of each head, [heads].
        steps: dt, the time step of each token, [batch, tokens, heads].
        joined: the values, B (the input weights of each group) and C (the output weights),
            concatenated, [batch, tokens, width].
    """
    num_heads, size, width = settings.num_heads, settings.state_size, settings.value_size
    sizes = index([num_heads * width] + [settings.num_groups * size] * 2)
    values, *weights = opset13.variadic_split(joined, index(-1), sizes).outputs()
    values = opset13.reshape(values, index([0, 0, num_heads, width]), True)
    of_inputs, of_outputs = (_repeated_groups(each, settings) for each in weights)
    decay = opset13.exp(opset13.multiply(constant(rates), steps))
    decay = opset13.reshape(decay, index([0, 0, num_heads, 1, 1]), True)
    of_inputs = opset13.multiply(opset13.unsqueeze(steps, index(-1)), of_inputs)
    inputs = opset13.multiply(
        opset13.unsqueeze(of_inputs, index(-2)), opset13.unsqueeze(values, index(-1))
    )
    outputs = opset13.unsqueeze(of_outputs, index(-2))
    memory = _past("ssm", which, joined, [num_heads, width, size], beams)
    buffer = opset13.broadcast(number(0), opset13.shape_of(values))

    heads = [-1, 1, num_heads]
    decayed, given = _inputs([*heads, 1, 1], [*heads, width, size])
    (wanted,) = _inputs([*heads, 1, size])
    before, results = _inputs([-1, num_heads, width, size], [-1, -1, num_heads, width])
    kept = opset13.multiply(before, opset13.squeeze(decayed, index(1)))
    after = opset13.add(kept, opset13.squeeze(given, index(1)))
    weighted = opset13.multiply(after, opset13.squeeze(wanted, index(1)))
    found = opset13.unsqueeze(opset13.reduce_sum(weighted, index(-1), False), index(1))
    body = _Body((decayed, given, wanted), before, results, after, found, axis=1)
    loop = body.loop(dimension(joined, 1), (decay, inputs, outputs), memory, buffer)
    sink = _last(loop, which)
    return Stored(loop.output(0), sink)


def _repeated_groups(flat: Node, settings: RecurrentSettings) -> Node:
    """Returns the values of each group, repeated for the heads of the group: [batch, tokens, heads,
    state_size]."""
    num_groups, size = settings.num_groups, settings.state_size
    groups = opset13.reshape(flat, index([0, 0, num_groups, size]), True)
    times = [1, 1, 1, settings.num_heads // num_groups, 1]
    tiled = opset13.tile(opset13.unsqueeze(groups, index(3)), index(times))
    return opset13.reshape(tiled, index([0, 0, settings.num_heads, size]), True)


class _Body(NamedTuple):
    """The computation of one token, which the loop repeats.

    Attributes:
        slices: the slice of each input for the token.
        before, after: the state before and after the token.
        results: the outputs of all tokens, in which this token's is written.
        found: the output of this token.
        axis: the axis of tokens in all of these.
    """

    slices: tuple[Node, ...]
    before: Node
    results: Node
    after: Node
    found: Node
    axis: int

    def loop(self, num_tokens: Node, inputs: tuple[Node, ...], memory: Node, buffer: Node) -> Node:
        """Returns the loop over all tokens; its outputs are the results and the last state."""
        step = opset13.parameter([], np.int64)
        row = opset13.unsqueeze(step, index(0))
        written = opset13.scatter_update(self.results, row, self.found, index(self.axis))
        goes_on = constant(np.array([True]))
        results = [opset13.result(each) for each in (goes_on, self.after, written)]
        parameters = [step, *self.slices, self.before, self.results]
        loop = opset13.loop(opset13.squeeze(num_tokens, index(0)), constant(np.array(True)))
        loop.set_function(ov.Model(results, parameters, "token"))
        loop.set_special_body_ports([0, 0])
        for part, whole in zip(self.slices, inputs, strict=True):
            loop.set_sliced_input(part, whole.output(0), 0, 1, 1, -1, self.axis)
        loop.set_merged_input(self.before, memory.output(0), results[1].output(0))
        loop.set_merged_input(self.results, buffer.output(0), results[2].output(0))
        loop.get_iter_value(results[2].output(0), -1)
        loop.get_iter_value(results[1].output(0), -1)
        loop.validate_and_infer_types()
        return loop


def _last(loop: Node, which: int) -> Node:
    """Returns the node that stores the last state of a loop."""
    # `opset13.assign` would use the first output of the node.
    state = opset13.reshape(loop.output(1), index([0, 0, 0, 0]), True)
    return opset13.assign(state, _variable("ssm", which))


def _inputs(*shapes: list[int]) -> list[Node]:
    return [opset13.parameter(ov.PartialShape(shape), np.float32) for shape in shapes]


def _past(kind: str, which: int, rows: Node, shape: list[int], beams: Node) -> Node:
    """Returns the states that a batch continues, [batch, ...]; zeros at first."""
    empty = opset13.broadcast(number(0), opset13.concat([dimension(rows, 0), index(shape)], 0))
    stored = opset13.read_value(empty, _variable(kind, which), np.float32, [-1, *shape])
    return opset13.gather(stored, beams, index(0))


def _variable(kind: str, which: int) -> str:
    """Returns the name of a state, by which OpenVINO knows its kind."""
    return f"cache_params.past.{kind}.{which}cache_params.present.{kind}.{which}"
