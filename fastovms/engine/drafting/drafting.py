"""Decides who drafts for which sequence: its grammar, the texts so far, or the draft model."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Hashable
from typing import NamedTuple

from fastovms.backend_stats import EngineCounters
from fastovms.engine.drafting.draft_lengths import draft_lengths, draft_rate
from fastovms.engine.drafting.draft_model import DraftModel, WantedDraft
from fastovms.engine.drafting.sequence_drafters import SequenceDrafters
from fastovms.engine.drafting.suffix_index import LEAST_CHANCE, NO_GUESS, Guess, SuffixIndex
from fastovms.engine.drafting.suffix_layout import MAX_MATCH
from fastovms.engine.drafting.text_guesser import TextGuesser
from fastovms.engine.scheduling.sequence import Sequence, SequenceGrammar
from fastovms.engine.scheduling.step_costs import StepCosts
from fastovms.params import MAX_DRAFT_TOKENS

logger = logging.getLogger(__name__)

_OWN_TEXT_TOKENS = 64 * 1024
"""How many tokens the index has where no sequence is guessed from the texts of others."""


class Drafting:
    """Makes the drafts of a step, and counts what becomes of them.

    Each sequence is guessed from the texts in the suffix index, its own among them, along its
    grammar if it has one. How much of the guesses is drafted follows from how likely they are and
    from what steps cost. Where the draft model, if there is one, promises more, it drafts instead.
    A request that says how many tokens to draft, or how sure of them, but nothing of matches,
    speaks to the draft model if there is one. Beams are not drafted.

    Nothing needs a draft. So what fails to make one is done without from then on: the drafters of
    that sequence, or the draft model.
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
    ) -> None:
        """
        Args:
            costs: what steps take.
            num_shared_tokens: how many tokens of recent texts sequences are guessed from; 0 = each
                is guessed from its own alone.
            rope_switch_len: see `Model`. No draft leads across it, since what is verified there
                would be computed as part of a short text.
            max_draft_tokens: how many drafted tokens a step may have; None = any number.
        """
        self._counters = counters
        self._costs = costs
        self._enable_prompt_lookup = enable_prompt_lookup
        self._shares_texts = num_shared_tokens > 0
        self._index = SuffixIndex(num_shared_tokens or _OWN_TEXT_TOKENS)
        self._guesser = TextGuesser(self._index)
        self._drafters: dict[int, SequenceDrafters] = {}
        self._model = model
        self._rope_switch_len = rope_switch_len
        self._max_tokens = MAX_DRAFT_TOKENS
        if max_draft_tokens is not None:
            self._max_tokens = min(MAX_DRAFT_TOKENS, max_draft_tokens)

    def start(self, sequence: Sequence) -> None:
        """Chooses the drafters of a new sequence."""
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
        """Sets the drafts of those sequences that decode in the next step."""
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
            drafters.is_by_model = False
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
            self._have_model_propose([])

    def _guess(self, sequence: Sequence, drafters: SequenceDrafters) -> Guess:
        try:
            return self._guesser.guess(sequence, drafters, self._room(sequence))
        except Exception:
            self._do_without(sequence)
            return NO_GUESS

    def _do_without(self, sequence: Sequence) -> None:
        """Ends the drafts of a sequence, after an exception."""
        logger.exception("request %s goes on without drafts", sequence.request_id)
        self._drafters.pop(sequence.seq_id).model_policy = None
        if self._model is not None:
            self._model.free(sequence)

    def _have_model_propose(self, wanted: list[WantedDraft]) -> None:
        if self._model is None:
            return
        try:
            self._model.propose(wanted)
        except Exception:
            logger.exception("the draft model has failed, and is not used any more")
            self._model = None
            for sequence, _, _ in wanted:
                del sequence.draft_token_ids[:]
            for drafters in self._drafters.values():
                drafters.model_policy = None

    def _choose(self, offers: list[_Offer], num_sequences: int, num_rows: int) -> None:
        """Drafts as much of each guess as pays, and has the draft model draft where that pays
        more."""
        lengths = draft_lengths(
            [guess.chances for _, _, guess in offers],
            self._costs,
            num_sequences=num_sequences,
            num_rows=num_rows,
        )
        wanted: list[WantedDraft] = []
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
                    wanted.append(WantedDraft(sequence, drafters, planned.num_tokens))
                    guesses.append(draft)
                    continue
            sequence.draft_token_ids = draft
        self._have_model_propose(wanted)
        for (sequence, drafters, _), draft in zip(wanted, guesses, strict=True):
            if sequence.draft_token_ids and sequence.grammar is not None:
                try:
                    _cut_by_grammar(sequence, sequence.grammar, drafters)
                except Exception:
                    del sequence.draft_token_ids[:]
                    self._do_without(sequence)
                    continue
            if not sequence.draft_token_ids:
                sequence.draft_token_ids, drafters.is_by_model = draft, False

    def _room(self, sequence: Sequence) -> int:
        """Returns how many tokens a draft may have."""
        room = min(sequence.token_limit - sequence.num_tokens - 1, self._max_tokens)
        limit = self._rope_switch_len
        if limit is None or sequence.num_tokens > limit:
            return room
        return min(room, limit - sequence.num_tokens)

    def settle(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Takes note that the first `num_drafted` tokens of a draft, for which the step had room,
        have been verified, and clears it."""
        del sequence.draft_token_ids[:]
        if num_drafted == 0:
            return
        self._counters.num_drafts += 1
        self._counters.num_draft_tokens += num_drafted
        self._counters.num_accepted_tokens += num_accepted
        drafters = self._drafters.get(sequence.seq_id)
        if drafters is not None and drafters.is_by_model:
            assert drafters.model_policy is not None
            drafters.model_policy.learn(num_drafted, num_accepted, sequence.num_tokens)

    def finish(self, sequence: Sequence) -> None:
        """Frees what is held for a sequence."""
        self._drafters.pop(sequence.seq_id, None)
        if self._model is not None:
            self._model.free(sequence)

    def check(self) -> None:
        """Asserts that the books of the index and of the draft model balance."""
        self._index.check()
        if self._model is not None:
            self._model.check()


class _Offer(NamedTuple):
    """A guess at what follows a sequence, which may be empty."""

    sequence: Sequence
    drafters: SequenceDrafters
    guess: Guess


def _cut_by_grammar(
    sequence: Sequence, grammar: SequenceGrammar, drafters: SequenceDrafters
) -> None:
    """Cuts the draft model's draft at the first token that the grammar bars. Where nothing is left,
    the policy learns that the work was in vain."""
    scout = grammar.scout(sequence.token_ids)
    allowed = 0 if scout is None else scout.follow(sequence.draft_token_ids.tolist())
    del sequence.draft_token_ids[allowed:]
    if allowed == 0 and drafters.model_policy is not None:
        drafters.model_policy.learn(1, 0, sequence.num_tokens)
