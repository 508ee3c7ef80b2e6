"""Compares a paged graph with the exported one that it was made of.

What the transformation to paged attention does not know it leaves out in silence. So both graphs
compute the same short text, in f32 throughout: one at once, the other over blocks and in parts.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from fastovms.engine.model.compilation import Precisions, compile_variants
from fastovms.engine.model.graph.paging import PagedGraph
from fastovms.engine.model.model import ExportedModel, PagedModel
from fastovms.engine.model.plain_graph import PROPERTIES, Floats, compute_plain, log_softmax
from fastovms.engine.model.raw_logits import as_float32
from fastovms.engine.model.step_inputs import StepLayout

MAX_TOKENS: Final = 48
"""The length in tokens of the compared text: more than a block has."""

_FIRST_PART: Final = 0.75
_NUM_COMPARED: Final = 8
"""How many of the likeliest tokens of each position are compared."""

_NUM_TOKEN_IDS: Final = 1000

TokenIds = NDArray[np.int64]


def largest_difference(files: ExportedModel) -> float:
    """Returns by how much log probabilities of likely tokens differ at most. Takes the memory of
    one compiled model, and as long as compiling two.

    Raises:
        RuntimeError: one of them cannot be computed.
    """
    graph = files.graph
    limits = [MAX_TOKENS, files.max_model_len]
    if graph.max_exact_len is not None:
        limits.append(graph.max_exact_len.num_tokens)
    if graph.rope_switch_len is not None:
        limits.append(graph.rope_switch_len)
    num_tokens = min(limits)
    starts = [0]
    if graph.rope_switch_len is not None and not graph.has_rope_tables:
        starts.append(graph.rope_switch_len)
    core = ov.Core()
    plain = core.read_model(files.model_dir / "openvino_model.xml")
    vocab_size = plain.output("logits").get_partial_shape()[-1]
    num_token_ids = vocab_size.get_length() if vocab_size.is_static else _NUM_TOKEN_IDS
    token_ids = np.random.default_rng(0).integers(
        0, min(num_token_ids, _NUM_TOKEN_IDS), num_tokens, dtype=np.int64
    )
    expected = compute_plain(core, plain, {"input_ids": token_ids[None]}, starts)
    del plain  # lest there be two at a time
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
    """Some graphs only have the last token's."""
    found = found[-len(expected) :]
    likely = np.argpartition(expected, -_NUM_COMPARED, -1)[:, -_NUM_COMPARED:]
    a, b = (np.take_along_axis(x, likely, -1) for x in (expected, found))
    return float(np.abs(a - b).max())
