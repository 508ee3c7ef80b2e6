"""Drafts by prompt lookup: guesses what followed when the text last said what it says now.

Drafts never change what is generated: they are verified by sampling each position as usual, and
kept while they agree.
"""

from __future__ import annotations

from array import array

from fastovms.engine.drafting.draft_policy import DraftPolicy
from fastovms.params import SamplingParams

MAX_SEARCHED_TOKENS = 8192
"""How many tokens back to look, which bounds the cost of a search to some ten microseconds."""

DEFAULT_MAX_NGRAM_SIZE = 3
_MIN_NGRAM_SIZE = 2
_ITEM = array("q").itemsize


class PromptLookup:
    """Proposes drafts for one sequence.

    Attributes:
        policy: says how long they are. Where it adapts, only the longest matches count.
    """

    def __init__(self, params: SamplingParams) -> None:
        self.policy = DraftPolicy(params.num_assistant_tokens)
        self._max_ngram_size = params.max_ngram_size or DEFAULT_MAX_NGRAM_SIZE
        self._min_ngram_size = min(_MIN_NGRAM_SIZE, self._max_ngram_size)
        if self.policy.is_automatic:
            self._min_ngram_size = self._max_ngram_size
        self._guess = array("q")
        self._guess_start = 0

    def propose(self, token_ids: array[int], num_running: int) -> array[int]:
        """Returns a draft of what follows `token_ids`; usually it is empty."""
        if self._guess:
            self._check_guess(token_ids)
        num_tokens = self.policy.num_tokens(len(token_ids), num_running)
        if num_tokens == 0 or self._guess:
            return array("q")
        draft = self._look_up(token_ids, num_tokens)
        if draft and not self.policy.may_try(num_running):
            self._guess, self._guess_start = draft, len(token_ids)
            return array("q")
        return draft

    def _check_guess(self, token_ids: array[int]) -> None:
        """Compares a guess, made while drafts were too dear to compute, with what was generated,
        and has the policy learn from it: it counts only if it was right to its end."""
        said = token_ids[self._guess_start : self._guess_start + len(self._guess)]
        if said == self._guess:
            self.policy.learn(len(said), len(said), len(token_ids))
        elif said == self._guess[: len(said)]:
            return  # right so far
        else:
            self.policy.learn(len(self._guess), 0, len(token_ids))
        del self._guess[:]

    def _look_up(self, token_ids: array[int], num_tokens: int) -> array[int]:
        window = token_ids[-MAX_SEARCHED_TOKENS:]
        for size in range(self._max_ngram_size, self._min_ngram_size - 1, -1):
            position = _find_last(window, size)
            if position is not None:
                return _continue_cycle(window[position:], num_tokens)
        return array("q")


def _continue_cycle(token_ids: array[int], num_tokens: int) -> array[int]:
    """Returns what followed last time, repeated where it reaches the end of the text."""
    return (token_ids * (num_tokens // len(token_ids) + 1))[:num_tokens]


def _find_last(token_ids: array[int], size: int) -> int | None:
    """Returns where the text continues after the last earlier occurrence of its final `size`
    tokens."""
    if len(token_ids) <= size:
        return None
    data = token_ids.tobytes()
    suffix = data[-size * _ITEM :]
    end = len(data) - _ITEM
    while (offset := data.rfind(suffix, 0, end)) >= 0:
        if offset % _ITEM == 0:
            return offset // _ITEM + size
        end = offset + len(suffix) - 1
    return None
