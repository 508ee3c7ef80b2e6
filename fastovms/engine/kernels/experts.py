"""Chooses the experts of a mixture for each row, groups the rows by expert, and adds the results.

A pair is a row and an expert that it has chosen; those of one expert follow one another. A choice
is int32, as `choose` writes it: first the number of experts that some row has chosen, and these
experts in ascending order, with room for all. Then the first pair of each expert follows, and the
end of the last one's. The rows of all pairs come next, and the f32 factors of their results.
"""

# The types are in numba's signatures.

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from fastovms.engine.jit import KERNEL_OPTIONS
from fastovms.engine.kernels.memory import floats_at, integers_at

_helper: Any = numba.njit(inline="never", **KERNEL_OPTIONS)


def choice_size(num_experts: int, num_chosen: int) -> int:
    """Returns the numbers of a choice for one row; one for n rows has at most n times as many."""
    return 2 + 2 * num_experts + 2 * num_chosen


@_helper
def begins_of(choice, num_experts):
    """Returns the address of the first pair of each expert, and of the end of all."""
    return choice + 4 * (1 + num_experts)


@_helper
def rows_of(choice, num_experts):
    """Returns the address of the rows of pairs."""
    return choice + 4 * (2 + 2 * num_experts)


@_helper
def multiply_floats(matrix, width, first, end, num_rows, rows, stride, out, out_stride):
    """Multiplies rows, f32 [num_rows, width], by the rows of a matrix from `first` to `end`, f32
    [matrix rows, width]: those of a router that is not quantized."""
    for m in range(first, end):
        w = floats_at(matrix + 4 * m * width)
        for row in range(num_rows):
            x = floats_at(rows + 4 * row * stride)
            total = np.float32(0)
            for k in range(width):
                total += w[k] * x[k]
            floats_at(out + 4 * (row * out_stride + m))[0] = total


@_helper
def _weigh(scores, num_experts, num_chosen, is_normalized):
    """Replaces a row of scores by the shares of the chosen experts, and by -1 for the others. Among
    equal scores the first ones are chosen."""
    x = floats_at(scores)
    largest = x[0]
    for e in range(num_experts):
        largest = max(largest, x[e])
    last, at = np.float32(np.inf), -1
    for _ in range(num_chosen):
        best = -1
        for e in range(num_experts):
            is_after = x[e] < last or (x[e] == last and e > at)
            if is_after and (best < 0 or x[e] > x[best]):
                best = e
        if best < 0:  # some are no numbers
            break
        last, at = x[best], best
    total = np.float32(0)
    for e in range(num_experts):
        is_chosen = x[e] > last or (x[e] == last and e <= at)
        share = np.exp(x[e] - largest)
        if is_chosen or not is_normalized:
            total += share
        x[e] = share if is_chosen else np.float32(-1)
    for e in range(num_experts):
        if x[e] >= 0:
            x[e] /= total


@_helper
def choose(scores, stride, num_rows, num_experts, num_chosen, is_normalized, choice):
    """Writes the choice of rows of scores, which it overwrites."""
    t = integers_at(choice)
    begins = integers_at(begins_of(choice, num_experts))
    rows = integers_at(rows_of(choice, num_experts))
    factors = floats_at(rows_of(choice, num_experts) + 4 * num_rows * num_chosen)
    for row in range(num_rows):
        _weigh(scores + 4 * row * stride, num_experts, num_chosen, is_normalized)
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
def combine(results, width, num_rows, num_experts, num_chosen, choice, out, stride):
    """Adds the results of pairs, f32 [pairs, width], times their factors."""
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
