"""Draws one of many by its weight: exact, but without looking at all of them where it need not.

A weight is a token's probability up to a factor: the likeliest token's is 1.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ids = NDArray[np.intp]

_ROW_SIZE = 256
_ONES = np.ones(_ROW_SIZE, np.float32)

_FEW = 65_536
"""Logits: weighing all of them takes no longer than what avoids it."""
_NUM_SAMPLES = 16
_SAMPLE_SIZE = 64
_SAMPLE_GROUPS = 4
_FLOOR_IN_MEANS = 128
_LARGEST_FLOOR = 0.25
_NUM_POINTS = 256
_MAX_THROWS = 8

_LEAST_EXPONENT = -87
_NOTHING = 1e-30
"""More than a whole vocabulary of the least weights, and less than any that is ever drawn."""

_SPARSE = 16
_CLOSE = 1e-4
_ROUNDING = 1e-3


class Wheel:
    """Weights side by side, each as wide as it is.

    Attributes:
        total: their sum, to about seven digits.
    """

    __slots__ = ("_edges", "_weights", "total")

    def __init__(self, weights: Floats) -> None:
        """Sums them in rows, which is vectorised, and several times faster than a sum of as many
        float64."""
        split = weights.size - weights.size % _ROW_SIZE
        sums = weights[:split].reshape(-1, _ROW_SIZE) @ _ONES
        self._weights = weights
        self._edges = sums.cumsum(dtype=np.float64)
        self.total = float(weights[split:].sum(dtype=np.float64))
        if split:
            self.total += float(self._edges[-1])

    def position(self, uniform: float) -> int:
        """Where the running sum passes `uniform` of the total: first the row, then inside it."""
        target = min(max(uniform * self.total, _NOTHING), math.nextafter(self.total, 0))
        row = int(self._edges.searchsorted(target, side="right"))
        before = float(self._edges[row - 1]) if row else 0.0
        start = row * _ROW_SIZE
        # A target on a row's very edge is not for what has no weight there.
        target = max(target - before, _NOTHING)
        position = start + _pass_position(self._weights[start : start + _ROW_SIZE], target)
        return min(position, self._weights.size - 1)  # weights may be no numbers


def _pass_position(weights: Floats, target: float) -> int:
    running = weights.cumsum(dtype=np.float64)
    position = int(running.searchsorted(target, side="right"))
    if position < weights.size:
        return position
    # Rounding put the target past the end: the last one that has any weight.
    possible = np.flatnonzero(weights > _NOTHING)
    return int(possible[-1]) if possible.size else 0


def weights_of(logits: Floats, highest: np.float32, temperature: float) -> Floats:
    """A new array. What is next to nothing, or nothing, becomes e^-87: exponentials that are
    denormal numbers, and all that is done with these, take up to fifty times as long."""
    exponents: Floats = logits - highest
    if temperature != 1:
        exponents *= np.float32(1 / temperature)
    if exponents.min(initial=0) < _LEAST_EXPONENT:
        np.clip(exponents, _LEAST_EXPONENT, 0, out=exponents)
    weights: Floats = np.exp(exponents, out=exponents)
    return weights


def draw(
    logits: Floats,
    highest: np.float32,
    temperature: float,
    min_weight: float,
    rng: np.random.Generator,
) -> int:
    """Draws among the tokens whose weight is at least `min_weight`.

    Most weights are never computed. Think of each token as a slot as wide as all others and
    `floor` high, filled as far as its weight goes; what a weight has above the floor lies on a
    wheel. A point thrown at random that hits the wheel, or a filled place, has found a token; if it
    hits an empty one another is thrown. The higher the floor, the fewer weights are above it, and
    the more points miss: so it is a multiple of the mean weight, which some of the logits tell.

    Args:
        logits: float32 [vocab_size].
        highest: the largest of them, finite.
        rng: how much is drawn from it depends on the logits.
    """
    size = logits.size
    floor = _floor(logits, highest, temperature) if size > _FEW else 0.0
    if min_weight >= floor:
        return _draw_above(logits, highest, temperature, min_weight, rng)
    wheel_ids: Ids = np.empty(0, np.intp)
    if floor < 1:
        wheel_ids = np.flatnonzero(logits >= _bound(highest, temperature, floor))
    excess = weights_of(logits[wheel_ids], highest, temperature) - np.float32(floor)
    wheel = Wheel(np.maximum(excess, 0))
    wheel_share = wheel.total / (wheel.total + floor * size)
    # A point may lie on the bottom of a slot, below even the least weight.
    min_weight = max(min_weight, _NOTHING)
    for _ in range(_MAX_THROWS):
        areas, places = rng.random((2, _NUM_POINTS))
        places_in_slots = places * size
        slots = places_in_slots.astype(np.intp)
        weights = weights_of(logits[slots], highest, temperature)
        heights = (places_in_slots - slots) * floor
        is_on_wheel = areas < wheel_share
        is_hit = is_on_wheel | ((heights < weights) & (weights >= min_weight))
        first = int(is_hit.argmax())
        if is_on_wheel[first]:
            return int(wheel_ids[wheel.position(places[first])])
        if is_hit[first]:
            return int(slots[first])
    return _draw_above(logits, highest, temperature, min_weight, rng)


def _draw_above(
    logits: Floats,
    highest: np.float32,
    temperature: float,
    min_weight: float,
    rng: np.random.Generator,
) -> int:
    """By weighing all that may have so much weight."""
    if not min_weight:
        wheel = Wheel(weights_of(logits, highest, temperature))
        return wheel.position(rng.random())
    # Exponentials only of what may be kept, and of a little more.
    ids = np.flatnonzero(logits >= _bound(highest, temperature, min_weight))
    weights = weights_of(logits[ids], highest, temperature)
    weights *= weights >= min_weight
    return int(ids[Wheel(weights).position(rng.random())])


def _bound(highest: np.float32, temperature: float, weight: float) -> np.float32:
    """A logit a little below that of a token of such weight."""
    return highest + np.float32(temperature * (math.log(weight) - _ROUNDING))


def _floor(logits: Floats, highest: np.float32, temperature: float) -> float:
    """A power of two, so that it does not depend on the last digits of the logits."""
    width = logits.size // _NUM_SAMPLES
    samples = logits[: width * _NUM_SAMPLES].reshape(_NUM_SAMPLES, width)[:, :_SAMPLE_SIZE]
    weights = weights_of(samples, highest, temperature)
    # A few large weights say little of the others: they are in one group, and another one counts.
    mean = float(weights.reshape(_SAMPLE_GROUPS, -1).mean(axis=1).min())
    mean = mean if mean > 1 / logits.size else 1 / logits.size
    floor = 2.0 ** math.ceil(math.log2(_FLOOR_IN_MEANS * mean))
    return 1.0 if floor > _LARGEST_FLOOR else floor


def draw_nucleus(weights: Floats, top_p: float, min_weight: float, rng: np.random.Generator) -> int:
    """Draws among the fewest largest weights that hold `top_p` of the whole (of equal ones the
    first), so far as they are at least `min_weight`. Returns a position.

    Without finding out which these are: one of all weights is drawn, and is among them if those
    before it, in descending order, hold less. If they do not, neither it nor what comes after it
    is, and one of those before it is drawn in its place.
    """
    ids: Ids | None = None
    wheel = Wheel(weights)
    missing = top_p * wheel.total
    while True:
        position = wheel.position(rng.random())
        before = _ids_before(weights, position, missing)
        if before is None:
            if weights[position] >= min_weight:
                break
            before = np.flatnonzero(weights > weights[position])
        if not before.size:  # weights that are no numbers
            break
        ids = before if ids is None else ids[before]
        weights = weights[before]
        wheel = Wheel(weights)
    return position if ids is None else int(ids[position])


def _ids_before(weights: Floats, position: int, missing: float) -> Ids | None:
    """What comes before a weight in descending order, of equal ones the first first, if that holds
    as much as is `missing`; else None."""
    weight = weights[position]
    is_before = weights > weight
    mass = _mass(weights, is_before, missing)
    if mass < missing and mass + float(weight) * position >= missing:
        is_equal = weights[:position] == weight
        if is_equal.any():
            is_before[:position] |= is_equal
            mass = _mass(weights, is_before, missing)
    return None if mass < missing else np.flatnonzero(is_before)


def _mass(weights: Floats, which: NDArray[np.bool_], missing: float) -> float:
    """Exact where it is about what is `missing`; elsewhere a product, which is several times faster
    than a sum of a selection that is not small, tells as well whether it is more."""
    if np.count_nonzero(which) * _SPARSE >= weights.size:
        mass = float(weights @ which.astype(np.float32))
        if abs(mass - missing) >= _CLOSE * missing:
            return mass
    return float(weights[np.flatnonzero(which)].sum(dtype=np.float64))
