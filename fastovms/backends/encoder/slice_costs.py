"""Learns what segments of an encoder cost, and says how many of them fit into a slice."""

from __future__ import annotations

from typing import Final

_NEWEST_SHARE: Final = 0.3
"""How much the newest measurement counts."""


class SliceCosts:
    """What each segment takes for a token, in seconds. Nothing is known of one that has not run."""

    def __init__(self, num_segments: int) -> None:
        self._per_token = [0.0] * num_segments

    def note(self, segment: int, num_tokens: int, seconds: float) -> None:
        """Takes note of a run; padding counts as tokens do."""
        new = seconds / num_tokens
        known = self._per_token[segment] or new
        self._per_token[segment] = known + _NEWEST_SHARE * (new - known)

    def end(self, begin: int, num_tokens: int, seconds: float) -> int:
        """Returns where the slice ends that begins at a segment: behind that one at least, and so
        that it takes about as long as it may. A segment that fits half is taken."""
        end, left = begin + 1, seconds - self._per_token[begin] * num_tokens
        while end < len(self._per_token):
            cost = self._per_token[end] * num_tokens
            if not cost or cost > 2 * left:
                break
            left -= cost
            end += 1
        return end

    def max_tokens(self, seconds: float, limit: int) -> int:
        """Returns how many tokens a batch may have for each segment to fit into a slice."""
        most = max(self._per_token)
        return limit if not most else max(1, min(limit, int(seconds / most)))
