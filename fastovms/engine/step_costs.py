"""Measures the duration of steps, and derives how many prompt tokens a step may have."""

from __future__ import annotations

import statistics
from bisect import bisect_left, insort
from collections import defaultdict, deque
from typing import Final, NamedTuple

from fastovms.engine.sequence import Sequence

_MEMORY: Final = 9
"""The number of recent measurements kept per size class. Their median is used: on a shared machine
there are outliers."""


def _size_class(size: int) -> int:
    """Returns the lower bound of the class of a size; there are four classes per power of two."""
    shift = max(0, size.bit_length() - 3)
    return size >> shift << shift


class CostCurve:
    """Measured seconds by size. Sizes are positive; similar sizes are combined into classes."""

    def __init__(self, *, starts_at_zero: bool, memory: int | None = None) -> None:
        """
        Args:
            starts_at_zero: whether size 0 costs nothing. If not, sizes below the smallest known one
                cost as much as that one.
            memory: the number of measurements of other sizes after which one is dropped; None =
                never.
        """
        self._starts_at_zero = starts_at_zero
        self._memory = memory
        self._num_learned = 0
        self._last_learned: dict[int, int] = {}
        self._samples: dict[int, deque[tuple[int, float]]] = {}
        self._points: dict[int, tuple[float, float]] = {}
        self._first_seen: list[int] = []
        self._confirmed: list[int] = []

    def knows(self, size: int) -> bool:
        """Returns whether a similar size has been measured."""
        return _size_class(size) in self._samples

    def learn(self, size: int, seconds: float) -> None:
        """Records a measurement. The first measurement of a size counts only until some size has
        been measured twice, because the first step of a size is slowed by preparation."""
        key = _size_class(size)
        samples = self._samples.get(key)
        if samples is None:
            samples = self._samples[key] = deque(maxlen=_MEMORY)
            insort(self._first_seen, key)
        elif key in self._first_seen:
            self._first_seen.remove(key)
            insort(self._confirmed, key)
            samples.clear()
        samples.append((size, seconds))
        self._points[key] = (
            statistics.median(size for size, _ in samples),
            statistics.median(seconds for _, seconds in samples),
        )
        if self._memory is not None:
            self._forget(key, self._memory)

    def _forget(self, learned: int, memory: int) -> None:
        self._num_learned += 1
        self._last_learned[learned] = self._num_learned
        oldest = min(self._last_learned, key=self._last_learned.__getitem__)
        if self._num_learned - self._last_learned[oldest] > memory:
            del self._last_learned[oldest], self._samples[oldest], self._points[oldest]
            (self._first_seen if oldest in self._first_seen else self._confirmed).remove(oldest)

    @property
    def is_confirmed(self) -> bool:
        """Whether any size has been measured twice. Until then all measurements are first ones,
        which may be ten times too slow."""
        return bool(self._confirmed)

    @property
    def _classes(self) -> list[int]:
        return self._confirmed or self._first_seen

    def seconds(self, size: float, *, beyond: float = 0.0) -> float | None:
        """Returns the estimated seconds of a size; None = nothing has been measured. Above the
        largest known size, each additional unit costs `beyond` seconds."""
        classes = self._classes
        if not classes:
            return None
        at = bisect_left(classes, size)
        nearby = [self._points[key] for key in classes[max(0, at - 2) : at + 2]]
        size_below, seconds_below = 0.0, 0.0 if self._starts_at_zero else nearby[0][1]
        for size_above, seconds_above in nearby:
            if size_above > size:
                share = (size - size_below) / (size_above - size_below)
                return seconds_below + share * (seconds_above - seconds_below)
            size_below, seconds_below = size_above, seconds_above
        return seconds_below + (size - size_below) * beyond

    def largest(self) -> tuple[float, float] | None:
        """Returns the largest known size and its seconds; None = nothing has been measured."""
        return self._points[self._classes[-1]] if self._classes else None


_NUM_RECENT: Final = 16
"""The number of recent pieces with which a new one is compared to estimate the cost of context."""

_NUM_GROWTHS: Final = 9
"""Number of comparisons whose median is used."""

_PREFILL_MEMORY: Final = 64
"""The number of pieces of other lengths after which a measurement is dropped. Otherwise a length
that was slow because of other processes would never be tried again."""

_MIN_DISTANCE: Final = 512
"""The minimum difference between the contexts of two compared pieces, in tokens: below that, noise
exceeds the effect of context."""


_MIN_COMPARED_TOKENS: Final = 32
"""The minimum number of tokens of a compared piece. In shorter ones the fixed cost of a step with
prompt tokens dominates."""


class _Piece(NamedTuple):
    context: float
    token_seconds: float


class PrefillCosts:
    """Estimates the seconds that a prompt chunk adds to a step: the seconds of its tokens without
    context, times (1 + context tokens * growth). The growth is caused by attention."""

    def __init__(self) -> None:
        self._at_start = CostCurve(starts_at_zero=True, memory=_PREFILL_MEMORY)
        self._recent: deque[_Piece] = deque(maxlen=_NUM_RECENT)
        self._growths: deque[float] = deque(maxlen=_NUM_GROWTHS)
        self._growth = 0.0

    def learn(self, num_tokens: int, context: float, seconds: float) -> None:
        """Records the prompt chunks of one step. `context` is the average number of tokens before
        each of their tokens."""
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
        """The seconds per token in the longest measured chunk, without context; None = unknown."""
        largest = self._at_start.largest()
        return None if largest is None else largest[1] / largest[0]

    def seconds(self, num_tokens: int, context: float) -> float | None:
        """Returns the seconds that a chunk would add; None = unknown."""
        at_start = self._at_start.seconds(num_tokens, beyond=self.token_seconds or 0.0)
        return None if at_start is None else at_start * (1 + self._growth * context)

    def num_tokens_within(self, seconds: float, start: int, most: int) -> int:
        """Returns the number of tokens from position `start` on, at most `most`, that can be
        computed in `seconds`; `most` if nothing is known."""
        fitting, too_many = 0, most + 1
        while too_many - fitting > 1:
            middle = (fitting + too_many) // 2
            estimate = self.seconds(middle, start + middle / 2)
            if estimate is None or estimate <= seconds:
                fitting = middle
            else:
                too_many = middle
        return fitting


_DRAFT_MEMORY: Final = 64
"""The number of drafts of other lengths after which a measurement is dropped. Otherwise a length
that was slow once would never be tried again."""

_SHORTEST_PAUSE: Final = 64
_LONGEST_PAUSE: Final = 1024

_NUM_TRIED: Final = 16
"""The maximum number of measured drafts of a trial. Drafts after that are made only if they pay
off, which ends the pauses."""


class DraftCosts:
    """Estimates the seconds that draft rows add to steps with a similar number of sequences.

    Drafts that seem too expensive are not made and therefore not measured again, even if the high
    cost was temporary. After a pause they count as cheap again, and new measurements replace the
    old ones. Pauses grow as long as drafts do not pay off.
    """

    def __init__(self) -> None:
        self._curve = CostCurve(starts_at_zero=True, memory=_DRAFT_MEMORY)
        self._refused_at: int | None = None
        self._pause = _SHORTEST_PAUSE
        self._num_learned = 0

    def learn(self, num_drafts: int, seconds: float, now: int) -> None:
        """Records the seconds that this number of draft rows added. `now` is the number of the
        step."""
        if self.is_trial_due(now):
            self._curve = CostCurve(starts_at_zero=True, memory=_DRAFT_MEMORY)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._num_learned = 0
        self._num_learned += 1
        if self._num_learned > _NUM_TRIED:
            self._pause = _SHORTEST_PAUSE
        self._refused_at = None
        self._curve.learn(num_drafts, seconds)

    def refuse(self, now: int) -> None:
        """Records that drafts were available but not worth their cost."""
        if self._refused_at is None:
            self._refused_at = now

    def is_trial_due(self, now: int) -> bool:
        """Returns whether drafts were available but have not been measured for a whole pause."""
        return self._refused_at is not None and now - self._refused_at >= self._pause

    def seconds(self, num_drafts: int, token_seconds: float | None, now: int) -> float:
        """Returns the estimated seconds of this number of draft rows. `token_seconds` are the
        seconds of a prompt token, if known, as an upper bound for a row."""
        seconds = self._curve.seconds(num_drafts, beyond=token_seconds or 0.0)
        assert seconds is not None
        # A first measurement may be far too slow, and would then prevent a second one.
        is_certain = self._curve.is_confirmed and not self.is_trial_due(now)
        if is_certain or token_seconds is None:
            return seconds
        return min(seconds, num_drafts * token_seconds)


_PLAIN_EVERY: Final = 768
"""The length of a window: in each, some steps are made without drafts, even if drafts seem faster,
because contexts and sequences change and the gain of drafts shows only in comparison."""

_NUM_PLAIN: Final = 5
"""The number of measured steps without drafts in each window: a majority of a `CostCurve`'s
measurements, so that they determine its median."""

_NUM_PLAIN_STEPS: Final = 1 + _NUM_PLAIN
"""The maximum number of steps without drafts in each window. The first one is not measured, because
its shape differs from the previous step's."""


class _PlainWindow:
    """Counts the steps with a certain number of sequences, and those measured without drafts."""

    __slots__ = ("num_plain", "num_steps")

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_plain = 0

    def note(self, *, is_plain: bool) -> None:
        """Records a step, and restarts the window when it is complete."""
        self.num_steps += 1
        self.num_plain += is_plain
        if self.num_plain == _NUM_PLAIN or self.num_steps == _PLAIN_EVERY:
            self.num_steps = self.num_plain = 0


class StepCosts:
    """Estimates the seconds of steps from measured ones.

    The cost of a step is that of its decodes without drafts, plus that of draft rows, plus that of
    prompt tokens. The latter two are learned as differences, so that they stay valid while contexts
    grow. Decodes and drafts are measured in steps with the same shape (numbers of sequences, rows
    and prompt tokens) as the previous step, for which OpenVINO is prepared; the extra cost of a
    changed shape is learned separately. Drafts that did not pay off are retried later (see
    `DraftCosts`), and occasional steps without drafts are requested.

    Takes a few microseconds per step and some kilobytes. `prefills` are the costs of prompt chunks.
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
        """Records a step.

        Args:
            num_decodes: sequences that decode.
            num_rows: their rows: one per sequence and one per draft token.
            num_prefill_tokens: tokens of prompts in the same step.
            prefill_context: the average number of tokens before each of those.
            seconds: the seconds of the step's inference.
        """
        shape = (num_decodes, num_rows, num_prefill_tokens)
        is_change = shape != self._last_shape
        self._last_shape = shape
        self._num_steps += 1
        if num_prefill_tokens:
            # Before the first step of decodes, the fixed cost of a step is unknown. It counts as
            # the cost of the prefill tokens until it has been measured.
            beside = self.decode_seconds(max(1, num_decodes), max(1, num_rows)) or 0.0
            own = max(0.0, seconds - beside)
            self.prefills.learn(num_prefill_tokens, prefill_context, own)
            return
        is_plain = num_rows == num_decodes
        self._plain_windows[num_decodes].note(is_plain=is_plain and not is_change)
        if not is_plain:
            self._learn_drafts(num_decodes, num_rows - num_decodes, is_change, seconds)
        else:
            is_comparable = is_change and self._decodes.knows(num_decodes)
            steady = self._decodes.seconds(num_decodes) if is_comparable else None
            if steady is None:
                self._decodes.learn(num_decodes, seconds)
            else:
                self._changes.append(max(0.0, seconds - steady))

    def _learn_drafts(
        self, num_decodes: int, num_drafts: int, is_change: bool, seconds: float
    ) -> None:
        plain = self._decodes.seconds(num_decodes)
        if plain is None:
            return
        drafts = self._drafts.setdefault(num_decodes.bit_length(), DraftCosts())
        if drafts.is_trial_due(self._num_steps):
            # A wrong cost of shape changes may be the reason why drafts did not pay off: measure it
            # again.
            self._changes.clear()
        change = self.shape_change_seconds if is_change else 0.0
        drafts.learn(num_drafts, max(0.0, seconds - plain - change), self._num_steps)

    def refuse_drafts(self, num_sequences: int) -> None:
        """Records that drafts were available for this number of sequences, but not worth their
        cost."""
        drafts = self._drafts_of(num_sequences)
        if drafts is not None:
            drafts.refuse(self._num_steps)

    def is_plain_step_due(self, num_sequences: int) -> bool:
        """Returns whether the next step of this number of sequences should have no drafts, so that
        the gain of drafts can be measured."""
        window = self._plain_windows.get(num_sequences)
        return window is not None and window.num_steps >= _PLAIN_EVERY - _NUM_PLAIN_STEPS

    @property
    def shape_change_seconds(self) -> float:
        """The extra cost of a step whose shape differs from the previous step's. The step after a
        single one of another shape also has this cost."""
        return statistics.median(self._changes) if self._changes else 0.0

    def decode_seconds(self, num_sequences: int, num_rows: int) -> float | None:
        """Returns the estimated seconds of a step in which this number of sequences decode, with
        `num_rows` rows in all, drafts included, after a step of the same shape.

        None = unknown: no measured step of decodes, or no measured cost of more rows.
        """
        token_seconds = self.prefills.token_seconds
        plain = self._decodes.seconds(num_sequences, beyond=token_seconds or 0.0)
        num_drafts = num_rows - num_sequences
        if plain is None or num_drafts == 0:
            return plain
        drafts = self._drafts_of(num_sequences)
        if drafts is not None:
            return plain + drafts.seconds(num_drafts, token_seconds, self._num_steps)
        # Until draft rows are measured, each counts as a prompt token, which costs little more.
        return None if token_seconds is None else plain + num_drafts * token_seconds

    @property
    def last_num_rows(self) -> int:
        """The number of decode rows in the last step."""
        return self._last_shape[1]

    def next_decode_seconds(self, num_sequences: int, num_rows: int) -> float | None:
        """Returns the estimated seconds of the next step, including the extra cost if its shape
        differs from the last step's; see `decode_seconds`."""
        seconds = self.decode_seconds(num_sequences, num_rows)
        if seconds is None or (num_sequences, num_rows, 0) == self._last_shape:
            return seconds
        drafts = self._drafts_of(num_sequences) if num_rows > num_sequences else None
        if drafts is not None and drafts.is_trial_due(self._num_steps):
            return seconds
        return seconds + self.shape_change_seconds

    def _drafts_of(self, num_sequences: int) -> DraftCosts | None:
        """Returns the draft costs for the nearest measured number of sequences; None = not
        measured."""
        wanted = num_sequences.bit_length()
        nearest = min(self._drafts, key=lambda key: abs(key - wanted), default=None)
        return None if nearest is None else self._drafts[nearest]


MAX_SLOWDOWN: Final = 2.0
"""The maximum duration of a step with a prompt chunk, as a multiple of a step without one. It is
below 2.5, the goal for the 99th percentile of gaps between tokens, because estimates have
errors."""

UNSEEN_SECONDS: Final = 0.045
"""The seconds that a step may always take: readers do not notice delays below 50 ms, and estimates
have errors."""

SHORT_SECONDS: Final = 1.0
"""A prompt that takes less than this many seconds is not split, even if other sequences decode:
smaller chunks would not help."""

MIN_PREFILL_TOKENS: Final = 16
"""The minimum number of prompt tokens in a step with decodes: fewer cost nearly as much time."""

_GRAIN: Final = 16
"""The number of tokens of a step is a multiple of this, so that its shape rarely changes."""


class PrefillPacing:
    """Limits prompt chunks by the time by which they delay decoding sequences.

    The cost per prompt token hardly depends on the chunk's length, from 8 tokens on. On two cores,
    a step of 1 to 512 tokens takes 7.2 ms plus 0.36 ms a token with 135M parameters in int8, and 30
    ms plus 2.1 ms a token with 1.2B in int4. Small chunks therefore cost the prompt only the steps
    that decoding sequences need anyway; but prompts that wait after it wait longer.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs

    def max_prefill_tokens(
        self,
        num_decodes: int,
        num_rows: int,
        prompt: Sequence,
        budget: int,
        *,
        is_crowd: bool = False,
    ) -> int:
        """Returns the maximum number of prompt tokens that the next step may have in addition to
        its decodes.

        Args:
            num_rows: the number of decode rows, including drafts.
            budget: the maximum result, returned also while too little has been measured.
            is_crowd: whether more prompts wait after this one, so that even short prompts delay
                streams for long.
        """
        usual = self._costs.decode_seconds(num_decodes, num_rows)
        length = prompt.num_tokens - prompt.num_cached_tokens
        whole = self._costs.prefills.seconds(length, prompt.num_tokens / 2)
        if usual is None or whole is None or (whole <= SHORT_SECONDS and not is_crowd):
            return budget
        spare = max(MAX_SLOWDOWN * usual, UNSEEN_SECONDS) - usual
        start = prompt.num_computed_tokens
        num_tokens = self._costs.prefills.num_tokens_within(spare, start, budget)
        if num_tokens == budget:
            return budget
        return max(MIN_PREFILL_TOKENS, num_tokens - (num_rows + num_tokens) % _GRAIN)
