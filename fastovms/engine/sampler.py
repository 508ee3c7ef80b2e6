"""From logits to token ids, for the rows of a step."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from fastovms.engine.inputs import SampledTokens
from fastovms.engine.kernels import GREEDY_TEMPERATURE, draw_rows
from fastovms.engine.raw_logits import Floats, RawLogits, as_bits, copy_float32
from fastovms.engine.sequence import Sequence

Drawn = int | Exception | None
"""A token id, or why there is none; None: not yet, as it depends on the token before."""

_THREAD_BYTES = 2 * 1024 * 1024
"""Of logits: less is drawn from before another thread has begun."""

_GREEDY_THREAD_BYTES = 8 * 1024 * 1024
"""The same, where only the likeliest are looked for."""

_CHUNKS_PER_THREAD = 4
"""That are taken one by one: not all rows take equally long."""

_MAX_THREADS = 8

_COPIED_BYTES = 16 * 1024 * 1024
"""Of logits: what is copied at a time, so that it stays in a cache."""


class Sampler:
    """Draws the tokens of a step, on several cores where there are many.

    What is drawn depends on nothing but the logits, the settings and the seed of the sequence, and
    how many tokens it has.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        self._num_threads = min(num_threads or len(os.sched_getaffinity(0)), _MAX_THREADS)
        # The caller is one. The others are started when there is work for them.
        self._others = ThreadPoolExecutor(max(1, self._num_threads - 1), "sampler")
        self._copies: Floats = np.empty((0, 0), np.float32)

    def draw(self, sampled: Iterable[SampledTokens], logits: RawLogits) -> list[Drawn]:
        """Draws a token from each row. None where `draw_next` is to do it, row by row; and of
        sequences in a group, which draw in a way of their own.

        Logits may become infinite: whoever calls it ignores numpy's warnings.

        Args:
            logits: [R, vocab_size], R as many as are sampled. Those that a sequence's processors
                change are modified, unless it wants them as they were: for log probabilities.
        """
        is_float32 = logits.dtype == np.float32
        rows: list[_Row] = []
        copied_rows: list[_Row] = []
        start = 0
        for sequence, num_drafts in sampled:
            end = start + 1 + num_drafts
            is_changed = bool(sequence.processors)
            if sequence.group is None and not (is_changed and num_drafts):
                is_copied = is_changed and (sequence.params.logprobs is not None or not is_float32)
                some = copied_rows if is_copied else rows
                offset = len(sequence.token_ids) - start
                for index in range(start, end):
                    some.append(_Row(sequence, offset + index, index, index))
            start = end
        drawn: list[Drawn] = [None] * start
        self._draw(rows, logits, drawn)
        self._draw_copied(copied_rows, logits, drawn)
        return drawn

    def draw_next(self, sequence: Sequence, logits: RawLogits) -> int:
        """Draws a sequence's next token from a row, [vocab_size], which is not modified."""
        drawn: list[Drawn] = [None]
        row = _Row(sequence, len(sequence.token_ids), 0, 0)
        self._draw_copied([row], logits[None], drawn)
        (token_id,) = drawn
        if isinstance(token_id, Exception):
            raise token_id
        assert token_id is not None
        return token_id

    def _draw_copied(self, rows: list[_Row], logits: RawLogits, drawn: list[Drawn]) -> None:
        width = logits.shape[1]
        most = max(1, _COPIED_BYTES // (4 * width))
        for start in range(0, len(rows), most):
            some = rows[start : start + most]
            if self._copies.shape[1] != width or len(self._copies) < len(some):
                self._copies = np.empty((len(some), width), np.float32)
            for row, copy in zip(some, self._copies, strict=False):
                copy_float32(logits[row.source], copy)
            some = [row._replace(source=i) for i, row in enumerate(some)]
            self._draw(some, self._copies, drawn)

    def _draw(self, rows: list[_Row], logits: RawLogits, drawn: list[Drawn]) -> None:
        """Logits that processors change are float32."""
        changed = [row for row in rows if row.sequence.processors]
        for row in changed:
            drawn[row.target] = _change(logits[row.source], row.sequence)
        for row, token_id in zip(rows, self._draw_unchanged(rows, logits), strict=True):
            if drawn[row.target] is None:
                drawn[row.target] = token_id
        for row in changed:
            chosen = drawn[row.target]
            if isinstance(chosen, int) and logits[row.source, chosen] == -np.inf:
                drawn[row.target] = _end(row.sequence, chosen)

    def _draw_unchanged(self, rows: list[_Row], logits: RawLogits) -> list[int]:
        if not rows:
            return []
        sources = np.array([row.source for row in rows])
        settings = np.array([_settings(row.sequence) for row in rows], np.float64)
        seeds = np.array([row.sequence.seed for row in rows], np.uint64)
        positions = np.array([row.position for row in rows])
        token_ids = np.empty(len(rows), np.int64)
        is_greedy = settings[:, 0].max() <= GREEDY_TEMPERATURE
        thread_bytes = _GREEDY_THREAD_BYTES if is_greedy else _THREAD_BYTES
        num_bytes = len(rows) * logits.shape[1] * logits.itemsize
        num_threads = max(1, min(self._num_threads, num_bytes // thread_bytes))
        size = -(-len(rows) // num_threads)
        if num_threads > 1:
            size = -(-size // _CHUNKS_PER_THREAD)
        starts = range(0, len(rows), size)
        waiting = iter(starts)

        def run() -> None:
            for start in waiting:  # each of them is for one thread
                some = slice(start, start + size)
                draw_rows(
                    *as_bits(logits),
                    sources[some],
                    settings[some],
                    seeds[some],
                    positions[some],
                    token_ids[some],
                )

        others = [self._others.submit(run) for _ in range(num_threads - 1)]
        try:
            run()
        finally:  # nobody reads logits that the next step overwrites
            for other in others:
                other.result()
        ids: list[int] = token_ids.tolist()
        return ids


class _Row(NamedTuple):
    """Logits from which a token is drawn.

    Attributes:
        position: how many tokens the sequence has before that.
        source: the index of the logits.
        target: the index of the token in the results.
    """

    sequence: Sequence
    position: int
    source: int
    target: int


def _settings(sequence: Sequence) -> tuple[float, int, float, float]:
    params = sequence.params
    return params.temperature, params.top_k, params.top_p, params.min_p


def _change(logits: RawLogits, sequence: Sequence) -> Exception | None:
    """One request's fault must not cost the others theirs: it is returned."""
    try:
        for process in sequence.processors:
            process(logits.view(np.float32), sequence.token_ids)
    except Exception as error:
        return error
    return None


def _end(sequence: Sequence, token_id: int) -> int:
    """The request has ruled out everything, and this token, too."""
    if sequence.grammar is not None:
        sequence.grammar.give_up()
    return min(sequence.params.eos_token_ids, default=token_id)
