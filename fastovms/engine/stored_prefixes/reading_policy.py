"""Decides whether tokens are read from disk or computed again, whichever was faster so far."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

MIN_LEARNED_TOKENS: Final = 64
"""Steps with fewer tokens of prompts tell little of what such tokens cost."""

_MEMORY: Final = 9
"""How many times are remembered. Their median counts: a machine with neighbours has outliers."""

_OVERHEAD: Final = 0.002
"""Seconds that a request loses by waiting for a thread, however little is read."""

_HOPE: Final = 0.9
"""By what the time of reading is multiplied each time it is too long: a disk that was slow once is
tried again some day."""

_UNKNOWN_PATIENCE: Final = 5.0
_MIN_PATIENCE: Final = 0.5


class ReadingPolicy:
    """Learns how long tokens take to compute, and bytes to read."""

    def __init__(self) -> None:
        self._token_seconds: deque[float] = deque(maxlen=_MEMORY)
        self._byte_seconds: deque[float] = deque(maxlen=_MEMORY)
        self._hope = 1.0

    def learn_computed(self, num_tokens: int, seconds: float) -> None:
        """Takes note of a step that computed so many tokens of prompts."""
        if num_tokens >= MIN_LEARNED_TOKENS:
            self._token_seconds.append(seconds / num_tokens)

    def learn_read(self, num_bytes: int, seconds: float) -> None:
        """Takes note of what was read for one request."""
        if num_bytes:
            self._byte_seconds.append(seconds / num_bytes)
            self._hope = 1.0

    def computing_seconds(self, num_tokens: int) -> float | None:
        """Returns how long the tokens would take to compute; None = nothing is known of it."""
        if not self._token_seconds:
            return None
        return num_tokens * statistics.median(self._token_seconds)

    def pays(self, num_tokens: int, num_bytes: int) -> bool:
        """Returns whether to read the tokens. What is not known is tried."""
        computing = self.computing_seconds(num_tokens)
        if computing is None or not self._byte_seconds:
            return True
        reading = _OVERHEAD + num_bytes * statistics.median(self._byte_seconds) * self._hope
        if reading >= computing:
            self._hope *= _HOPE
            return False
        return True

    def patience(self, num_tokens: int) -> float:
        """Returns after how many seconds to compute the tokens though they are being read."""
        computing = self.computing_seconds(num_tokens)
        return _UNKNOWN_PATIENCE if computing is None else max(_MIN_PATIENCE, computing)
