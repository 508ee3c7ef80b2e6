"""Beam searches with a fake model: in the engine, and by a reference implementation."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastovms.engine.engine import Engine
from fastovms.engine.processors import logits_processors
from fastovms.params import BeamSearch, GenerationOutput, GenerationRequest, SamplingParams
from fastovms.parts.beams import BeamSearcher
from tests.engine.engines import fake_engine
from tests.engine.fake_model import VOCAB_SIZE, FakeModel

EOS = 3
Outputs = dict[tuple[str, int], GenerationOutput]


def logits_after(context: Sequence[int]) -> np.ndarray:
    """Returns random logits that depend on every token of the context."""
    logits = np.random.default_rng([len(context), *context]).standard_normal(VOCAB_SIZE)
    logits[EOS] += 1.5
    return (logits * 2).astype(np.float32)


class RandomModel(FakeModel):
    num_copies = 0

    def copy_blocks(self, copies: Sequence[object]) -> None:  # type: ignore[override]
        self.num_copies += len(copies)
        super().copy_blocks(copies)  # type: ignore[arg-type]

    def logits_after(self, context: Sequence[int]) -> np.ndarray:
        return logits_after(context)


def make_engine(
    *, num_blocks: int = 128, max_model_len: int = 64, block_size: int = 4, **config: Any
) -> Engine:
    return fake_engine(
        RandomModel(block_size),
        num_blocks=num_blocks,
        max_model_len=min(max_model_len, num_blocks * block_size),
        **config,
    )


def beam_request(
    request_id: str, prompt: list[int], search: BeamSearch, **params: Any
) -> GenerationRequest:
    known = {"n": search.num_beams, "max_tokens": 10, "eos_token_ids": frozenset({EOS})}
    sampling = SamplingParams(**{"beam_search": search, **known, **params})
    return GenerationRequest(request_id, prompt, sampling)


def step(engine: Engine, outputs: Outputs) -> None:
    for request_id, output in engine.step():
        key = request_id, output.index
        if key in outputs:  # for a sample; those of a search are sent at its end
            outputs[key].token_ids = [*outputs[key].token_ids, *output.token_ids]
        else:
            outputs[key] = output
    engine.check()


def run(engine: Engine, *requests: GenerationRequest) -> Outputs:
    outputs: Outputs = {}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        step(engine, outputs)
    assert engine.blocks.num_free_blocks == engine.blocks.num_blocks
    return outputs


def found_by(outputs: Outputs, request: GenerationRequest) -> list[list[int]]:
    """Returns the texts of a search, best first."""
    return [outputs[request.request_id, index].token_ids for index in range(request.params.n)]


def processed_logits(request: GenerationRequest, text: list[int]) -> np.ndarray:
    logits = logits_after(text)
    for process in logits_processors(request.params, array("q", request.prompt_token_ids)):
        process(logits, array("q", text))
    return logits


def search_alone(request: GenerationRequest) -> list[list[int]]:
    """Returns the texts of the reference search without their end tokens."""
    params = request.params
    assert params.beam_search is not None
    assert params.max_tokens is not None
    searcher = BeamSearcher(
        params.beam_search,
        end_token_ids=params.eos_token_ids | params.stop_token_ids,
        max_new_tokens=params.max_tokens,
    )
    texts = [list(request.prompt_token_ids)]
    while continuations := searcher.advance([processed_logits(request, t) for t in texts]):
        texts = [[*texts[parent], token_id] for parent, token_id in continuations]
    found = searcher.best(params.n)
    tokens = [[searcher.steps[i][j].token_id for i, j in enumerate(h.path)] for h in found]
    return [t[:-1] if h.is_ended else t for h, t in zip(found, tokens, strict=True)]


def random_prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 20))] for _ in range(count)]
