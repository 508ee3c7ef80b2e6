"""Ends what has logits that are no numbers, and finds out whether a request or the model is to
blame.

They come of one request, by an overflow in half precision or a broken prefix, or of every request,
by a damaged model. A request whose row is broken (see `kernels`) ends with an error, and what it
has computed is not found in the prefix cache. Where several end so and none goes on, the engine
tries a prompt of its own, and gives the model up only if that one's logits are broken too: no
client may end a server by what it sends.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final, NamedTuple

from fastovms.engine.model.model import Model
from fastovms.engine.model.raw_logits import RawLogits, as_bits
from fastovms.engine.model.step_inputs import StepLayout
from fastovms.engine.sampling.row_functions import BROKEN, likeliest
from fastovms.engine.scheduling.blocks import BlockManager, OutOfBlocks
from fastovms.errors import BrokenLogits, EngineFailed
from fastovms.params import EngineOutput

MAX_STREAK: Final = 3
"""How many sequences may end so, one after another, before the model is tried."""


def is_broken(row: RawLogits) -> bool:
    """Returns whether logits of a position, [vocab_size], are no distribution: one of them is NaN
    or plus infinity, or all of them are minus infinity."""
    return likeliest(*as_bits(row)) == BROKEN


def check_rows(rows: Iterable[RawLogits]) -> None:
    """Checks the logits of some positions, [rows, vocab_size].

    Raises:
        BrokenLogits: those of one are broken.
    """
    if any(map(is_broken, rows)):
        raise BrokenLogits


class SequenceFailure(NamedTuple):
    """What has ended one sample of a request, or a search.

    Attributes:
        num_sequences: how many sequences have ended: more than one where it was a search.
        outputs: what tells the client of it.
    """

    error: Exception
    num_sequences: int
    outputs: list[EngineOutput]

    @property
    def num_broken(self) -> int:
        """How many sequences have ended by broken logits."""
        return self.num_sequences if isinstance(self.error, BrokenLogits) else 0


class ModelTrial:
    """Counts the sequences that have ended by broken logits since the last one that went on, and
    tries the model when there are many."""

    def __init__(self, model: Model, blocks: BlockManager) -> None:
        """
        Args:
            model: the model to try.
            blocks: those of the model's cache. One of them is needed for the time of a try.
        """
        self._model = model
        self._blocks = blocks
        self._streak = 0

    def note(self, *, num_sequences: int, num_broken: int) -> None:
        """Takes note of a step, and tries the model where too many have ended.

        Args:
            num_sequences: how many sequences a token was to be drawn for.
            num_broken: how many sequences have ended by broken logits, of these and of those whose
                prompts are scored.

        Raises:
            EngineFailed: the model gives no numbers for a prompt of the engine's own.
        """
        if not num_sequences and not num_broken:
            return
        self._streak = self._streak + num_broken if num_broken >= num_sequences else 0
        if self._streak < MAX_STREAK:
            return
        try:
            block_id = self._blocks.allocate()
        except OutOfBlocks:  # the next sequence that ends leaves one
            return
        try:
            self._try(block_id)
        finally:
            self._blocks.release(block_id)
        self._streak = 0

    def _try(self, block_id: int) -> None:
        layout = StepLayout(self._blocks.block_size)
        token_ids = array("q", (0,)) * self._blocks.block_size  # every vocabulary has that one
        last = layout.add(token_ids, 0, len(token_ids), array("i", (block_id,)))
        if is_broken(self._model.infer(layout.finish(array("q", (last,))))[0]):
            raise EngineFailed(f"{BrokenLogits()}, whatever the prompt: its files may be damaged")
