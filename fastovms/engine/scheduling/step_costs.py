"""Learns what steps cost on this machine, and estimates what the next one would."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

from fastovms.engine.scheduling.cost_curve import CostCurve
from fastovms.engine.scheduling.prefill_costs import PrefillCosts

_MEMORY: Final = 9
"""How many changes of shape are remembered. Their median counts."""


class StepCosts:
    """Estimates seconds of steps from those that have run.

    A step costs what its decodes cost without drafts, what the rows of drafts add to that, and what
    the tokens of prompts add to both. The latter two are learned as differences, so that they stay
    true while contexts of decodes grow. Decodes and drafts are of steps whose shape (numbers of
    sequences, rows and tokens of prompts) is that of the step before, for which OpenVINO has
    everything ready; what a change of shape adds is learned apart.

    A few microseconds a step, and some kilobytes in all.

    Attributes:
        prefills: what pieces of prompts add.
    """

    def __init__(self) -> None:
        self._decodes = CostCurve(starts_at_zero=False)
        self._draft_rows: dict[int, CostCurve] = {}
        self.prefills = PrefillCosts()
        self._changes: deque[float] = deque(maxlen=_MEMORY)
        self._last_shape = (0, 0, 0)

    def learn(
        self,
        *,
        num_decodes: int,
        num_rows: int,
        num_prefill_tokens: int,
        prefill_context: float = 0.0,
        seconds: float,
    ) -> None:
        """Takes note of a step.

        Args:
            num_decodes: sequences that decode.
            num_rows: rows of those, one a sequence and one a draft token.
            num_prefill_tokens: tokens of prompts beside them.
            prefill_context: how many tokens are before each of those, on average.
            seconds: what the step's inference took.
        """
        shape = (num_decodes, num_rows, num_prefill_tokens)
        is_change = shape != self._last_shape
        self._last_shape = shape
        if num_prefill_tokens:
            # Before the first step of decodes nobody knows what a step costs that computes next to
            # nothing: it is counted as the tokens' own, until there is a second measurement.
            beside = self.decode_seconds(max(1, num_decodes), max(1, num_rows)) or 0.0
            own = max(0.0, seconds - beside)
            self.prefills.learn(num_prefill_tokens, prefill_context, own)
        elif num_rows > num_decodes:
            plain = self._decodes.seconds(num_decodes)
            if plain is not None:
                change = self.shape_change_seconds if is_change else 0.0
                curve = self._draft_rows.setdefault(
                    num_decodes.bit_length(), CostCurve(starts_at_zero=True)
                )
                curve.learn(num_rows - num_decodes, max(0.0, seconds - plain - change))
        elif not is_change or not self._decodes.knows(num_decodes):
            self._decodes.learn(num_decodes, seconds)
        else:
            steady = self._decodes.seconds(num_decodes)
            assert steady is not None
            self._changes.append(max(0.0, seconds - steady))

    @property
    def shape_change_seconds(self) -> float:
        """What a step costs more whose shape is not that of the step before; so does the step after
        a single one of another shape."""
        return statistics.median(self._changes) if self._changes else 0.0

    def decode_seconds(self, num_sequences: int, num_rows: int) -> float | None:
        """Returns the estimated seconds of a step in which so many sequences decode, with
        `num_rows` rows in all, drafts included, after a step of the same shape.

        None = too little is known: no step of decodes, or nothing of what more rows cost.
        """
        token_seconds = self.prefills.token_seconds
        plain = self._decodes.seconds(num_sequences, beyond=token_seconds or 0.0)
        num_drafts = num_rows - num_sequences
        if plain is None or num_drafts == 0:
            return plain
        curve = self._draft_curve(num_sequences)
        # Tokens of prompts cost at most a little more than rows.
        as_prompt = None if token_seconds is None else num_drafts * token_seconds
        if curve is None:
            return None if as_prompt is None else plain + as_prompt
        drafts = curve.seconds(num_drafts, beyond=token_seconds or 0.0)
        assert drafts is not None
        if not curve.is_confirmed and as_prompt is not None:
            # A first measurement that is far too slow would see to it that no second one is made.
            drafts = min(drafts, as_prompt)
        return plain + drafts

    @property
    def last_num_rows(self) -> int:
        """How many rows of decodes the last step had."""
        return self._last_shape[1]

    def next_decode_seconds(self, num_sequences: int, num_rows: int) -> float | None:
        """Returns the estimated seconds of a step after the last one, of the same shape or not; see
        `decode_seconds`."""
        seconds = self.decode_seconds(num_sequences, num_rows)
        if seconds is None or (num_sequences, num_rows, 0) == self._last_shape:
            return seconds
        return seconds + self.shape_change_seconds

    def _draft_curve(self, num_sequences: int) -> CostCurve | None:
        """Returns the curve of the nearest number of sequences."""
        wanted = num_sequences.bit_length()
        nearest = min(self._draft_rows, key=lambda key: abs(key - wanted), default=None)
        return None if nearest is None else self._draft_rows[nearest]
