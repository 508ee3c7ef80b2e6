"""What a decoding step costs, against the number of sequences and the length of their context,
beside `openvino_genai.ContinuousBatchingPipeline` on the same model.

All sequences of a cell begin with the same prompt, which both engines compute once (prefix
cache), so that long contexts of many sequences need neither hours nor a hundred gigabytes; its
last token is one more than whole blocks hold, and all that is left for the others to compute. What
is timed are steps in which every sequence gets one token. Ours and theirs run in turn. The second
table says what share of our step is spent around `infer()`.

With --decode-kernels, what runs beside it is the same engine: ours computes all steps of up to 32
tokens with kernels of its own, and the other one none.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Protocol

import numpy as np
import openvino as ov
import openvino_genai

from bench.common.properties import add_property_flag, properties_of
from bench.common.report import machine, median, table
from bench.common.timed_model import TimedModel
from fastovms.config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.kernels.assembler import WeightStore
from fastovms.engine.kernels.compiler import find_instructions
from fastovms.engine.model.compilation import load_model
from fastovms.engine.model.model import PagedModel
from fastovms.params import GenerationRequest, SamplingParams
from fastovms.parts.decode_kernels.few_rows import compile_few_rows, fastest_kernels

NUM_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (128, 512, 1024, 4096)
CACHE_SIZE = 2
RANDOM_TOKEN_IDS = (5, 400)
"""Ids that every vocabulary has."""

_SPARE_STEPS = 4
"""Before the first one that is timed: all sequences decode by then."""


class Stepper(Protocol):
    def start(self, prompt: list[int], num_sequences: int, num_steps: int) -> None:
        """Adds requests, and steps until all of them decode."""

    def step(self) -> None: ...

    def finish(self) -> None: ...


class Ours:
    def __init__(
        self, model_dir: Path, properties: dict[str, str], *, uses_kernels: bool = False
    ) -> None:
        model = load_model(model_dir, properties=properties)
        if uses_kernels:
            use_kernels(model)
        self._model = TimedModel(model)
        self.python_shares: list[float] = []
        self._num_blocks = CACHE_SIZE * 1024**3 // self._model.bytes_per_block
        self._model.allocate_cache(self._num_blocks)

    def start(self, prompt: list[int], num_sequences: int, num_steps: int) -> None:
        config = EngineConfig(max_num_seqs=max(NUM_SEQUENCES), enable_prompt_lookup=False)
        max_model_len = self._num_blocks * self._model.block_size
        self._engine = Engine(
            self._model, config, num_blocks=self._num_blocks, max_model_len=max_model_len
        )
        max_tokens = num_steps + _SPARE_STEPS + num_sequences
        params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
        self._engine.add(GenerationRequest("first", prompt, params))
        self._engine.step()
        while self._engine.scheduler.running[0].num_uncomputed_tokens > 1:
            self._engine.step()
        for i in range(num_sequences - 1):
            self._engine.add(GenerationRequest(str(i), prompt, params))
        while len(self._engine.scheduler.running) < num_sequences:
            self._engine.step()
        for _ in range(_SPARE_STEPS):
            self._engine.step()

    def step(self) -> None:
        self._model.seconds = 0.0
        start = time.perf_counter()
        self._engine.step()
        self.python_shares.append(1 - self._model.seconds / (time.perf_counter() - start))

    def finish(self) -> None:
        for sequence in list(self._engine.scheduler.running):
            self._engine.abort(sequence.request_id)


def use_kernels(model: PagedModel) -> None:
    """Has all steps of few tokens computed by our own kernels."""
    instructions = find_instructions()
    assert instructions is not None, "this CPU has none that there are kernels for"
    store = WeightStore(fastest_kernels(model.graph, instructions, model.num_threads))
    variants = compile_few_rows(model, store)
    assert variants is not None, "the kernels cannot compute this model"
    makers = {number: [make] for number, make in variants.operations.items()}
    for number, make in variants.whole.items():
        makers[number].insert(0, make)
    model.use_for_few_rows(makers)


class Genai:
    def __init__(self, model_dir: Path, properties: dict[str, str]) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_SIZE
        scheduler.enable_prefix_caching = True
        scheduler.max_num_seqs = max(NUM_SEQUENCES)
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(model_dir), scheduler, "CPU", properties
        )
        self._ids = iter(range(10**9))

    def start(self, prompt: list[int], num_sequences: int, num_steps: int) -> None:
        tensor = ov.Tensor(np.array([prompt], np.int64))
        self._run(tensor, 1)  # fills the prefix cache
        config = _greedy(num_steps + _SPARE_STEPS + num_sequences)
        self._handles = [
            self._pipeline.add_request(next(self._ids), tensor, config)
            for _ in range(num_sequences)
        ]
        waiting = list(self._handles)
        while waiting:
            self._pipeline.step()
            waiting = [handle for handle in waiting if not handle.can_read()]
        for _ in range(_SPARE_STEPS):
            self._pipeline.step()

    def _run(self, prompt: ov.Tensor, num_tokens: int) -> None:
        self._pipeline.add_request(next(self._ids), prompt, _greedy(num_tokens))
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()

    def step(self) -> None:
        self._pipeline.step()

    def finish(self) -> None:
        for handle in self._handles:
            handle.cancel()
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()


def _greedy(num_tokens: int) -> openvino_genai.GenerationConfig:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = num_tokens
    config.ignore_eos = True
    config.do_sample = False
    return config


def step_times(engine: Stepper, prompt: list[int], num_sequences: int, num: int) -> list[float]:
    """Milliseconds."""
    engine.start(prompt, num_sequences, num)
    times = []
    for _ in range(num):
        start = time.perf_counter()
        engine.step()
        times.append(1000 * (time.perf_counter() - start))
    engine.finish()
    return times


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.steps", description=__doc__)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("-n", "--num-sequences", type=int, nargs="+", default=NUM_SEQUENCES)
    parser.add_argument("-c", "--contexts", type=int, nargs="+", default=CONTEXTS)
    parser.add_argument("-s", "--steps", type=int, default=12, help="timed steps of each cell")
    parser.add_argument(
        "--decode-kernels", action="store_true", help="with and without kernels of our own"
    )
    add_property_flag(parser)
    arguments = parser.parse_args()
    properties = properties_of(arguments)
    has_kernels = arguments.decode_kernels
    ours = Ours(arguments.model_dir, properties, uses_kernels=has_kernels)
    theirs: Stepper = (Ours if has_kernels else Genai)(arguments.model_dir, properties)
    names = "with / without kernels" if has_kernels else "ours / genai"
    rng = np.random.default_rng(0)
    rows: dict[int, list[object]] = {n: [n] for n in arguments.num_sequences}
    shares: dict[int, list[object]] = {n: [n] for n in arguments.num_sequences}
    for context in arguments.contexts:
        prompt = rng.integers(*RANDOM_TOKEN_IDS, context + 1).tolist()
        for num_sequences, row in rows.items():
            times: tuple[list[float], list[float]] = ([], [])
            ours.python_shares.clear()
            for _ in range(2):
                engines: tuple[Stepper, Stepper] = (ours, theirs)
                for engine, measured in zip(engines, times, strict=True):
                    measured += step_times(engine, prompt, num_sequences, arguments.steps // 2)
            our_ms, their_ms = map(median, times)
            row.append(f"{our_ms:.1f} / {their_ms:.1f} ({their_ms / our_ms:.2f})")
            shares[num_sequences].append(f"{median(ours.python_shares):.1%}")
            print(f"context {context}, {num_sequences} sequences: {row[-1]}", file=sys.stderr)
    print(machine())
    print(f"milliseconds a step: {names} (the latter over the former)\n")
    header = ("sequences", *(f"context {context}" for context in arguments.contexts))
    print(table(header, rows.values()))
    print("\nPython around infer()\n")
    print(table(header, shares.values()))


if __name__ == "__main__":
    main()
