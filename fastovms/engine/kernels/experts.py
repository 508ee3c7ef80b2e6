"""Chooses the experts of a mixture-of-experts layer for each row, groups the rows by expert, and
adds the experts' results.

A pair is a row and one of its chosen experts; pairs are sorted by expert. A choice, which `choose`
writes, is an int32 array with four parts. The first, [1 + num_experts], has the number of experts
in use and their indices in ascending order. The second, [num_experts + 1], has the index of each
expert's first pair and the number of pairs. The third, [rows * num_chosen], has the row of each
pair. The last, f32 [rows * num_chosen], has its routing weight.
"""

# Numba's signatures declare the types.

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from fastovms.engine.jit import KERNEL_OPTIONS
from fastovms.engine.kernels.memory import floats_at, integers_at

_helper: Any = numba.njit(inline="never", **KERNEL_OPTIONS)


def choice_size(num_experts: int, num_chosen: int) -> int:
    """Returns the length of a choice for one row, in int32 values. A choice for n rows needs at
    most n times as many."""
    return 2 + 2 * num_experts + 2 * num_chosen


@_helper
def begins_of(choice, num_experts):
    """Returns the address in a choice of the index of each expert's first pair."""
    return choice + 4 * (1 + num_experts)


@_helper
def rows_of(choice, num_experts):
    """Returns the address in a choice of the row index of each pair."""
    return choice + 4 * (2 + 2 * num_experts)


@_helper
def multiply_floats(matrix, width, first, end, num_rows, rows, stride, out, out_stride):
    """Multiplies rows, f32 [num_rows, width], by the rows `first` to `end` - 1 of an f32 matrix,
    [matrix rows, width]: the weights of a router that is not quantized."""
    for m in range(first, end):
        w = floats_at(matrix + 4 * m * width)
        for row in range(num_rows):
            x = floats_at(rows + 4 * row * stride)
            total = np.float32(0)
            for k in range(width):
                total += w[k] * x[k]
            floats_at(out + 4 * (row * out_stride + m))[0] = total


@_helper
def _rank(x, ranks, num_experts, is_sigmoid, bias, has_groups):
    """Replaces a row of router scores `x` by probabilities, and writes the values by which experts
    are ranked to `ranks`: the scores; with a bias or groups, the probabilities plus the bias."""
    largest = x[0]
    for e in range(num_experts):
        ranks[e] = x[e]
        largest = max(largest, x[e])
    total = np.float32(0)
    for e in range(num_experts):
        x[e] = (
            np.float32(1) / (np.float32(1) + np.exp(-x[e]))
            if is_sigmoid
            else np.exp(x[e] - largest)
        )
        total += x[e]
    for e in range(num_experts):
        if not is_sigmoid:
            x[e] /= total
        if bias != 0:
            ranks[e] = x[e] + floats_at(bias)[e]
        elif has_groups:
            ranks[e] = x[e]


@_helper
def _drop_groups(ranks, num_experts, num_groups, num_chosen_groups):
    """Sets the ranks to 0 in all but the best groups. A group is rated by the sum of its two
    largest ranks."""
    size = num_experts // num_groups
    sums = np.empty(num_groups, np.float32)
    for g in range(num_groups):
        first, second = np.float32(-np.inf), np.float32(-np.inf)
        for e in range(g * size, (g + 1) * size):
            if ranks[e] > first:
                first, second = ranks[e], first
            else:
                second = max(second, ranks[e])
        sums[g] = first + second
    for g in range(num_groups):
        num_better = 0
        for other in range(num_groups):
            if sums[other] > sums[g] or (sums[other] == sums[g] and other < g):
                num_better += 1
        if num_better >= num_chosen_groups:
            for e in range(g * size, (g + 1) * size):
                ranks[e] = np.float32(0)


@_helper
def _weigh(
    scores,
    ranks,
    num_experts,
    num_chosen,
    is_sigmoid,
    is_normalized,
    bias,
    scale,
    epsilon,
    num_groups,
    num_chosen_groups,
):
    """Replaces a row of router scores by routing weights, and by -1 for the experts that are not
    chosen. Among equal ranks the first experts are chosen."""
    x = floats_at(scores)
    _rank(x, ranks, num_experts, is_sigmoid, bias, num_groups > 1)
    if num_groups > 1:
        _drop_groups(ranks, num_experts, num_groups, num_chosen_groups)
    last, at = np.float32(np.inf), -1
    for _ in range(num_chosen):
        best = -1
        for e in range(num_experts):
            is_after = ranks[e] < last or (ranks[e] == last and e > at)
            if is_after and (best < 0 or ranks[e] > ranks[best]):
                best = e
        if best < 0:  # some ranks are NaN
            break
        last, at = ranks[best], best
    total = epsilon
    for e in range(num_experts):
        if ranks[e] > last or (ranks[e] == last and e <= at):
            total += x[e]
        else:  # not chosen, or NaN
            x[e] = np.float32(-1)
    factor = scale / total if is_normalized else scale
    for e in range(num_experts):
        if x[e] >= 0:
            x[e] *= factor


@_helper
def choose(scores, stride, num_rows, choice, num_experts, num_chosen, *router):
    """Writes the choice of experts for rows of router scores, and overwrites the scores.

    `router` is a `Router`'s other fields as numbers: is_sigmoid, is_normalized, the address of the
    bias (0 = none), scale, epsilon, num_groups, num_chosen_groups.
    """
    t = integers_at(choice)
    begins = integers_at(begins_of(choice, num_experts))
    rows = integers_at(rows_of(choice, num_experts))
    factors = floats_at(rows_of(choice, num_experts) + 4 * num_rows * num_chosen)
    ranks = np.empty(num_experts, np.float32)
    for row in range(num_rows):
        _weigh(scores + 4 * row * stride, ranks, num_experts, num_chosen, *router)
    num_used = num_pairs = 0
    for e in range(num_experts):
        begins[e] = num_pairs
        for row in range(num_rows):
            factor = floats_at(scores + 4 * (row * stride + e))[0]
            if factor >= 0:
                rows[num_pairs], factors[num_pairs] = row, factor
                num_pairs += 1
        if num_pairs > begins[e]:
            num_used += 1
            t[num_used] = e
    begins[num_experts] = num_pairs
    t[0] = num_used


@_helper
def add_of_experts(pairs, width, choice, num_experts, added):
    """Adds a row of its expert, f32 [experts, width], to each of the pairs, f32 [pairs, width]."""
    begins = integers_at(begins_of(choice, num_experts))
    for e in range(num_experts):
        x = floats_at(added + 4 * e * width)
        for pair in range(begins[e], begins[e + 1]):
            z = floats_at(pairs + 4 * np.int64(pair) * width)
            for k in range(width):
                z[k] += x[k]


@_helper
def combine(results, width, num_rows, num_experts, num_chosen, choice, out, stride):
    """Writes the sum of each row's pairs, f32 [pairs, width], times their routing weights."""
    rows = integers_at(rows_of(choice, num_experts))
    factors = floats_at(rows_of(choice, num_experts) + 4 * num_rows * num_chosen)
    for row in range(num_rows):
        z = floats_at(out + 4 * row * stride)
        for k in range(width):
            z[k] = np.float32(0)
    for pair in range(integers_at(begins_of(choice, num_experts))[num_experts]):
        x, z = floats_at(results + 4 * pair * width), floats_at(out + 4 * rows[pair] * stride)
        factor = factors[pair]
        for k in range(width):
            z[k] += factor * x[k]
