"""Goes ahead of a sample through its grammar, to try how far a draft is allowed."""

from __future__ import annotations

from llguidance import LLMatcher

from fastovms.grammar.grammar_time_budget import GrammarTimeBudget


class GrammarScout:
    """Follows a guess through a grammar, ahead of the sample, on a copy of its matcher."""

    def __init__(self, matcher: LLMatcher, time_budget: GrammarTimeBudget) -> None:
        self._matcher = matcher
        self._time_budget = time_budget

    def follow(self, token_ids: list[int]) -> int:
        """Goes on with tokens, up to the first that the grammar bars. Returns how many it went."""
        if self._time_budget.is_used_up:
            return 0
        with self._time_budget:
            return int(self._matcher.try_consume_tokens(token_ids))

    def forced_tokens(self) -> list[int]:
        """Returns the tokens that must follow, where there is no choice."""
        if self._time_budget.is_used_up or self._matcher.is_stopped():
            return []
        with self._time_budget:
            forced: list[int] = self._matcher.compute_ff_tokens()
        return forced
