"""The drafters of a sequence, and the policy that chooses the length of a draft model's drafts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from fastovms.engine.sequence import Sequence
from fastovms.engine.step_costs import StepCosts
from fastovms.params import MAX_DRAFT_TOKENS
from fastovms.parts.drafts.suffix_index import LEAST_CHANCE, NO_GUESS, Guess, IndexedText

_SHORTEST_PAUSE: Final = 8
_LONGEST_PAUSE: Final = 256
_MAX_TRIAL_TOKENS: Final = 2
"""The maximum length of drafts after a pause, until a draft is accepted."""

_FIRST_ODDS: Final = 0.6
_FIRST_WEIGHT: Final = 4.0
_MEMORY: Final = 0.9
"""The factor by which the weight of past drafts decays with each new draft."""


class PlannedDraft(NamedTuple):
    """A planned draft of `num_tokens` tokens; the step that verifies it is expected to generate
    `rate` tokens per second."""

    num_tokens: int
    rate: float


NO_DRAFT: Final = PlannedDraft(0, 0.0)


class DraftPolicy:
    """Chooses the length of one sequence's drafts. The request fixes the length; otherwise the
    policy maximizes the expected tokens per second, given the acceptance rate and the cost of
    steps.

    If no length is worth its cost, drafting pauses. The pauses grow until a draft is accepted, so
    that unpredictable text costs almost nothing. `is_automatic` is whether the length adapts.
    """

    def __init__(
        self, fixed_num_tokens: int | None, *, cost: float = 0.0, tolerated_misses: int = 0
    ) -> None:
        """Args:
        fixed_num_tokens: the length that the request sets; None = adapt the length.
        cost: the time to draft a token as a fraction of the time of a step without drafts.
        tolerated_misses: the number of consecutive mostly wrong drafts before a pause.
        """
        self.is_automatic = fixed_num_tokens is None
        self._fixed_num_tokens = fixed_num_tokens
        self._cost = cost
        self._tolerated_misses = tolerated_misses
        self._num_misses = 0
        self._pause = _SHORTEST_PAUSE
        self._pause_until = 0
        self._is_trial = False
        self._right = _FIRST_ODDS * _FIRST_WEIGHT
        self._made = _FIRST_WEIGHT

    def plan(
        self, length: int, costs: StepCosts, *, num_sequences: int, max_tokens: int
    ) -> PlannedDraft:
        """Returns the draft to make now.

        Args:
            length: the length of the sequence in tokens.
            max_tokens: the maximum length of the draft.
        """
        if self._fixed_num_tokens is not None:
            return PlannedDraft(min(self._fixed_num_tokens, max_tokens), float("inf"))
        if max_tokens < 1 or length < self._pause_until:
            return NO_DRAFT
        if costs.is_plain_step_due(num_sequences):
            return NO_DRAFT
        plain = costs.decode_seconds(num_sequences, num_sequences)
        if plain is None:
            return NO_DRAFT
        if self._is_trial:
            max_tokens = min(max_tokens, _MAX_TRIAL_TOKENS)
        odds = self._right / self._made
        best, best_rate = 0, num_sequences / plain if plain > 0 else 0.0
        gain, chance = 0.0, 1.0
        for num_tokens in range(1, min(max_tokens, MAX_DRAFT_TOKENS) + 1):
            chance *= odds
            gain += chance
            if chance < LEAST_CHANCE:
                break
            seconds = costs.next_decode_seconds(num_sequences, num_sequences + num_tokens)
            if seconds is None:
                break
            seconds += num_tokens * self._cost * plain
            # If steps take no time (in tests), only the probabilities decide.
            rate = (num_sequences + gain) / seconds if plain > 0 else gain - num_tokens * self._cost
            if rate > best_rate:
                best, best_rate = num_tokens, rate
        if best == 0 and plain > 0:
            costs.refuse_drafts(num_sequences)
            self._start_pause(length)
        return PlannedDraft(best, best_rate)

    def learn(self, num_drafted: int, num_accepted: int, length: int) -> None:
        """Records that `num_accepted` of `num_drafted` tokens were accepted. `length` is the
        sequence's length in tokens."""
        if not self.is_automatic:
            return
        # Tokens after the first wrong one were not tried.
        num_tried = min(num_drafted, num_accepted + 1)
        self._right = self._right * _MEMORY**num_tried + num_accepted
        self._made = self._made * _MEMORY**num_tried + num_tried
        if num_accepted * 4 >= num_drafted:
            self._num_misses = 0
            self._pause = _SHORTEST_PAUSE
            self._is_trial = False
            return
        self._num_misses += 1
        if self._num_misses > self._tolerated_misses:
            self._start_pause(length)

    def _start_pause(self, length: int) -> None:
        self._pause_until = length + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._is_trial = True
        self._forget()

    def _forget(self) -> None:
        """Discards the acceptance statistics, so that only new drafts count."""
        self._right = _FIRST_ODDS * _FIRST_WEIGHT
        self._made = _FIRST_WEIGHT


@dataclass(slots=True)
class SequenceDrafters:
    """The drafters of one sequence and their state.

    Attributes:
        text: the sequence's text in the suffix index.
        looks_up: whether guesses come from the suffix index; tokens forced by a grammar are always
            guessed.
        num_tokens: the fixed number of guessed tokens to draft; None = as many as are worth their
            cost.
        max_match: the maximum length in tokens of the suffix that is looked up.
        model_policy: the policy of the draft model; None = no draft model.
        guess, guessed_at: the last guess, and the sequence's length in tokens at that time.
        drafted_by: the draft model's policy, if the draft model made the last draft; otherwise
            None.
    """

    text: IndexedText
    looks_up: bool
    num_tokens: int | None
    max_match: int
    model_policy: DraftPolicy | None = None
    guess: Guess = NO_GUESS
    guessed_at: int = 0
    drafted_by: DraftPolicy | None = None


class DraftRequest(NamedTuple):
    """A request for a draft of 1 to `num_tokens` tokens for a sequence; `policy` is the draft
    model's policy in `drafters`."""

    sequence: Sequence
    drafters: SequenceDrafters
    policy: DraftPolicy
    num_tokens: int
