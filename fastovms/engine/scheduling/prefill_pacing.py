"""Decides how many tokens of a prompt a step may have beside running streams.

A piece of a prompt costs nearly the same a token whatever its length, from 8 tokens on: steps of
1 to 512 tokens take 7.2 ms and 0.36 ms a token with 135M parameters in int8, 30 ms and 2.1 ms with
1.2B in int4, on two cores. So small pieces cost the prompt what steps cost without them, which
those who decode need anyway, and nothing else; but all who wait behind it wait as well.
"""

from __future__ import annotations

from typing import Final

from fastovms.engine.scheduling.sequence import Sequence
from fastovms.engine.scheduling.step_costs import StepCosts

MAX_SLOWDOWN: Final = 2.0
"""How much longer a step with a piece of a prompt may take than one without. It is below 2.5, which
gaps between tokens may reach at their 99th percentile, since every estimate errs."""

UNSEEN_SECONDS: Final = 0.045
"""How long a step may take in any case: a reader sees nothing below 50 ms, and estimates err."""

SHORT_SECONDS: Final = 1.0
"""How long a prompt may take that is computed in whole steps, whoever decodes beside it: it is over
before small pieces are of use to anybody."""

MIN_PREFILL_TOKENS: Final = 16
"""The fewest tokens of a prompt beside decodes: fewer cost nearly as much time as these."""

_GRAIN: Final = 16
"""What the tokens of a step are a multiple of, so that its shape changes seldom."""


class PrefillPacing:
    """Bounds the pieces of prompts by what they cost those who decode."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs

    def max_prefill_tokens(
        self,
        num_decodes: int,
        num_rows: int,
        prompt: Sequence,
        budget: int,
        *,
        is_crowd: bool = False,
    ) -> int:
        """Returns how many tokens of a prompt the next step may have beside its decodes.

        Args:
            num_rows: rows of those that decode, drafts included.
            prompt: whose tokens they would be.
            budget: what is returned at most, and as long as too little is known.
            is_crowd: whether more prompts wait after this one, so that even short ones hold up
                streams for long.
        """
        usual = self._costs.decode_seconds(num_decodes, num_rows)
        length = prompt.num_tokens - prompt.num_cached_tokens
        whole = self._costs.prefills.seconds(length, prompt.num_tokens / 2)
        if usual is None or whole is None or (whole <= SHORT_SECONDS and not is_crowd):
            return budget
        spare = max(MAX_SLOWDOWN * usual, UNSEEN_SECONDS) - usual
        start = prompt.num_computed_tokens
        num_tokens = self._costs.prefills.num_tokens_within(spare, start, budget)
        if num_tokens == budget:
            return budget
        return max(MIN_PREFILL_TOKENS, num_tokens - (num_rows + num_tokens) % _GRAIN)
