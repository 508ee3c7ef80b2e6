"""Computes a short text with a graph as it was exported, in f32 throughout, for other ways to
compute it to be compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from fastovms.engine.model.compilation import exact_properties

PROPERTIES: Final = {**exact_properties("CPU", {}), "KV_CACHE_PRECISION": "f32"}
"""OpenVINO's properties for f32 throughout."""

Floats = NDArray[np.float32]


class UnknownInput(Exception):
    """The graph has an input that nobody knows what to give; the message is its name."""


def compute_plain(
    core: ov.Core,
    model: ov.Model,
    text: Mapping[str, NDArray[Any]],
    starts: Sequence[int] = (0,),
) -> list[Floats]:
    """Computes a text at once, beginning at each of the positions `starts`.

    Args:
        text: the tokens by the name of the input that takes them: `input_ids` [1, tokens] or
            `inputs_embeds` [1, tokens, width].

    Returns:
        For each start log probabilities [rows, vocab_size]: of what follows each token, or the last
            one alone.

    Raises:
        UnknownInput: the graph has an input of another kind.
        RuntimeError: it cannot be computed.
    """
    (tokens,) = text.values()
    num_tokens = tokens.shape[1]
    values = {
        **text,
        "attention_mask": np.ones((1, num_tokens), np.int64),
        "beam_idx": np.zeros(1, np.int32),
    }
    for name in (port.get_any_name() for port in model.inputs):
        if name not in values and name != "position_ids":
            raise UnknownInput(name)
    request = core.compile_model(model, "CPU", PROPERTIES).create_infer_request()
    results = []
    for start in starts:
        positions = np.arange(start, start + num_tokens)
        inputs = {
            port: _repeated(positions, port)
            if port.get_any_name() == "position_ids"
            else values[port.get_any_name()]
            for port in request.model_inputs
        }
        request.reset_state()
        request.infer(inputs)
        results.append(log_softmax(request.get_tensor("logits").data[0].astype(np.float32)))
    return results


def log_softmax(logits: Floats) -> Floats:
    """Returns log probabilities over the last dimension."""
    shifted: Floats = logits - logits.max(-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted


def _repeated(positions: NDArray[np.int64], port: Any) -> NDArray[np.int64]:
    """Returns positions in the shape of an input: of a batch of one, and the same ones for time,
    height and width where a model has these."""
    *others, _ = port.get_partial_shape()
    return np.tile(positions, (*(d.get_length() if d.is_static else 1 for d in others), 1))
