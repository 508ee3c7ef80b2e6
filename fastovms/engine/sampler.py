"""The sampler: draws tokens from logits, vectorised over the batch."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastovms.engine import row_functions
from fastovms.engine.blocks import BlockManager, OutOfBlocks
from fastovms.engine.model.model import Floats, Model, RawLogits, as_bits, as_float32, copy_float32
from fastovms.engine.model.step_inputs import StepLayout
from fastovms.engine.row_functions import BROKEN, draw_rows, likeliest, likeliest_of_rows
from fastovms.engine.scheduler import SampledTokens
from fastovms.engine.sequence import Sequence
from fastovms.errors import BrokenLogits, EngineFailed
from fastovms.params import (
    ALL_LOGPROBS,
    GREEDY_TEMPERATURE,
    EngineOutput,
    TokenLogprobs,
)
from fastovms.system.memory import num_usable_cpus


def sample_seed(seed: int, index: int) -> int:
    """Returns the 64-bit seed for sample `index` of a request with this seed."""
    mixed = np.random.SeedSequence((seed % 2**64, index)).generate_state(1, np.uint64)
    return int(mixed[0])


def log_sum_exp(row: RawLogits) -> float:
    """Returns log(sum(exp(logits))) of logits [vocab_size]; 0 if all are minus infinity. A logit
    minus this value is its log probability."""
    return log_sum_exp_and_top(row, 0)[0]


def log_sum_exp_and_top(row: RawLogits, k: int) -> tuple[float, NDArray[np.int64]]:
    """Returns the result of `log_sum_exp` for logits [vocab_size], and the token ids [min(k,
    vocab_size)] of the largest logits, in descending order; equal logits by id."""
    log_sum, ranks = row_functions.log_sum_exp_and_top(*as_bits(row), k)
    ranks[::-1].sort()
    return log_sum, 0xFFFFFFFF - (ranks & 0xFFFFFFFF)


@np.errstate(all="ignore")  # logits may be infinite
def token_logprobs(
    logits: RawLogits, token_id: int, num_top: int, listed: Collection[int] = ()
) -> TokenLogprobs:
    """Returns the log probabilities of `token_id`, and of the `num_top` (or `ALL_LOGPROBS`) most
    likely tokens or, if given, of the `listed` tokens, in descending order, computed from the
    model's raw logits [vocab_size]."""
    size = logits.size
    if num_top == ALL_LOGPROBS or num_top >= size:
        num_top = size
    normalizer, top = log_sum_exp_and_top(logits, max(num_top, 1))
    highest, chosen = as_float32(logits[[top[0], token_id]])
    num_likelier = 0
    if chosen != highest:
        num_likelier = int(np.count_nonzero(as_float32(logits) > chosen))
    if listed:
        top = np.fromiter(listed, np.int64)
        top = top[np.argsort(-as_float32(logits[top]), kind="stable")]
    else:
        top = top[:num_top]
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(chosen) - normalizer,
        rank=1 + num_likelier,
        top_token_ids=top.tolist(),
        top_logprobs=(as_float32(logits[top]).astype(np.float64) - normalizer).tolist(),
    )


MAX_STREAK: Final = 3
"""The number of consecutive sequences with broken logits after which the model is tested."""


def is_broken(row: RawLogits) -> bool:
    """Returns whether logits [vocab_size] are not a distribution: one of them is NaN or plus
    infinity, or all of them are minus infinity."""
    return likeliest(*as_bits(row)) == BROKEN


def check_rows(rows: Iterable[RawLogits]) -> None:
    """Raises BrokenLogits if any row of logits, [rows, vocab_size], is broken; see `is_broken`."""
    if any(map(is_broken, rows)):
        raise BrokenLogits


class SequenceFailure(NamedTuple):
    """The end of one sample of a request, or of a search, by an error.

    Attributes:
        num_sequences: the number of ended sequences: more than one for a beam search.
        outputs: the outputs that report the error to the client.
    """

    error: Exception
    num_sequences: int
    outputs: list[EngineOutput]

    @property
    def num_broken(self) -> int:
        """The number of sequences that ended because of broken logits."""
        return self.num_sequences if isinstance(self.error, BrokenLogits) else 0


class BrokenLogitsGuard:
    """Counts consecutive sequences that ended because of broken logits, and tests the model if
    there are many.

    Broken logits are caused by one request (an overflow in half precision, a broken prefix) or by a
    corrupt model. A request with a broken row (see `sampling_kernels`) ends with an error, and its
    blocks are removed from the prefix cache. If several requests in a row end so, the engine
    computes a test prompt, and fails only if those logits are broken too: no client's input may end
    a server.
    """

    def __init__(self, model: Model, blocks: BlockManager) -> None:
        """`blocks` are the blocks of the model's cache; one is needed during a test."""
        self._model = model
        self._blocks = blocks
        self._streak = 0

    def note(self, *, num_sequences: int, num_broken: int) -> None:
        """Records a step, and tests the model if too many sequences have ended. Raises EngineFailed
        if the model's logits are broken for the test prompt, too.

        Args:
            num_sequences: the number of sequences for which a token was drawn.
            num_broken: the number of sequences that ended because of broken logits, including those
                whose prompts are scored.
        """
        if not num_sequences and not num_broken:
            return
        self._streak = self._streak + num_broken if num_broken >= num_sequences else 0
        if self._streak < MAX_STREAK:
            return
        try:
            block_id = self._blocks.allocate()
        except OutOfBlocks:  # retried when a sequence ends and frees its blocks
            return
        try:
            self._try(block_id)
        finally:
            self._blocks.release(block_id)
        self._streak = 0

    def _try(self, block_id: int) -> None:
        layout = StepLayout(self._blocks.block_size)
        token_ids = array("q", (0,)) * self._blocks.block_size  # token 0 exists in every vocabulary
        last = layout.add(token_ids, 0, len(token_ids), array("i", (block_id,)))
        if is_broken(self._model.infer(layout.finish(array("q", (last,))))[0]):
            raise EngineFailed(f"{BrokenLogits()}, whatever the prompt: its files may be corrupt")


Drawn = int | Exception | None
"""The result of drawing from a row of logits: a token id; the error that ends the request; or None
if the row depends, by penalties or a grammar, on the previous token, which is not drawn yet. The
error is `BrokenLogits` if the model's own logits are not a distribution (see `is_broken`). If the
request's settings exclude every token, the sample ends there; this is not an error."""

_THREAD_BYTES = 2 * 1024 * 1024
"""Bytes of logits per thread: with fewer, another thread would start too late to help."""

_GREEDY_THREAD_BYTES = 8 * 1024 * 1024
"""Bytes of logits per thread for greedy sampling, which is faster."""

_SHARES_PER_THREAD = 4
"""The number of parts into which each thread's work is divided. Threads take parts one by one,
since rows take different times."""

_MAX_THREADS = 8

_COPIED_BYTES = 16 * 1024 * 1024
"""Bytes of logits that are copied at a time, so that they stay in the CPU's cache."""


class Sampler:
    """Draws the tokens of a step, on several cores if there are many rows.

    A drawn token depends only on the logits and on the sequence's settings, seed and number of
    tokens.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        self._num_threads = min(num_threads or num_usable_cpus(), _MAX_THREADS)
        # Not counting the calling thread. Threads start when there is work for them.
        self._others = _threads(self._num_threads)
        self._copies: Floats = np.empty((0, 0), np.float32)

    def draw(self, sampled: Iterable[SampledTokens], logits: RawLogits) -> list[Drawn]:
        """Draws a token from each row. The result is None for rows that need `draw_next`, and for
        sequences of a beam search.

        Args:
            sampled: the sequences, in the order of their rows.
            logits: [R, vocab_size], R = the number of sampled rows. Processors change rows in
                place, unless the request asks for log probabilities, which need the original rows.
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
        """Applies processors to copies of the rows, and draws from the copies."""
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
        """Draws from the rows; rows changed by processors are float32."""
        errors = self._change(changed, logits) if changed else {}
        if rows.greedy:
            self._run(likeliest_of_rows, logits, rows.greedy, (), _GREEDY_THREAD_BYTES, drawn)
        if rows.random:
            self._run(draw_rows, logits, rows.random, rows.arguments(), _THREAD_BYTES, drawn)
        for row, sequence in changed:
            drawn[row] = errors.get(row) or _checked(drawn[row], logits[row], sequence)

    def _change(self, rows: list[_ChangedRow], logits: RawLogits) -> dict[int, Exception]:
        """Applies the processors to the rows that are not broken, and returns errors by row, so
        that an error affects only its own request."""
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
        """Runs a kernel on some rows, on several threads if there are enough bytes."""
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
        """Calls `work` with slices of arguments of equal length, on several threads."""
        length = len(arguments[0])
        size = -(-length // (num_threads * _SHARES_PER_THREAD))
        waiting = iter(range(0, length, size))

        def run() -> None:
            for start in waiting:  # one slice per thread
                work(*(argument[start : start + size] for argument in arguments))

        running: list[Future[None]] = []
        is_short = False
        try:
            for _ in range(num_threads - 1):
                running.append(self._others.submit(run))
        except RuntimeError:  # the system refuses another thread: use the existing ones
            is_short = True
        try:
            run()
        finally:  # no thread may still read logits when the next step overwrites them
            for other in running:
                other.result()
            if is_short:  # the pool may have queued the work that it could not start
                self._others.shutdown()
                self._others = _threads(self._num_threads)


def _threads(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, number - 1), "sampler")


class _Rows:
    """The rows to draw from, separated into greedy and random sampling.

    Attributes:
        greedy: int64, the indices of rows with greedy sampling.
        random: int64, the indices of the other rows.
    """

    def __init__(self) -> None:
        self.greedy = array("q")
        self.random = array("q")
        self._settings = array("d")
        self._seeds = array("Q")
        self._positions = array("q")

    def add(self, row: int, sequence: Sequence, num_tokens: int) -> None:
        """Adds a row of a sequence with `num_tokens` tokens before the one to draw."""
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
    """A row of logits to which the sequence's processors are applied before a token is drawn."""

    row: int
    sequence: Sequence


def _checked(token_id: Drawn, logits: RawLogits, sequence: Sequence) -> Drawn:
    """Returns the token to append: an end token if the request's own settings exclude every token,
    and the most likely token if they make a logit infinite."""
    if isinstance(token_id, BrokenLogits):
        token_id = int(logits.argmax())
    assert isinstance(token_id, int)
    if logits[token_id] != -np.inf:
        return token_id
    if sequence.grammar is not None:
        sequence.grammar.give_up()
    return min(sequence.params.eos_token_ids, default=token_id)
