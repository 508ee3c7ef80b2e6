"""The inputs of one inference with paged attention: a ragged batch of sequences."""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_NO_TOKENS = array("q")
_NO_ROWS: Final = np.empty(0, np.int32)
_NO_STATES: Final = np.empty((0, 1, 0), np.float32)


SAMPLED_TOKEN_INDICES: Final = "sampled_token_indices"

HIDDEN_STATES: Final = "hidden_states"
"""The name of a draft head's input, and of an output of both the head and its target model; see
`parts.drafts.draft_head`."""


class StepInputs(NamedTuple):
    """The inputs of one inference over S sequences with T tokens in all, B blocks in all, and R
    sampled tokens. Fields have the names of the model's inputs.

    Attributes:
        input_ids: int64 [T].
        position_ids: int64 [T].
        past_lens: int32 [S], computed tokens before this step.
        subsequence_begins: int32 [S + 1], where each sequence's tokens start.
        block_indices: int32 [B], the concatenated block tables.
        block_indices_begins: int32 [S + 1], where each table starts.
        max_context_len: int32 scalar, the length of the longest sequence after this step.
        sampled_token_indices: int64 [R], indices in [0, T) of tokens whose logits are needed.
        sequence_lens: int64 [S], the total tokens of each sequence; a step may compute only some.
        state_rows: int32, the concatenated state rows that sequences read and write. This and the
            following two inputs exist only for models with states; see `kv_cache.StateRows`.
        state_row_begins: int32 [S + 1], where each sequence's rows start.
        state_intervals: int32 [S], the interval of positions at which each sequence's state is
            stored.
        adapters: int32 [S], the number of each sequence's adapter, 0 = none; empty = no sequence
            has one.
        hidden_states: float32 [T, 1, width], a draft head's second input for each token.
    """

    input_ids: NDArray[np.int64]
    position_ids: NDArray[np.int64]
    past_lens: NDArray[np.int32]
    subsequence_begins: NDArray[np.int32]
    block_indices: NDArray[np.int32]
    block_indices_begins: NDArray[np.int32]
    max_context_len: NDArray[np.int32]
    sampled_token_indices: NDArray[np.int64]
    sequence_lens: NDArray[np.int64]
    state_rows: NDArray[np.int32] = _NO_ROWS
    state_row_begins: NDArray[np.int32] = _NO_ROWS
    state_intervals: NDArray[np.int32] = _NO_ROWS
    adapters: NDArray[np.int32] = _NO_ROWS
    hidden_states: NDArray[np.float32] = _NO_STATES

    @property
    def token_sequence_lens(self) -> NDArray[np.int64]:
        """The length of each token's sequence: int64 [T]."""
        return self.sequence_lens.repeat(np.diff(self.subsequence_begins))

    def prompt_ends(self) -> StepInputs | None:
        """Returns the inputs of a smaller step, to run after this one, that recomputes only the
        sampled tokens. None = no prompt ends in this step, or drafts are sampled."""
        sampled, ends = self.sampled_token_indices, self.subsequence_begins[1:] - 1
        sequences = np.searchsorted(ends, sampled)
        num_tokens = np.diff(self.subsequence_begins)[sequences]
        if not (num_tokens > 1).any() or not np.array_equal(ends[sequences], sampled):
            return None
        tables = np.split(self.block_indices, self.block_indices_begins[1:-1])
        tables = [tables[sequence] for sequence in sequences]
        past_lens = self.past_lens[sequences] + num_tokens - 1
        return self._replace(
            input_ids=self.input_ids[sampled],
            position_ids=self.position_ids[sampled],
            past_lens=past_lens,
            subsequence_begins=np.arange(len(sampled) + 1, dtype=np.int32),
            block_indices=np.concatenate(tables),
            block_indices_begins=np.cumsum([0, *map(len, tables)], dtype=np.int32),
            max_context_len=np.array(past_lens.max() + 1, np.int32),
            sampled_token_indices=np.arange(len(sampled)),
            sequence_lens=self.sequence_lens[sequences],
        )

    def in_pages(self, num_pages: int) -> StepInputs:
        """Returns the inputs with block indices converted to page indices; a block has `num_pages`
        pages."""
        if num_pages == 1:
            return self
        pages = np.arange(num_pages, dtype=np.int32)
        return self._replace(
            block_indices=np.add.outer(self.block_indices * num_pages, pages).reshape(-1),
            block_indices_begins=self.block_indices_begins * num_pages,
        )


def is_single_row(inputs: StepInputs) -> bool:
    """Returns whether a step has a single token, whose logits are needed."""
    return len(inputs.input_ids) == 1 == len(inputs.sampled_token_indices)


class StepLayout:
    """Builds the inputs of one inference from the tokens of some sequences.

    Plain `array`s are filled and wrapped without a copy: with a few tokens per sequence this is
    several times faster than concatenating numpy arrays.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._input_ids = array("q")
        self._position_ids = array("q")
        self._past_lens = array("i")
        self._subsequence_begins = array("i", (0,))
        self._block_indices = array("i")
        self._block_indices_begins = array("i", (0,))
        self._max_context_len = 0
        self._sequence_lens = array("q")
        self._adapters = array("i")
        self._has_adapter = False

    def add(
        self,
        token_ids: array[int],
        start: int,
        end: int,
        block_table: array[int],
        draft_token_ids: array[int] = _NO_TOKENS,
        adapter: int = 0,
    ) -> int:
        """Appends a sequence's tokens `start` to `end` - 1; positions after the end of `token_ids`
        are draft tokens. Returns the index of the last one in the inputs."""
        input_ids = self._input_ids
        self._past_lens.append(start)
        self._sequence_lens.append(len(token_ids))
        self._adapters.append(adapter)
        self._has_adapter |= adapter != 0
        if end - start == 1:
            input_ids.append(token_ids[start])
            self._position_ids.append(start)
        else:
            input_ids.extend(token_ids[start:end])
            if end > len(token_ids):
                input_ids.extend(draft_token_ids[: end - len(token_ids)])
            self._position_ids.extend(range(start, end))
        self._subsequence_begins.append(len(input_ids))
        num_blocks = -(-end // self._block_size)
        self._block_indices.extend(
            block_table if len(block_table) == num_blocks else block_table[:num_blocks]
        )
        self._block_indices_begins.append(len(self._block_indices))
        if end > self._max_context_len:
            self._max_context_len = end
        return len(input_ids) - 1

    def finish(self, sampled_token_indices: array[int]) -> StepInputs:
        """Returns the inputs of the step; logits are computed for the tokens at these indices."""
        return StepInputs(
            input_ids=np.frombuffer(self._input_ids, np.int64),
            position_ids=np.frombuffer(self._position_ids, np.int64),
            past_lens=np.frombuffer(self._past_lens, np.int32),
            subsequence_begins=np.frombuffer(self._subsequence_begins, np.int32),
            block_indices=np.frombuffer(self._block_indices, np.int32),
            block_indices_begins=np.frombuffer(self._block_indices_begins, np.int32),
            max_context_len=np.array(self._max_context_len, np.int32),
            sampled_token_indices=np.frombuffer(sampled_token_indices, np.int64)
            if sampled_token_indices
            else np.empty(0, np.int64),
            sequence_lens=np.frombuffer(self._sequence_lens, np.int64),
            adapters=np.frombuffer(self._adapters, np.int32) if self._has_adapter else _NO_ROWS,
        )
