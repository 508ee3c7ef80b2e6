"""Decides how many tokens of prompts a step may have beside running streams."""

from __future__ import annotations

from typing import Final

from fastovms.engine.scheduling.step_costs import StepCosts

MAX_SLOWDOWN: Final = 2.0
"""How much longer a step with part of a prompt in it may take than one without. It is below 2.5,
which gaps between tokens may reach at their 99th percentile, since every estimate errs."""


class PrefillPacing:
    """Bounds the pieces of prompts by what they cost those who decode."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs

    def max_prefill_tokens(self, num_decodes: int, num_rows: int, budget: int) -> int:
        """Returns how many tokens of prompts the next step may have beside its decodes, at most
        `budget`."""
        usual = self._costs.decode_seconds(num_decodes, num_rows)
        whole = self._costs.prefill_seconds(budget)
        if usual is None or whole is None:
            return budget
        spare = (MAX_SLOWDOWN - 1) * usual
        if whole <= spare:
            return budget
        fitting, too_many = 0, budget
        while too_many - fitting > 1:
            middle = (fitting + too_many) // 2
            seconds = self._costs.prefill_seconds(middle)
            assert seconds is not None
            if seconds <= spare:
                fitting = middle
            else:
                too_many = middle
        return fitting
