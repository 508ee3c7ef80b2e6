"""Logits as a model computes them, and the first look at them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

RawLogits = NDArray[np.float32] | NDArray[np.uint16]
"""[rows, vocab_size], or one row. uint16: the bits of bfloat16, which numpy has no type for. They
are the upper half of the same number's bits in float32."""

_CHUNK_BYTES = 1024 * 1024
"""Of logits that are looked through ahead: they shall be in a cache when their tokens are chosen.
"""

PARALLEL_BYTES = 16 * 1024 * 1024
"""Of logits: fewer are looked through by one core before another one has begun."""

_MAX_CORES = 4
"""That look at logits at a time: these take as much as the memory gives."""


def as_float32(logits: RawLogits) -> Floats:
    """The same numbers: the same array, if it is one of float32."""
    if logits.dtype == np.float32:
        return logits.view(np.float32)
    bits = logits.astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def likeliest(logits: RawLogits) -> list[int]:
    """The first of the largest logits of each row.

    The bits of non-negative floats order as integers do, whose argmax numpy finds in half the
    time (it has no NaN to look out for). A row without a non-negative logit is done again.
    """
    bits = logits.view(np.int32 if logits.dtype == np.float32 else np.int16)
    token_ids: list[int] = bits.argmax(axis=1).tolist()
    for row, token_id in enumerate(token_ids):
        if bits[row, token_id] < 0:
            token_ids[row] = int(as_float32(logits[row]).argmax())
    return token_ids


def each_likeliest(logits: RawLogits) -> Iterator[int]:
    """As `likeliest`, a few rows ahead of those that are taken."""
    num_rows = max(1, _CHUNK_BYTES // (logits.itemsize * logits.shape[1]))
    for start in range(0, len(logits), num_rows):
        yield from likeliest(logits[start : start + num_rows])


class ParallelLikeliest:
    """As `likeliest`, on several cores, for many rows of which nothing else is wanted: a row that
    another core has read is not in this one's cache."""

    def __init__(self, num_cores: int | None = None) -> None:
        self._num_parts = min(num_cores or os.cpu_count() or 1, _MAX_CORES)
        # One part is for the caller. Threads are started when there is work for them.
        self._others = ThreadPoolExecutor(max(1, self._num_parts - 1), "likeliest")

    def __call__(self, logits: RawLogits) -> list[int]:
        size = -(-len(logits) // self._num_parts)
        rest = range(size, len(logits), size)
        futures = [self._others.submit(likeliest, logits[i : i + size]) for i in rest]
        token_ids = likeliest(logits[:size])
        for future in futures:
            token_ids += future.result()
        return token_ids
