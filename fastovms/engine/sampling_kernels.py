"""Compiled kernels that draw tokens, and find the most likely ones, in rows of logits.

A row is processed in groups: first the largest logit of each group is found, then only groups with
relevant logits are read again. Every filter keeps a prefix of the vocabulary in descending order of
logits (equal ones by position). A filter is therefore described by the end of that prefix, without
sorting or arrays of the vocabulary's size.

Logits are passed as their bits, `int32` of float32 or `int16` of bfloat16, and the bit shift that
converts them to float32. A row is broken if it has a NaN or plus infinity, or only minus
infinities: no token is drawn from it. A token whose logit is minus infinity is impossible, if
others are finite. A logit's key is an integer with the same order as the logit; a logit's weight is
its term in the softmax.
"""

# Numba's signatures declare the types.

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.jit import as_bits, as_float, inlined, kernel, row_kernel, rows_kernel
from fastovms.engine.model.model import Bits
from fastovms.engine.sampling_numpy import BROKEN

GROUP_SIZE = 256

_INFINITY = np.int32(0x7F800000)
"""The key of plus infinity; its negative is minus infinity's key. Keys of NaNs are beyond both."""

_LEAST = np.int32(-(2**31))
_LEAST_LOGIT = np.finfo(np.float32).min
_LEAST_EXPONENT = np.float32(-126)
_NOTHING = 1e-30
"""Weights up to this are never drawn. It exceeds the sum of a vocabulary of the smallest
weights."""

_LOG2_E = 1.4426950408889634
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@inlined
def _in_order(bits):
    """Converts the bits of floats to integers with the same order, and back."""
    return bits if bits >= np.int32(0) else _LEAST - bits


@inlined
def _key(bits, shift):
    """Returns the key of a logit, an integer with the same order. `shift` is 16 for bf16, whose
    bits are the upper half of a float's, and 0 for f32."""
    return _in_order(np.int32(bits) << shift)


@inlined
def _logit(key):
    return as_float(_in_order(key))


@inlined
def _weight(logit, highest, scale):
    """Returns 2 ** ((logit - highest) * scale) with a relative error of about 2e-7. The minimum is
    2 ** -126: denormal numbers would be up to fifty times slower."""
    exponent = (logit - highest) * scale
    exponent = exponent if exponent > _LEAST_EXPONENT else _LEAST_EXPONENT
    whole = np.rint(exponent)
    rest = exponent - whole
    # `rest` is between -0.5 and 0.5, where this polynomial approximates 2 ** rest. The integer part
    # becomes the exponent bits of the float.
    power = np.float32(1.5403530e-4)
    power = power * rest + np.float32(1.3333558e-3)
    power = power * rest + np.float32(9.6181291e-3)
    power = power * rest + np.float32(5.5504109e-2)
    power = power * rest + np.float32(2.4022651e-1)
    power = power * rest + np.float32(6.9314718e-1)
    power = power * rest + np.float32(1)
    return power * as_float((np.int32(whole) + np.int32(127)) << np.int32(23))


@row_kernel("float32", "int32", "float32", "float32")
def _sum_from(row, shift, least, highest, scale):
    """Returns the sum of the weights of all logits whose key is at least `least`."""
    total = np.float32(0)
    for i in range(row.size):
        key = _key(row[i], shift)
        weight = _weight(_logit(key), highest, scale)
        total += weight if key >= least else np.float32(0)
    return total


@row_kernel("float32", "float32", "float32")
def _sum_all(row, shift, highest, scale):
    total = np.float32(0)
    for i in range(row.size):
        total += _weight(as_float(np.int32(row[i]) << shift), highest, scale)
    return total


@inlined
def _total(sums):
    total = 0.0
    for i in range(sums.size):
        total += sums[i]
    return total


@row_kernel("int64", "int64", "int32")
def _position(row, shift, group, key):
    """Returns the position of the first member of a group that has this key."""
    start = group * GROUP_SIZE
    for i in range(start, min(start + GROUP_SIZE, row.size)):
        if _key(row[i], shift) == key:
            return i
    return start


@row_kernel("int64", "int32[::1]", "float32", "float32[::1]")
def _look(row, shift, maxima, scale, sums):
    """Writes the largest key of each group to `maxima`, and the sums of their weights to `sums` if
    it is not empty. Returns the position of the first largest logit, or its bitwise complement if
    the row is broken."""
    largest = _LEAST
    least = _INFINITY
    its_group = 0
    for group in range(maxima.size):
        members = row[group * GROUP_SIZE : (group + 1) * GROUP_SIZE]
        maximum = _LEAST
        for i in range(members.size):
            key = _key(members[i], shift)
            maximum = max(maximum, key)
            least = min(least, key)
        maxima[group] = maximum
        if maximum > largest:
            largest, its_group = maximum, group
        if sums.size:
            # Sums are computed now, while the group is in the CPU's cache, relative to the group's
            # largest logit. The row's largest logit is known only after the last group; the loop
            # below rescales the sums.
            sums[group] = _sum_all(members, shift, max(_logit(maximum), _LEAST_LOGIT), scale)
    highest = _logit(largest)
    for group in range(sums.size):
        sums[group] *= _weight(_logit(maxima[group]), highest, scale)
    position = _position(row, shift, its_group, largest)
    is_broken = largest >= _INFINITY or largest <= -_INFINITY or least < -_INFINITY
    return ~position if is_broken else position


@row_kernel("float64", "int32[::1]", "int32", "int64", "float32", "float32", "float32[::1]")
def _weigh(row, shift, maxima, last, end, highest, scale, sums):
    """Writes the sum of the weights of each group to `sums`, and returns the total. Includes keys
    above `last`, and those equal to `last` before the position `end`."""
    total = 0.0
    for group in range(maxima.size):
        weight = np.float32(0)
        if maxima[group] >= last:
            members = row[group * GROUP_SIZE : (group + 1) * GROUP_SIZE]
            split = min(max(0, end - group * GROUP_SIZE), members.size)
            if split > 0:
                weight += _sum_from(members[:split], shift, last, highest, scale)
            if split < members.size:
                weight += _sum_from(members[split:], shift, last + np.int32(1), highest, scale)
        sums[group] = weight
        total += weight
    return total


@row_kernel("int64", "float64", "int32", "int64", "float32", "float32", "float32[::1]")
def _find(row, shift, target, last, end, highest, scale, sums):
    """Returns the position at which the running sum of the weights counted by `_weigh` exceeds
    `target`."""
    group, before, running = 0, 0.0, 0.0
    for i in range(sums.size):
        if sums[i] > _NOTHING:
            group, before = i, running
            running += sums[i]
            if running > target:
                break
    running, position = before, 0
    for i in range(group * GROUP_SIZE, min((group + 1) * GROUP_SIZE, row.size)):
        key = _key(row[i], shift)
        if key > last or (key == last and i < end):
            weight = _weight(_logit(key), highest, scale)
            if weight > _NOTHING:
                position = i
            running += weight
            if running > target:
                return position
    return position  # rounding has put the target past the end


@kernel("int64(int64[::1], int64, int64)")
def _keep(heap, count, value):
    """Inserts a value into a heap of the `count` largest values so far, smallest first, if it is
    large enough. Returns the new count."""
    if count < heap.size:
        at = count
        while at > 0 and heap[(at - 1) // 2] > value:
            heap[at] = heap[(at - 1) // 2]
            at = (at - 1) // 2
        heap[at] = value
        return count + 1
    if value > heap[0]:
        at = 0
        while 2 * at + 1 < heap.size:
            child = 2 * at + 1
            if child + 1 < heap.size and heap[child + 1] < heap[child]:
                child += 1
            if heap[child] >= value:
                break
            heap[at] = heap[child]
            at = child
        heap[at] = value
    return count


@kernel("int32(int32[::1], int64)")
def _kth_maximum(maxima, k):
    """Returns the k-th largest of the groups' maxima."""
    heap = np.empty(k, np.int64)
    count = 0
    for group in range(maxima.size):
        count = _keep(heap, count, maxima[group])
    return np.int32(heap[0])


@row_kernel("int32", "int64")
def _key_below(row, shift, k):
    """Returns a lower bound for the key of the k-th largest logit, from the upper sixteen bits: at
    least k logits, and few more, reach it."""
    counts = np.zeros(1 << 16, np.int32)
    for i in range(row.size):
        counts[(_key(row[i], shift) >> np.int32(16)) + 32768] += 1
    prefix = counts.size
    missing = k
    while missing > 0:
        prefix -= 1
        missing -= counts[prefix]
    return np.int32((prefix - 32768) << 16)


@row_kernel("int64[::1]", "int32[::1]", "int64")
def _top_ranks(row, shift, maxima, k):
    """Returns the ranks of the k largest logits, smallest first. A rank has the key in its upper
    half, and in its lower half a number that decreases with the position."""
    ranks = np.empty(k, np.int64)
    if not k:
        return ranks
    # The k-th largest maximum cannot exceed the k-th largest logit.
    least = _kth_maximum(maxima, k) if k <= maxima.size else _key_below(row, shift, k)
    count = 0
    for group in range(maxima.size):
        if maxima[group] >= least:
            for i in range(group * GROUP_SIZE, min((group + 1) * GROUP_SIZE, row.size)):
                key = _key(row[i], shift)
                if key >= least:
                    count = _keep(ranks, count, (np.int64(key) << 32) | (0xFFFFFFFF - i))
            if count == k:
                # If logits are equal, the first ones are among the k largest.
                least = max(least, np.int32(ranks[0] >> 32) + np.int32(1))
    return ranks


@row_kernel("int64")
def likeliest(row: Bits, shift: np.int32) -> int:
    """Returns the position of the first of the largest logits of a row [vocab_size], or `BROKEN`.
    `shift`: see `_key`."""
    # Bits of positive floats, as integers, have the order of the floats. As unsigned integers,
    # negative NaNs are the largest.
    largest, position = _LEAST, BROKEN
    largest_unsigned, its_group = np.uint32(0), 0
    maxima = np.empty((row.size + GROUP_SIZE - 1) // GROUP_SIZE, np.int32)
    for group in range(maxima.size):
        members = row[group * GROUP_SIZE : (group + 1) * GROUP_SIZE]
        maximum = _LEAST
        for i in range(members.size):
            bits = np.int32(members[i]) << shift
            maximum = max(maximum, bits)
            largest_unsigned = max(largest_unsigned, np.uint32(bits))
        if maximum > largest:
            largest, its_group = maximum, group
    if largest <= 0:
        position = max(BROKEN, _look(row, shift, maxima, np.float32(0), np.empty(0, np.float32)))
    elif largest < _INFINITY and largest_unsigned <= np.uint32(0xFF800000):
        position = _position(row, shift, its_group, largest)
    return position


@rows_kernel("void", "int64[::1]", "int64[::1]")
def likeliest_of_rows(
    rows: Bits, shift: np.int32, indices: NDArray[np.int64], token_ids: NDArray[np.int64]
) -> None:
    """Writes the position of the first largest logit of each selected row, or `BROKEN`.

    Args:
        rows: [R, vocab_size].
        shift: see `_key`.
        indices: [N], the rows to use.
        token_ids: [N], receives the results.
    """
    for i in range(indices.size):
        token_ids[i] = likeliest(rows[indices[i]], shift)


@inlined
def _splitmix64(state):
    """Returns the output of SplitMix64 for a state (Steele, Lea and Flood, 2014)."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@inlined
def _uniform(state):
    """Returns a number in (0, 1)."""
    return ((_splitmix64(state) >> np.uint64(11)) + 0.5) * 2.0**-53


@row_kernel(
    "int64",
    *("float64", "int64", "float64", "float64", "uint64", "int32[::1]", "float32[:, ::1]"),
)
def _draw(row, shift, temperature, top_k, top_p, min_p, state, maxima, sums):
    """Draws a token from those that pass temperature, top-k, top-p and min-p, in this order.
    Returns its position.

    Top-p is applied by rejection. A token is drawn, and accepted if all more likely tokens together
    have less than `top_p` of the total. Otherwise it and all less likely tokens are excluded, and
    the drawing is repeated.
    """
    # The temperature does not change the order of logits. Keys are therefore those of raw logits,
    # and only weights depend on the temperature.
    scale = np.float32(_LOG2_E / temperature)
    is_cut = 0 < top_k < row.size
    # The total of the row is needed only without top-k, and then only with top-p or without min-p:
    # top-k and min-p compute the total of the tokens that they keep.
    weighs_all = not is_cut and (top_p < 1 or min_p <= 0)
    position = _look(row, shift, maxima, scale, sums[0] if weighs_all else sums[0][:0])
    if position < 0:
        return BROKEN
    highest = _logit(_key(row[position], shift))
    last, end, total = _LEAST, row.size, 0.0
    if weighs_all:
        total = _total(sums[0])
    elif is_cut:
        rank = _top_ranks(row, shift, maxima, top_k)[0]
        last = np.int32(rank >> 32)
        end = 0xFFFFFFFF - (rank & 0xFFFFFFFF) + 1
        total = _weigh(row, shift, maxima, last, end, highest, scale, sums[0])
    # top-p keeps a share of the total after top-k, but before min-p.
    missing = top_p * total
    if min_p > 0:
        # A logit passes min-p if it is at least this. Both filters keep a prefix of the same order,
        # so the shorter prefix applies.
        least = _in_order(as_bits(np.float32(highest + temperature * math.log(min_p))))
        if least > last:
            last, end = least, row.size
            total = _weigh(row, shift, maxima, last, end, highest, scale, sums[0])
    drawn = 0
    # Rejection sampling: a token that top-p excludes is rejected, and the next one is drawn among
    # the tokens before it, which gives the distribution of top-p. The loop ends, because each round
    # has fewer tokens than the one before, and the likeliest is always kept.
    while True:
        state += _GOLDEN  # the next state of SplitMix64: each round has its own random number
        target = _uniform(state) * total
        position = _find(row, shift, target, last, end, highest, scale, sums[drawn])
        if top_p >= 1:
            return position
        key = _key(row[position], shift)
        mass = _weigh(row, shift, maxima, key, position, highest, scale, sums[1 - drawn])
        if mass < missing or not mass:
            return position
        # `mass` and `sums[1 - drawn]` cover exactly the remaining tokens: the next round needs no
        # further pass over the row.
        last, end, total = key, position, mass
        drawn = 1 - drawn


@rows_kernel("void", "int64[::1]", "float64[:, ::1]", "uint64[::1]", "int64[::1]", "int64[::1]")
def draw_rows(
    rows: Bits,
    shift: np.int32,
    indices: NDArray[np.int64],
    settings: NDArray[np.float64],
    seeds: NDArray[np.uint64],
    positions: NDArray[np.int64],
    token_ids: NDArray[np.int64],
) -> None:
    """Draws a token from each selected row, or `BROKEN`.

    Args:
        rows: [R, vocab_size].
        indices: [N], the rows to use.
        settings: [N, 4], temperature (not 0), top-k (0: off), top-p, min-p.
        seeds: [N]. The seed and the position determine the random number.
        positions: [N], the positions of the drawn tokens in their sequences.
        token_ids: [N], receives the results.
    """
    num_groups = (rows.shape[1] + GROUP_SIZE - 1) // GROUP_SIZE
    maxima = np.empty(num_groups, np.int32)
    sums = np.empty((2, num_groups), np.float32)
    for i in range(indices.size):
        temperature, top_k, top_p, min_p = settings[i]
        # The random number depends only on the seed and the position, not on the batch or earlier
        # draws: a token is the same after a preemption, with drafts and in any batch.
        state = _splitmix64(seeds[i] + np.uint64(positions[i]) * _GOLDEN)
        row = rows[indices[i]]
        token_ids[i] = _draw(
            row, shift, temperature, np.int64(top_k), top_p, min_p, state, maxima, sums
        )


@row_kernel("Tuple((float64, int64[::1]))", "int64")
def log_sum_exp_and_top(row: Bits, shift: np.int32, k: int) -> tuple[float, NDArray[np.int64]]:
    """Returns log(sum(exp(row))) of a row [vocab_size], 0 if all logits are minus infinity, and the
    ranks [min(k, vocab_size)] of the largest logits, unsorted: see `_top_ranks`. `shift`: see
    `_key`."""
    num_groups = (row.size + GROUP_SIZE - 1) // GROUP_SIZE
    maxima = np.empty(num_groups, np.int32)
    sums = np.empty(num_groups, np.float32)
    position = _look(row, shift, maxima, np.float32(_LOG2_E), sums)
    highest = _logit(_key(row[max(position, ~position)], shift))
    log_sum = highest + math.log(_total(sums)) if highest != -np.inf else 0.0
    return log_sum, _top_ranks(row, shift, maxima, min(k, row.size))
