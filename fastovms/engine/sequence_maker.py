"""Makes the sequences of a request: its samples, or the root of its beam search."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from copy import copy
from itertools import count

from fastovms.engine.beams.beam_request import beam_token_limit
from fastovms.engine.sampling.logits_processors import logits_processors
from fastovms.engine.sampling.seeds import sample_seed
from fastovms.engine.scheduling.blocks import BlockManager
from fastovms.engine.scheduling.sequence import Sequence, SequenceGroup
from fastovms.engine.scheduling.waiting import rank_of
from fastovms.errors import CONTEXT_EXCEEDED, RequestError
from fastovms.grammar.grammar_compiler import GrammarCompiler
from fastovms.grammar.grammar_state import GrammarState
from fastovms.grammar.grammar_time_budget import GrammarTimeBudget
from fastovms.params import GenerationRequest, SamplingParams


class SequenceMaker:
    """Checks requests, and makes the sequences that stand for them: each with its seed, its rank
    among those that wait, and what changes its logits.

    Args:
        blocks: those of the cache, in which all beams of a search have to fit.
        max_num_seqs: how many sequences may run at once.
        grammars: starts grammars; without it, no request may have one.
        new_seed: seeds the unseeded requests.

    Attributes:
        seq_ids: makes the ids of all sequences.
    """

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_model_len: int,
        max_num_seqs: int,
        grammars: GrammarCompiler | None,
        new_seed: Callable[[], int],
    ) -> None:
        self._blocks = blocks
        self._max_model_len = max_model_len
        self._max_num_seqs = max_num_seqs
        self._grammars = grammars
        self._new_seed = new_seed
        self.seq_ids = count()
        self._arrivals = count()

    def validate(self, request: GenerationRequest) -> None:
        """Checks a request. It may be called from any thread.

        Raises:
            RequestError: the beams of the request could never run.
        """
        search = request.params.beam_search
        if search is None:
            return
        width, most = search.num_beams, self._max_num_seqs
        if width > most:
            message = f"a search with {width} beams cannot run: at most {most} sequences do at once"
            raise RequestError(message, param=search.param)
        num_prompt_tokens = len(request.prompt_token_ids)
        if self.token_limit(request) <= num_prompt_tokens:
            raise RequestError(
                f"the cache has no room for {width} beams over a prompt of {num_prompt_tokens} "
                "tokens",
                param=search.param,
                code=CONTEXT_EXCEEDED,
            )

    def make(self, request: GenerationRequest) -> list[Sequence]:
        """Returns a valid request's `n` samples, which share the first one's prompt, or the root of
        its beam search, in the list of its group."""
        params = request.params
        seed = self._new_seed() if params.seed is None else params.seed
        num_prompt_tokens = len(request.prompt_token_ids)
        token_limit = self.token_limit(request)
        rank = rank_of(next(self._arrivals), request.priority)
        group = SequenceGroup(params.beam_search.num_beams) if params.beam_search else None
        samples = group.sequences if group else []
        processors = logits_processors(params, array("q", request.prompt_token_ids))
        time_budget = GrammarTimeBudget()
        for index in range(1 if group else params.n):
            samples.append(
                Sequence(
                    next(self.seq_ids),
                    request,
                    index,
                    token_limit=token_limit,
                    seed=sample_seed(seed, index),
                    rank=rank,
                    parent=samples[0] if samples else None,
                    group=group,
                    processors=tuple(map(copy, processors)),
                    grammar=self._start_grammar(params, num_prompt_tokens, time_budget),
                )
            )
        return samples

    def token_limit(self, request: GenerationRequest) -> int:
        """Returns how many tokens a sequence may come to, its prompt included."""
        num_prompt_tokens, params = len(request.prompt_token_ids), request.params
        limit = self._max_model_len
        if params.max_tokens is not None:
            limit = min(limit, num_prompt_tokens + params.max_tokens)
        if params.beam_search is not None:
            limit = min(
                limit,
                beam_token_limit(num_prompt_tokens, params.beam_search.num_beams, self._blocks),
            )
        return limit

    def _start_grammar(
        self, params: SamplingParams, num_prompt_tokens: int, time_budget: GrammarTimeBudget
    ) -> GrammarState | None:
        if params.grammar is None:
            return None
        assert self._grammars is not None
        return self._grammars.start(params.grammar, num_prompt_tokens, time_budget)
