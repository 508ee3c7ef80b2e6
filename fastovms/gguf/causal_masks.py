"""Builds the masks that say which tokens attention sees: causal, and causal with a sliding window.

The windowed one has the form that OpenVINO's paged attention recognises (that of exports of
gpt-oss): it takes any other mask for that of full attention.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from openvino import opset13

from fastovms.gguf.weights import constant

Node = Any


class Masks(NamedTuple):
    """The masks as nodes [batch, 1, tokens, tokens and those before them], to be added to scores.

    Attributes:
        windowed: None where no layer has a window.
    """

    causal: Node
    windowed: Node | None


def build_masks(input_ids: Node, attention_mask: Node, window: int) -> Masks:
    """Builds the masks.

    Args:
        input_ids: [batch, tokens].
        attention_mask: [batch, tokens and those before them], 0 where a token is not to be seen.
        window: how many tokens a windowed layer sees; 0 = there is none.
    """
    total = _length(attention_mask)
    past = opset13.subtract(total, _length(input_ids))
    one, zero = constant(np.array(1)), constant(np.array(0))
    queries = opset13.unsqueeze(
        opset13.range(past, total, one, "i64"), constant(np.array([0, 1, 3]))
    )
    keys = opset13.unsqueeze(opset13.range(zero, total, one, "i64"), constant(np.array([0, 1, 2])))
    is_before = opset13.less_equal(keys, queries)
    is_given = opset13.unsqueeze(
        opset13.convert(attention_mask, "boolean"), constant(np.array([1, 2]))
    )
    causal = _as_scores(opset13.bitwise_and(is_before, is_given))
    if not window:
        return Masks(causal, None)
    anything = constant(np.array(True))
    oldest = opset13.add(queries, constant(np.array(-window)))
    is_near = opset13.bitwise_and(anything, opset13.greater(keys, oldest))
    is_seen = opset13.bitwise_and(is_near, is_before)
    is_seen = opset13.bitwise_and(opset13.bitwise_and(anything, is_seen), is_given)
    shape = opset13.concat(
        [
            _dimension(input_ids, 0),
            constant(np.array([1])),
            _dimension(input_ids, 1),
            _dimension(attention_mask, 1),
        ],
        0,
    )
    scores = _as_scores(opset13.broadcast(is_seen, shape))
    bounds = [np.array([0]), None, np.array([1]), np.array([3])]
    whole = [_dimension(attention_mask, 1) if each is None else constant(each) for each in bounds]
    return Masks(causal, opset13.slice(scores, *whole))


def _as_scores(is_seen: Node) -> Node:
    hidden = constant(np.array(np.finfo(np.float16).min, np.float32))
    return opset13.select(is_seen, constant(np.array(0, np.float32)), hidden)


def _dimension(node: Node, axis: int) -> Node:
    shape = opset13.shape_of(node)
    return opset13.gather(shape, constant(np.array([axis])), constant(np.array(0)))


def _length(node: Node) -> Node:
    return opset13.squeeze(_dimension(node, 1), constant(np.array(0)))
