"""Remembers which drafters one sequence has."""

from __future__ import annotations

from dataclasses import dataclass

from fastovms.engine.drafting.draft_policy import DraftPolicy
from fastovms.engine.drafting.suffix_index import NO_GUESS, Guess, IndexedText


@dataclass(slots=True)
class SequenceDrafters:
    """The drafters of one sequence, and what they know of it.

    Attributes:
        text: the sequence in the suffix index.
        looks_up: whether to guess from the index; a grammar may force tokens even if not.
        num_tokens: how many tokens of a guess to draft, whatever the odds; None = as many as pay.
        max_match: the longest end of the text that is looked up.
        model_policy: says how much the draft model guesses, or None.
        guess, guessed_at: the last guess, and how many tokens the sequence had then.
        is_by_model: whether the last draft is the draft model's.
    """

    text: IndexedText
    looks_up: bool
    num_tokens: int | None
    max_match: int
    model_policy: DraftPolicy | None = None
    guess: Guess = NO_GUESS
    guessed_at: int = 0
    is_by_model: bool = False
