"""Checks the decode kernels of a model before they are used.

OpenVINO's logits are rounded, too: in bf16, those of Gemma 3 270M differ from f32 by up to 0.32 of
their standard deviation. So a difference from OpenVINO proves little. Both OpenVINO and the kernels
are compared with f32, and the kernels may not be much less exact than OpenVINO. A model in f32
needs another copy of the weights. The comparison therefore uses a model cut to one layer of each
kind, after a text that is longer than the attention windows. The whole model is compared with
OpenVINO, and with f32 only if that difference is large.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from fastovms.engine.kernels.assembler import WeightStore, assemble
from fastovms.engine.kernels.chunk_products import CHUNK_BITS
from fastovms.engine.kernels.instructions import Opcode
from fastovms.engine.kernels.matrices import decompressed
from fastovms.engine.kernels.operation import Workspace
from fastovms.engine.kernels.segments import Segment, Step
from fastovms.engine.model.compilation import compile_variants
from fastovms.engine.model.devices import device_memory
from fastovms.engine.model.model import (
    Floats,
    PagedGraph,
    PagedModel,
    Precisions,
    RunnerFactory,
    as_float32,
)
from fastovms.engine.model.paging import attention_windows
from fastovms.engine.model.step_inputs import StepLayout
from fastovms.parts.comparison.graph_comparison import PROPERTIES
from fastovms.parts.comparison.layer_cut import cut_layers
from fastovms.parts.decode_kernels.few_rows import (
    MAX_ROWS,
    FewRowVariants,
    compile_few_rows,
    expert_products,
)

_MAX_ROWS: Final = MAX_ROWS + 8
"""The most tokens of a compared step. Steps of more than `MAX_ROWS` tokens are multiplied in wide
tiles."""

_SIZES: Final = (1, 2, 3, 5, MAX_ROWS, _MAX_ROWS)
"""The numbers of tokens of the steps that are compared with f32."""

_TEXT_LENGTH: Final = 256
"""The tokens of the text before the compared steps, unless an attention window is longer. Text and
steps together are longer than one attention segment."""

MAX_CONTEXT: Final = 2048
"""The maximum tokens of the text before the compared steps, whatever the attention windows."""

_OWN_LENGTH: Final = 32
"""The maximum tokens of a compared step's sequence after the text: one block."""

_BYTES_PER_WEIGHT: Final = 4
"""The bytes of memory needed for each weight of the cut model in f32. This estimates 2.3 GB for a
model of 1.2B parameters, which took 1.5 GB."""

_FACTOR: Final = 1.5
"""The largest allowed ratio of the kernels' error to OpenVINO's. It was 0.4 to 1.0 for Gemma 3
270M."""

_EXACT: Final = {16: 0.005, 8: 0.05}
"""The minimum of OpenVINO's error, as a fraction of the logits' standard deviation, that the
kernels' error is compared with, by the fewest bits of the kernels' activations. Where OpenVINO
computed in f32 with an f16 cache, the error of kernels with 16 bits was 0.001 to 0.004 for SmolLM2
and Gemma, and OpenVINO's 0.0005 to 0.002."""

_MAX_ERROR: Final = 0.2
"""If the root mean square difference from OpenVINO's logits is at most this share of their standard
deviation, the whole model is not compared with f32."""

_MAX_LOSS: Final = 0.3
"""The maximum by which OpenVINO's logit of the kernels' most likely token may be below OpenVINO's
highest logit, as a fraction of the logits' standard deviation."""

_MAX_ERROR_OF_ROW: Final = 0.02
"""The maximum error of the product of an expert's weight row with a vector of signs, relative to
the row's norm (at least that of a row of ones in integers). Packed scales are f16, which rounds by
up to 0.0005."""

_ROWS_OF_TIES: Final = 16
"""One of so many rows may have experts that change places."""

_ROWS_AT_ONCE: Final = 512
"""The number of rows that are decompressed at once, which bounds the memory."""

_NUM_LOGITS: Final = 8192
"""The number of logits of a token that are compared with f32."""

_TOKEN_IDS: Final = (5, 400)
"""The range of compared token ids, of which a small vocabulary has only a part."""

_LEAST_DEVIATION: Final = 1e-30
"""Replaces the deviation of logits that are all equal."""

Makers = Mapping[int, RunnerFactory]


def compile_cut(paged: PagedGraph, device: str, precisions: Precisions) -> PagedModel:
    """Compiles a model cut to one layer of each kind. Raises NotEnoughMemory if the check would
    need more memory than is free; RuntimeError if OpenVINO rejects the graph."""
    cut = replace(paged, model=paged.model.clone())
    cut_layers(cut.model)
    return compile_whole(cut, device, precisions)


def compile_whole(paged: PagedGraph, device: str, precisions: Precisions) -> PagedModel:
    """Compiles another copy of the whole model. Raises as `compile_cut` does."""
    if device_memory(ov.Core(), device) < _num_weights(paged) * _BYTES_PER_WEIGHT:
        raise NotEnoughMemory
    compiled = compile_variants(ov.Core(), paged.model, device, precisions)
    return PagedModel(compiled, device=device, precisions=precisions, graph=paged)


class NotEnoughMemory(Exception):
    """Raised if too little memory is free to compute a model in f32."""


def why_wrong(model: PagedModel, store: WeightStore, *, is_long: bool = True) -> str | None:
    """Compares the logits of the kernels and of OpenVINO with f32, and returns the fault found, as
    text for the log; None = the kernels are correct. Takes the time of some hundred steps, plus
    compiling the model in f32. Raises RuntimeError if OpenVINO rejects a graph.

    Args:
        store: the packed weights.
        is_long: whether to compare after a long text, too.
    """
    own = compile_few_rows(model, store, has_operations=False)
    if own is None:
        return "a layer of each kind cannot be computed"
    return _why_less_exact(model, own, is_long=is_long)


def wrong_experts(paged: PagedGraph, store: WeightStore) -> str | None:
    """Compares products with the packed weights of all experts with NumPy's, and returns the fault
    found, as text for the log; None = the weights are correct.

    The comparison of logits is not enough: a cut model has only some layers, a step uses only some
    experts, and a fault in one expert hardly changes the logits. Takes some seconds per billion
    weights.
    """
    for steps in expert_products(paged.model, store.kernels.instructions):
        name = steps[0].node.get_friendly_name()
        if name not in store.experts:  # the experts are left to OpenVINO
            continue
        matrices = [step.weights.compressed for step in steps if step.weights is not None]
        # Signs are exact when quantized.
        signs = np.random.default_rng(0).choice([-1.0, 1.0], matrices[0].num_columns)
        signs = signs.astype(np.float32)
        products = _product(steps, store, signs)
        sizes = np.cumsum([weights.num_rows for weights in matrices])
        for weights, found in zip(matrices, np.split(products, sizes), strict=False):
            for start in range(0, weights.num_rows, _ROWS_AT_ONCE):
                end = min(start + _ROWS_AT_ONCE, weights.num_rows)
                rows = decompressed(weights, start, end)
                levels = np.square(weights.scales[start:end]).mean(-1) * weights.num_columns
                limit = _MAX_ERROR_OF_ROW * np.sqrt(np.square(rows).sum(-1) + levels)
                if not (np.abs(found[start:end] - rows @ signs) <= limit).all():
                    return f"packed weights of experts of {name} are wrong"
    return None


def _product(steps: Sequence[Step], store: WeightStore, row: Floats) -> Floats:
    """Returns the product of a row with the packed matrices of all experts."""
    wholes = [
        replace(
            step,
            opcode=Opcode.PRODUCT,
            sources=steps[0].sources,
            widths=(step.weights.compressed.num_rows,),
        )
        for step in steps
        if step.weights is not None
    ]
    num_rows = sum(step.widths[0] for step in wholes)
    program = assemble(Segment(wholes, list(steps[0].sources)), store)
    workspace = Workspace(store.kernels, 1)
    workspace.reserve([program])
    workspace.prepare_thread()
    result = np.zeros(program.strides[-1], np.float32)
    buffers = np.array([(one.ctypes.data, len(one)) for one in (row, result)], np.int64)
    store.kernels.run(
        program.instructions,
        buffers,
        1,
        workspace.scratch,
        store.kernels.product,
        np.zeros(1, np.int64),
        store.kernels.num_threads,
    )
    return result[:num_rows]


def _num_weights(graph: PagedGraph) -> int:
    constants = (op for op in graph.model.get_ops() if op.get_type_name() == "Constant")
    return sum(math.prod(constant.get_output_shape(0)) for constant in constants)


def _ways(variants: FewRowVariants) -> list[Makers]:
    return [makers for makers in (variants.whole, variants.operations) if makers]


def _with_kernels(model: PagedModel, makers: Makers) -> PagedModel:
    """Returns a model that shares the compiled graphs, and whose steps of few tokens use the
    kernels."""
    ours = model.twin()
    ours.use_for_few_rows({number: [make] for number, make in makers.items()})
    return ours


def _why_less_exact(model: PagedModel, variants: FewRowVariants, *, is_long: bool) -> str | None:
    """Compares the errors of OpenVINO and of the kernels relative to f32; see `why_wrong`."""
    reference = compile_whole(model.graph, model.device, Precisions("f32", PROPERTIES))
    # Tables of states in f32 are larger, and blocks have at least their size.
    block_size = math.lcm(model.block_size, reference.block_size)
    starts = (0, _text_length(model.graph, block_size)) if is_long else (0,)
    exact = [list(_logits_after(reference, start)) for start in starts]
    del reference  # free the memory before the next model is compiled
    matrices = variants.store.matrices
    fewest = min(each.kind.activation_bits for each in matrices)
    has_short = any(each.kind.has_chunk_form for each in matrices)
    of_chunks = CHUNK_BITS if has_short and variants.store.kernels.chunk_product else fewest
    limits = (_EXACT[fewest], _EXACT[of_chunks])
    for start, expected in zip(starts, exact, strict=True):
        has_experts = bool(variants.store.experts)
        theirs = _errors(expected, model.twin(), start, has_experts=has_experts)
        for makers in _ways(variants):
            ours = _errors(expected, _with_kernels(model, makers), start, has_experts=has_experts)
            kinds = list(zip(ours, theirs, limits, strict=True))
            sizes = (("on average", _root_mean_square), ("at most", np.max))
            for (name, size), (mine, openvinos, least) in product(sizes, kinds):
                own, other = float(size(mine)), float(size(openvinos))
                if not own <= _FACTOR * max(other, least):  # not `>`: it may be NaN
                    return (
                        f"after {start} tokens logits differ from f32 by {own:.2g} of their "
                        f"deviation {name}, OpenVINO's by {other:.2g}"
                    )
    return None


def _errors(
    expected: Sequence[Floats], model: PagedModel, start: int, *, has_experts: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the errors of a model's steps after a text of `start` tokens, or, with experts, of
    rows without the largest ones: two experts whose scores are nearly equal may change places.
    The second array is of the two steps of the last size, which are computed as chunks are."""
    pairs = list(zip(expected, _logits_after(model, start), strict=True))
    few, chunks = (_errors_of(steps, has_experts) for steps in (pairs[:-2], pairs[-2:]))
    return few, chunks


def _errors_of(pairs: Sequence[tuple[Floats, Floats]], has_experts: bool) -> NDArray[np.float64]:
    if not has_experts:
        return np.array([_error(one, found) for one, found in pairs])
    rows = [np.square(one - found).mean(-1) / one.var() for one, found in pairs]
    errors = np.sqrt(np.sort(np.concatenate(rows)).astype(np.float64))
    if not np.isfinite(errors).all():
        return errors
    return errors[: len(errors) - len(errors) // _ROWS_OF_TIES]


def _root_mean_square(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.square(values).mean()))


def _error(expected: Floats, found: Floats) -> float:
    """Returns the root mean square difference as a share of the standard deviation of
    `expected`."""
    deviation = max(float(expected.std()), _LEAST_DEVIATION)
    return float(np.sqrt(np.square(expected - found).mean())) / deviation


def _text_length(paged: PagedGraph, block_size: int) -> int:
    """Returns the length of a text that is longer than the attention windows, in tokens: whole
    blocks, at most `MAX_CONTEXT`."""
    windows = [window for window in attention_windows(paged.model) if window < MAX_CONTEXT]
    longest = MAX_CONTEXT
    if paged.max_exact_len is not None:
        longest = min(longest, paged.max_exact_len.num_tokens)
    length = max([*windows, _TEXT_LENGTH]) + _OWN_LENGTH
    longest = (longest - _OWN_LENGTH) // block_size * block_size
    return max(0, min(-(-length // block_size) * block_size, longest))


def token_id_range(vocab_size: int | None) -> tuple[int, int]:
    """Returns the first id, and the end, of the tokens in compared texts. None = any vocabulary."""
    first, end = _TOKEN_IDS
    end = end if vocab_size is None else min(end, vocab_size)
    return min(first, end - 1), end


def _logits_after(model: PagedModel, start: int) -> Iterator[Floats]:
    """Yields the logits [size, vocab_size] of two steps of each size after a text of `start`
    tokens. The second step reads the KV cache that the first one wrote. Half of a step's tokens
    belong to one sequence, each of the others to its own sequence. Replaces the model's KV
    cache."""
    rng, ids = np.random.default_rng(0), token_id_range(model.vocab_size)
    text = rng.integers(*ids, start).tolist()
    texts = [array("q", [*text, *rng.integers(*ids, _OWN_LENGTH)]) for _ in range(_MAX_ROWS)]
    num_shared = start // model.block_size
    model.allocate_cache(num_shared + _MAX_ROWS)
    tables = [array("i", [*range(num_shared), num_shared + own]) for own in range(_MAX_ROWS)]
    if start:
        layout = StepLayout(model.block_size)
        layout.add(texts[0], 0, start, tables[0])
        model.infer(layout.finish(array("q")))
    for size in _SIZES:
        longest = min(size - size // 2, _OWN_LENGTH // 2)
        lengths = (longest, *[1] * (size - longest))
        for step in (0, 1):
            layout = StepLayout(model.block_size)
            for length, token_ids, table in zip(lengths, texts, tables, strict=False):
                first = start + step * length
                layout.add(token_ids, first, first + length, table)
            logits = as_float32(model.infer(layout.finish(array("q", range(size)))))
            yield logits[:, :: 1 + logits.shape[1] // _NUM_LOGITS].copy()


def differs(
    model: PagedModel, variants: FewRowVariants, before_each: Callable[[], None] = lambda: None
) -> bool:
    """Returns whether the kernels' logits differ from OpenVINO's by so much that `why_wrong` has to
    decide. `before_each` is called before the step of each size."""
    models = [model.twin(), *(_with_kernels(model, makers) for makers in _ways(variants))]
    for expected, *found in zip(*map(_logits_of_texts, models), strict=True):
        before_each()
        if any(_differ(expected, own) for own in found):
            return True
    return False


def _logits_of_texts(model: PagedModel) -> Iterator[Floats]:
    """Yields the logits of a step of each size at the beginning of texts. Replaces the model's KV
    cache."""
    ids = token_id_range(model.vocab_size)
    model.allocate_cache(_MAX_ROWS)
    sizes = [(8, context) for context in range(4)]
    sizes += [(number, 4) for number in (*range(1, 8), _MAX_ROWS)]
    for seed, (number, context) in enumerate(sizes):
        rng = np.random.default_rng(seed)
        texts = [array("q", rng.integers(*ids, context + 1)) for _ in range(number)]
        for start, end in ((0, context), (context, context + 1)) if context else ((0, 1),):
            layout = StepLayout(model.block_size)
            last = [
                layout.add(text, start, end, array("i", (row,))) for row, text in enumerate(texts)
            ]
            logits = as_float32(model.infer(layout.finish(array("q", last))))
        yield logits.copy()


def _differ(expected: Floats, found: Floats) -> bool:
    deviation = float(expected.std())
    if not _error(expected, found) <= _MAX_ERROR:
        return True
    likeliest = np.take_along_axis(expected, found.argmax(-1)[:, None], -1)[:, 0]
    return not float((expected.max(-1) - likeliest).max()) <= _MAX_LOSS * deviation
