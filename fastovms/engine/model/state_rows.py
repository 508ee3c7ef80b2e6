"""Says where a model finds and leaves its states: those of convolutions and recurrences, which it
has beside attention.

A state sums up all tokens before it, so unlike keys and values it is known after one token only.
Its tables have a row for each block of the KV cache, which holds the state after the last computed
token of that block. So a sequence reads the row of the block before, or of the one that it is in,
and writes those of the blocks that it fills. Whoever shares, copies, caches or frees a block does
the same with its state: a full block's is the one that any text goes on from that begins with the
same tokens.

Rows behind those of the blocks are for other uses: one stays zero, where every text begins; some
take the states after drafts, which may have been wrong; and where steps have doubles of tokens (see
`batch_invariance`), each block has a second row for the state after a double, which nobody reads.

The inputs are those of `PagedCausalConv1D`, `PagedGatedDeltaNet` and the like in OpenVINO: each
sequence has a list of rows, of which the first is read. The state goes into the next one wherever
the position is a multiple of the sequence's interval, and after its last token. No two sequences
may write the same row.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.model.step_inputs import StepInputs

MAX_DRAFT_STATES: Final = 64
MAX_DRAFT_STATE_BYTES: Final = 64 * 1024 * 1024
"""How many drafted tokens a step may have, and the memory of the states after them. A model of 1.2B
parameters (LFM 2) has states of 0.1 to 0.2 MB, one of 80B (Qwen 3 Next) has 75 MB and no drafts."""


@dataclass(frozen=True, slots=True)
class States:
    """What a model has of states.

    Attributes:
        num_bytes: the memory of one sequence's, and of one block's.
    """

    num_bytes: int

    @property
    def max_draft_tokens(self) -> int:
        """How many drafted tokens a step may have in all."""
        return min(MAX_DRAFT_STATES, MAX_DRAFT_STATE_BYTES // self.num_bytes)

    @property
    def extra_bytes(self) -> int:
        """The memory of the rows that are no block's."""
        return (1 + self.max_draft_tokens) * self.num_bytes


class StateRows:
    """The rows of a model's tables of states.

    Attributes:
        num_rows: how many each table has.
        zero_row: what nobody writes; it has to be zero.
        first_second_row: where the second rows of blocks begin, if there are any.
    """

    def __init__(
        self, num_blocks: int, block_size: int, num_draft_rows: int, *, has_doubles: bool = False
    ) -> None:
        """
        Args:
            num_draft_rows: how many drafted tokens a step may have in all.
            has_doubles: whether blocks have second rows.
        """
        self.zero_row = num_blocks
        self.first_second_row = num_blocks + 1 + num_draft_rows
        self.num_rows = self.first_second_row + num_blocks * has_doubles
        self._block_size = block_size
        self._first_draft_row = num_blocks + 1
        self._draft_rows: dict[int, int] = {}

    def add_to(self, inputs: StepInputs) -> StepInputs:
        """Returns the inputs of a step with the rows of each sequence. Drafts follow one token
        that is none."""
        size = self._block_size
        past_lens, tables = inputs.past_lens, inputs.block_indices_begins[:-1]
        lens = np.diff(inputs.subsequence_begins)
        ends = past_lens + lens
        num_drafts = np.maximum(ends - inputs.sequence_lens, 0)
        has_drafts = num_drafts > 0
        num_written = np.where(has_drafts, lens, -(-ends // size) - past_lens // size)
        begins = np.zeros(len(lens) + 1, np.int32)
        np.cumsum(num_written + 1, out=begins[1:])
        # Of each sequence's places in the block tables, the first is that of its first written
        # block, less one: in it stands what is read.
        places = np.repeat(tables + past_lens // size - 1 - begins[:-1], num_written + 1)
        places += np.arange(begins[-1], dtype=np.int32)
        rows = inputs.block_indices.take(places, mode="clip")
        before = inputs.block_indices.take(tables + (past_lens - 1) // size, mode="clip")
        rows[begins[:-1]] = np.where(past_lens == 0, self.zero_row, before)
        self._place_drafts(rows, begins[1:][has_drafts], num_drafts[has_drafts])
        intervals = np.where(has_drafts, 1, size).astype(np.int32)
        return inputs._replace(state_rows=rows, state_row_begins=begins, state_intervals=intervals)

    def _place_drafts(
        self, rows: NDArray[np.int32], ends: NDArray[np.int32], num_drafts: NDArray[np.int64]
    ) -> None:
        """Gives each draft a row of its own, and remembers where those after a block's begin."""
        self._draft_rows.clear()
        next_row = self._first_draft_row
        for end, count in zip(ends.tolist(), num_drafts.tolist(), strict=True):
            rows[end - count : end] = np.arange(next_row, next_row + count)
            self._draft_rows[int(rows[end - count - 1])] = next_row
            next_row += count
        assert next_row <= self.first_second_row, "more drafts than there are rows for"

    def accepted(self, block_table: array[int], first: int, end: int) -> list[tuple[int, int]]:
        """Returns which rows are to be copied over which ones when drafts of the last step have
        turned out to be right: the tokens `first` to `end` - 1 of the sequence that has these
        blocks, where `first` is the position of its first draft."""
        size = self._block_size
        first_row = self._draft_rows[block_table[(first - 1) // size]]
        return [
            (first_row + position - first, block_table[position // size])
            for position in range(first, end)
            if position == end - 1 or (position + 1) % size == 0
        ]
