"""How long a prompt may hold up those who decode, learned from the steps so far."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

MAX_SLOWDOWN: Final = 2.0
"""Of a step with part of a prompt in it, against one without. Below the 2.5 that gaps between
tokens may have at their 99th percentile, since every estimate errs."""

_MEMORY: Final = 9
"""Steps of a kind whose median counts: a machine with neighbours has outliers."""


class StepCosts:
    """Tells how many tokens of prompts a step may have beside its decodes."""

    def __init__(self) -> None:
        self._decode_seconds: deque[float] = deque(maxlen=_MEMORY)
        self._prefill_token_seconds: deque[float] = deque(maxlen=_MEMORY)

    def learn(self, *, num_decodes: int, num_prefill_tokens: int, seconds: float) -> None:
        """Takes note of a step."""
        if num_prefill_tokens == 0:
            self._decode_seconds.append(seconds)
        elif num_decodes == 0:
            # Of steps that have nothing else, part is not the tokens' own: too much, until
            # better is known.
            if not self._decode_seconds:
                self._prefill_token_seconds.append(seconds / num_prefill_tokens)
        elif self._decode_seconds:
            own = max(0.0, seconds - statistics.median(self._decode_seconds))
            self._prefill_token_seconds.append(own / num_prefill_tokens)

    def max_prefill_tokens(self) -> int | None:
        """None = as many as the budget allows."""
        if not self._decode_seconds or not self._prefill_token_seconds:
            return None
        token_seconds = statistics.median(self._prefill_token_seconds)
        if token_seconds <= 0:
            return None
        spare = (MAX_SLOWDOWN - 1) * statistics.median(self._decode_seconds)
        return int(spare / token_seconds)
