"""Learns from past steps how many tokens of prompts a step may have beside running streams."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

MAX_SLOWDOWN: Final = 2.0
"""How much longer a step with part of a prompt in it may take than one without. It is below 2.5,
which gaps between tokens may reach at their 99th percentile, since every estimate errs."""

_MEMORY: Final = 9
"""How many steps of a kind are remembered. Their median counts: a machine with neighbours has
outliers."""


class StepCosts:
    """Tells how many tokens of prompts a step may have beside its decodes."""

    def __init__(self) -> None:
        self._decode_seconds: deque[float] = deque(maxlen=_MEMORY)
        self._prefill_token_seconds: deque[float] = deque(maxlen=_MEMORY)

    def learn(self, *, num_decodes: int, num_prefill_tokens: int, seconds: float) -> None:
        """Takes note of what a step cost, in seconds."""
        if num_prefill_tokens == 0:
            self._decode_seconds.append(seconds)
        elif num_decodes == 0:
            # A step costs something whatever it computes. Counted as the tokens' own it is too
            # much, but it is all that is known before the first step of decodes.
            if not self._decode_seconds:
                self._prefill_token_seconds.append(seconds / num_prefill_tokens)
        elif self._decode_seconds:
            own = max(0.0, seconds - statistics.median(self._decode_seconds))
            self._prefill_token_seconds.append(own / num_prefill_tokens)

    def max_prefill_tokens(self) -> int | None:
        """Returns how many tokens of prompts the next step may have; None = as many as the budget
        allows."""
        if not self._decode_seconds or not self._prefill_token_seconds:
            return None
        token_seconds = statistics.median(self._prefill_token_seconds)
        if token_seconds <= 0:
            return None
        spare = (MAX_SLOWDOWN - 1) * statistics.median(self._decode_seconds)
        return int(spare / token_seconds)
