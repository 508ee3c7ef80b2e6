"""How often a crowd changes what a request gets: the same requests alone and among others.

Greedy and seeded requests run once alone and once all together, prompts cut into chunks by each
other's presence. The engine computes each row by itself, so only float rounding that depends on
the shape of a batch can flip a near-tie. Prints how many texts stayed the same, and where the
others first differed.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np

from bench.properties import add_property_flag, properties_of
from bench.report import machine, median, table
from fastovms.config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.model import PagedModel
from fastovms.params import GenerationRequest, SamplingParams

MAX_MODEL_LEN = 2048
CACHE_TOKENS = 64 * 1024
RANDOM_TOKEN_IDS = (20, 400)


def generate(
    engine: Engine, requests: list[GenerationRequest], *, together: bool
) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = defaultdict(list)
    for group in [requests] if together else [[request] for request in requests]:
        for request in group:
            engine.add(request)
        while engine.has_work:
            for request_id, output in engine.step():
                tokens[request_id] += output.token_ids
    return tokens


def first_difference(a: list[int], b: list[int]) -> int | None:
    """The position at which two texts of equal length part, or None."""
    for position, (x, y) in enumerate(zip(a, b, strict=True)):
        if x != y:
            return position
    return None


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.determinism", description=__doc__)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("-n", "--num-requests", type=int, default=32)
    parser.add_argument("-g", "--output-tokens", type=int, default=64)
    add_property_flag(parser)
    arguments = parser.parse_args()
    properties = properties_of(arguments)
    model = PagedModel.load(arguments.model_dir, properties=properties)
    num_blocks = CACHE_TOKENS // model.block_size
    model.allocate_cache(num_blocks)
    rng = np.random.default_rng(0)
    prompts = [
        rng.integers(*RANDOM_TOKEN_IDS, int(rng.integers(8, 200))).tolist()
        for _ in range(arguments.num_requests)
    ]
    rows = []
    for name, temperature in (("greedy", 0.0), ("seeded, temperature 1", 1.0)):
        params = SamplingParams(
            temperature=temperature, seed=7, max_tokens=arguments.output_tokens, ignore_eos=True
        )
        requests = [GenerationRequest(str(i), p, params) for i, p in enumerate(prompts)]
        for what, config, together in (
            ("in a crowd", EngineConfig(enable_prefix_caching=False), True),
            ("without drafts", EngineConfig(enable_prompt_lookup=False), False),
        ):
            plain = EngineConfig(enable_prefix_caching=False)
            texts = []
            for one_config, one_together in ((plain, False), (config, together)):
                engine = Engine(
                    model, one_config, num_blocks=num_blocks, max_model_len=MAX_MODEL_LEN
                )
                texts.append(generate(engine, requests, together=one_together))
            differences = [first_difference(texts[0][key], texts[1][key]) for key in texts[0]]
            parted = [position for position in differences if position is not None]
            rows.append(
                (
                    name,
                    what,
                    f"{len(differences) - len(parted)} of {len(differences)}",
                    median(parted) if parted else "-",
                )
            )
    print(machine())
    print(f"{arguments.num_requests} requests, {arguments.output_tokens} tokens each\n")
    print(table(("request", "against alone", "same text", "first difference at"), rows))


if __name__ == "__main__":
    main()
