"""Follows one sample through its grammar: masks the tokens that may not follow, and finds those
that must."""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from fastovms.grammar.grammar_cache import CompiledGrammar
from fastovms.grammar.grammar_faults import first_line
from fastovms.grammar.grammar_scout import GrammarScout
from fastovms.grammar.grammar_time_budget import GrammarTimeBudget

MAX_FORCED_TOKENS: Final = 8192
"""The most tokens that may follow without a choice: each step looks at all of them, 1 to 3 ms
here."""

TOO_MANY_FORCED: Final = f"more than {MAX_FORCED_TOKENS} tokens would follow without a choice"
_TOO_SLOW: Final = "it takes too long"
_RULED_OUT: Final = "other fields of the request rule out every token that may follow"


class GrammarState:
    """The place of one sample in its grammar. It is a `LogitsProcessor`."""

    def __init__(
        self,
        compiled: CompiledGrammar,
        matcher: LLMatcher,
        vocab_size: int,
        num_prompt_tokens: int,
        time_budget: GrammarTimeBudget,
        error: str = "",
    ) -> None:
        """
        Args:
            matcher: a copy of the compiled one.
            time_budget: that of all samples of the request.
        """
        self._compiled = compiled
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._num_read = num_prompt_tokens
        self._time_budget = time_budget
        self._error = error

    @property
    def error(self) -> str:
        """Why the grammar cannot go on (too complex, say); empty while all is well."""
        if self._error:
            return self._error
        if self._time_budget.is_used_up:
            return _TOO_SLOW
        return first_line(self._matcher.get_error()) if self._matcher.is_error() else ""

    def __call__(self, logits: NDArray[np.float32], token_ids: array[int]) -> None:
        if self._time_budget.is_used_up:
            return
        words = np.empty((self._vocab_size + 31) // 32, np.int32)
        with self._time_budget:
            self._read(token_ids)
            if self._matcher.is_error():
                return
            self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")
        logits[: bits.size][bits[: logits.size] == 0] = -np.inf
        logits[bits.size :] = -np.inf

    def give_up(self) -> None:
        """Takes note that something else in the request rules out all that the grammar allows
        now."""
        if not self._matcher.is_accepting():
            self._error = _RULED_OUT

    def forced_tokens(self, token_ids: array[int]) -> list[int]:
        """Returns the tokens that must follow `token_ids`, where the grammar leaves no choice."""
        if self._error or self._time_budget.is_used_up:
            return []
        with self._time_budget:
            self._read(token_ids)
            if self._matcher.is_stopped():
                return []
            forced: list[int] = self._matcher.compute_ff_tokens()
        if len(forced) > MAX_FORCED_TOKENS:
            self._error = TOO_MANY_FORCED
        return forced

    def scout(self, token_ids: array[int]) -> GrammarScout | None:
        """Returns what tries guesses after `token_ids`; None where text or time are over."""
        if self._error or self._time_budget.is_used_up:
            return None
        with self._time_budget:
            self._read(token_ids)
            if self._matcher.is_stopped():
                return None
            return GrammarScout(self._matcher.deep_copy(), self._time_budget)

    def __copy__(self) -> GrammarState:
        return GrammarState(
            self._compiled,
            self._matcher.deep_copy(),
            self._vocab_size,
            self._num_read,
            self._time_budget,
            self._error,
        )

    def _read(self, token_ids: array[int]) -> None:
        if len(token_ids) > self._num_read:
            self._matcher.consume_tokens(token_ids[self._num_read :].tolist())
            self._compiled.num_followed += len(token_ids) - self._num_read
            self._num_read = len(token_ids)
