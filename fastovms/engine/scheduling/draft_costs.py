"""Learns what rows of drafts add to steps, and has them tried anew after they have not paid."""

from __future__ import annotations

from typing import Final

from fastovms.engine.scheduling.cost_curve import CostCurve

_MEMORY: Final = 64
"""After how many drafts of other lengths one is forgotten: a length that was slow once is not made
again else, while others are."""

_SHORTEST_PAUSE: Final = 64
_LONGEST_PAUSE: Final = 1024

_NUM_TRIED: Final = 16
"""How many drafts a trial takes at most until their cost is known. More are made only if they
pay."""


class DraftCosts:
    """Seconds that the rows of drafts add to steps of about as many sequences.

    Drafts that cost too much are not made, and so not measured: a neighbour, or a context that has
    grown, would be remembered as their cost for ever. So a pause after the last one was measured
    they count as cheap again, and what is measured then replaces all that was known. Pauses grow as
    long as that does not pay either.
    """

    def __init__(self) -> None:
        self._curve = CostCurve(starts_at_zero=True, memory=_MEMORY)
        self._refused_at: int | None = None
        self._pause = _SHORTEST_PAUSE
        self._num_learned = 0

    def learn(self, num_drafts: int, seconds: float, now: int) -> None:
        """Takes note of what so many rows added.

        Args:
            now: counts steps.
        """
        if self.is_trial_due(now):
            self._curve = CostCurve(starts_at_zero=True, memory=_MEMORY)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._num_learned = 0
        self._num_learned += 1
        if self._num_learned > _NUM_TRIED:
            self._pause = _SHORTEST_PAUSE
        self._refused_at = None
        self._curve.learn(num_drafts, seconds)

    def refuse(self, now: int) -> None:
        """Takes note that drafts were to be had, but none paid."""
        if self._refused_at is None:
            self._refused_at = now

    def is_trial_due(self, now: int) -> bool:
        """Returns whether none has been measured for a pause, though some were to be had."""
        return self._refused_at is not None and now - self._refused_at >= self._pause

    def seconds(self, num_drafts: int, token_seconds: float | None, now: int) -> float:
        """Returns the estimated seconds of so many rows.

        Args:
            token_seconds: what a token of a prompt costs, if that is known: at most a little more
                than a row.
        """
        seconds = self._curve.seconds(num_drafts, beyond=token_seconds or 0.0)
        assert seconds is not None
        # A first measurement that is far too slow would see to it that no second one is made.
        is_certain = self._curve.is_confirmed and not self.is_trial_due(now)
        if is_certain or token_seconds is None:
            return seconds
        return min(seconds, num_drafts * token_seconds)
