"""What prompt lookup gains where text repeats itself, and costs where it does not: one client,
greedy, paired with the same without drafts.

Text that repeats is made by allowing the model a single token; a random model's own text hardly
ever repeats.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from bench.report import machine, median, ratio, table
from fastovms.config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.model.model import PagedModel
from fastovms.params import GenerationRequest, SamplingParams

CACHE_TOKENS = 16 * 1024
MAX_MODEL_LEN = 2048
RANDOM_TOKEN_IDS = (5, 400)
TEXTS = {"repeats": (7,), "random": None}
"""The allowed tokens."""


def tokens_per_second(
    model: PagedModel,
    prompts: list[list[int]],
    num_tokens: int,
    allowed: tuple[int, ...] | None,
    *,
    with_drafts: bool,
) -> float:
    num_blocks = CACHE_TOKENS // model.block_size
    config = EngineConfig(enable_prefix_caching=False, enable_prompt_lookup=with_drafts)
    engine = Engine(model, config, num_blocks=num_blocks, max_model_len=MAX_MODEL_LEN)
    params = SamplingParams(
        max_tokens=num_tokens, temperature=0, ignore_eos=True, allowed_token_ids=allowed
    )
    for i, prompt in enumerate(prompts):
        engine.add(GenerationRequest(str(i), prompt, params))
    while any(sequence.num_generated_tokens == 0 for sequence in engine.scheduler.running) or (
        engine.scheduler.waiting
    ):
        engine.step()
    before = engine.counters.num_generated_tokens
    start = time.perf_counter()
    while engine.has_work:
        engine.step()
    return (engine.counters.num_generated_tokens - before) / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.drafts", description=__doc__)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("-n", "--num-requests", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("-p", "--prompt-tokens", type=int, default=64)
    parser.add_argument("-g", "--output-tokens", type=int, default=128)
    parser.add_argument("-r", "--runs", type=int, default=5)
    arguments = parser.parse_args()
    model = PagedModel.load(arguments.model_dir)
    model.allocate_cache(CACHE_TOKENS // model.block_size)
    rng = np.random.default_rng(0)
    rows = []
    for name, allowed in TEXTS.items():
        for num_requests in arguments.num_requests:
            speeds: dict[bool, list[float]] = {True: [], False: []}
            for number in range(arguments.runs + 1):
                prompts = [
                    rng.integers(*RANDOM_TOKEN_IDS, arguments.prompt_tokens).tolist()
                    for _ in range(num_requests)
                ]
                for with_drafts, measured in speeds.items():
                    speed = tokens_per_second(
                        model, prompts, arguments.output_tokens, allowed, with_drafts=with_drafts
                    )
                    if number:
                        measured.append(speed)
            row = (name, num_requests, median(speeds[True]), median(speeds[False]))
            rows.append((*row, ratio(speeds[True], speeds[False])))
    print(machine())
    print(f"{arguments.output_tokens} tokens after {arguments.prompt_tokens}\n")
    print(table(("text", "requests", "with tok/s", "without", "ratio"), rows))


if __name__ == "__main__":
    main()
