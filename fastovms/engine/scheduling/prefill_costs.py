"""Learns what pieces of prompts add to steps: by their length, and by the context before them."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final, NamedTuple

from fastovms.engine.scheduling.cost_curve import CostCurve

_NUM_RECENT: Final = 16
"""Pieces that a new one may be compared with, to see what context costs."""

_NUM_GROWTHS: Final = 9
"""Comparisons that are remembered. Their median counts."""

_MEMORY: Final = 64
"""After how many pieces of other lengths one is forgotten: what a neighbour has slowed would never
be tried again else."""

_MIN_DISTANCE: Final = 512
"""Tokens between the contexts of two pieces that are compared: the noise of two that are nearer is
more than what they differ by."""


_MIN_COMPARED_TOKENS: Final = 32
"""Shorter pieces cost more a token for what every step costs that has any."""


class _Piece(NamedTuple):
    context: float
    token_seconds: float


class PrefillCosts:
    """Seconds that a piece of a prompt adds: those of its tokens with nothing before them, times
    one plus the tokens before it, times a growth. Attention alone is what grows."""

    def __init__(self) -> None:
        self._at_start = CostCurve(starts_at_zero=True, memory=_MEMORY)
        self._recent: deque[_Piece] = deque(maxlen=_NUM_RECENT)
        self._growths: deque[float] = deque(maxlen=_NUM_GROWTHS)
        self._growth = 0.0

    def learn(self, num_tokens: int, context: float, seconds: float) -> None:
        """Takes note of pieces in one step.

        Args:
            context: how many tokens are before each of theirs, on average.
        """
        if num_tokens >= _MIN_COMPARED_TOKENS:
            piece = _Piece(context, seconds / num_tokens)
            for other in self._recent:
                if abs(other.context - context) >= _MIN_DISTANCE:
                    self._compare(*sorted((other, piece)))
                    break
            self._recent.append(piece)
        self._at_start.learn(num_tokens, seconds / (1 + self._growth * context))

    def _compare(self, near: _Piece, far: _Piece) -> None:
        divisor = near.token_seconds * far.context - far.token_seconds * near.context
        if divisor > 0:
            growth = (far.token_seconds - near.token_seconds) / divisor
            self._growths.append(max(0.0, growth))
            self._growth = statistics.median(self._growths)

    @property
    def token_seconds(self) -> float | None:
        """What a token costs in the longest known piece with nothing before it, or None."""
        largest = self._at_start.largest()
        return None if largest is None else largest[1] / largest[0]

    def seconds(self, num_tokens: int, context: float) -> float | None:
        """Returns what a piece would add; None = nothing is known."""
        at_start = self._at_start.seconds(num_tokens, beyond=self.token_seconds or 0.0)
        return None if at_start is None else at_start * (1 + self._growth * context)

    def num_tokens_within(self, seconds: float, start: int, most: int) -> int:
        """Returns how many tokens from the position `start` on, at most `most`, add no more seconds
        than that; `most` where nothing is known."""
        fitting, too_many = 0, most + 1
        while too_many - fitting > 1:
            middle = (fitting + too_many) // 2
            estimate = self.seconds(middle, start + middle / 2)
            if estimate is None or estimate <= seconds:
                fitting = middle
            else:
                too_many = middle
        return fitting
