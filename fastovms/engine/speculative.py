"""Drafts by prompt lookup: what followed the last time the text said what it says now.

Drafts never change what is generated: they are verified by sampling each position as usual, and
kept while they agree.
"""

from __future__ import annotations

from array import array

from fastovms.params import SamplingParams

MAX_SEARCHED_TOKENS = 8192
"""How far back to look; bounds the cost of a search to some ten microseconds."""

DEFAULT_NUM_ASSISTANT_TOKENS = 5
DEFAULT_MAX_NGRAM_SIZE = 3
_MIN_NGRAM_SIZE = 2
_MAX_AUTOMATIC_TOKENS = 8
_ITEM = array("q").itemsize


class PromptLookup:
    """Proposes drafts for one sequence.

    Unless the request fixes `num_assistant_tokens`, it adapts: the draft grows while it is
    accepted whole, and after misses it pauses, ever longer, so that text which only looks
    repetitive costs next to nothing.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._is_automatic = params.num_assistant_tokens is None
        self._num_tokens = params.num_assistant_tokens or DEFAULT_NUM_ASSISTANT_TOKENS
        self._max_ngram_size = params.max_ngram_size or DEFAULT_MAX_NGRAM_SIZE
        self._min_ngram_size = min(_MIN_NGRAM_SIZE, self._max_ngram_size)
        if self._is_automatic:
            self._min_ngram_size = self._max_ngram_size
        self._acceptance = 0.5
        self._num_misses = 0
        self._pause_until = 0

    def propose(self, token_ids: array[int], num_running: int) -> array[int]:
        """A draft of what follows `token_ids`, usually empty. `num_running` sequences share the
        step: the more there are, the less a token may be computed in vain."""
        if self._is_automatic and (
            len(token_ids) < self._pause_until or self._acceptance < _required(num_running)
        ):
            return array("q")
        window = token_ids[-MAX_SEARCHED_TOKENS:]
        for size in range(self._max_ngram_size, self._min_ngram_size - 1, -1):
            position = _find_last(window, size)
            if position is not None:
                return _continue_cycle(window[position:], self._num_tokens)
        return array("q")

    def learn(self, num_drafted: int, num_accepted: int, num_tokens: int) -> None:
        """Tells how much of a draft was right. `num_tokens` is the sequence's length now."""
        if not self._is_automatic:
            return
        self._acceptance += 0.25 * (num_accepted / num_drafted - self._acceptance)
        if num_accepted == num_drafted:
            self._num_misses = 0
            self._num_tokens = min(self._num_tokens + 1, _MAX_AUTOMATIC_TOKENS)
        elif num_accepted * 4 < num_drafted:
            self._num_misses += 1
            self._num_tokens = max(2, self._num_tokens - 2)
            self._pause_until = num_tokens + (4 << min(self._num_misses, 6))
            # A pause forgets slowly: the next try needs no proof from the past.
            self._acceptance = max(self._acceptance, 0.4)
        else:
            self._num_misses = 0


def _required(num_running: int) -> float:
    """The share of drafted tokens that must be right. One more token in a step costs the more, in
    proportion to what a token costs anyway, the fuller the step already is."""
    return min(0.8, 0.1 + 0.0075 * num_running)


def _continue_cycle(token_ids: array[int], num_tokens: int) -> array[int]:
    """What followed last time, and again from there where that reaches the end of the text."""
    return (token_ids * (num_tokens // len(token_ids) + 1))[:num_tokens]


def _find_last(token_ids: array[int], size: int) -> int | None:
    """Where the text continues after the last earlier occurrence of its final `size` tokens."""
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
