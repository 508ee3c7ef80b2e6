"""Runs a beam search request: sequences that follow the search, and the outputs at its end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fastovms.engine.beams.beam import BeamSearcher, Continuation, Hypothesis
from fastovms.engine.model.raw_logits import Floats
from fastovms.engine.sampling.broken_logits import check_rows
from fastovms.engine.sampling.logprobs import token_logprobs
from fastovms.engine.scheduling.blocks import BlockManager
from fastovms.engine.scheduling.scheduler import Scheduler
from fastovms.engine.scheduling.sequence import Sequence
from fastovms.grammar.grammar_faults import dead_end
from fastovms.params import EndsText, FinishReason, GenerationOutput, Refusal, TokenLogprobs


def beam_token_limit(num_prompt_tokens: int, num_beams: int, blocks: BlockManager) -> int:
    """Returns the length in tokens, prompt included, that so many beams can reach when they share
    nothing but the prompt's full blocks."""
    num_shared = (num_prompt_tokens - 1) // blocks.block_size
    return blocks.block_size * (num_shared + (blocks.num_blocks - num_shared) // num_beams)


class BeamRequest:
    """Leads the sequences of one group as its search says.

    Processors apply before the log softmax: what is searched is the distribution that a sampled
    request would draw from.
    """

    def __init__(self, root: Sequence, ends_text: EndsText | None = None) -> None:
        """
        Args:
            root: the prompt, and the only sequence of its group so far.
        """
        params = root.params
        assert root.group is not None
        assert params.beam_search is not None
        end_token_ids = params.stop_token_ids
        # A complete grammar allows only end tokens, so that these cannot be ignored.
        if params.grammar is not None or not params.ignore_eos:
            end_token_ids |= params.eos_token_ids
        self.sequences = root.group.sequences
        self._root = root
        self._params = params
        self._searcher = BeamSearcher(
            params.beam_search,
            end_token_ids=end_token_ids,
            max_new_tokens=root.token_limit - root.num_prompt_tokens,
            ends_text=ends_text,
        )
        self._rows: dict[int, Floats] = {}
        self._logprobs: list[list[TokenLogprobs]] = []
        self._wanted = set(range(params.n))

    def discard(self, index: int) -> bool:
        """Drops a sample that nobody waits for any more. Returns whether any other is still
        wanted."""
        self._wanted.discard(index)
        return bool(self._wanted)

    def take(self, sequence: Sequence, logits: Floats) -> bool:
        """Takes the raw logits of one beam, [vocab_size]. Returns True once those of all beams are
        there: then `advance` is due, before the next inference overwrites them."""
        self._rows[sequence.seq_id] = logits
        return len(self._rows) == len(self.sequences)

    @np.errstate(all="ignore")  # logits may be infinite
    def advance(self, scheduler: Scheduler, seq_ids: Iterator[int]) -> list[GenerationOutput]:
        """Moves every beam by a token: forks those that go on in several ways and drops those that
        do not go on. Where the search ends, it drops all of them and returns the outputs.

        Raises:
            BrokenLogits: the logits of a beam are no numbers.
        """
        rows = [self._rows[sequence.seq_id] for sequence in self.sequences]
        self._rows.clear()
        check_rows(rows)
        processed = [
            _process(sequence, row) for sequence, row in zip(self.sequences, rows, strict=True)
        ]
        grammars = [s.grammar for s in self.sequences if s.grammar is not None]
        error = next((grammar.error for grammar in grammars if grammar.error), None)
        if error is not None and self._params.grammar is not None:
            refusal = dead_end(self._params.grammar, error)
            return self.fail(scheduler, refusal.message, refusal)
        continuations = self._searcher.advance(processed)
        if self._params.logprobs is not None:
            self._logprobs.append(
                [
                    token_logprobs(rows[parent], token_id, self._params.logprobs)
                    for parent, token_id in self._searcher.steps[-1]
                ]
            )
        self._follow(continuations, scheduler, seq_ids)
        return [] if continuations else self._outputs()

    def fail(
        self, scheduler: Scheduler, error: str, refusal: Refusal | None = None
    ) -> list[GenerationOutput]:
        """Ends the search without a result.

        Args:
            refusal: why the request is to blame, if it is.
        """
        for sequence in self.sequences:
            scheduler.finish(sequence)
        self.sequences.clear()
        return [
            GenerationOutput(index, (), FinishReason.ERROR, 0, error=error, refusal=refusal)
            for index in sorted(self._wanted)
        ]

    def _follow(
        self, continuations: list[Continuation], scheduler: Scheduler, seq_ids: Iterator[int]
    ) -> None:
        """Gives a beam's sequence to its first child, once the others are forked from it."""
        parents = self.sequences[:]
        children: dict[int, Sequence] = {}
        self.sequences.clear()
        for position, _ in continuations:
            parent = parents[position]
            if position in children:
                child = parent.fork(next(seq_ids))
                scheduler.fork(parent, child)
            else:
                child = children[position] = parent
            self.sequences.append(child)
        for sequence, (_, token_id) in zip(self.sequences, continuations, strict=True):
            sequence.token_ids.append(token_id)
        for position, parent in enumerate(parents):
            if position not in children:
                scheduler.finish(parent)

    def _outputs(self) -> list[GenerationOutput]:
        """Returns one output per sample. A grammar may allow fewer texts than were asked for: the
        other samples are empty."""
        nothing = Hypothesis(0.0, [], is_ended=False)
        hypotheses = self._searcher.best(self._params.n)
        hypotheses += [nothing] * (self._params.n - len(hypotheses))
        return [self._output(index, hypotheses[index]) for index in sorted(self._wanted)]

    def _output(self, index: int, hypothesis: Hypothesis) -> GenerationOutput:
        params = self._params
        path, is_ended = hypothesis.path, hypothesis.is_ended
        token_ids = [self._searcher.steps[i][j].token_id for i, j in enumerate(path)]
        end = token_ids.pop() if is_ended else None
        is_cut = len(token_ids) == self._root.token_limit - self._root.num_prompt_tokens
        output = GenerationOutput(
            index=index,
            token_ids=token_ids,
            finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP,
            num_generated_tokens=len(path),
            num_cached_tokens=self._root.num_own_cached_tokens,
        )
        if end is not None and (params.ignore_eos or end not in params.eos_token_ids):
            output.stop_token_id = end
        if params.logprobs is not None:
            is_told = end is None or output.stop_token_id is not None
            told = path if is_told else path[:-1]
            output.logprobs = [self._logprobs[i][j] for i, j in enumerate(told)]
        if params.prompt_logprobs is not None and index == 0:
            output.prompt_logprobs = self._root.prompt_logprobs
        return output


def _process(sequence: Sequence, logits: Floats) -> Floats:
    if not sequence.processors:
        return logits
    logits = logits.copy()
    for process in sequence.processors:
        process(logits, sequence.token_ids)
    return logits
