"""What adapters (LoRA) cost a step: the time of steps whose rows have none, one or several of them,
as a multiple of the same step of a model without adapters.

Decoding steps have one row a sequence, and sequences have the adapters in turn; a prompt's chunk is
of one adapter. Steps of few rows are computed by the decode kernels, with adapters and without. All
cells are measured in turn, round by round; the ratios are of the fastest rounds, and medians of the
ratios of each round. On a machine that others use at the same time, --processor-time tells more
than the clock.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from bench.common.properties import add_property_flag, properties_of
from bench.common.report import machine, median, table
from fastovms.engine.kernels.assembler import WeightStore
from fastovms.engine.kernels.compiler import find_instructions
from fastovms.engine.kernels.low_rank import pack_adapter
from fastovms.engine.model.compilation import load_model
from fastovms.engine.model.model import PagedModel, RunnerFactory
from fastovms.parts.adapters.graph import (
    AdapterStack,
    LowRank,
    MatrixShape,
    compile_adapters,
    module_shapes,
)
from fastovms.parts.decode_kernels.few_rows import (
    FewRowVariants,
    compile_few_rows,
    fastest_kernels,
)
from fastovms.parts.tuning.measurement import MeasuredStep, inputs_of

_TARGETS: Final[Mapping[str, tuple[str, ...]]] = {
    "q, v": ("q_proj", "v_proj"),
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "all": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
}
_CONTEXT: Final = 192
_REPEATS: Final = 3
"""Steps that are timed as one."""

_STEPS: Final[Mapping[str, MeasuredStep]] = {
    "1 row": MeasuredStep(1, _CONTEXT, 1),
    "4 rows": MeasuredStep(4, _CONTEXT, 1),
    "8 rows": MeasuredStep(8, _CONTEXT, 1),
    "16 rows": MeasuredStep(16, _CONTEXT, 1),
    "32 rows": MeasuredStep(32, _CONTEXT, 1),
    "prompt, 256 rows": MeasuredStep(1, _CONTEXT, 256),
}


def random_adapter(shapes: Mapping[str, MatrixShape], rank: int, seed: int) -> dict[str, LowRank]:
    """Returns small random matrices for each module."""
    rng = np.random.default_rng(seed)

    def matrix(width: int) -> np.ndarray:
        return rng.normal(0, 0.01, (rank, width)).astype(np.float32)

    return {name: LowRank(matrix(one.columns), matrix(one.rows)) for name, one in shapes.items()}


class Cell:
    """A model with a number of loaded adapters, and a number of those in a step.

    Args:
        model: has the adapters.
    """

    def __init__(self, model: PagedModel, num_used: int) -> None:
        self._model = model
        self._num_used = num_used

    def seconds(self, step: MeasuredStep, clock: Callable[[], float]) -> float:
        """Returns the time of a step."""
        inputs = inputs_of(step, self._model.block_size)
        if self._num_used:
            numbers = np.arange(step.num_sequences, dtype=np.int32) % self._num_used + 1
            inputs = inputs._replace(adapters=numbers)
        self._model.infer(inputs)
        start = clock()
        for _ in range(_REPEATS):
            self._model.infer(inputs)
        return clock() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--loaded", type=int, default=8, help="adapters")
    parser.add_argument("--used", type=int, nargs="+", default=[0, 1, 8], help="in a step")
    parser.add_argument("--targets", nargs="+", choices=_TARGETS, default=list(_TARGETS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--processor-time", action="store_true", help="of all threads")
    parser.add_argument("--steps", nargs="+", choices=_STEPS, default=list(_STEPS))
    parser.add_argument(
        "--decode-kernels", choices=("auto", "off"), default="auto", help="for steps of few rows"
    )
    add_property_flag(parser)
    arguments = parser.parse_args()
    properties = properties_of(arguments)
    clock = time.process_time if arguments.processor_time else time.perf_counter
    plain = load_model(arguments.model, properties=properties)
    num_blocks = max(
        step.num_sequences * -(-(step.context + step.num_tokens) // plain.block_size)
        for step in _STEPS.values()
    )
    plain.allocate_cache(num_blocks)
    print(machine())
    steps = {name: _STEPS[name] for name in arguments.steps}
    shapes = module_shapes(plain.graph.model)
    original, variants = plain, None
    if arguments.decode_kernels == "auto":
        variants = _kernels(plain)
        plain = plain.twin()
        plain.use_for_few_rows(_makers(variants))
        plain.allocate_cache(num_blocks)
    rows = []
    for name in arguments.targets:
        chosen = {key: one for key, one in shapes.items() if key.endswith(_TARGETS[name])}
        stack = AdapterStack({})
        for number in range(1, arguments.loaded + 1):
            weights = random_adapter(chosen, arguments.rank, number)
            packed = pack_adapter([weights.get(module) for module in shapes])
            stack = stack.with_adapter(number, weights, packed)
        model = original.twin()
        model.use_for_adapters(compile_adapters(model, stack), stack.packed)
        if variants is not None:
            model.use_for_few_rows(_makers(variants), variants.adapted)
        model.allocate_cache(num_blocks)
        cells = {"none": Cell(plain, 0)} | {
            f"{used} of {arguments.loaded}": Cell(model, used) for used in arguments.used
        }
        times: dict[tuple[str, str], list[float]] = {}
        for _ in range(arguments.rounds):
            for title, step in steps.items():
                for cell, one in cells.items():
                    times.setdefault((title, cell), []).append(one.seconds(step, clock))
        for cell in cells:
            if cell == "none":
                continue
            rows.append(
                [name, cell, *(_ratio(times[title, cell], times[title, "none"]) for title in steps)]
            )
        fastest = [f"{1000 * min(times[title, 'none']) / _REPEATS:.1f} ms" for title in steps]
        rows.append([name, "none", *fastest])
        del model
    print(table(["matrices", "adapters in the step", *steps], rows))


def _ratio(times: Sequence[float], others: Sequence[float]) -> str:
    paired = [one / other for one, other in zip(times, others, strict=True)]
    return f"{min(times) / min(others):.2f} ({median(paired):.2f})"


def _kernels(model: PagedModel) -> FewRowVariants:
    instructions = find_instructions()
    assert instructions is not None, "this CPU has none that there are kernels for"
    store = WeightStore(fastest_kernels(model.graph, instructions, model.num_threads))
    variants = compile_few_rows(model, store, has_adapters=True)
    assert variants is not None, "the kernels cannot compute this model"
    return variants


def _makers(variants: FewRowVariants) -> dict[int, list[RunnerFactory]]:
    return {number: [make] for number, make in (variants.whole or variants.operations).items()}


if __name__ == "__main__":
    main()
