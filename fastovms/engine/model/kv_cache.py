"""Memory of the KV cache and of recurrent states."""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from fastovms.engine.model.step_inputs import StepInputs

_MADV_POPULATE_WRITE = 23
"""madvise(2) advice since Linux 5.14: commits pages and keeps their content."""

_BYTES_AT_ONCE = 2 * 1024 * 1024
"""The bytes that are committed at once: a huge page, which takes some milliseconds."""

_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def commit(memory: NDArray[np.uint8]) -> bool:
    """Commits the pages of a contiguous array of any shape (possibly without the last page).
    Returns whether the kernel did so."""
    page = mmap.PAGESIZE
    start = memory.ctypes.data // page * page
    end = (memory.ctypes.data + memory.nbytes) // page * page
    # ctypes releases the GIL.
    return end <= start or _libc.madvise(start, end - start, _MADV_POPULATE_WRITE) == 0


class MemoryCommitter:
    """Commits memory of block arrays in advance, piece by piece: a number of blocks beyond those in
    use. Call `advance` while idle. Otherwise the kernel commits and clears memory at the first
    write, which took up to a fifth of a prompt's time (in a virtual machine, 2 to 3 ms per MB)."""

    def __init__(
        self, memories: Sequence[NDArray[np.uint8]], min_blocks_ahead: int, max_blocks_ahead: int
    ) -> None:
        """
        Args:
            memories: arrays [num_blocks, bytes], all with the same number of blocks.
            min_blocks_ahead, max_blocks_ahead: the minimum and maximum number of blocks to commit
                beyond those in use.
        """
        self._memories = memories
        self._num_blocks = len(memories[0]) if memories else 0
        self._min_blocks_ahead = min(min_blocks_ahead, self._num_blocks)
        self._max_blocks_ahead = min(max_blocks_ahead, self._num_blocks)
        self._num_committed = 0
        self._pieces: Iterator[NDArray[np.uint8]] = iter(())
        self._is_possible = True

    def advance(self, num_used: int) -> bool:
        """Commits a piece, and returns whether there was one. `num_used` is the number of blocks,
        from the beginning of each array, that have been written."""
        if not self._is_possible:
            return False
        piece = next(self._pieces, None)
        if piece is None:
            num_ahead = min(max(num_used, self._min_blocks_ahead), self._max_blocks_ahead)
            end = min(num_used + num_ahead, self._num_blocks)
            num_missing = end - self._num_committed
            if num_missing <= 0 or num_missing * 2 < num_ahead:
                return False
            self._pieces = self._split(max(num_used, self._num_committed), end)
            self._num_committed = end
            return True
        self._is_possible = commit(piece)
        return True

    def _split(self, start: int, end: int) -> Iterator[NDArray[np.uint8]]:
        for memory in self._memories:
            num_blocks = max(1, _BYTES_AT_ONCE // memory.shape[1])
            for first in range(start, end, num_blocks):
                yield memory[first : min(first + num_blocks, end)]


MAX_DRAFT_STATES: Final = 64
MAX_DRAFT_STATE_BYTES: Final = 64 * 1024 * 1024
"""The limits of draft tokens per step, by number and by the memory of the states after them. A
model of 1.2B parameters (LFM 2) has states of 0.1 to 0.2 MB; one of 80B (Qwen 3 Next) has 75 MB,
and therefore no drafts."""


@dataclass(frozen=True, slots=True)
class States:
    """The recurrent states of a model. `num_bytes` is the size of one sequence's state, which is
    also stored for each block, in bytes."""

    num_bytes: int

    @property
    def max_draft_tokens(self) -> int:
        """The maximum number of draft tokens of a step, over all sequences."""
        return min(MAX_DRAFT_STATES, MAX_DRAFT_STATE_BYTES // self.num_bytes)

    @property
    def extra_bytes(self) -> int:
        """The size of the table rows that belong to no block, in bytes."""
        return (1 + self.max_draft_tokens) * self.num_bytes


class StateRows:
    """Assigns rows of a model's state tables to blocks, sequences and drafts.

    States are those of convolutions and recurrences. A state sums up all previous tokens, so unlike
    KV it exists only for one position. Each table has a row for each block of the KV cache, which
    holds the state after the last computed token of that block. A sequence reads the row of its
    previous or current block, and writes the rows of the blocks that it fills. A block is shared,
    copied, cached or freed together with its state: any sequence with the same prefix continues
    from the state of a full block.

    Further rows: one stays zero, where every sequence begins; some hold the states after draft
    tokens, which may be rejected; and where tokens are repeated (see `without_single_rows`), each
    block has a second row for the state after the repeated token, which is never read.

    The inputs are those of OpenVINO's `PagedCausalConv1D`, `PagedGatedDeltaNet` and similar: each
    sequence has a list of rows, of which the first is read. The state is written to the next row
    wherever the position is a multiple of the sequence's interval, and after its last token. No two
    sequences may write the same row.

    Attributes:
        num_rows: the number of rows of each table.
        zero_row: the row that is never written and must be zero.
        first_second_row: the index of the first of the blocks' second rows, if there are any.
    """

    def __init__(
        self, num_blocks: int, block_size: int, num_draft_rows: int, *, has_doubles: bool = False
    ) -> None:
        """
        Args:
            num_draft_rows: the maximum number of draft tokens of a step.
            has_doubles: whether blocks have second rows.
        """
        self.zero_row = num_blocks
        self.first_second_row = num_blocks + 1 + num_draft_rows
        self.num_rows = self.first_second_row + num_blocks * has_doubles
        self._block_size = block_size
        self._first_draft_row = num_blocks + 1
        self._draft_rows: dict[int, int] = {}

    def add_to(self, inputs: StepInputs) -> StepInputs:
        """Returns the inputs of a step with the rows of each sequence. Draft tokens must follow
        exactly one token that is not a draft."""
        size = self._block_size
        past_lens, tables = inputs.past_lens, inputs.block_indices_begins[:-1]
        lens = np.diff(inputs.subsequence_begins)
        ends = past_lens + lens
        num_drafts = np.maximum(ends - inputs.sequence_lens, 0)
        has_drafts = num_drafts > 0
        num_written = np.where(has_drafts, lens, -(-ends // size) - past_lens // size)
        begins = np.zeros(len(lens) + 1, np.int32)
        np.cumsum(num_written + 1, out=begins[1:])
        # Each sequence has one entry for the row that is read, set below, and one for each written
        # block.
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
        """Assigns a separate row to each draft token, and records the first row of each sequence's
        drafts."""
        self._draft_rows.clear()
        next_row = self._first_draft_row
        for end, count in zip(ends.tolist(), num_drafts.tolist(), strict=True):
            rows[end - count : end] = np.arange(next_row, next_row + count)
            self._draft_rows[int(rows[end - count - 1])] = next_row
            next_row += count
        assert next_row <= self.first_second_row, "more drafts than there are rows for"

    def accepted(self, block_table: array[int], first: int, end: int) -> list[tuple[int, int]]:
        """Returns pairs (source, target) of rows to copy after draft tokens of the last step were
        accepted: the tokens `first` to `end` - 1 of the sequence with these blocks; `first` is the
        position of its first draft token."""
        size = self._block_size
        first_row = self._draft_rows[block_table[(first - 1) // size]]
        return [
            (first_row + position - first, block_table[position // size])
            for position in range(first, end)
            if position == end - 1 or (position + 1) % size == 0
        ]


TABLE: Final = "_state_table."
"""The infix of the names of state table inputs: KIND_state_table.LAYER."""


def is_state_table(name: str) -> bool:
    """Returns whether a model's input is a state table, by its name."""
    return TABLE in name


def is_cache(port: Any) -> bool:
    """Returns whether a model's input is part of the cache: keys, values or a state table."""
    name = str(port.get_any_name())
    return name.startswith(("key_cache.", "value_cache.")) or is_state_table(name)


CacheLayout = tuple[tuple[tuple[int, ...], str], ...]
"""The page shape and element type of each cache input."""


def cache_layout(compiled: ov.CompiledModel) -> CacheLayout:
    """Returns the layout of a compiled model's caches; see `layout_of`."""
    return layout_of([CacheInput.of(port) for port in compiled.inputs if is_cache(port)])


def layout_of(inputs: Sequence[CacheInput]) -> CacheLayout:
    """Returns the page shape and element type of each cache input, in order."""
    return tuple((one.page_shape, str(one.element_type)) for one in inputs)


_MAX_BLOCKS_AHEAD = 512
_MIN_BYTES_AHEAD = 32 * 1024 * 1024
_MAX_BYTES_AHEAD = 256 * 1024 * 1024


class BlockCopy(NamedTuple):
    """A block of the cache to copy over another block."""

    source: int
    target: int


@dataclasses.dataclass(frozen=True, slots=True)
class CacheInput:
    """One layer's key or value cache, or its state table. Shapes and types are chosen by the
    plugin, and known only after compilation.

    Attributes:
        page_shape: for keys and values (KV heads, rows, columns); quantized caches hold their
            scales in extra rows or columns.
        num_pages: the number of pages of each block.
    """

    name: str
    element_type: ov.Type
    page_shape: tuple[int, ...]
    num_pages: int = 1

    @classmethod
    def of(cls, port: Any) -> CacheInput:
        """Returns the description of a compiled model's input."""
        shape = tuple(d.get_length() for d in list(port.get_partial_shape())[1:])
        return cls(port.get_any_name(), port.get_element_type(), shape)

    @property
    def is_state(self) -> bool:
        """Whether this is a table of states, not of keys or values."""
        return is_state_table(self.name)

    @property
    def bytes_per_block(self) -> int:
        """The bytes of one block."""
        size = int(np.prod(self.page_shape)) * int(self.element_type.bitwidth) // 8
        return self.num_pages * size

    def shape(self, num_blocks: int) -> ov.Shape:
        """Returns the tensor's shape for this number of blocks."""
        return ov.Shape([num_blocks * self.num_pages, *self.page_shape])


def cache_inputs(compiled: ov.CompiledModel) -> list[CacheInput]:
    """Returns the cache inputs of a model. A block has enough pages of keys and values to be at
    least as large as the states. (OpenVINO's own term for a page is block.)"""
    inputs = [CacheInput.of(port) for port in compiled.inputs if is_cache(port)]
    state_size = sum(one.bytes_per_block for one in inputs if one.is_state)
    page_size = sum(one.bytes_per_block for one in inputs if not one.is_state)
    num_pages = max(1, -(-state_size // page_size))
    return [
        one if one.is_state else dataclasses.replace(one, num_pages=num_pages) for one in inputs
    ]


BlockRows = Sequence[NDArray[np.uint8]]
"""The memory of a block: an array for each cache input."""


class KvCache(Protocol):
    """The cache tensors of a model: keys and values for `num_blocks` blocks, states for
    `num_state_rows` rows."""

    @property
    def tensors(self) -> dict[str, Any]:
        """Returns the tensors by input name."""

    def copy_block(self, source: int, target: int) -> None:
        """Copies keys, values and state."""

    def copy_state(self, source: int, target: int) -> None:
        """Copies a row of all state tables."""

    def block_rows(self, block_id: int) -> BlockRows:
        """Returns the memory of a block's keys, values and state, writable; empty if it is not host
        memory. Thread-safe."""

    def clear_state(self, row: int) -> None:
        """Sets a row of all state tables to zero."""

    def commit_ahead(self, num_used_blocks: int) -> bool:
        """Commits some memory before it is first written. Returns whether there was any to commit.
        Takes some milliseconds; call it while idle. Blocks are first used in ascending order;
        `num_used_blocks` is the number used so far."""


class HostCache:
    """A cache in host memory. The kernel commits it at the first write, so a reservation costs
    nothing until then."""

    def __init__(
        self, inputs: Sequence[CacheInput], num_blocks: int, num_state_rows: int = 0
    ) -> None:
        self.tensors: dict[str, Any] = {}
        self._memories: list[NDArray[np.uint8]] = []
        self._states: list[NDArray[np.uint8]] = []
        for cache_input in inputs:
            num_rows = num_state_rows if cache_input.is_state else num_blocks
            memory = np.empty((num_rows, cache_input.bytes_per_block), np.uint8)
            shape = cache_input.shape(num_rows)
            self.tensors[cache_input.name] = ov.Tensor(memory, shape, cache_input.element_type)
            self._memories.append(memory)
            if cache_input.is_state:
                self._states.append(memory)
        bytes_per_block = sum(cache_input.bytes_per_block for cache_input in inputs)
        min_ahead, max_ahead = (
            min(_MAX_BLOCKS_AHEAD, size // max(1, bytes_per_block))
            for size in (_MIN_BYTES_AHEAD, _MAX_BYTES_AHEAD)
        )
        blocks = [memory[:num_blocks] for memory in self._memories]
        self._commit_ahead = MemoryCommitter(blocks, min_ahead, max_ahead)

    def commit_ahead(self, num_used_blocks: int) -> bool:
        return self._commit_ahead.advance(num_used_blocks)

    def copy_block(self, source: int, target: int) -> None:
        for memory in self._memories:
            memory[target] = memory[source]

    def copy_state(self, source: int, target: int) -> None:
        for memory in self._states:
            memory[target] = memory[source]

    def block_rows(self, block_id: int) -> BlockRows:
        return [memory[block_id] for memory in self._memories]

    def clear_state(self, row: int) -> None:
        for memory in self._states:
            memory[row] = 0


class RemoteCache:
    """A cache in GPU memory, which is committed at once. Its tensors must be remote tensors of the
    context in which the model is compiled; blocks are copied as regions of the tensors."""

    def __init__(
        self,
        inputs: Sequence[CacheInput],
        num_blocks: int,
        context: ov.RemoteContext,
        num_state_rows: int = 0,
    ) -> None:
        self._inputs = inputs
        self.tensors: dict[str, Any] = {
            cache_input.name: context.create_tensor(
                cache_input.element_type,
                cache_input.shape(num_state_rows if cache_input.is_state else num_blocks),
                {},
            )
            for cache_input in inputs
        }

    def commit_ahead(self, num_used_blocks: int) -> bool:
        return False

    def copy_block(self, source: int, target: int) -> None:
        for cache_input in self._inputs:
            self._block(cache_input, target).copy_from(self._block(cache_input, source))

    def block_rows(self, block_id: int) -> BlockRows:
        return ()

    def copy_state(self, source: int, target: int) -> None:
        for table in filter(attrgetter("is_state"), self._inputs):
            self._block(table, target).copy_from(self._block(table, source))

    def clear_state(self, row: int) -> None:
        for table in filter(attrgetter("is_state"), self._inputs):
            zeros = ov.Tensor(table.element_type, table.shape(1))
            zeros.data[...] = 0
            self._block(table, row).copy_from(zeros)

    def _block(self, cache_input: CacheInput, block_id: int) -> ov.RemoteTensor:
        tensor, num_pages = self.tensors[cache_input.name], cache_input.num_pages
        end = list(tensor.get_shape())
        begin = [block_id * num_pages, *(0 for _ in end[1:])]
        end[0] = (block_id + 1) * num_pages
        return ov.RemoteTensor(tensor, ov.Coordinate(begin), ov.Coordinate(end))
