"""Creates variants of a model that compute steps of few tokens with fastovms's own kernels.

On two cores of a Zen 3, OpenVINO's products of compressed weights are bound by computation: with
4-bit weights they read 9 GB/s of the possible 33 GB/s, the kernels 27 GB/s. The variants share the
model's KV cache, and need another copy of the weights.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import openvino as ov

from fastovms.engine.kernels import compiler
from fastovms.engine.kernels.assembler import WeightStore, assemble
from fastovms.engine.kernels.attention import KEYS, MAX_LANES
from fastovms.engine.kernels.compiler import Kernels
from fastovms.engine.kernels.low_rank import PackedAdapters
from fastovms.engine.kernels.matrices import Room
from fastovms.engine.kernels.mixtures import find_mixtures
from fastovms.engine.kernels.operation import RewrittenModel, Workspace, use_kernels
from fastovms.engine.kernels.segments import Step, find_segments
from fastovms.engine.kernels.whole_steps import (
    CacheShape,
    Module,
    UnsupportedNodeError,
    assemble_step,
)
from fastovms.engine.model.fusion import fuse_projections
from fastovms.engine.model.kv_cache import CacheInput, cache_layout, is_cache, is_state_table
from fastovms.engine.model.model import (
    MAX_KERNEL_TOKENS,
    AdaptedRunnerFactory,
    PagedGraph,
    PagedModel,
    Precisions,
    Runner,
    RunnerFactory,
    StepRunner,
)
from fastovms.engine.model.paging import fix_shapes
from fastovms.engine.model.step_inputs import HIDDEN_STATES, SAMPLED_TOKEN_INDICES
from fastovms.parts.adapters.graph import find_modules
from fastovms.parts.decode_kernels.step_program import (
    AdaptedStepRunner,
    StepProgramRunner,
)
from fastovms.parts.tuning.measurement import (
    CONTEXT,
    MIN_GAIN,
    MIN_ROUNDS,
    MeasuredStep,
    is_mostly_above,
    measure,
)

MAX_ROWS: Final = 32
"""The maximum number of tokens of a step with adapters, or with OpenVINO's attention. With
SmolLM2-135M in Q4_1 and one thread of a Zen 4, a step of 16, 24 and 32 tokens took 0.62, 0.71 and
0.8 of OpenVINO's time."""

_ROWS_TOGETHER: Final = 128
"""The maximum number of tokens that a whole-step program computes at once."""

_MEASURED: Final = (1, 2, 4, 8, MAX_ROWS // 2, MAX_ROWS, 128)
"""The numbers of tokens per step that are measured. Other numbers get the gain of the next larger
measured number, and numbers above the last one get its gain."""

_EXACT_INSTRUCTIONS: Final = {
    "avx512_vnni": "avx512_vnni16",
    "avx_vnni": "avx_vnni16",
    "avx512": "avx512",
    "avx2": "avx2",
}
"""The instructions for models with zero points in some weights, by the fastest ones. With 8-bit
activations, such models would be less exact than with OpenVINO. With SmolLM2 in Q4_1, logits
differed from f32 by 0.03 to 0.09 of their standard deviation with 8 bits, and by 0.01 with 16 bits,
at nearly the same speed for few tokens; OpenVINO's in bf16 differed by 0.02 to 0.04. If only the
symmetric 6-bit and 8-bit weights used 8 bits, the most likely token equalled that of f32 in 97.9
instead of 99.5 % of positions. For symmetric 4-bit weights, 8 bits are more exact than OpenVINO's
default: in Q4_0 the most likely token equalled that of f32 in 96.3 % of positions, with OpenVINO in
94.6 %."""

_BITS: Final = {ov.Type.f16: 16, ov.Type.f32: 32, ov.Type.u8: 8}
"""The bits of a number in the KV cache, by its type."""

_STATE_BITS: Final = {ov.Type.bf16: 16, ov.Type.f32: 32}

_SCALE_BYTES: Final = 8
"""The bytes of a scale and a zero point in an 8-bit KV cache. A block has this many additional rows
of keys and this many additional columns of values."""


@dataclass(frozen=True, slots=True)
class FewRowVariants:
    """Variants of a model for steps of few tokens.

    Attributes:
        whole: factories of runners that compute whole steps with kernels, by the number of tokens;
            empty = not supported.
        operations: factories of runners that use the kernels for matrix products and OpenVINO for
            the rest, by the number of tokens.
        store: the packed weights of all variants.
        adapted: like `whole`, for steps in which some sequences have adapters.
        why_not_whole: why `whole` is empty, for the log.
    """

    whole: Mapping[int, RunnerFactory]
    operations: Mapping[int, RunnerFactory]
    store: WeightStore
    adapted: Mapping[int, AdaptedRunnerFactory] = field(default_factory=dict)
    why_not_whole: str = ""


def fastest_kernels(paged: PagedGraph, instructions: str, num_threads: int) -> Kernels:
    """Returns the fastest kernels for these instructions, or the exact variant of
    `_EXACT_INSTRUCTIONS` if weights have zero points. The first compilation takes seconds. Raises
    the exceptions of `compile_kernels`."""
    if has_zero_points(paged.model, instructions):
        instructions = _EXACT_INSTRUCTIONS[instructions]
    return compiler.compile_kernels(instructions, num_threads)


def bytes_read(paged: PagedGraph, kernels: Kernels, cache: CacheShape | None) -> int:
    """Returns the bytes of a model's packed weights that a token reads; see `pack_weights`. Those
    are all but the experts that it does not choose. 0 = the kernels can multiply none of them."""
    nothing = np.zeros(1, np.uint8)
    store = WeightStore(kernels, lambda _, size: Room(np.broadcast_to(nothing, size), True))
    pack_weights(paged, store, cache)
    found = float(store.num_bytes)
    for mixture in find_mixtures(paged.model, kernels.instructions) if store.experts else ():
        names = (steps[0].node.get_friendly_name() for steps in mixture.products)
        size = sum(store.experts[name].data.nbytes for name in names if name in store.experts)
        found -= size * (1 - mixture.router.num_chosen / mixture.router.num_experts)
    return int(found)


def pack_weights(paged: PagedGraph, store: WeightStore, cache: CacheShape | None) -> None:
    """Packs all weights that the variants of a model need. `cache` is the shape of the KV caches
    for whole-step programs; None = whole steps are not supported."""
    graph = paged.model.clone()
    fuse_projections(graph)
    if cache is not None:
        with suppress(UnsupportedNodeError):
            assemble_step(graph, store, cache, SAMPLED_TOKEN_INDICES, HIDDEN_STATES)
    for segment in find_segments(graph, store.kernels.instructions):
        assemble(segment, store)


def has_zero_points(model: ov.Model, instructions: str) -> bool:
    """Returns whether any weights that the kernels multiply have zero points other than the middle
    of their range. OpenVINO multiplies such weights with activations that are not quantized to 8
    bits."""
    segments = find_segments(model, instructions)
    steps = [step for segment in segments for step in segment.steps]
    steps += [step for products in expert_products(model, instructions) for step in products]
    weights = (step.weights for step in steps)
    return any(each.kind.has_zero_points for each in weights if each is not None)


def expert_products(model: ov.Model, instructions: str) -> list[Sequence[Step]]:
    """Returns the products with the matrices of all experts of a model's mixtures, those together
    whose weights are packed together."""
    mixtures = find_mixtures(model, instructions)
    return [products for one in mixtures for products in one.products]


def compile_few_rows(
    model: PagedModel,
    store: WeightStore,
    *,
    has_adapters: bool = False,
    has_operations: bool = True,
) -> FewRowVariants | None:
    """Packs the weights of a model and compiles the variants, which takes seconds. Returns None if
    the kernels do not support the model. Raises RuntimeError if OpenVINO rejects a graph.

    Args:
        store: receives the packed weights; weights that it already has are not packed again.
        has_adapters: whether some steps have adapters.
        has_operations: whether to create the `operations` variants even if `whole` ones exist.
    """
    whole, adapted, reason = whole_steps(
        model.graph.model,
        cache_shape(model.cache_inputs),
        store,
        model.device,
        model.precisions,
        has_adapters=has_adapters,
    )
    operations: Mapping[int, RunnerFactory] | None = {}
    if has_operations or not whole:
        operations = _operations(model, store)
    if operations is None:
        return None
    return FewRowVariants(whole, operations, store, adapted, reason)


def _operations(model: PagedModel, store: WeightStore) -> Mapping[int, RunnerFactory] | None:
    """Returns the factories of the `operations` variants, by the number of tokens. None = the
    kernels support no weights, or OpenVINO would change the layout of the KV cache."""
    found: dict[int, RunnerFactory] = {}
    for is_single in (False, True):
        graph = model.graph.model.clone()
        if is_single and not fix_shapes(graph):
            break
        fuse_projections(graph)
        part = use_kernels(graph, store, max_rows=MAX_ROWS)
        if part is None:
            return None
        compiled = ov.Core().compile_model(part.model, model.device, _properties(model.precisions))
        if cache_layout(compiled) != model.cache_layout:
            return None
        numbers = (1,) if is_single else range(1, MAX_ROWS + 1)
        found |= dict.fromkeys(numbers, partial(_KernelRunner, compiled, part))
    return found


def _properties(precisions: Precisions) -> dict[str, object]:
    return {**precisions.large, "INFERENCE_PRECISION_HINT": "f32"}


class _KernelRunner(StepRunner):
    """Runs a compiled graph with the kernels' operations, and keeps those alive."""

    def __init__(self, compiled: ov.CompiledModel, part: RewrittenModel) -> None:
        super().__init__(compiled, is_on_gpu=False)
        self._part = part


class WholeSteps(NamedTuple):
    """Factories of runners for whole steps, without and with adapters, by the number of tokens.
    Both are empty if whole steps are not supported; the third field is the reason."""

    makers: Mapping[int, RunnerFactory] = {}
    adapted: Mapping[int, AdaptedRunnerFactory] = {}
    reason: str = ""


def whole_steps(
    model: ov.Model,
    cache: CacheShape | None,
    store: WeightStore,
    device: str,
    precisions: Precisions,
    *,
    has_adapters: bool,
) -> WholeSteps:
    """Returns the factories for a paged model with KV caches of a shape; see `compile_few_rows`."""
    if cache is None:
        return WholeSteps(reason="they do not support this form of the KV cache")
    graph = model.clone()
    modules = _modules_of_products(model, fuse_projections(graph))
    try:
        step = assemble_step(graph, store, cache, SAMPLED_TOKEN_INDICES, HIDDEN_STATES)
    except UnsupportedNodeError as error:
        return WholeSteps(reason=str(error))
    single = step.before.clone()
    single.reshape({port: [1] for port in single.inputs})
    core, properties = ov.Core(), _properties(precisions)
    several, single = (
        core.compile_model(before, device, properties) for before in (step.before, single)
    )

    def make(before: ov.CompiledModel) -> Runner:
        workspace = Workspace(store.kernels, _ROWS_TOGETHER)
        workspace.reserve([step.program])
        return StepProgramRunner(step, before, workspace)

    # A state cannot continue in the middle of a sequence's tokens.
    most = _ROWS_TOGETHER if any(map(is_state_table, step.caches)) else MAX_KERNEL_TOKENS
    make_several = partial(make, several)
    makers: dict[int, RunnerFactory] = dict.fromkeys(range(1, most + 1), make_several)
    makers[1] = partial(make, single)
    adapted = None
    if has_adapters:
        with suppress(UnsupportedNodeError):
            adapted = assemble_step(
                graph, store, cache, SAMPLED_TOKEN_INDICES, HIDDEN_STATES, modules
            )
    num_modules = len(find_modules(model))
    if adapted is None or sum(map(len, adapted.groups)) != num_modules:
        return WholeSteps(makers)

    def make_adapted(adapters: Callable[[], PackedAdapters]) -> Runner:
        workspace = Workspace(store.kernels, MAX_ROWS)
        workspace.reserve([adapted.program])
        return AdaptedStepRunner(adapted, several, workspace, adapters)

    return WholeSteps(makers, dict.fromkeys(range(1, MAX_ROWS + 1), make_adapted))


def _modules_of_products(
    model: ov.Model, fused: Sequence[Sequence[str]]
) -> dict[str, Sequence[Module]]:
    """Returns the modules that each product computes, by the product's name.

    Args:
        model: the graph with all products.
        fused: tuples of the names of products that are computed together; the first name is the
            key.
    """
    found: dict[str, Sequence[Module]] = {
        node.get_friendly_name(): (Module(number, node.get_input_shape(1)[0]),)
        for number, node in enumerate(find_modules(model).values())
    }
    for names in fused:
        if all(name in found for name in names):
            found[names[0]] = [module for name in names for module in found[name]]
        else:
            found.pop(names[0], None)
    return found


def cache_shape(inputs: Sequence[CacheInput]) -> CacheShape | None:
    """Returns the common shape of all KV caches. None = the shapes differ, or the kernels do not
    support their number types or those of the state tables."""
    state_bits = {_STATE_BITS.get(one.element_type) for one in inputs if one.is_state} or {32}
    inputs = [one for one in inputs if not one.is_state]
    types = {str(one.element_type) for one in inputs}
    bits = _BITS.get(inputs[0].element_type)
    (own_bits, *others) = state_bits
    if len(types) != 1 or bits is None or own_bits is None or others:
        return None
    extra = _SCALE_BYTES if bits == 8 else 0
    heads, num_rows, head_size = inputs[0].page_shape
    block_size = num_rows - extra
    if head_size % MAX_LANES or block_size % KEYS:
        return None  # the attention kernels support only whole vectors
    shapes = {(one.name.partition(".")[0], one.page_shape) for one in inputs}
    expected = {
        ("key_cache", (heads, block_size + extra, head_size)),
        ("value_cache", (heads, block_size, head_size + extra)),
    }
    if shapes != expected:
        return None
    return CacheShape(heads, block_size, head_size, bits, own_bits)


def caches_of(model: ov.Model, shape: CacheShape) -> list[CacheInput]:
    """Returns the KV cache inputs of a model without states; `shape` is the result of
    `cache_shape`."""
    (element_type,) = (kind for kind, bits in _BITS.items() if bits == shape.bits)
    extra = _SCALE_BYTES if shape.bits == 8 else 0
    pages = {
        "key_cache": (shape.heads, shape.block_size + extra, shape.head_size),
        "value_cache": (shape.heads, shape.block_size, shape.head_size + extra),
    }
    names = [port.get_any_name() for port in model.inputs if is_cache(port)]
    return [CacheInput(name, element_type, pages[name.partition(".")[0]]) for name in names]


class NotMeasured(Exception):
    """Raised if steps took too long to be measured."""


def gains(
    plain: PagedModel,
    ours: PagedModel,
    clock: Callable[[], float],
    *,
    before_each: Callable[[], None],
    max_tokens: int,
    max_seconds: float,
    max_rounds: int,
) -> dict[int, float]:
    """Measures how much faster the kernels' steps are than OpenVINO's. Replaces the models' KV
    caches. Raises NotMeasured if the time was too short for a result.

    Args:
        before_each: called before each round.
        max_tokens: the largest step to measure, in tokens.

    Returns:
        The ratio of OpenVINO's time to the kernels', by tokens per step, for those steps that are
            clearly faster.
    """
    found: dict[int, float] = {}
    for num_tokens in _MEASURED:
        previous = _MEASURED[max(_MEASURED.index(num_tokens) - 1, 0)]
        # The gain falls with the number of tokens, but chunks have code of their own.
        is_slower = max(found, default=_MEASURED[2]) < previous
        if num_tokens > max_tokens or (is_slower and num_tokens <= MAX_ROWS):
            continue
        before_each()
        case = MeasuredStep(num_tokens, CONTEXT, 1)
        if num_tokens > MAX_ROWS:  # a chunk of a prompt
            case = MeasuredStep(1, CONTEXT, num_tokens)

        def end_round() -> float:
            before_each()
            return 1.0

        times = measure(
            {"plain": plain, "ours": ours},
            (case,),
            clock,
            max_seconds=max_seconds,
            max_rounds=max_rounds,
            memory_speed=end_round,
        )
        pairs = zip(times["plain"][case], times["ours"][case], strict=True)
        ratios = [before / after for before, after in pairs]
        if len(ratios) < MIN_ROUNDS and not found:
            raise NotMeasured
        if len(ratios) >= MIN_ROUNDS and is_mostly_above(1.0, ratios):
            gain = statistics.median(ratios)
            if gain >= MIN_GAIN:
                found[num_tokens] = gain
    return found


def served_numbers(gains: Mapping[int, float]) -> frozenset[int]:
    """Returns the numbers of tokens per step for which the variants are to be used."""
    next_measured = {
        number: next((one for one in _MEASURED if number <= one), _MEASURED[-1])
        for number in range(1, MAX_KERNEL_TOKENS + 1)
    }
    return frozenset(number for number, one in next_measured.items() if one in gains)
