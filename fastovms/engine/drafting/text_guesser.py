"""Guesses how one sequence goes on: by the suffix index, and along its grammar if it has one."""

from __future__ import annotations

from array import array

import numpy as np

from fastovms.engine.drafting.sequence_drafters import SequenceDrafters
from fastovms.engine.drafting.suffix_index import LEAST_CHANCE, NO_GUESS, Guess, SuffixIndex
from fastovms.engine.drafting.suffix_layout import MAX_MATCH
from fastovms.engine.scheduling.sequence import Sequence


class TextGuesser:
    """Guesses from an index, which it keeps up to date with the sequences that it is asked for."""

    def __init__(self, index: SuffixIndex) -> None:
        self._index = index

    def guess(self, sequence: Sequence, drafters: SequenceDrafters, max_tokens: int) -> Guess:
        """Guesses up to `max_tokens` tokens, after it has compared the last guess with what came.

        The guess is remembered whether it is drafted or not: what it was worth shows in the text.
        """
        token_ids, index = sequence.token_ids, self._index
        if len(drafters.guess.token_ids):
            said = token_ids[drafters.guessed_at :]
            index.learn(drafters.text, drafters.guess, said)
        if drafters.looks_up:
            index.extend(drafters.text, token_ids, sequence.num_prompt_tokens)
        if max_tokens < 1:
            guess = NO_GUESS
        elif sequence.grammar is not None:
            guess = self._guess_along_grammar(sequence, drafters, max_tokens)
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
        self, sequence: Sequence, drafters: SequenceDrafters, max_tokens: int
    ) -> Guess:
        """Joins what the grammar forces and what the index finds, as far as the grammar lets it
        through."""
        assert sequence.grammar is not None
        context = sequence.token_ids[-MAX_MATCH:]
        # A first look at what is forced also tells a grammar that would force tokens for ever.
        forced = sequence.grammar.forced_tokens(sequence.token_ids)
        scout = sequence.grammar.scout(sequence.token_ids) if len(forced) < max_tokens else None
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
