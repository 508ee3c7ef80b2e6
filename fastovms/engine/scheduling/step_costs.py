"""Learns what steps cost on this machine, and estimates what the next one would."""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from typing import Final

from fastovms.engine.scheduling.cost_curve import CostCurve
from fastovms.engine.scheduling.draft_costs import DraftCosts
from fastovms.engine.scheduling.prefill_costs import PrefillCosts

_MEMORY: Final = 9
"""How many changes of shape are remembered. Their median counts."""

_PLAIN_EVERY: Final = 768
"""In so many steps of as many sequences some have no drafts, whatever drafts promise: what drafts
add is told only by comparison, and contexts grow, and neighbours come and go."""

_NUM_PLAIN: Final = 5
"""How many of those are measured: most of what `CostCurve` remembers, so that they decide."""

_NUM_PLAIN_STEPS: Final = 1 + _NUM_PLAIN
"""How many that takes at most: the first one has another shape than the step before."""


class _PlainWindow:
    """Counts steps of as many sequences, and those without drafts that were measured."""

    __slots__ = ("num_plain", "num_steps")

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_plain = 0

    def note(self, *, is_plain: bool) -> None:
        """Takes note of a step, and begins anew where enough is known, or never will be."""
        self.num_steps += 1
        self.num_plain += is_plain
        if self.num_plain == _NUM_PLAIN or self.num_steps == _PLAIN_EVERY:
            self.num_steps = self.num_plain = 0


class StepCosts:
    """Estimates seconds of steps from those that have run.

    A step costs what its decodes cost without drafts, what the rows of drafts add to that, and what
    the tokens of prompts add to both. The latter two are learned as differences, so that they stay
    true while contexts of decodes grow. Decodes and drafts are of steps whose shape (numbers of
    sequences, rows and tokens of prompts) is that of the step before, for which OpenVINO has
    everything ready; what a change of shape adds is learned apart. Drafts that do not pay are tried
    again some day (see `DraftCosts`), and steps without drafts are asked for while all have some.

    A few microseconds a step, and some kilobytes in all.

    Attributes:
        prefills: what pieces of prompts add.
    """

    def __init__(self) -> None:
        self._decodes = CostCurve(starts_at_zero=False)
        self._drafts: dict[int, DraftCosts] = {}
        self._plain_windows: defaultdict[int, _PlainWindow] = defaultdict(_PlainWindow)
        self._num_steps = 0
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
        self._num_steps += 1
        if num_prefill_tokens:
            # Before the first step of decodes nobody knows what a step costs that computes next to
            # nothing: it is counted as the tokens' own, until there is a second measurement.
            beside = self.decode_seconds(max(1, num_decodes), max(1, num_rows)) or 0.0
            own = max(0.0, seconds - beside)
            self.prefills.learn(num_prefill_tokens, prefill_context, own)
            return
        is_plain = num_rows == num_decodes
        self._plain_windows[num_decodes].note(is_plain=is_plain and not is_change)
        if not is_plain:
            self._learn_drafts(num_decodes, num_rows - num_decodes, is_change, seconds)
        elif not is_change or not self._decodes.knows(num_decodes):
            self._decodes.learn(num_decodes, seconds)
        else:
            steady = self._decodes.seconds(num_decodes)
            assert steady is not None
            self._changes.append(max(0.0, seconds - steady))

    def _learn_drafts(
        self, num_decodes: int, num_drafts: int, is_change: bool, seconds: float
    ) -> None:
        plain = self._decodes.seconds(num_decodes)
        if plain is None:
            return
        drafts = self._drafts.setdefault(num_decodes.bit_length(), DraftCosts())
        if drafts.is_trial_due(self._num_steps):
            # What a change adds was learned when drafts did not pay, and may be why.
            self._changes.clear()
        change = self.shape_change_seconds if is_change else 0.0
        drafts.learn(num_drafts, max(0.0, seconds - plain - change), self._num_steps)

    def refuse_drafts(self, num_sequences: int) -> None:
        """Takes note that drafts were to be had for so many sequences, but none paid."""
        drafts = self._drafts_of(num_sequences)
        if drafts is not None:
            drafts.refuse(self._num_steps)

    def is_plain_step_due(self, num_sequences: int) -> bool:
        """Returns whether the next step of so many sequences is to have no drafts, so that it can
        be told what drafts add."""
        window = self._plain_windows.get(num_sequences)
        return window is not None and window.num_steps >= _PLAIN_EVERY - _NUM_PLAIN_STEPS

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
        drafts = self._drafts_of(num_sequences)
        if drafts is not None:
            return plain + drafts.seconds(num_drafts, token_seconds, self._num_steps)
        # Tokens of prompts cost at most a little more than rows.
        return None if token_seconds is None else plain + num_drafts * token_seconds

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
        if num_rows > num_sequences and self._is_trial_due(num_sequences):
            return seconds
        return seconds + self.shape_change_seconds

    def _is_trial_due(self, num_sequences: int) -> bool:
        drafts = self._drafts_of(num_sequences)
        return drafts is not None and drafts.is_trial_due(self._num_steps)

    def _drafts_of(self, num_sequences: int) -> DraftCosts | None:
        """Returns what is known of the nearest number of sequences."""
        wanted = num_sequences.bit_length()
        nearest = min(self._drafts, key=lambda key: abs(key - wanted), default=None)
        return None if nearest is None else self._drafts[nearest]
