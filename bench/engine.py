"""Compares our engine with `openvino_genai.ContinuousBatchingPipeline` in one process, on the same
model.

Both run the same requests in turn, A B A B, with their defaults unless `--property` says otherwise:
greedy requests, or sampled ones with `--temperature` and `--top-p`. Prints output tokens per second
with the paired ratio, and the share of our steps that Python takes around `infer()`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai

from bench.common.properties import add_property_flag, properties_of
from bench.common.report import machine, median, ratio, table
from bench.common.timed_model import TimedModel
from fastovms.app.paged import engine_extensions
from fastovms.config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.model.compilation import load_model
from fastovms.params import GenerationRequest, SamplingParams

CACHE_SIZE = 2
MAX_MODEL_LEN = 2048
RANDOM_TOKEN_IDS = (5, 400)
"""Token ids that every vocabulary has."""

Prompts = list[list[int]]


@dataclass(frozen=True)
class Sampling:
    temperature: float
    top_p: float


class Ours:
    def __init__(self, model_dir: Path, properties: dict[str, str], sampling: Sampling) -> None:
        self._sampling = sampling
        self._model = TimedModel(load_model(model_dir, properties=properties))
        num_blocks = CACHE_SIZE * 1024**3 // self._model.bytes_per_block
        self._model.allocate_cache(num_blocks)
        self._num_blocks = num_blocks
        self.python_shares: list[float] = []

    def run(self, prompts: Prompts, num_tokens: int) -> None:
        config = EngineConfig(enable_prefix_caching=False)
        engine = Engine(
            self._model,
            config,
            num_blocks=self._num_blocks,
            max_model_len=MAX_MODEL_LEN,
            extensions=engine_extensions(self._model, config),
        )
        params = SamplingParams(
            max_tokens=num_tokens,
            temperature=self._sampling.temperature,
            top_p=self._sampling.top_p,
            ignore_eos=True,
        )
        for i, prompt in enumerate(prompts):
            engine.add(GenerationRequest(str(i), prompt, params))
        self._model.seconds = 0.0
        start = time.perf_counter()
        while engine.has_work:
            engine.step()
        total = time.perf_counter() - start
        self.python_shares.append((total - self._model.seconds) / total)


class Genai:
    def __init__(self, model_dir: Path, properties: dict[str, str], sampling: Sampling) -> None:
        self._sampling = sampling
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_SIZE
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(model_dir), scheduler, "CPU", properties
        )
        self._num_requests = 0

    def run(self, prompts: Prompts, num_tokens: int) -> None:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = num_tokens
        config.ignore_eos = True
        config.do_sample = self._sampling.temperature > 0
        if config.do_sample:
            config.temperature = self._sampling.temperature
            config.top_p = self._sampling.top_p
        handles = []
        for prompt in prompts:
            tensor = ov.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(self._pipeline.add_request(self._num_requests, tensor, config))
            self._num_requests += 1
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        for handle in handles:
            (output,) = handle.read_all()
            assert len(output.generated_ids) == num_tokens


def tokens_per_second(run: Callable[[Prompts, int], None], prompts: Prompts, num: int) -> float:
    start = time.perf_counter()
    run(prompts, num)
    return len(prompts) * num / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.engine", description=__doc__)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("-n", "--num-requests", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("-p", "--prompt-tokens", type=int, default=128)
    parser.add_argument("-g", "--output-tokens", type=int, default=64)
    parser.add_argument("-r", "--runs", type=int, default=5)
    parser.add_argument("-t", "--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    add_property_flag(parser)
    arguments = parser.parse_args()
    properties = properties_of(arguments)
    sampling = Sampling(arguments.temperature, arguments.top_p)
    ours = Ours(arguments.model_dir, properties, sampling)
    genai = Genai(arguments.model_dir, properties, sampling)
    rng = np.random.default_rng(0)
    rows = []
    for num_requests in arguments.num_requests:
        prompts = [
            rng.integers(*RANDOM_TOKEN_IDS, arguments.prompt_tokens).tolist()
            for _ in range(num_requests)
        ]
        for warm_up in (ours.run, genai.run):
            warm_up(prompts, arguments.output_tokens)
        ours.python_shares.clear()
        speeds: tuple[list[float], list[float]] = ([], [])
        for _ in range(arguments.runs):
            for run, measured in zip((ours.run, genai.run), speeds, strict=True):
                measured.append(tokens_per_second(run, prompts, arguments.output_tokens))
        rows.append(
            (
                num_requests,
                median(speeds[0]),
                median(speeds[1]),
                ratio(*speeds),
                f"{median(ours.python_shares):.1%}",
            )
        )
    print(machine())
    print(f"{arguments.prompt_tokens} prompt and {arguments.output_tokens} output tokens each\n")
    print(table(("requests", "ours tok/s", "genai tok/s", "ratio", "Python"), rows))


if __name__ == "__main__":
    main()
