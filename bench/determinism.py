"""Compares the results of requests that run alone with those of the same requests among others.

Half of the requests are greedy and half are seeded. They run one after another, then at once in
several batch sizes, with a cache so small that they preempt each other, with chunked prompts, with
drafts, and with the prefix cache of the first run. Only float rounding that depends on the batch's
shape can change a nearly tied token. Prints the number of equal texts, the first position that
differs, and the largest difference of log probabilities before it. With `--exact`, the exit status
is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from bench.common.properties import add_property_flag, properties_of
from bench.common.report import machine, median, table
from fastovms.app.paged import engine_extensions
from fastovms.config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.model.compilation import load_model
from fastovms.engine.model.model import PagedModel
from fastovms.params import GenerationRequest, SamplingParams

MAX_MODEL_LEN: Final = 2048
CACHE_TOKENS: Final = 64 * 1024
CROWDS: Final = (1, 2, 3, 5, 8, 11, 16, 20, 32, 48, 64)
RANDOM_TOKEN_IDS: Final = (20, 400)

_PLAIN: Final = EngineConfig(enable_prefix_caching=False, enable_prompt_lookup=False)


@dataclass(frozen=True)
class Way:
    """A way to run the requests.

    Attributes:
        num_blocks: the size of the KV cache in blocks; None = the default.
        num_runs: the number of runs over one cache; the last run is compared.
        num_drafted: the number of drafted tokens of each sequence in each step; None = the number
            that the draft policy chooses, which is small because random texts cannot be predicted.
    """

    name: str
    config: EngineConfig
    num_blocks: int | None = None
    num_runs: int = 1
    num_drafted: int | None = None


class Result(NamedTuple):
    """The tokens of a request, with their log probabilities."""

    token_ids: list[int]
    logprobs: list[float]


class Difference(NamedTuple):
    """The difference between two results of a request.

    Attributes:
        position: the index of the first token that differs; None = none does.
        logprob: the largest difference of log probabilities before that token.
    """

    position: int | None
    logprob: float


def ways(*, crowds: Sequence[int], block_size: int, num_tokens: int) -> Iterator[Way]:
    """Returns the ways to compare. `num_tokens` is the length of the longest request."""
    for size in crowds:
        yield Way(f"crowd of {size}", replace(_PLAIN, max_num_seqs=size))
    crowd = replace(_PLAIN, max_num_seqs=crowds[-1])
    yield Way("preempted", crowd, num_blocks=2 * -(-num_tokens // block_size))
    yield Way("chunks of 24", replace(_PLAIN, max_num_seqs=8, max_num_batched_tokens=24))
    # Drafts are right where the texts of the run before are found.
    drafting = replace(crowd, enable_prompt_lookup=True, enable_prefix_caching=True)
    yield Way("drafts", drafting, num_runs=2, num_drafted=3)
    yield Way("prefix cache", replace(crowd, enable_prefix_caching=True), num_runs=2)


def make_requests(num_requests: int, num_tokens: int, seed: int = 0) -> list[GenerationRequest]:
    """Returns greedy and seeded requests in turn. Their prompts of 8 to 200 tokens repeat
    themselves, so that prompt lookup finds drafts."""
    rng = np.random.default_rng(seed)
    requests = []
    for number in range(num_requests):
        length = int(rng.integers(8, 200))
        prompt = rng.integers(*RANDOM_TOKEN_IDS, length)[: max(8, length // 2)]
        params = SamplingParams(
            temperature=0.8 * (number % 2),
            seed=number,
            max_tokens=num_tokens,
            ignore_eos=True,
            logprobs=1,
        )
        requests.append(GenerationRequest(str(number), np.resize(prompt, length).tolist(), params))
    return requests


def run(model: PagedModel, requests: list[GenerationRequest], way: Way) -> dict[str, Result]:
    num_blocks = way.num_blocks or CACHE_TOKENS // model.block_size
    max_model_len = min(MAX_MODEL_LEN, num_blocks * model.block_size)
    engine = Engine(
        model,
        way.config,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        extensions=engine_extensions(model, way.config),
    )
    for _ in range(way.num_runs):
        results = {request.request_id: Result([], []) for request in requests}
        for request in requests:
            params = replace(request.params, num_assistant_tokens=way.num_drafted)
            engine.add(replace(request, params=params))
        while engine.has_work:
            for request_id, output in engine.step():
                results[request_id].token_ids.extend(output.token_ids)
                results[request_id].logprobs.extend(entry.logprob for entry in output.logprobs)
    counters = engine.counters
    if way.num_blocks is not None and not counters.num_preemptions:
        raise SystemExit("the cache was large enough for all: nothing has been preempted")
    if way.num_drafted and not 0 < counters.num_accepted_tokens < counters.num_draft_tokens:
        raise SystemExit("not both right and wrong tokens have been drafted")
    return results


def run_alone(model: PagedModel, requests: list[GenerationRequest]) -> dict[str, Result]:
    way = Way("alone", _PLAIN)
    return {key: one for request in requests for key, one in run(model, [request], way).items()}


def difference(a: Result, b: Result) -> Difference:
    pairs = list(zip(a.token_ids, b.token_ids, strict=True))
    position = next((i for i, (x, y) in enumerate(pairs) if x != y), None)
    logprobs = zip(a.logprobs[:position], b.logprobs[:position], strict=True)
    return Difference(position, max((abs(x - y) for x, y in logprobs), default=0.0))


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.determinism", description=__doc__)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("-n", "--num-requests", type=int, default=200)
    parser.add_argument("-g", "--output-tokens", type=int, default=64)
    parser.add_argument("-c", "--crowds", type=int, nargs="+", default=CROWDS)
    parser.add_argument("--exact", action="store_true", help="as --precision exact")
    add_property_flag(parser)
    arguments = parser.parse_args()
    properties = properties_of(arguments)
    model = load_model(arguments.model_dir, properties=properties, exact=arguments.exact)
    model.allocate_cache(CACHE_TOKENS // model.block_size)
    requests = make_requests(arguments.num_requests, arguments.output_tokens)
    alone = run_alone(model, requests)
    rows = []
    num_parted = 0
    for way in ways(
        crowds=arguments.crowds,
        block_size=model.block_size,
        num_tokens=200 + arguments.output_tokens,
    ):
        results = run(model, requests, way)
        differences = [difference(alone[key], results[key]) for key in alone]
        parted = [one.position for one in differences if one.position is not None]
        logprob = max(one.logprob for one in differences)
        num_parted += bool(parted or logprob)
        same = f"{len(differences) - len(parted)} of {len(differences)}"
        rows.append((way.name, same, median(parted) if parted else "-", f"{logprob:.1e}"))
        print(*rows[-1], sep=", ", file=sys.stderr)
    print(machine())
    print(f"{arguments.num_requests} requests, {arguments.output_tokens} tokens each\n")
    header = ("against alone", "same text", "first difference at", "log probabilities within")
    print(table(header, rows))
    if arguments.exact and num_parted:
        raise SystemExit("not exact")


if __name__ == "__main__":
    main()
