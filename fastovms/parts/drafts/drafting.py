"""Speculative decoding: drafts the next tokens of sequences, which the model verifies in one
step."""

from __future__ import annotations

import logging
from array import array
from collections import abc
from collections.abc import Hashable
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastovms.backend_stats import EngineCounters
from fastovms.backends.paged.backend import BackendExtension, WaitForRequests
from fastovms.config import EngineConfig
from fastovms.engine.extensions import Drafter
from fastovms.engine.model.model import Floats, Model
from fastovms.engine.model.step_inputs import StepInputs
from fastovms.engine.scheduler import Chunk
from fastovms.engine.sequence import Sequence, SequenceGrammar
from fastovms.engine.step_costs import StepCosts
from fastovms.params import MAX_DRAFT_TOKENS
from fastovms.parts.drafts.draft_policy import DraftPolicy, DraftRequest, SequenceDrafters
from fastovms.parts.drafts.suffix_index import (
    LEAST_CHANCE,
    NO_GUESS,
    Guess,
    SuffixFunctions,
    SuffixIndex,
)
from fastovms.parts.drafts.suffix_layout import MAX_MATCH

if TYPE_CHECKING:
    from fastovms.parts.drafts.draft_model import DraftModel

logger = logging.getLogger(__name__)


_SIZES: Final = (1, 2, 3, 5, 7, 11, 15, 23, 31, 47, 63, 95, 127, 191, 255)
"""The numbers of drafted tokens that a step may have, besides the number available and the number
of the previous step. With few sizes the same ones recur, so that their costs are known and compiled
shapes are reused."""

_LEAST_GAIN: Final = 1.02
"""The minimum speedup that drafts must promise. The best of many noisy estimates is usually too
high."""


def draft_lengths(
    chances: abc.Sequence[NDArray[np.float64]],
    costs: StepCosts,
    *,
    num_sequences: int,
    num_rows: int,
) -> list[int]:
    """Returns how many tokens of each guess to draft in the next step, so as to maximize tokens per
    second. The most probable tokens of all sequences are chosen first.

    Args:
        chances: one f64 [number of tokens] for each guess: the probability that the token and all
            before it are correct, in descending order.
        costs: the estimated costs of steps.
        num_sequences: the number of sequences that decode in the step.
        num_rows: the number of their tokens without these guesses.
    """
    values = np.concatenate([np.empty(0), *chances])
    seconds = costs.next_decode_seconds(num_sequences, num_rows)
    if not values.size or seconds is None:
        return [0] * len(chances)
    if seconds <= 0:
        return [len(of) for of in chances]
    if num_rows == num_sequences and costs.is_plain_step_due(num_sequences):
        return [0] * len(chances)
    # The chances of a guess fall, and equal ones keep their order. So the first `size` values are
    # prefixes of the guesses: no token is chosen without those before it.
    likeliest = np.argsort(-values, kind="stable")
    gains = np.cumsum(values[likeliest])
    best, best_rate = 0, _LEAST_GAIN * num_sequences / seconds
    sizes = {*takewhile(lambda size: size < values.size, _SIZES), values.size}
    sizes.add(min(values.size, max(0, costs.last_num_rows - num_rows)))
    for size in sorted(sizes - {0}):
        seconds = costs.next_decode_seconds(num_sequences, num_rows + size)
        if seconds is None:
            break
        rate = (num_sequences + float(gains[size - 1])) / seconds
        if rate > best_rate:
            best, best_rate = size, rate
    if best == 0:
        costs.refuse_drafts(num_sequences)
    owners = np.repeat(np.arange(len(chances)), [len(of) for of in chances])
    counts: list[int] = np.bincount(owners[likeliest[:best]], minlength=len(chances)).tolist()
    return counts


def draft_rate(chances: NDArray[np.float64], costs: StepCosts, *, num_sequences: int) -> float:
    """Returns the expected tokens per second of a step with only these drafts, or, if steps cost
    nothing, the expected number of accepted tokens.

    Args:
        chances: f64 [number of drafted tokens], as in `draft_lengths`.
    """
    gain = float(chances.sum())
    num_rows = num_sequences + len(chances)
    seconds = costs.next_decode_seconds(num_sequences, num_rows)
    return (num_sequences + gain) / seconds if seconds else gain


class TextGuesser:
    """Guesses tokens from the suffix index, and adds the sequences' new tokens to the index."""

    def __init__(self, index: SuffixIndex) -> None:
        self._index = index

    def guess(self, sequence: Sequence, drafters: SequenceDrafters, max_tokens: int) -> Guess:
        """Returns a guess of up to `max_tokens` next tokens. First compares the last guess with the
        tokens generated since, to update the index's statistics.

        The guess is kept even if it is not drafted, so that its accuracy can be measured.
        """
        token_ids, index = sequence.token_ids, self._index
        if len(drafters.guess.token_ids):
            actual = token_ids[drafters.guessed_at :]
            index.learn(drafters.text, drafters.guess, actual)
        if drafters.looks_up:
            index.extend(drafters.text, token_ids, sequence.num_prompt_tokens)
        if max_tokens < 1:
            guess = NO_GUESS
        elif sequence.grammar is not None:
            guess = self._guess_along_grammar(sequence.grammar, token_ids, drafters, max_tokens)
        else:
            guess = self._look_up(drafters, token_ids[-MAX_MATCH:], max_tokens, 1.0)
        drafters.guess, drafters.guessed_at = guess, len(token_ids)
        return guess

    def _look_up(
        self, drafters: SequenceDrafters, context: array[int], max_tokens: int, chance: float
    ) -> Guess:
        if not drafters.looks_up:
            return NO_GUESS
        least = LEAST_CHANCE
        if drafters.num_tokens is not None:
            max_tokens, least = min(max_tokens, drafters.num_tokens), 0.0
        context = context[-drafters.max_match :]
        return self._index.guess(drafters.text, context, max_tokens, chance=chance, least=least)

    def _guess_along_grammar(
        self,
        grammar: SequenceGrammar,
        token_ids: array[int],
        drafters: SequenceDrafters,
        max_tokens: int,
    ) -> Guess:
        """Returns a guess that joins tokens forced by the grammar with tokens from the index, up to
        the first token that the grammar rejects."""
        context = token_ids[-MAX_MATCH:]
        # The first call also detects a grammar that would force tokens forever.
        forced = grammar.forced_tokens(token_ids)
        scout = grammar.scout(token_ids) if len(forced) < max_tokens else None
        parts: list[Guess] = []
        chance = 1.0
        while max_tokens > 0:
            if forced:
                part = self._index.forced(drafters.text, forced[:max_tokens], chance)
            else:
                part = self._look_up(drafters, context, max_tokens, chance)
            if scout is not None:
                part = part.first(scout.follow(part.token_ids.tolist()))
            count = len(part.token_ids)
            if count == 0:
                break
            parts.append(part)
            max_tokens -= count
            chance = float(part.chances[-1])
            if scout is None or chance < LEAST_CHANCE:
                break
            if drafters.num_tokens is not None and not forced:
                break
            context.extend(part.token_ids.tolist())
            forced = scout.forced_tokens()
        return Guess(*map(np.concatenate, zip(*parts, strict=True))) if parts else NO_GUESS


_OWN_TEXT_TOKENS = 64 * 1024
"""The number of tokens in the index if each sequence is guessed only from its own text."""


class Drafting(Drafter):
    """Makes the drafts of a step, and counts accepted tokens.

    Guesses come from the suffix index, which includes the sequence's own text, and from the
    sequence's grammar. The number of drafted tokens depends on their probabilities and on the cost
    of steps. A draft model, if there is one, drafts instead where it promises more tokens per
    second. If a request sets the number or the confidence of draft tokens but no n-gram size, these
    settings apply to the draft model. Beams get no drafts.

    Drafts are optional: after an exception, drafting stops for that sequence, or the draft model is
    switched off.
    """

    def __init__(
        self,
        counters: EngineCounters,
        costs: StepCosts,
        *,
        enable_prompt_lookup: bool,
        num_shared_tokens: int,
        model: DraftModel | None,
        rope_switch_len: int | None = None,
        max_draft_tokens: int | None = None,
        functions: SuffixFunctions | None = None,
    ) -> None:
        """Args:
        costs: the estimated costs of steps.
        num_shared_tokens: the number of recent tokens of all sequences in the index; 0 = each
            sequence is guessed only from its own text.
        rope_switch_len: see `Model`. No draft crosses this length, because its tokens would be
            verified with the rotary embedding of short texts.
        max_draft_tokens: the maximum number of drafted tokens of a step; None = unlimited.
        functions: the kernels of the index; see `SuffixIndex`.
        """
        self._counters = counters
        self._costs = costs
        self._enable_prompt_lookup = enable_prompt_lookup
        self._shares_texts = num_shared_tokens > 0
        self._index = SuffixIndex(num_shared_tokens or _OWN_TEXT_TOKENS, functions)
        self._guesser = TextGuesser(self._index)
        self._drafters: dict[int, SequenceDrafters] = {}
        self._model = model
        self._rope_switch_len = rope_switch_len
        self._max_tokens = MAX_DRAFT_TOKENS
        if max_draft_tokens is not None:
            self._max_tokens = min(MAX_DRAFT_TOKENS, max_draft_tokens)

    def start(self, sequence: Sequence) -> None:
        """Sets up the drafters of a new sequence."""
        params, model = sequence.params, self._model
        num_tokens = params.num_assistant_tokens
        if params.beam_search is not None or self._max_tokens == 0:
            return
        wants_drafts = num_tokens != 0
        threshold = params.assistant_confidence_threshold
        is_for_model = (
            model is not None
            and params.max_ngram_size is None
            and (num_tokens is not None or threshold is not None)
        )
        is_enabled = self._enable_prompt_lookup or num_tokens is not None
        looks_up = wants_drafts and is_enabled and not is_for_model
        if sequence.grammar is None and not looks_up and (model is None or not wants_drafts):
            return
        space: Hashable = (sequence.tenant, sequence.cache_salt) if self._shares_texts else None
        drafters = SequenceDrafters(
            self._index.new_text(space),
            looks_up=looks_up,
            num_tokens=num_tokens or None,
            max_match=params.max_ngram_size or MAX_MATCH,
        )
        if model is not None and wants_drafts:
            drafters.model_policy = model.new_policy(params)
        self._drafters[sequence.seq_id] = drafters

    def propose(self, running: list[Sequence]) -> None:
        """Sets the draft tokens of the sequences that decode in the next step."""
        num_sequences, num_rows = 0, 0
        offers: list[_Offer] = []
        for sequence in running:
            if len(sequence.token_ids) - sequence.num_computed_tokens != 1:
                continue
            num_sequences += 1
            num_rows += 1
            drafters = self._drafters.get(sequence.seq_id)
            if drafters is None or sequence.group is not None:
                continue
            drafters.drafted_by = None
            guess = self._guess(sequence, drafters)
            if drafters.num_tokens is not None and drafters.looks_up:
                sequence.draft_token_ids = array("q", guess.token_ids.tolist())
                num_rows += len(guess.token_ids)
                continue
            if len(guess.token_ids) and guess.chances[0] < LEAST_CHANCE:
                guess = NO_GUESS
            if len(guess.token_ids) or drafters.model_policy is not None:
                offers.append(_Offer(sequence, drafters, guess))
        if offers:
            self._choose(offers, num_sequences, num_rows)
        else:
            self._propose_by_model([])

    def _guess(self, sequence: Sequence, drafters: SequenceDrafters) -> Guess:
        try:
            return self._guesser.guess(sequence, drafters, self._room(sequence))
        except Exception:
            self._stop_drafting(sequence)
            return NO_GUESS

    def _stop_drafting(self, sequence: Sequence) -> None:
        """Stops drafting for a sequence, after an exception."""
        logger.exception(
            "request %s continues without drafts: drafting failed", sequence.request_id
        )
        self._drafters.pop(sequence.seq_id).model_policy = None
        if self._model is not None:
            self._model.free(sequence)

    def _propose_by_model(self, wanted: list[DraftRequest]) -> None:
        if self._model is None:
            return
        try:
            self._model.propose(wanted)
        except Exception:
            self._switch_model_off()
            for sequence, *_ in wanted:
                del sequence.draft_token_ids[:]

    def _switch_model_off(self) -> None:
        """Switches the draft model off, after an exception."""
        logger.exception("the draft model failed and is switched off")
        self._model = None
        for drafters in self._drafters.values():
            drafters.model_policy = None

    def _choose(self, offers: list[_Offer], num_sequences: int, num_rows: int) -> None:
        """Drafts as many tokens of each guess as are worth their cost, or uses the draft model
        where that promises more tokens per second."""
        lengths = draft_lengths(
            [guess.chances for _, _, guess in offers],
            self._costs,
            num_sequences=num_sequences,
            num_rows=num_rows,
        )
        wanted: list[DraftRequest] = []
        guesses: list[array[int]] = []
        for (sequence, drafters, guess), length in zip(offers, lengths, strict=True):
            draft = array("q", guess.token_ids[:length].tolist())
            policy = drafters.model_policy
            if policy is not None:
                planned = policy.plan(
                    sequence.num_tokens,
                    self._costs,
                    num_sequences=num_sequences,
                    max_tokens=self._room(sequence),
                )
                chances = guess.chances[:length]
                rate = draft_rate(chances, self._costs, num_sequences=num_sequences)
                if planned.num_tokens and (length == 0 or planned.rate > rate):
                    wanted.append(DraftRequest(sequence, drafters, policy, planned.num_tokens))
                    guesses.append(draft)
                    continue
            sequence.draft_token_ids = draft
        self._propose_by_model(wanted)
        for (sequence, drafters, policy, _), draft in zip(wanted, guesses, strict=True):
            if sequence.draft_token_ids and sequence.grammar is not None:
                try:
                    _cut_by_grammar(sequence, sequence.grammar, policy)
                except Exception:
                    del sequence.draft_token_ids[:]
                    self._stop_drafting(sequence)
                    continue
            if not sequence.draft_token_ids:
                sequence.draft_token_ids, drafters.drafted_by = draft, None

    def _room(self, sequence: Sequence) -> int:
        """Returns the maximum length of a sequence's draft in tokens."""
        room = min(sequence.token_limit - sequence.num_tokens - 1, self._max_tokens)
        limit = self._rope_switch_len
        if limit is None or sequence.num_tokens > limit:
            return room
        return min(room, limit - sequence.num_tokens)

    def observe(self, chunks: abc.Sequence[Chunk], inputs: StepInputs, states: Floats) -> None:
        """Passes the hidden states of a step, f32 [tokens, width], to the draft head, if there is
        one. Must be called before the step's tokens are sampled."""
        model = self._model
        if model is None:
            return
        begins = inputs.subsequence_begins.tolist()
        try:
            for index, (sequence, _) in enumerate(chunks):
                drafters = self._drafters.get(sequence.seq_id)
                if drafters is not None and sequence.group is None:
                    own = states[begins[index] : begins[index + 1]]
                    model.observe(sequence, drafters, int(inputs.past_lens[index]), own)
        except Exception:
            self._switch_model_off()

    def settle(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Records that `num_accepted` of the `num_drafted` tokens that the step verified were
        accepted, and clears the sequence's draft."""
        del sequence.draft_token_ids[:]
        if num_drafted == 0:
            return
        self._counters.num_drafts += 1
        self._counters.num_draft_tokens += num_drafted
        self._counters.num_accepted_tokens += num_accepted
        drafters = self._drafters.get(sequence.seq_id)
        if drafters is not None and drafters.drafted_by is not None:
            drafters.drafted_by.learn(num_drafted, num_accepted, sequence.num_tokens)

    def finish(self, sequence: Sequence) -> None:
        """Frees the drafting state of a sequence."""
        self._drafters.pop(sequence.seq_id, None)
        if self._model is not None:
            self._model.free(sequence)

    def check(self) -> None:
        """Asserts that the index and the draft model are consistent."""
        self._index.check()
        if self._model is not None:
            self._model.check()


def drafting_of(
    model: Model,
    config: EngineConfig,
    draft_model: DraftModel | None = None,
    functions: SuffixFunctions | None = None,
) -> abc.Callable[[EngineCounters, StepCosts], Drafting]:
    """Returns a factory for the drafter of a model's engine.

    Args:
        draft_model: the draft model with its KV cache allocated; None = no draft model.
        functions: the kernels of the suffix index; see `SuffixIndex`.
    """
    return partial(
        Drafting,
        enable_prompt_lookup=config.enable_prompt_lookup is not False,
        num_shared_tokens=config.suffix_index_tokens if config.enable_prefix_caching else 0,
        model=draft_model,
        rope_switch_len=model.rope_switch_len,
        max_draft_tokens=None if model.states is None else model.states.max_draft_tokens,
        functions=functions,
    )


class SuffixKernels(BackendExtension):
    """Loads the kernels of the suffix index in the background; until then there are no lookups."""

    def __init__(self, functions: SuffixFunctions) -> None:
        self._functions = functions
        functions.defer()

    def prepare(self, may_go_on: WaitForRequests) -> None:
        if may_go_on(0.0):
            self._functions.try_to_load()


class _Offer(NamedTuple):
    """The guess for one sequence; it may be empty."""

    sequence: Sequence
    drafters: SequenceDrafters
    guess: Guess


def _cut_by_grammar(sequence: Sequence, grammar: SequenceGrammar, policy: DraftPolicy) -> None:
    """Cuts the draft model's draft at the first token that the grammar rejects. If no token is
    left, the policy records a rejected draft."""
    scout = grammar.scout(sequence.token_ids)
    allowed = 0 if scout is None else scout.follow(sequence.draft_token_ids.tolist())
    del sequence.draft_token_ids[allowed:]
    if allowed == 0:
        policy.learn(1, 0, sequence.num_tokens)
