"""The engine: requests in, tokens out, one synchronous step at a time."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastovms.config import EngineConfig
from fastovms.engine import sampler
from fastovms.engine.blocks import BlockManager
from fastovms.engine.inputs import ScoredTokens, build_batch
from fastovms.engine.logprobs import token_logprobs
from fastovms.engine.model import Model
from fastovms.engine.scheduler import Scheduler
from fastovms.engine.sequence import Sequence, SequenceStatus
from fastovms.params import FinishReason, GenerationOutput, GenerationRequest


class EngineOutput(NamedTuple):
    request_id: str
    output: GenerationOutput


class Engine:
    """Runs requests over a model with `num_blocks` KV blocks. Knows no threads and no clock.

    The caller keeps `request_id`s unique and prompts shorter than `max_model_len`.
    """

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        *,
        num_blocks: int,
        max_model_len: int,
        new_seed: Callable[[], int] = lambda: secrets.randbits(64),
    ) -> None:
        """`max_model_len` tokens must fit in the cache. `new_seed` seeds the unseeded requests."""
        assert max_model_len <= num_blocks * model.block_size
        self.blocks = BlockManager(
            num_blocks,
            model.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
        )
        self.scheduler = Scheduler(
            self.blocks,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )
        self.num_steps = 0
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0
        self._model = model
        self._max_model_len = max_model_len
        self._new_seed = new_seed
        self._seq_ids = count()
        self._requests: dict[str, list[Sequence]] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def add(self, request: GenerationRequest) -> None:
        """Queues a request's `n` samples. The later ones wait for the first one's prompt."""
        params = request.params
        seed = self._new_seed() if params.seed is None else params.seed
        num_prompt_tokens = len(request.prompt_token_ids)
        token_limit = self._max_model_len
        if params.max_tokens is not None:
            token_limit = min(token_limit, num_prompt_tokens + params.max_tokens)
        samples: list[Sequence] = []
        for index in range(params.n):
            sequence = Sequence(
                next(self._seq_ids),
                request.request_id,
                index,
                request.prompt_token_ids,
                params,
                token_limit=token_limit,
                rng=np.random.Generator(np.random.PCG64((seed % 2**64, index))),
                parent=samples[0] if samples else None,
            )
            samples.append(sequence)
            self.scheduler.add(sequence)
        self._requests[request.request_id] = samples
        self.num_prompt_tokens += num_prompt_tokens

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Ends a request, or one of its samples, without an output. Unknown ones are ignored."""
        for sequence in list(self._requests.get(request_id, ())):
            if index is None or sequence.index == index:
                self._finish(sequence)

    def step(self) -> list[EngineOutput]:
        """Computes one plan and returns what it added, at most one output a sample."""
        plan = self.scheduler.plan()
        assert plan.chunks, "there is work, but none of it can go on"
        if plan.block_copies:
            self._model.copy_blocks(plan.block_copies)
        batch = build_batch(plan.chunks, self.blocks.block_size)
        logits = self._model.infer(batch.inputs)
        self.scheduler.mark_computed(plan)
        self.num_steps += 1
        if batch.scored:
            _score_prompts(batch.scored, logits[len(batch.sampled) :])
        if not batch.sampled:
            return []
        token_ids = sampler.sample(logits[: len(batch.sampled)], batch.sampled)
        self.num_generated_tokens += len(token_ids)
        return [
            self._append(sequence, token_id, row_logits)
            for sequence, token_id, row_logits in zip(
                batch.sampled, token_ids, logits, strict=False
            )
        ]

    def check(self) -> None:
        """Asserts that requests, queues and blocks agree."""
        live = {id(s) for samples in self._requests.values() for s in samples}
        queued = {id(s) for s in (*self.scheduler.running, *self.scheduler.waiting)}
        assert live == queued, "requests and queues differ"
        self.scheduler.check()

    def _append(
        self, sequence: Sequence, token_id: int, logits: NDArray[np.float32]
    ) -> EngineOutput:
        params = sequence.params
        finish_reason = sequence.append(token_id)
        if finish_reason is not None:
            self._finish(sequence)
        output = GenerationOutput(
            index=sequence.index,
            token_ids=(token_id,),
            finish_reason=finish_reason,
            num_generated_tokens=sequence.num_generated_tokens,
            num_cached_tokens=sequence.num_cached_tokens,
        )
        if finish_reason is FinishReason.STOP:
            output.token_ids = ()
            if params.ignore_eos or token_id not in params.eos_token_ids:
                output.stop_token_id = token_id
        elif params.logprobs is not None:
            output.logprobs = (token_logprobs(logits, token_id, params.logprobs),)
        if params.prompt_logprobs is not None and sequence.num_generated_tokens == 1:
            output.prompt_logprobs = sequence.prompt_logprobs if sequence.index == 0 else ()
        return EngineOutput(sequence.request_id, output)

    def _finish(self, sequence: Sequence) -> None:
        assert sequence.status is not SequenceStatus.FINISHED
        self.scheduler.finish(sequence)
        samples = self._requests[sequence.request_id]
        samples.remove(sequence)
        if not samples:
            del self._requests[sequence.request_id]


def _score_prompts(scored: list[ScoredTokens], logits: NDArray[np.float32]) -> None:
    row = 0
    for sequence, start, end in scored:
        num_top = sequence.params.prompt_logprobs
        assert num_top is not None
        for token_id in sequence.token_ids[start:end]:
            sequence.prompt_logprobs.append(token_logprobs(logits[row], token_id, num_top))
            row += 1
