"""The engine: one call of `step()` plans, computes and samples one batch."""

from __future__ import annotations

import logging
import secrets
import time
from array import array
from collections.abc import Callable
from copy import copy
from itertools import count
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fastovms.backend_stats import EngineCounters
from fastovms.config import EngineConfig
from fastovms.engine.blocks import BlockManager
from fastovms.engine.extensions import BeamSearch, EngineExtensions
from fastovms.engine.model.model import Model, RawLogits, as_float32
from fastovms.engine.model.step_inputs import StepLayout
from fastovms.engine.processors import logits_processors
from fastovms.engine.sampler import (
    BrokenLogitsGuard,
    Drawn,
    Sampler,
    SequenceFailure,
    check_rows,
    sample_seed,
    token_logprobs,
)
from fastovms.engine.scheduler import Batch, Scheduler, ScoredTokens, build_batch, rank_of
from fastovms.engine.sequence import (
    DrawState,
    Sequence,
    SequenceGrammar,
    SequenceGroup,
    SequenceStatus,
)
from fastovms.engine.step_costs import PrefillPacing, StepCosts
from fastovms.errors import BrokenLogits, description_of
from fastovms.params import (
    EngineOutput,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    TokenLogprobs,
    unfinishable_grammar,
)

logger = logging.getLogger(__name__)


class SequenceFactory:
    """Validates requests, and creates their sequences with seed, queue rank and logits processors.

    Args:
        blocks: the blocks of the cache; all beams of a search must fit.
        max_num_seqs: the maximum number of running sequences.
        extensions: provide beam searches and grammars.
        new_seed: returns seeds for requests without a seed.

    Attributes:
        seq_ids: the iterator of ids for all sequences.
    """

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_model_len: int,
        max_num_seqs: int,
        extensions: EngineExtensions,
        new_seed: Callable[[], int],
    ) -> None:
        self._blocks = blocks
        self._max_model_len = max_model_len
        self._max_num_seqs = max_num_seqs
        self._searches = extensions.searches
        self._grammars = extensions.grammars
        self._new_seed = new_seed
        self.seq_ids = count()
        self._arrivals = count()

    def validate(self, request: GenerationRequest) -> None:
        """Validates a request. Thread-safe. Raises RequestError if the beams of the request could
        never run."""
        if request.params.beam_search is not None:
            limit = self.token_limit(request)
            self._searches().validate(request, limit, self._max_num_seqs)

    def make(self, request: GenerationRequest) -> list[Sequence]:
        """Returns the `n` samples of a valid request, which share the first one's prompt, or the
        root sequence of its beam search."""
        params = request.params
        seed = self._new_seed() if params.seed is None else params.seed
        token_limit = self.token_limit(request)
        rank = rank_of(next(self._arrivals), request.priority)
        group = SequenceGroup(params.beam_search.num_beams) if params.beam_search else None
        samples = group.sequences if group else []
        processors = logits_processors(params, array("q", request.prompt_token_ids))
        new_grammar: Callable[[], SequenceGrammar] | None = None
        if params.grammar is not None:
            assert self._grammars is not None
            new_grammar = self._grammars(params.grammar, len(request.prompt_token_ids))
        for index in range(1 if group else params.n):
            samples.append(
                Sequence(
                    next(self.seq_ids),
                    request,
                    index,
                    token_limit=token_limit,
                    rank=rank,
                    parent=samples[0] if samples else None,
                    group=group,
                    drawing=DrawState(
                        sample_seed(seed, index),
                        tuple(map(copy, processors)),
                        new_grammar and new_grammar(),
                    ),
                )
            )
        return samples

    def token_limit(self, request: GenerationRequest) -> int:
        """Returns the maximum length of a sequence in tokens, including the prompt."""
        num_prompt_tokens, params = len(request.prompt_token_ids), request.params
        limit = self._max_model_len
        if params.max_tokens is not None:
            limit = min(limit, num_prompt_tokens + params.max_tokens)
        if params.beam_search is not None:
            limit = self._searches().token_limit(request, limit, self._blocks)
        return limit


_NUM_WARM_UP_TOKENS: Final = 64
"""The number of tokens of the warm-up prompt: more than in a small step (see `compilation`), so
that both variants of a model run, and few enough for a large model."""


class Engine:
    """Runs requests on a model with `num_blocks` KV blocks, on the calling thread.

    The caller must keep `request_id`s unique and prompts shorter than `max_model_len`.

    Attributes:
        admitted: the ids of the requests that left the queue for the last step, including requests
            that were preempted before.
        on_prompt: called with each sample whose prompt has just been computed.
    """

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        *,
        num_blocks: int,
        max_model_len: int,
        extensions: EngineExtensions | None = None,
        new_seed: Callable[[], int] = lambda: secrets.randbits(64),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Args:
            num_blocks: the number of blocks of the model's cache; `max_model_len` tokens must fit.
            extensions: the extensions of parts; None = none.
            new_seed: returns seeds for requests without a seed.
            clock: returns seconds, for measuring steps.
        """
        assert max_model_len <= num_blocks * model.block_size
        self.blocks = BlockManager(
            num_blocks, model.block_size, enable_prefix_caching=config.enable_prefix_caching
        )
        self.counters = EngineCounters()
        self.scheduler = Scheduler(
            self.blocks,
            self.counters,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.token_budget,
            rope_switch_len=model.rope_switch_len,
            states=model.states,
        )
        self.admitted: list[str] = []
        self.on_prompt: Callable[[Sequence], None] = lambda _: None
        self._costs = StepCosts()
        extensions = extensions or EngineExtensions()
        self.drafter = extensions.make_drafter(self.counters, self._costs)
        self._model = model
        self.bytes_per_block = model.bytes_per_block
        self._max_model_len = max_model_len
        self._clock = clock
        self._pacing = PrefillPacing(self._costs)
        self._sampler = Sampler()
        self._trial = BrokenLogitsGuard(model, self.blocks)
        self._maker = SequenceFactory(
            self.blocks,
            max_model_len=max_model_len,
            max_num_seqs=self.scheduler.max_num_seqs,
            extensions=extensions,
            new_seed=new_seed,
        )
        self._requests: dict[str, list[Sequence]] = {}
        self._beam_searches = extensions.searches
        self._searches: dict[str, BeamSearch] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def warm_up(self) -> None:
        """Computes a prompt and one more token, before the first request arrives.

        OpenVINO repacks weights and compiles kernels at their first use, which takes longer than
        the steps themselves. Afterwards the mapped pages of the model's files are released.
        """
        block_size = self.blocks.block_size
        num_prompt_tokens = max(1, min(_NUM_WARM_UP_TOKENS, self._max_model_len - 1))
        for start, end in ((0, num_prompt_tokens), (num_prompt_tokens, num_prompt_tokens + 1)):
            layout = StepLayout(block_size)
            blocks = array("i", range(-(-end // block_size)))
            last = layout.add(array("q", (0,)) * end, start, end, blocks)
            self._model.infer(layout.finish(array("q", (last,))))
        self._model.forget_files()

    def validate(self, request: GenerationRequest) -> None:
        """Validates a request like `SequenceFactory.validate`; call it before `add`."""
        self._maker.validate(request)

    def add(self, request: GenerationRequest) -> None:
        """Queues the sequences of a valid request."""
        samples = self._maker.make(request)
        for sequence in samples:
            self.drafter.start(sequence)
            self.scheduler.add(sequence)
        self._requests[request.request_id] = samples
        if request.params.beam_search is not None:
            search = self._beam_searches().start(samples[0], request)
            self._searches[request.request_id] = search
        self.counters.num_prompt_tokens += len(request.prompt_token_ids)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Ends a request, or one of its samples, without an output. Unknown ids are ignored."""
        search = self._searches.get(request_id)
        if search is not None and index is not None and search.discard(index):
            return  # the beams also produce the request's other samples
        for sequence in list(self._requests.get(request_id, ())):
            if search is not None or index is None or sequence.index == index:
                self._finish(sequence)

    def step(self) -> list[EngineOutput]:
        """Computes one step and returns its outputs, at most one per sample. Raises EngineFailed if
        the model's logits are not finite even for a test prompt."""
        self.drafter.propose(self.scheduler.running)
        plan = self.scheduler.plan(self._pacing)
        assert plan.chunks, "there is work, but none of it can go on"
        if plan.block_copies:
            self._model.copy_blocks(plan.block_copies)
        batch = build_batch(plan.chunks, self.blocks.block_size)
        start = self._clock()
        logits = self._model.infer(batch.inputs)
        self._costs.learn(
            num_decodes=plan.num_decodes,
            num_rows=plan.num_decode_rows,
            num_prefill_tokens=plan.num_prefill_tokens,
            prefill_context=plan.prefill_context,
            seconds=self._clock() - start,
        )
        states = self._model.hidden_states
        if states is not None:
            self.drafter.observe(plan.chunks, batch.inputs, states)
        self.scheduler.mark_computed(plan)
        self.counters.num_steps += 1
        self.admitted = [sequence.request_id for sequence in plan.admitted]
        return self._sample(batch, logits)

    def _sample(self, batch: Batch, logits: RawLogits) -> list[EngineOutput]:
        num_rows = sum(1 + num_drafts for _, num_drafts in batch.sampled)
        failures = self._score_prompts(batch.scored, logits[num_rows:])
        outputs = []
        drawn = self._sampler.draw(batch.sampled, logits) if batch.sampled else []
        row = 0
        for sequence, num_drafts in batch.sampled:
            end = row + 1 + num_drafts
            # Finished here only if scoring the prompt failed.
            if sequence.status is not SequenceStatus.FINISHED:
                try:
                    if sequence.num_generated_tokens == 0:
                        self.on_prompt(sequence)
                    outputs += self._advance(sequence, drawn[row:end], logits, row)
                except Exception as error:  # an error of one request must not affect the others
                    failures.append(self._fail(sequence, error))
            row = end
        self._trial.note(
            num_sequences=len(batch.sampled),
            num_broken=sum(failure.num_broken for failure in failures),
        )
        return [*outputs, *(output for failure in failures for output in failure.outputs)]

    def check(self) -> None:
        """Asserts that requests, queues and blocks are consistent."""
        live = {id(s) for samples in self._requests.values() for s in samples}
        queued = {id(s) for s in (*self.scheduler.running, *self.scheduler.waiting)}
        assert live == queued, "requests and queues differ"
        self.scheduler.check()
        self.drafter.check()

    def _fail(self, sequence: Sequence, error: Exception) -> SequenceFailure:
        """Ends a sequence, or the whole search to which it belongs, with an error."""
        request_id = sequence.request_id
        search = self._searches.get(request_id)
        ended = [sequence] if search is None else list(search.sequences)
        if isinstance(error, BrokenLogits):
            logger.error("request %s failed: %s", request_id, error)
            for other in ended:
                self.blocks.forget(other.block_table)
        else:
            logger.error("request %s failed", request_id, exc_info=error)
        description = description_of(error)
        if search is not None:
            outputs = self._outputs_of(request_id, search.fail(self.scheduler, description))
        else:
            self._finish(sequence)
            output = GenerationOutput(
                index=sequence.index,
                token_ids=(),
                finish_reason=FinishReason.ERROR,
                num_generated_tokens=sequence.num_generated_tokens,
                error=description,
            )
            outputs = [EngineOutput(request_id, output)]
        return SequenceFailure(error, len(ended), outputs)

    def _advance(
        self, sequence: Sequence, drawn: list[Drawn], logits: RawLogits, first_row: int
    ) -> list[EngineOutput]:
        if sequence.group is not None:
            return self._search(sequence, as_float32(logits[first_row]))
        return [self._extend(sequence, drawn, logits, first_row)]

    def _extend(
        self, sequence: Sequence, drawn: list[Drawn], logits: RawLogits, first_row: int
    ) -> EngineOutput:
        """Appends the tokens drawn from a sequence's rows, as long as they equal its draft."""
        params = sequence.params
        drafts = sequence.draft_token_ids
        num_drafts = len(drawn) - 1
        first_draft = sequence.num_computed_tokens
        token_ids: list[int] = []
        logprobs: list[TokenLogprobs] = []
        finish_reason = None
        for index, token_id in enumerate(drawn):
            if token_id is None:
                token_id = self._sampler.draw_next(sequence, logits[first_row + index])
            elif isinstance(token_id, Exception):
                raise token_id
            # The token is drawn from the row as if there were no draft, and is always used. The
            # next row was computed after the draft token, so it is valid only if the drawn token
            # equals the draft token. Drafts therefore never change the output, greedy or random.
            finish_reason = sequence.append(token_id)
            token_ids.append(token_id)
            if params.logprobs is not None:
                row = logits[first_row + index]
                found = token_logprobs(row, token_id, params.logprobs, params.logprob_token_ids)
                logprobs.append(found)
            if finish_reason is not None or index == num_drafts or token_id != drafts[index]:
                break
            # The draft token is accepted: its KV is already in the cache.
            sequence.num_computed_tokens += 1
        num_new, num_generated = len(token_ids), sequence.num_generated_tokens
        self.counters.num_generated_tokens += num_new
        if sequence.num_computed_tokens > first_draft:
            self._model.accept_drafts(
                sequence.block_table, first_draft, sequence.num_computed_tokens
            )
        if drafts:
            self.drafter.settle(sequence, num_drafts, num_new - 1)
        output = GenerationOutput(
            index=sequence.index,
            token_ids=token_ids,
            finish_reason=finish_reason,
            num_generated_tokens=num_generated,
            num_cached_tokens=sequence.num_own_cached_tokens,
            logprobs=logprobs,
            num_accepted_tokens=num_new - 1,
        )
        if finish_reason is FinishReason.STOP:
            last = token_ids.pop()
            if params.ignore_eos or last not in params.eos_token_ids:
                output.stop_token_id = last
            else:
                del logprobs[len(token_ids) :]
        is_first = num_generated == num_new
        if params.prompt_logprobs is not None and is_first and sequence.index == 0:
            output.prompt_logprobs = sequence.prompt_logprobs
        if params.grammar is not None and sequence.grammar is not None and sequence.grammar.error:
            finish_reason = output.finish_reason = FinishReason.ERROR
            output.refusal = unfinishable_grammar(params.grammar, sequence.grammar.error)
        if finish_reason is not None:
            self._finish(sequence)
        return EngineOutput(sequence.request_id, output)

    def _search(self, sequence: Sequence, logits: NDArray[np.float32]) -> list[EngineOutput]:
        """Passes one beam's logits to its search, which advances once it has the logits of all
        beams."""
        search = self._searches[sequence.request_id]
        if not search.take(sequence, logits):
            return []
        return self._outputs_of(
            sequence.request_id, search.advance(self.scheduler, self._maker.seq_ids)
        )

    def _outputs_of(self, request_id: str, outputs: list[GenerationOutput]) -> list[EngineOutput]:
        """Returns the outputs of a search, and ends the search if it has no sequence left."""
        if not self._searches[request_id].sequences:
            del self._requests[request_id], self._searches[request_id]
        self.counters.num_generated_tokens += sum(output.num_generated_tokens for output in outputs)
        return [EngineOutput(request_id, output) for output in outputs]

    def _score_prompts(
        self, scored: list[ScoredTokens], logits: RawLogits
    ) -> list[SequenceFailure]:
        """Computes the log probabilities of prompt tokens. Returns the failed sequences."""
        failures = []
        first_row = 0
        for sequence, start, end in scored:
            rows = logits[first_row : first_row + end - start]
            first_row += len(rows)
            num_top = sequence.params.prompt_logprobs
            assert num_top is not None
            try:
                check_rows(rows)
            except BrokenLogits as error:
                failures.append(self._fail(sequence, error))
                continue
            for row, token_id in zip(rows, sequence.token_ids[start:end], strict=True):
                sequence.prompt_logprobs.append(token_logprobs(row, token_id, num_top))
        return failures

    def _finish(self, sequence: Sequence) -> None:
        assert sequence.status is not SequenceStatus.FINISHED
        self.scheduler.finish(sequence)
        self.drafter.finish(sequence)
        samples = self._requests[sequence.request_id]
        samples.remove(sequence)
        if not samples:
            del self._requests[sequence.request_id]
            self._searches.pop(sequence.request_id, None)
