"""Compares the logits of a model's paged graph with those of its exported graph."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from fastovms.engine.model.compilation import ExportedModel, compile_variants, exact_properties
from fastovms.engine.model.devices import reason_of
from fastovms.engine.model.model import PagedGraph, PagedModel, Precisions, as_float32
from fastovms.engine.model.step_inputs import StepLayout
from fastovms.parts.comparison.layer_cut import cut_layers

logger = logging.getLogger(__name__)

PROPERTIES: Final = {**exact_properties("CPU", {}), "KV_CACHE_PRECISION": "f32"}
"""OpenVINO's properties for f32 in all computations."""

Floats = NDArray[np.float32]


class UnknownInput(Exception):
    """Raised if the graph has an unknown input; the message is the input's name."""


def compute_plain(
    core: ov.Core,
    model: ov.Model,
    text: Mapping[str, NDArray[Any]],
    starts: Sequence[int] = (0,),
) -> list[Floats]:
    """Computes a text with the unmodified graph, once for each position in `starts` as the position
    of its first token. Raises UnknownInput if the graph has an unknown input; RuntimeError if
    OpenVINO cannot compute the graph.

    Args:
        text: the tokens, by the name of the model input: `input_ids` [1, tokens] or `inputs_embeds`
            [1, tokens, width].

    Returns:
        For each start, log probabilities f32 [rows, vocab_size] of the next token: a row for each
            token, or for the last token alone.
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
            port: _positions_in_shape(positions, port)
            if port.get_any_name() == "position_ids"
            else values[port.get_any_name()]
            for port in request.model_inputs
        }
        request.reset_state()
        request.infer(inputs)
        results.append(log_softmax(request.get_tensor("logits").data[0].astype(np.float32)))
    return results


def log_softmax(logits: Floats) -> Floats:
    """Returns log probabilities over the last dimension, in the shape of `logits`."""
    shifted: Floats = logits - logits.max(-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted


def _positions_in_shape(positions: NDArray[np.int64], port: Any) -> NDArray[np.int64]:
    """Returns positions in the shape of a model input with batch size one. Models with separate
    time, height and width positions get the same positions three times."""
    *others, _ = port.get_partial_shape()
    return np.tile(positions, (*(d.get_length() if d.is_static else 1 for d in others), 1))


MAX_TOKENS: Final = 48
"""The length of the compared text in tokens; longer than a KV cache block."""

_FIRST_PART: Final = 0.75
_NUM_COMPARED: Final = 8
"""The number of most likely tokens that are compared at each position."""

_NUM_TOKEN_IDS: Final = 1000

TokenIds = NDArray[np.int64]


MAX_DIFFERENCE_OF_CUT: Final = 1e-3
"""If the log probabilities of cut graphs differ by at most this, whole graphs are not compared.
Rounding causes about a tenth of this difference."""


def largest_difference(files: ExportedModel) -> float:
    """Returns the largest difference of log probabilities of likely tokens between a model's
    exported graph and its paged graph. Raises RuntimeError if OpenVINO cannot compute one of the
    graphs.

    The comparison is needed because OpenVINO's transformation to paged attention silently omits
    operations that it does not know. Both graphs compute the same short text in f32: the exported
    graph in one step, the paged graph in several steps over several blocks. At first both are cut
    to one layer of each kind, which takes a fraction of the time. If these differ, the whole graphs
    are compared, which needs the memory of one compiled model and the time of compiling two.
    """
    core = ov.Core()
    plain = core.read_model(files.model_dir / "openvino_model.xml")
    shorter = replace(files.graph, model=files.graph.model.clone())
    try:
        if cut_layers(plain, shorter.model):
            found = _difference_between(core, plain, shorter, files.max_model_len)
            if found <= MAX_DIFFERENCE_OF_CUT:
                return found
            logger.debug(
                "comparison with the export: one layer of each kind differs by %.2g, so that all "
                "layers are compared",
                found,
            )
            plain = core.read_model(files.model_dir / "openvino_model.xml")
    except RuntimeError as error:
        logger.debug(
            "comparison with the export: one layer of each kind cannot be compared: %s",
            reason_of(error),
        )
        plain = core.read_model(files.model_dir / "openvino_model.xml")
    del shorter
    return _difference_between(core, plain, files.graph, files.max_model_len)


def _difference_between(
    core: ov.Core, plain: ov.Model, graph: PagedGraph, max_model_len: int
) -> float:
    limits = [MAX_TOKENS, max_model_len]
    if graph.max_exact_len is not None:
        limits.append(graph.max_exact_len.num_tokens)
    if graph.rope_switch_len is not None:
        limits.append(graph.rope_switch_len)
    num_tokens = min(limits)
    starts = [0]
    if graph.rope_switch_len is not None and not graph.has_rope_tables:
        starts.append(graph.rope_switch_len)
    vocab_size = plain.output("logits").get_partial_shape()[-1]
    num_token_ids = vocab_size.get_length() if vocab_size.is_static else _NUM_TOKEN_IDS
    token_ids = np.random.default_rng(0).integers(
        0, min(num_token_ids, _NUM_TOKEN_IDS), num_tokens, dtype=np.int64
    )
    expected = compute_plain(core, plain, {"input_ids": token_ids[None]}, starts)
    found = _compute_paged(core, graph, token_ids, starts)
    return max(map(_difference, expected, found))


def _compute_paged(
    core: ov.Core, graph: PagedGraph, token_ids: TokenIds, starts: Sequence[int]
) -> list[Floats]:
    precisions = Precisions("f32", PROPERTIES)
    variants = compile_variants(core, graph.model, "CPU", precisions)
    model = PagedModel(variants, device="CPU", precisions=precisions, graph=graph)
    end = len(token_ids)
    middle = int(end * _FIRST_PART)
    blocks = array("i", range(-(-end // model.block_size)))
    model.allocate_cache(len(blocks))
    results = []
    for start in starts:
        parts = []
        for first, last in ((0, middle), (middle, end)):
            layout = StepLayout(model.block_size)
            layout.add(array("q", token_ids), first, last, blocks)
            inputs = layout.finish(array("q", range(last - first)))
            inputs = inputs._replace(
                position_ids=inputs.position_ids + start, sequence_lens=inputs.sequence_lens + start
            )
            parts.append(log_softmax(as_float32(model.infer(inputs))))
        results.append(np.concatenate(parts))
    return results


def _difference(expected: Floats, found: Floats) -> float:
    """Returns the largest difference for the last token, as some graphs return only its logits."""
    found = found[-len(expected) :]
    likely = np.argpartition(expected, -_NUM_COMPARED, -1)[:, -_NUM_COMPARED:]
    a, b = (np.take_along_axis(x, likely, -1) for x in (expected, found))
    return float(np.abs(a - b).max())
