"""Decides how many tokens to draft for one sequence, whoever makes the drafts."""

from __future__ import annotations

DEFAULT_NUM_ASSISTANT_TOKENS = 5

_MIN_AUTOMATIC_TOKENS = 2
_MAX_AUTOMATIC_TOKENS = 8
_SHORTEST_PAUSE = 8
_LONGEST_PAUSE = 256
_MAX_SEQUENCES_TO_TRY = 2
"""How many sequences may run together while a draft is computed only to see whether it is right. A
step of another length than the one before takes longer, since OpenVINO prepares all its operations
anew, and so does the next one. With a model of 135M parameters the two cost 1.2 steps of one
sequence, and 0.7 steps of eight: more than one draft can win for these."""


class DraftPolicy:
    """The length of one sequence's drafts: fixed by the request, or adapted to what they are worth.

    An adaptive one grows while drafts are accepted whole and shrinks when they are mostly wrong.
    Where they do not pay there is a pause, and then another try: pauses grow until a draft is of
    use, so that text which cannot be guessed costs next to nothing.

    Attributes:
        is_automatic: whether the length adapts.
        is_proven: whether the last draft was of use.
    """

    def __init__(
        self, fixed_num_tokens: int | None, *, cost: float = 0.0, tolerated_misses: int = 0
    ) -> None:
        """
        Args:
            fixed_num_tokens: the length that the request asks for; None = adapt.
            cost: time to draft a token, as a share of the time to generate one without drafts.
            tolerated_misses: drafts in a row that may be mostly wrong before there is a pause.
        """
        self.is_automatic = fixed_num_tokens is None
        self._num_tokens = (
            DEFAULT_NUM_ASSISTANT_TOKENS if fixed_num_tokens is None else fixed_num_tokens
        )
        self._cost = cost
        self._tolerated_misses = tolerated_misses
        self._acceptance = 0.5
        self._num_misses = 0
        self._pause = _SHORTEST_PAUSE
        self._pause_until = 0
        self._is_trial = False
        self.is_proven = False

    def num_tokens(self, length: int, num_running: int) -> int:
        """Returns how many tokens to draft now; 0 = none. `num_running` sequences share the step:
        the fuller it is, the more a wrong guess costs. `length` is this sequence's in tokens."""
        if not self.is_automatic:
            return self._num_tokens
        if length < self._pause_until:
            return 0
        required = self._required(num_running)
        if required >= 1:
            return 0
        if self._acceptance < required and not self._is_trial:
            self._start_pause(length)
            return 0
        return self._num_tokens

    def may_try(self, num_running: int) -> bool:
        """Returns whether a draft may be computed. If not, a guess can still be compared with what
        is generated without it, and the result given to `learn`."""
        return self.is_proven or not self.is_automatic or num_running <= _MAX_SEQUENCES_TO_TRY

    def learn(self, num_drafted: int, num_accepted: int, length: int) -> None:
        """Takes note that `num_accepted` of `num_drafted` tokens were right."""
        if not self.is_automatic:
            return
        self._is_trial = False
        self._acceptance += 0.25 * (num_accepted / num_drafted - self._acceptance)
        if num_accepted * 4 < num_drafted:
            self._num_misses += 1
            self._num_tokens = max(_MIN_AUTOMATIC_TOKENS, self._num_tokens - 2)
            if self._num_misses > self._tolerated_misses:
                self._start_pause(length)
            return
        self.is_proven = True
        self._num_misses = 0
        self._pause = _SHORTEST_PAUSE
        if num_accepted == num_drafted:
            self._num_tokens = min(self._num_tokens + 1, _MAX_AUTOMATIC_TOKENS)

    def _start_pause(self, length: int) -> None:
        self._pause_until = length + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        # A pause forgets: the past shall not outweigh what the next try shows.
        self._acceptance = max(self._acceptance, 0.4)
        self._is_trial = True
        self.is_proven = False

    def _required(self, num_running: int) -> float:
        """Returns the share of drafted tokens that must be right for drafts to pay: the fuller the
        step already is, the dearer one more token in it."""
        return min(0.8, 0.1 + 0.0075 * num_running) + self._cost
