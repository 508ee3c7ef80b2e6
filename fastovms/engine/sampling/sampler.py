"""Draws tokens from the rows of logits of a step, or takes the likeliest of each where a request is
greedy."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.model.raw_logits import Floats, RawLogits, as_bits, copy_float32
from fastovms.engine.sampling.row_functions import BROKEN, draw_rows, likeliest_of_rows
from fastovms.engine.scheduling.batch import SampledTokens
from fastovms.engine.scheduling.sequence import Sequence
from fastovms.errors import BrokenLogits
from fastovms.params import GREEDY_TEMPERATURE
from fastovms.system.cgroup import num_usable_cpus

Drawn = int | Exception | None
"""What is drawn from a row of logits: a token id; the error that ends the row's request; or None as
long as the row waits for the token before it, on which its penalties or its grammar depend.

The error is `BrokenLogits` where the model's own logits are no distribution (see
`broken_logits.is_broken`). A row of which the request's settings have left no token is no error:
there the text ends.
"""

_THREAD_BYTES = 2 * 1024 * 1024
"""Bytes of logits that are worth another thread: fewer are drawn from before it has begun."""

_GREEDY_THREAD_BYTES = 8 * 1024 * 1024
"""The same where only the likeliest tokens are looked for."""

_SHARES_PER_THREAD = 4
"""Into how many shares the work of a thread is divided. Threads take them one by one, since not all
rows take equally long."""

_MAX_THREADS = 8

_COPIED_BYTES = 16 * 1024 * 1024
"""Bytes of logits that are copied at a time: few enough to stay in a processor's cache."""


class Sampler:
    """Draws the tokens of a step, on several cores where there are many.

    What is drawn depends on nothing but the logits, the settings and the seed of the sequence, and
    how many tokens it has.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        self._num_threads = min(num_threads or num_usable_cpus(), _MAX_THREADS)
        # The calling thread is one. The others start when there is work for them.
        self._others = ThreadPoolExecutor(max(1, self._num_threads - 1), "sampler")
        self._copies: Floats = np.empty((0, 0), np.float32)

    def draw(self, sampled: Iterable[SampledTokens], logits: RawLogits) -> list[Drawn]:
        """Draws a token from each row. It leaves None where `draw_next` is to do it, row by row,
        and for sequences in a group, which draw in a way of their own.

        Args:
            sampled: the sequences, in the order of their rows.
            logits: [R, vocab_size], R as many rows as are sampled. Rows that a sequence's
                processors change are modified, unless the request wants log probabilities, which
                are of the rows as they were.
        """
        is_float32 = logits.dtype == np.float32
        rows = _Rows()
        changed: list[_ChangedRow] = []
        copied: list[_ChangedRow] = []
        start = 0
        for sequence, num_drafts in sampled:
            end = start + 1 + num_drafts
            num_tokens = len(sequence.token_ids)
            if sequence.group is None and not sequence.processors:
                for index in range(start, end):
                    rows.add(index, sequence, num_tokens + index - start)
            elif sequence.group is None and not num_drafts:
                if is_float32 and sequence.params.logprobs is None:
                    rows.add(start, sequence, num_tokens)
                    changed.append(_ChangedRow(start, sequence))
                else:
                    copied.append(_ChangedRow(start, sequence))
            start = end
        drawn: list[Drawn] = [None] * start
        self._draw(rows, changed, logits, drawn)
        self._draw_copied(copied, logits, drawn)
        return drawn

    def draw_next(self, sequence: Sequence, logits: RawLogits) -> int:
        """Draws a sequence's next token from a row, [vocab_size], which is not modified."""
        drawn: list[Drawn] = [None]
        self._draw_copied([_ChangedRow(0, sequence)], logits[None], drawn)
        (token_id,) = drawn
        if isinstance(token_id, Exception):
            raise token_id
        assert token_id is not None
        return token_id

    def _draw_copied(
        self, changed: list[_ChangedRow], logits: RawLogits, drawn: list[Drawn]
    ) -> None:
        """Changes copies of the rows, and draws from these."""
        width = logits.shape[1]
        most = max(1, _COPIED_BYTES // (4 * width))
        for start in range(0, len(changed), most):
            some = changed[start : start + most]
            if self._copies.shape[1] != width or len(self._copies) < len(some):
                self._copies = np.empty((len(some), width), np.float32)
            rows = _Rows()
            copies: list[_ChangedRow] = []
            for copy, (row, sequence) in enumerate(some):
                copy_float32(logits[row], self._copies[copy])
                rows.add(copy, sequence, len(sequence.token_ids))
                copies.append(_ChangedRow(copy, sequence))
            chosen: list[Drawn] = [None] * len(some)
            self._draw(rows, copies, self._copies, chosen)
            for (row, _), token_id in zip(some, chosen, strict=True):
                drawn[row] = token_id

    def _draw(
        self, rows: _Rows, changed: list[_ChangedRow], logits: RawLogits, drawn: list[Drawn]
    ) -> None:
        """Draws from the rows, once processors have changed theirs, which are float32."""
        errors = self._change(changed, logits) if changed else {}
        if rows.greedy:
            self._run(likeliest_of_rows, logits, rows.greedy, (), _GREEDY_THREAD_BYTES, drawn)
        if rows.random:
            self._run(draw_rows, logits, rows.random, rows.arguments(), _THREAD_BYTES, drawn)
        for row, sequence in changed:
            drawn[row] = errors.get(row) or _checked(drawn[row], logits[row], sequence)

    def _change(self, rows: list[_ChangedRow], logits: RawLogits) -> dict[int, Exception]:
        """Has processors change the rows that are not broken, and returns the errors by row: one
        request's fault must not cost the others theirs."""
        indices = array("q", (row for row, _ in rows))
        found: list[Drawn] = [None] * len(logits)
        self._run(likeliest_of_rows, logits, indices, (), _GREEDY_THREAD_BYTES, found)
        errors: dict[int, Exception] = {}
        with np.errstate(all="ignore"):  # logits may be infinite
            for row, sequence in rows:
                broken = found[row]
                if isinstance(broken, Exception):
                    errors[row] = broken
                    continue
                try:
                    for process in sequence.processors:
                        process(logits[row].view(np.float32), sequence.token_ids)
                except Exception as error:
                    errors[row] = error
        return errors

    def _run(
        self,
        kernel: Callable[..., None],
        logits: RawLogits,
        indices: array[int],
        others: tuple[NDArray[Any], ...],
        thread_bytes: int,
        drawn: list[Drawn],
    ) -> None:
        """Has a kernel draw from some rows, on several threads where they have enough bytes."""
        bits, shift = as_bits(logits)
        token_ids = np.empty(len(indices), np.int64)
        arguments = (np.frombuffer(indices, np.int64), *others, token_ids)
        num_bytes = len(indices) * logits.shape[1] * logits.itemsize
        num_threads = min(self._num_threads, num_bytes // thread_bytes)
        if num_threads > 1:
            self._share(partial(kernel, bits, shift), arguments, num_threads)
        else:
            kernel(bits, shift, *arguments)
        for row, token_id in zip(indices, token_ids.tolist(), strict=True):
            drawn[row] = token_id if token_id != BROKEN else BrokenLogits()

    def _share(
        self, work: Callable[..., None], arguments: tuple[NDArray[Any], ...], num_threads: int
    ) -> None:
        """Calls `work` with slices of equally long arguments, on several threads."""
        length = len(arguments[0])
        size = -(-length // (num_threads * _SHARES_PER_THREAD))
        waiting = iter(range(0, length, size))

        def run() -> None:
            for start in waiting:  # each of them is for one thread
                work(*(argument[start : start + size] for argument in arguments))

        running = [self._others.submit(run) for _ in range(num_threads - 1)]
        try:
            run()
        finally:  # no thread may still read logits when the next step overwrites them
            for other in running:
                other.result()


class _Rows:
    """Rows of logits that tokens are drawn from, parted by the way in which they are.

    Attributes:
        greedy: int64, rows whose likeliest token is taken.
        random: int64, the others.
    """

    def __init__(self) -> None:
        self.greedy = array("q")
        self.random = array("q")
        self._settings = array("d")
        self._seeds = array("Q")
        self._positions = array("q")

    def add(self, row: int, sequence: Sequence, num_tokens: int) -> None:
        """Adds a row of a sequence that has `num_tokens` tokens before the one that is drawn."""
        params = sequence.params
        if params.temperature <= GREEDY_TEMPERATURE:
            self.greedy.append(row)
            return
        self.random.append(row)
        self._settings.extend((params.temperature, params.top_k, params.top_p, params.min_p))
        self._seeds.append(sequence.seed)
        self._positions.append(num_tokens)

    def arguments(self) -> tuple[NDArray[np.float64], NDArray[np.uint64], NDArray[np.int64]]:
        """Returns the arguments of `draw_rows` for the random rows: settings, seeds and
        positions."""
        return (
            np.frombuffer(self._settings, np.float64).reshape(-1, 4),
            np.frombuffer(self._seeds, np.uint64),
            np.frombuffer(self._positions, np.int64),
        )


class _ChangedRow(NamedTuple):
    """A row of logits that the sequence's processors change before a token is drawn."""

    row: int
    sequence: Sequence


def _checked(token_id: Drawn, logits: RawLogits, sequence: Sequence) -> Drawn:
    """Returns the token to append. Where the request's own settings have ruled out every token,
    this one too, that is the end of the text. Where they have made a logit infinite, it is the
    likeliest."""
    if isinstance(token_id, BrokenLogits):
        token_id = int(logits.argmax())
    assert isinstance(token_id, int)
    if logits[token_id] != -np.inf:
        return token_id
    if sequence.grammar is not None:
        sequence.grammar.give_up()
    return min(sequence.params.eos_token_ids, default=token_id)
