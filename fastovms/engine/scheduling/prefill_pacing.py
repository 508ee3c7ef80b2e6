"""Decides how many tokens of a prompt a step may have beside running streams.

A piece of a prompt costs nearly the same a token whatever its length, from 8 tokens on: steps of
1 to 512 tokens take 7.2 ms and 0.36 ms a token with 135M parameters in int8, 30 ms and 2.1 ms with
1.2B in int4, on two cores. So small pieces cost the prompt what steps cost without them, which
those who decode need anyway, and nothing else; but all who wait behind it wait as well.
"""

from __future__ import annotations

from typing import Final

from fastovms.engine.scheduling.step_costs import StepCosts

MAX_SLOWDOWN: Final = 2.0
"""How much longer a step with a piece of a prompt may take than one without. It is below 2.5, which
gaps between tokens may reach at their 99th percentile, since every estimate errs."""

UNSEEN_SECONDS: Final = 0.05
"""How long a step may take in any case: a reader sees nothing of it."""

_GRAIN: Final = 16
"""What the tokens of a step are a multiple of, so that its shape changes seldom."""


class PrefillPacing:
    """Bounds the pieces of prompts by what they cost those who decode."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs

    def max_prefill_tokens(self, num_decodes: int, num_rows: int, start: int, budget: int) -> int:
        """Returns how many tokens of a prompt the next step may have beside its decodes.

        Args:
            num_rows: rows of those that decode, drafts included.
            start: how many tokens of the prompt have been computed.
            budget: what is returned at most, and as long as too little is known.
        """
        usual = self._costs.decode_seconds(num_decodes, num_rows)
        if usual is None:
            return budget
        spare = max(MAX_SLOWDOWN * usual, UNSEEN_SECONDS) - usual
        num_tokens = self._costs.prefills.num_tokens_within(spare, start, budget)
        is_bounded = 2 * _GRAIN < num_tokens < budget
        return num_tokens - (num_rows + num_tokens) % _GRAIN if is_bounded else num_tokens
