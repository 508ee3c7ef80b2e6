"""Bounds how long the grammar of a request may keep the engine from everything else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

FREE_SECONDS: Final = 0.002
"""Seconds that a token may take without being counted: most take a twentieth of that."""

MAX_SECONDS: Final = 5.0
"""Seconds beyond what is free that all tokens of all samples of a request may take."""


class GrammarTimeBudget:
    """Measures what is done in a `with` statement, a token at a time, and knows when a request has
    used up its time.

    Args:
        clock: tells the seconds that the thread has computed.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._start = 0.0
        self._left = MAX_SECONDS

    @property
    def is_used_up(self) -> bool:
        return self._left < 0

    def __enter__(self) -> None:
        self._start = self._clock()

    def __exit__(self, *_: object) -> None:
        self._left -= max(0.0, self._clock() - self._start - FREE_SECONDS)
