"""What adapters (LoRA) cost a step: the time of steps whose rows have none, one or several of them,
as a multiple of the same step of a model without adapters.

Decoding steps have one row a sequence, and sequences have the adapters in turn; a prompt's chunk is
of one adapter. All cells are measured in turn, round by round, and compared within rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from bench.common.properties import add_property_flag, properties_of
from bench.common.report import machine, median, table
from fastovms.engine.model.adapters import (
    AdapterStack,
    LowRank,
    MatrixShape,
    compile_adapters,
    module_shapes,
)
from fastovms.engine.model.model import PagedModel
from fastovms.engine.model.tuning import MeasuredStep, inputs_of

_TARGETS: Final[Mapping[str, tuple[str, ...]]] = {
    "q, v": ("q_proj", "v_proj"),
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "all": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
}
_CONTEXT: Final = 192
_STEPS: Final[Mapping[str, MeasuredStep]] = {
    "1 row": MeasuredStep(1, _CONTEXT, 1),
    "8 rows": MeasuredStep(8, _CONTEXT, 1),
    "16 rows": MeasuredStep(16, _CONTEXT, 1),
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

    def seconds(self, step: MeasuredStep, num_times: int) -> float:
        """Returns the mean time of a step."""
        inputs = inputs_of(step, self._model.block_size)
        if self._num_used:
            numbers = np.arange(step.num_sequences, dtype=np.int32) % self._num_used + 1
            inputs = inputs._replace(adapters=numbers)
        self._model.infer(inputs)
        start = time.perf_counter()
        for _ in range(num_times):
            self._model.infer(inputs)
        return (time.perf_counter() - start) / num_times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--loaded", type=int, default=8, help="adapters")
    parser.add_argument("--used", type=int, nargs="+", default=[0, 1, 8], help="in a step")
    parser.add_argument("--targets", nargs="+", choices=_TARGETS, default=list(_TARGETS))
    parser.add_argument("--rounds", type=int, default=9)
    add_property_flag(parser)
    arguments = parser.parse_args()
    properties = properties_of(arguments)
    plain = PagedModel.load(arguments.model, properties=properties)
    num_blocks = max(
        step.num_sequences * -(-(step.context + step.num_tokens) // plain.block_size)
        for step in _STEPS.values()
    )
    plain.allocate_cache(num_blocks)
    print(machine())
    shapes = module_shapes(plain.graph.model)
    rows = []
    for name in arguments.targets:
        chosen = {key: one for key, one in shapes.items() if key.endswith(_TARGETS[name])}
        stack = AdapterStack({})
        for number in range(1, arguments.loaded + 1):
            stack = stack.with_adapter(number, random_adapter(chosen, arguments.rank, number))
        model = plain.twin()
        model.use_for_adapters(compile_adapters(model, stack))
        model.allocate_cache(num_blocks)
        cells = {"none": Cell(plain, 0)} | {
            f"{used} of {arguments.loaded}": Cell(model, used) for used in arguments.used
        }
        times: dict[tuple[str, str], list[float]] = {}
        for _ in range(arguments.rounds):
            for title, step in _STEPS.items():
                for cell, one in cells.items():
                    times.setdefault((title, cell), []).append(one.seconds(step, 2))
        for cell in cells:
            if cell == "none":
                continue
            ratios = []
            for title in _STEPS:
                pairs = zip(times[title, cell], times[title, "none"], strict=True)
                ratios.append(f"{median([after / before for after, before in pairs]):.2f}")
            rows.append([name, cell, *ratios])
        del model
    print(table(["matrices", "adapters in the step", *_STEPS], rows))


if __name__ == "__main__":
    main()
