"""Beam search: extends several sequences of one request in parallel and returns the best texts."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastovms.engine import extensions
from fastovms.engine.blocks import BlockManager
from fastovms.engine.model.model import Floats
from fastovms.engine.sampler import check_rows, log_sum_exp_and_top, token_logprobs
from fastovms.engine.scheduler import Scheduler
from fastovms.engine.sequence import Sequence, SequenceGroup
from fastovms.errors import CONTEXT_EXCEEDED, RequestError
from fastovms.params import (
    BeamSearch,
    EarlyStopping,
    EndsText,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    Refusal,
    TokenLogprobs,
    unfinishable_grammar,
)


class Continuation(NamedTuple):
    """One beam of the next step.

    Attributes:
        parent: the index of the beam that this one extends, in the list of the last step.
    """

    parent: int
    token_id: int


class Hypothesis(NamedTuple):
    """A complete text.

    Attributes:
        score: sum of log probabilities / length**penalty; texts are ranked by it.
        path: the index of the text's beam in each entry of `BeamSearcher.steps`.
        is_ended: whether the last token on the path is an end token, which is not part of the text.
    """

    score: float
    path: list[int]
    is_ended: bool


class _Candidate(NamedTuple):
    """A possible continuation, before the best ones of its group are selected.

    Attributes:
        score: sum of log probabilities, minus the diversity penalties.
    """

    score: float
    continuation: Continuation


class _Row(NamedTuple):
    """A summary of one beam's logits.

    Attributes:
        log_sum: the logarithm of the sum of exp(logit) over the vocabulary.
        likeliest: the ids of the most likely tokens, in descending order of their logits.
    """

    logits: Floats
    log_sum: float
    likeliest: NDArray[np.int64]


class _Group:
    """A group of beams that compete: up to `width` running beams and `width` complete texts.

    Attributes:
        scores: the scores of the group's beams, best first.
        first_position: the index of the group's first beam in the list of all beams; the group's
            other beams follow it.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.scores = [0.0]
        self.first_position = 0
        self.complete: list[Hypothesis] = []

    def add(self, hypothesis: Hypothesis) -> None:
        """Adds a complete text and keeps the `width` best in descending order. Of texts with equal
        scores, the earlier one ranks higher."""
        self.complete.append(hypothesis)
        self.complete.sort(key=lambda h: h.score, reverse=True)
        del self.complete[self.width :]


class BeamSearcher:
    """One search, from the prompt (a single beam) to the best texts.

    The results equal those of `openvino_genai.ContinuousBatchingPipeline`. In each group the 2 *
    width most likely continuations of every beam compete. An end token counts in the length, and is
    considered only among the first `width`. Groups choose one after another, and a later group pays
    `diversity_penalty` for each beam of an earlier group that chose the same token in this step. A
    token for which `ends_text` is true ends a text like an end token, but is part of the text. Each
    entry of `steps` lists the beams of all groups after one step; beams with a complete text are at
    the list's end, addressed by negative indices.
    """

    def __init__(
        self,
        params: BeamSearch,
        *,
        end_token_ids: frozenset[int],
        max_new_tokens: int,
        ends_text: EndsText | None = None,
    ) -> None:
        self.steps: list[list[Continuation]] = []
        self._params = params
        self._end_token_ids = end_token_ids
        self._max_new_tokens = max_new_tokens
        self._ends_text = ends_text
        self._ended: list[Continuation] = []
        width = params.num_beams // params.num_beam_groups
        self._groups = [_Group(width) for _ in range(params.num_beam_groups)]

    def advance(self, logits: abc.Sequence[Floats]) -> list[Continuation]:
        """Advances the search by one token and returns the next beams; an empty list means that the
        search has ended.

        Args:
            logits: one row [vocab_size] for each beam of the last step, or one row for the prompt;
                -inf excludes a token.
        """
        num_candidates = 2 * self._groups[0].width
        rows = [_Row(row, *log_sum_exp_and_top(row, num_candidates)) for row in logits]
        taken: list[int] = []
        beams: list[Continuation] = []
        self._ended.clear()
        for group in self._groups:
            if not group.scores:
                continue
            candidates = self._candidates(group, rows, taken)
            survivors = self._select(group, candidates)
            taken += (s.continuation.token_id for s in survivors)
            if self._is_done(group):
                survivors = []
            group.scores = [s.score for s in survivors]
            group.first_position = len(beams)
            beams += (s.continuation for s in survivors)
        self.steps.append([*beams, *reversed(self._ended)])
        if len(self.steps) == self._max_new_tokens:
            for group in self._groups:
                for position, score in enumerate(group.scores, group.first_position):
                    score = self._rank_score(score, len(self.steps))
                    group.add(Hypothesis(score, self._path_to(position), is_ended=False))
                group.scores = []
            return []
        return beams

    def best(self, n: int) -> list[Hypothesis]:
        """Returns up to `n` complete texts of all groups, best first. There are fewer if the
        grammar allows fewer."""
        complete = [hypothesis for group in self._groups for hypothesis in group.complete]
        return sorted(complete, key=lambda h: h.score, reverse=True)[:n]

    def _candidates(self, group: _Group, rows: list[_Row], taken: list[int]) -> list[_Candidate]:
        """Returns a group's candidates, best first. Candidates with equal scores are in the order
        of their beams, then of their token ids."""
        candidates: list[_Candidate] = []
        for position, score in enumerate(group.scores, group.first_position):
            logits, log_sum, ids = rows[position]
            if taken and self._params.diversity_penalty:
                logits = logits.copy()
                np.subtract.at(logits, taken, np.float32(self._params.diversity_penalty))
                _, ids = log_sum_exp_and_top(logits, len(ids))
            ids = ids[logits[ids] > -np.inf]
            scores = logits[ids].astype(np.float64) + (score - log_sum)
            candidates += (
                _Candidate(total, Continuation(position, token_id))
                for total, token_id in zip(scores.tolist(), ids.tolist(), strict=True)
            )
        candidates.sort(key=lambda c: c.score, reverse=True)
        return candidates

    def _select(self, group: _Group, candidates: list[_Candidate]) -> list[_Candidate]:
        """Adds the complete texts to the group and returns the beams that continue."""
        survivors: list[_Candidate] = []
        for rank, candidate in enumerate(candidates):
            parent, token_id = candidate.continuation
            is_end = token_id in self._end_token_ids
            if not is_end and not self._completes(candidate.continuation):
                survivors.append(candidate)
                if len(survivors) == group.width:
                    break
            elif rank < group.width:
                score = self._rank_score(candidate.score, len(self.steps) + 1)
                self._ended.append(candidate.continuation)
                path = [*self._path_to(parent), -len(self._ended)]
                group.add(Hypothesis(score, path, is_end))
        return survivors

    def _completes(self, continuation: Continuation) -> bool:
        if self._ends_text is None:
            return False
        return self._ends_text(len(self.steps) + 1, self._backwards(continuation))

    def _backwards(self, continuation: Continuation) -> Iterator[int]:
        """Yields the tokens of a text that ends at a beam of the last step, last token first."""
        yield continuation.token_id
        for beams in reversed(self.steps):
            continuation = beams[continuation.parent]
            yield continuation.token_id

    def _is_done(self, group: _Group) -> bool:
        """Returns whether no running beam of a group can still beat its complete texts. The best
        running score is the one before this step, as in openvino_genai."""
        if len(group.complete) < group.width:
            return False
        if self._params.early_stopping is EarlyStopping.EARLY:
            return True
        length = len(self.steps)
        if length == 0:
            return False
        if self._params.early_stopping is EarlyStopping.NEVER and self._params.length_penalty > 0:
            length = self._max_new_tokens
        return group.complete[-1].score >= self._rank_score(group.scores[0], length)

    def _rank_score(self, score: float, length: int) -> float:
        with np.errstate(all="ignore"):  # the length penalty may be any number, and overflow
            return float(np.float64(score) / np.float64(length) ** self._params.length_penalty)

    def _path_to(self, position: int) -> list[int]:
        """Returns the beams' indices from the first step to the beam at `position` in the last
        step. `position` is 0 before the first step."""
        path: list[int] = []
        for beams in reversed(self.steps):
            path.append(position)
            position = beams[position].parent
        path.reverse()
        return path


def beam_token_limit(num_prompt_tokens: int, num_beams: int, blocks: BlockManager) -> int:
    """Returns the longest text in tokens, prompt included, that `num_beams` beams can reach if they
    share only the prompt's full blocks."""
    num_shared = (num_prompt_tokens - 1) // blocks.block_size
    return blocks.block_size * (num_shared + (blocks.num_blocks - num_shared) // num_beams)


class BeamSearches(extensions.BeamSearches):
    """Creates the beam searches of an engine."""

    def token_limit(self, request: GenerationRequest, limit: int, blocks: BlockManager) -> int:
        search = request.params.beam_search
        assert search is not None
        num_prompt_tokens = len(request.prompt_token_ids)
        return min(limit, beam_token_limit(num_prompt_tokens, search.num_beams, blocks))

    def validate(self, request: GenerationRequest, token_limit: int, max_num_seqs: int) -> None:
        """Raises RequestError if the beams of a request could never run."""
        search = request.params.beam_search
        assert search is not None
        width = search.num_beams
        if width > max_num_seqs:
            raise RequestError(
                f"a search with {width} beams cannot run: --max-num-seqs allows "
                f"{max_num_seqs} sequences at once",
                param=search.param,
            )
        num_prompt_tokens = len(request.prompt_token_ids)
        if token_limit <= num_prompt_tokens:
            raise RequestError(
                f"the KV cache has no room for {width} beams over a prompt of {num_prompt_tokens} "
                "tokens",
                param=search.param,
                code=CONTEXT_EXCEEDED,
            )

    def start(self, root: Sequence, request: GenerationRequest) -> BeamRequest:
        """Starts the search of a validated request with its first sequence, which holds the
        prompt."""
        group, search = root.group, request.params.beam_search
        assert group is not None
        assert search is not None
        return BeamRequest(root, group, search, request.ends_text)


class BeamRequest(extensions.BeamSearch):
    """Applies a beam search to the sequences of one group.

    Logits processors run before the log softmax, so the search ranks tokens by the distribution
    that sampling would draw from.
    """

    def __init__(
        self,
        root: Sequence,
        group: SequenceGroup,
        search: BeamSearch,
        ends_text: EndsText | None = None,
    ) -> None:
        """`root` is the prompt's sequence, and so far the only sequence of `group`."""
        params = root.params
        end_token_ids = params.stop_token_ids
        # A complete grammar allows only end tokens, so that these cannot be ignored.
        if params.grammar is not None or not params.ignore_eos:
            end_token_ids |= params.eos_token_ids
        self.sequences = group.sequences
        self._root = root
        self._params = params
        self._searcher = BeamSearcher(
            search,
            end_token_ids=end_token_ids,
            max_new_tokens=root.token_limit - root.num_prompt_tokens,
            ends_text=ends_text,
        )
        self._rows: dict[int, Floats] = {}
        self._logprobs: list[list[TokenLogprobs]] = []
        self._wanted = set(range(params.n))

    def discard(self, index: int) -> bool:
        """Drops an aborted sample. Returns whether any other sample is left."""
        self._wanted.discard(index)
        return bool(self._wanted)

    def take(self, sequence: Sequence, logits: Floats) -> bool:
        """Takes the raw logits of one beam, [vocab_size]. Returns True once the logits of all beams
        are complete; call `advance` then, before the next inference overwrites them."""
        self._rows[sequence.seq_id] = logits
        return len(self._rows) == len(self.sequences)

    @np.errstate(all="ignore")  # logits may be infinite
    def advance(self, scheduler: Scheduler, seq_ids: Iterator[int]) -> list[GenerationOutput]:
        """Extends every beam by one token: forks beams that have several continuations and drops
        beams that have none. When the search ends, drops all beams and returns the outputs. Raises
        BrokenLogits if the logits of a beam are not finite numbers."""
        rows = [self._rows[sequence.seq_id] for sequence in self.sequences]
        self._rows.clear()
        check_rows(rows)
        processed = [
            _process(sequence, row) for sequence, row in zip(self.sequences, rows, strict=True)
        ]
        grammars = [s.grammar for s in self.sequences if s.grammar is not None]
        error = next((grammar.error for grammar in grammars if grammar.error), None)
        if error is not None and self._params.grammar is not None:
            refusal = unfinishable_grammar(self._params.grammar, error)
            return self.fail(scheduler, refusal.message, refusal)
        continuations = self._searcher.advance(processed)
        num_top, listed = self._params.logprobs, self._params.logprob_token_ids
        if num_top is not None:
            self._logprobs.append(
                [
                    token_logprobs(rows[parent], token_id, num_top, listed)
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
            refusal: why the request is invalid; None = the request is not the cause.
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
        """Gives each beam's sequence to its first continuation, and forks the sequence for the
        others."""
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
        """Returns one output per sample. If the grammar allows fewer texts than samples, the
        remaining outputs are empty."""
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
            is_end_reported = end is None or output.stop_token_id is not None
            reported = path if is_end_reported else path[:-1]
            output.logprobs = [self._logprobs[i][j] for i, j in enumerate(reported)]
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
