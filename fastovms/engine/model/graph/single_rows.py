"""Fixes the shapes of a model for steps of one token of one sequence, which is how a single request
decodes.

Where shapes are open OpenVINO works out those of every node in every step, also when they are as
they were: 50 us a layer, which is much of a small model's step. With fixed shapes a step at context
192 took 0.78 of the time with 135M parameters in int8 (30 layers), 0.90 with 0.5B in int8 (24) and
0.98 with 1.2B in int4 (16), in bf16 as in f32 (two cores of an EPYC). The price is that the weights
are in memory once more.
"""

from __future__ import annotations

import logging
from typing import Final

import openvino as ov

from fastovms.engine.model.step_inputs import StepInputs

logger = logging.getLogger(__name__)

MAX_WEIGHTS_SIZE: Final = 512 * 1024 * 1024
"""Bytes of weights up to which the gain is clearly above a tenth."""

_SHAPES: Final = {
    "input_ids": [1],
    "position_ids": [1],
    "past_lens": [1],
    "subsequence_begins": [2],
    "block_indices_begins": [2],
    "sampled_token_indices": [1],
}


def is_single_row(inputs: StepInputs) -> bool:
    """Returns whether a step is of one token, whose logits are wanted."""
    return len(inputs.input_ids) == 1 == len(inputs.sampled_token_indices)


def fix_shapes(model: ov.Model) -> bool:
    """Rewrites a paged model in place for such steps alone. Returns whether it could: a model with
    inputs of other shapes, or nodes that no single row fits, is not to be used for them."""
    ports = {port.get_any_name(): port for port in model.inputs}
    shapes = {
        ports[name]: ov.PartialShape(shape) for name, shape in _SHAPES.items() if name in ports
    }
    if len(shapes) != len(_SHAPES) or any(
        not port.get_partial_shape().compatible(shape) for port, shape in shapes.items()
    ):
        return False
    try:
        model.reshape(shapes)
    except RuntimeError as error:
        logger.info("steps of one row have no variant of the model: %s", error)
        return False
    return True
