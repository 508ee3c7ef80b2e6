"""What one request does to another, in process: a shared prefix, and a long prompt among streams.

The first table is the time to the first token of a prompt, and of one that shares all of it but
its end. The second is the gaps between the tokens of running streams, undisturbed and while a
long prompt enters, and how long that prompt takes.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from bench.common.report import machine, median, table
from fastovms.config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.model.compilation import load_model
from fastovms.params import GenerationRequest, SamplingParams

CACHE_TOKENS = 64 * 1024
MAX_MODEL_LEN = 8192
RANDOM_TOKEN_IDS = (5, 400)
QUIET_STEPS = 40
ENDING = 8
"""Tokens that the second prompt does not share."""


class Bench:
    def __init__(self, model_dir: Path, token_budget: int | None) -> None:
        self._model = load_model(model_dir)
        self._num_blocks = CACHE_TOKENS // self._model.block_size
        self._model.allocate_cache(self._num_blocks)
        self._config = EngineConfig(enable_prompt_lookup=False, max_num_batched_tokens=token_budget)
        self._rng = np.random.default_rng(0)

    def _engine(self) -> Engine:
        return Engine(
            self._model, self._config, num_blocks=self._num_blocks, max_model_len=MAX_MODEL_LEN
        )

    def _prompt(self, length: int) -> list[int]:
        prompt: list[int] = self._rng.integers(*RANDOM_TOKEN_IDS, length).tolist()
        return prompt

    def prefix(self, length: int, num_runs: int) -> list[object]:
        times: tuple[list[float], list[float]] = ([], [])
        engine = self._engine()
        for i in range(num_runs + 1):
            stem = self._prompt(length - ENDING)
            for which, measured in enumerate(times):
                prompt = stem + self._prompt(ENDING)
                engine.add(
                    GenerationRequest(
                        f"{i} {which}", prompt, SamplingParams(max_tokens=1, temperature=0)
                    )
                )
                start = time.perf_counter()
                while engine.has_work:
                    engine.step()
                if i:  # the first one warms up
                    measured.append(1000 * (time.perf_counter() - start))
        first, second = map(median, times)
        return [length, first, second, second / first]

    def gaps(self, num_streams: int, length: int) -> list[object]:
        engine = self._engine()
        params = SamplingParams(max_tokens=2000, temperature=0, ignore_eos=True)
        for i in range(num_streams):
            engine.add(GenerationRequest(f"stream {i}", self._prompt(64), params))
        for _ in range(10):
            engine.step()
        quiet = [self._step(engine) for _ in range(QUIET_STEPS)]
        engine.add(GenerationRequest("long", self._prompt(length), params))
        disturbed = [self._step(engine)]
        while any(sequence.num_uncomputed_tokens > 1 for sequence in engine.scheduler.running):
            disturbed.append(self._step(engine))
        usual, worst = median(quiet), float(np.percentile(disturbed, 99))
        shared = median(disturbed)
        return [num_streams, usual, shared, worst, worst / shared, sum(disturbed), len(disturbed)]

    def _step(self, engine: Engine) -> float:
        """Milliseconds."""
        start = time.perf_counter()
        engine.step()
        return 1000 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.latency", description=__doc__)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("-n", "--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prefix", type=int, default=2000, metavar="TOKENS")
    parser.add_argument("--long", type=int, default=4000, metavar="TOKENS")
    parser.add_argument("-r", "--runs", type=int, default=5)
    parser.add_argument("--max-num-batched-tokens", type=int)
    arguments = parser.parse_args()
    bench = Bench(arguments.model_dir, arguments.max_num_batched_tokens)
    print(machine() + "\n")
    header = ("prompt tokens", "first token ms", "with the prefix cached", "share")
    print(table(header, [bench.prefix(arguments.prefix, arguments.runs)]) + "\n")
    entering = f"as {arguments.long} enter"
    gap_header = (
        "streams",
        "gap p50 ms",
        f"p50 {entering}",
        "p99",
        "p99 / p50",
        "first token ms",
        "steps",
    )
    print(table(gap_header, [bench.gaps(n, arguments.long) for n in arguments.streams]))


if __name__ == "__main__":
    main()
