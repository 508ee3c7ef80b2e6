"""What sampling costs: of a crowded step with every kind of setting in it, and of single rows.

The first table is of a model's own steps, with as many sequences as `-n`, whose settings differ
from row to row; the share is that of everything around `infer()`. The second one is of rows of
made-up logits, as peaked and as flat as models have them.
"""

from __future__ import annotations

import argparse
import time
from array import array
from collections.abc import Mapping
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.common.report import machine, median, table
from bench.common.timed_model import TimedModel
from fastovms.config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.model.compilation import load_model
from fastovms.engine.processors import logits_processors
from fastovms.engine.sampler import Sampler, token_logprobs
from fastovms.engine.scheduler import SampledTokens
from fastovms.engine.sequence import Drawing, Sequence
from fastovms.params import GenerationRequest, SamplingParams

PROMPT_TOKENS = 16
RANDOM_TOKEN_IDS = (5, 400)
VOCAB_SIZE = 151_936
"""Of Qwen2.5, for the rows."""

SETTINGS: Mapping[str, Mapping[str, object]] = {
    "greedy": {"temperature": 0.0},
    "temperature 0.7": {"temperature": 0.7},
    "top-p 0.9": {"top_p": 0.9},
    "top-k 40": {"top_k": 40},
    "min-p 0.05": {"min_p": 0.05},
    "top-k 40, top-p 0.95, temperature 0.8": {"top_k": 40, "top_p": 0.95, "temperature": 0.8},
    "greedy, repetition penalty": {"temperature": 0.0, "repetition_penalty": 1.1},
    "presence and frequency penalty": {"presence_penalty": 0.5, "frequency_penalty": 0.5},
    "logit bias": {"logit_bias": ((7, 2.0), (9, -2.0))},
    "greedy, 5 log probabilities": {"temperature": 0.0, "logprobs": 5},
}


def params(settings: Mapping[str, object], **further: object) -> SamplingParams:
    return SamplingParams(**settings, **further)  # type: ignore[arg-type]


def crowded_steps(model_dir: Path, num_sequences: int, num_steps: int) -> list[object]:
    model = TimedModel(load_model(model_dir))
    # The first ones decode until the last one is admitted.
    max_tokens = num_steps + num_sequences + 32
    max_model_len = PROMPT_TOKENS + max_tokens
    num_blocks = num_sequences * (max_model_len // model.block_size + 1)
    model.allocate_cache(num_blocks)
    config = EngineConfig(max_num_seqs=num_sequences, enable_prompt_lookup=False)
    engine = Engine(model, config, num_blocks=num_blocks, max_model_len=max_model_len)
    rng = np.random.default_rng(0)
    for i, settings in enumerate(islice(cycle(SETTINGS.values()), num_sequences)):
        prompt = rng.integers(*RANDOM_TOKEN_IDS, PROMPT_TOKENS).tolist()
        sampling = params(settings, max_tokens=max_tokens, ignore_eos=True, seed=i)
        engine.add(GenerationRequest(str(i), prompt, sampling))
    while len(engine.scheduler.running) < num_sequences:
        engine.step()
    engine.step()
    infer_ms, around_ms = [], []
    for _ in range(num_steps):
        model.seconds = 0.0
        start = time.perf_counter()
        engine.step()
        total = time.perf_counter() - start
        infer_ms.append(1000 * model.seconds)
        around_ms.append(1000 * (total - model.seconds))
    share = median([a / (a + i) for a, i in zip(around_ms, infer_ms, strict=True)])
    return [num_sequences, median(infer_ms), median(around_ms), f"{share:.1%}"]


def row_microseconds(settings: Mapping[str, object], logits: NDArray[np.float32]) -> float:
    sampling = params(settings)
    prompt = list(range(100))
    sampler, times = Sampler(), []
    for i in range(30):
        request = GenerationRequest("r", prompt, sampling)
        processors = logits_processors(sampling, array("q", prompt))
        sequence = Sequence(0, request, 0, token_limit=999, drawing=Drawing(i, processors))
        row = logits.copy()
        start = time.perf_counter()
        (token_id,) = sampler.draw([SampledTokens(sequence, 0)], row[None])
        assert isinstance(token_id, int)
        if sampling.logprobs is not None:
            token_logprobs(row, token_id, sampling.logprobs)
        times.append(time.perf_counter() - start)
    return 1e6 * median(times)


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.sampling", description=__doc__)
    parser.add_argument("model_dir", type=Path, nargs="?", help="for the first table")
    parser.add_argument("-n", "--num-sequences", type=int, nargs="+", default=[32, 256])
    parser.add_argument("-s", "--steps", type=int, default=5)
    arguments = parser.parse_args()
    print(machine())
    if arguments.model_dir is not None:
        rows = [
            crowded_steps(arguments.model_dir, num, arguments.steps)
            for num in arguments.num_sequences
        ]
        print("\n" + table(("sequences", "infer ms", "around it ms", "share"), rows))
    rng = np.random.default_rng(0)
    kinds = {
        f"{name}, standard deviation {std}": rng.normal(0, std, VOCAB_SIZE).astype(np.float32)
        for name, std in (("peaked", 4), ("flat", 1))
    }
    rows = [
        [name, *(row_microseconds(settings, logits) for logits in kinds.values())]
        for name, settings in SETTINGS.items()
    ]
    print(f"\nmicroseconds a row of {VOCAB_SIZE} logits\n")
    print(table(("setting", *kinds), rows))


if __name__ == "__main__":
    main()
