"""Packs compressed weights in the kernels' memory layout."""

# Numba's signatures declare the types.

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_helper: Any = numba.njit(
    no_cpython_wrapper=True, no_cfunc_wrapper=True, nogil=True, error_model="numpy"
)


@_helper
def _pack_fours(source, at, target, place, lanes, activation_bits, flip):
    """Packs 32 columns of 4-bit weights of a row, 8 at a time."""
    for _ in range(4):
        b0, b1, b2, b3 = source[at], source[at + 1], source[at + 2], source[at + 3]
        if activation_bits == 16:
            target[place] = (b0 & 15 | (b1 & 15) << 4) ^ flip
            target[place + 1] = (b2 & 15 | (b3 & 15) << 4) ^ flip
            target[place + 2] = (b0 >> 4 | b1 >> 4 << 4) ^ flip
            target[place + 3] = (b2 >> 4 | b3 >> 4 << 4) ^ flip
        else:
            target[place] = (b0 & 15 | (b2 & 15) << 4) ^ flip
            target[place + 1] = (b0 >> 4 | b2 >> 4 << 4) ^ flip
            target[place + 2] = (b1 & 15 | (b3 & 15) << 4) ^ flip
            target[place + 3] = (b1 >> 4 | b3 >> 4 << 4) ^ flip
        at += 4
        place += 4 * lanes


@_helper
def _pack_sixes(source, at, target, place, lanes, activation_bits, flip):
    """Packs 16 columns of 6-bit weights of a row, given as bytes: 12 columns in 6 bits each, and
    the last 4 columns in the bits left free."""
    size = 4 * lanes
    if activation_bits == 16:
        for k in range(2):
            high = (source[at + 12 + k] ^ flip) & 63
            last = (source[at + 14 + k] ^ flip) & 63
            rests = (high & 15, last & 15, high >> 4 | last >> 4 << 2)
            for number in range(3):
                first = (source[at + 4 * number + k] ^ flip) & 63
                second = (source[at + 4 * number + k + 2] ^ flip) & 63
                target[place + size * number + 2 * k] = first | second << 6
                target[place + size * number + 2 * k + 1] = second >> 2 | rests[number] << 4
        return
    for k in range(4):
        last = (source[at + 12 + k] ^ flip) & 63
        for number in range(3):
            one = (source[at + 4 * number + k] ^ flip) & 63
            target[place + size * number + k] = one | last >> 2 * number << 6


@_helper
def _pack_eights(source, at, target, place, lanes, activation_bits, flip):
    """Packs 16 columns of 8-bit weights of a row. One instruction multiplies two columns of 16-bit
    activations, or four of 8-bit ones; these are adjacent in the packed weights."""
    together = 2 if activation_bits == 16 else 4
    for _ in range(16 // together):
        for k in range(together):
            target[place + k] = source[at + k] ^ flip
        at += together
        place += together * lanes


def pack_rows(source, rows, columns, group, bits, activation_bits, lanes, flip, header, target):
    """Packs integers in the layout that `products` reads.

    Args:
        source: uint8, row by row. Two 4-bit integers share a byte, the first in its low half;
            others have a byte each.
        group: the group size in columns.
        flip: an XOR mask for each byte, which makes signed integers unsigned.
        bits: the bits of a packed integer: 4, 6 or 8.
        header: bytes before each group of a block.
        target: uint8, all zeros.
    """
    unit = 32 if bits == 4 else 16
    group_bytes = header + lanes * group * bits // 8
    num_groups = columns // group
    flipped = np.uint8(flip)
    lane_bytes = 2 if bits == 8 and activation_bits == 16 else 4
    unit_bytes = unit * bits // 8
    for row in range(rows):
        block, lane = row // lanes, row % lanes
        at = row * columns * 16 // unit
        for g in range(num_groups):
            place = (block * num_groups + g) * group_bytes + header + lane_bytes * lane
            for _ in range(group // unit):
                if bits == 4:
                    _pack_fours(source, at, target, place, lanes, activation_bits, flipped)
                elif bits == 6:
                    _pack_sixes(source, at, target, place, lanes, activation_bits, flipped)
                else:
                    _pack_eights(source, at, target, place, lanes, activation_bits, flipped)
                at += 16
                place += unit_bytes * lanes
