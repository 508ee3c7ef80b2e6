"""Holds the keys, values and states of all blocks, in the memory of the host or of a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from fastovms.engine.model.graph.paging import is_cache
from fastovms.engine.model.graph.state_inputs import is_state_table
from fastovms.engine.model.machine.commit_ahead import CommitAhead

_MAX_BLOCKS_AHEAD = 512
_MIN_BYTES_AHEAD = 32 * 1024 * 1024
_MAX_BYTES_AHEAD = 256 * 1024 * 1024


class BlockCopy(NamedTuple):
    """A block of the cache whose content is to be copied over that of another."""

    source: int
    target: int


@dataclasses.dataclass(frozen=True, slots=True)
class CacheInput:
    """One layer's key or value cache, or its table of states. Shapes and types are the plugin's
    choice, known only after compilation.

    Attributes:
        page_shape: of keys and values (kv heads, rows, columns); quantised ones hold their scales
            in extra rows or columns.
        num_pages: how many of these each block has.
    """

    name: str
    element_type: ov.Type
    page_shape: tuple[int, ...]
    num_pages: int = 1

    @classmethod
    def of(cls, port: Any) -> CacheInput:
        shape = tuple(d.get_length() for d in list(port.get_partial_shape())[1:])
        return cls(port.get_any_name(), port.get_element_type(), shape)

    @property
    def is_state(self) -> bool:
        return is_state_table(self.name)

    @property
    def bytes_per_block(self) -> int:
        size = int(np.prod(self.page_shape)) * int(self.element_type.bitwidth) // 8
        return self.num_pages * size

    def shape(self, num_blocks: int) -> ov.Shape:
        return ov.Shape([num_blocks * self.num_pages, *self.page_shape])


def cache_inputs(compiled: ov.CompiledModel) -> list[CacheInput]:
    """Returns the caches of a model. Of keys and values a block has as many pages, which is what
    the model itself calls a block, as it takes for its states to be no larger."""
    inputs = [CacheInput.of(port) for port in compiled.inputs if is_cache(port)]
    state_size = sum(one.bytes_per_block for one in inputs if one.is_state)
    page_size = sum(one.bytes_per_block for one in inputs if not one.is_state)
    num_pages = max(1, -(-state_size // page_size))
    return [
        one if one.is_state else dataclasses.replace(one, num_pages=num_pages) for one in inputs
    ]


BlockRows = Sequence[NDArray[np.uint8]]
"""The memory of a block: an array for each input."""


class KvCache(Protocol):
    """The tensors of one input after another: of keys and values for `num_blocks` blocks, of states
    `num_state_rows` rows."""

    @property
    def tensors(self) -> dict[str, Any]:
        """Returns the tensors by the names of the inputs that they are for."""

    def copy_block(self, source: int, target: int) -> None:
        """Copies keys, values and state."""

    def copy_state(self, source: int, target: int) -> None: ...

    def block_rows(self, block_id: int) -> BlockRows:
        """Returns the memory of keys, values and state of a block, which may be written to; it is
        empty where that is no memory of the host's. Any thread may call it."""

    def clear_state(self, row: int) -> None:
        """Makes a row of all tables of states zero."""

    def commit_ahead(self, num_used_blocks: int) -> bool:
        """Commits some memory before a block first needs it, and returns whether there was any to
        commit. It takes some milliseconds and is for idle time. Blocks are first used in order of
        their numbers; `num_used_blocks` says how many have been."""


class HostCache:
    """A cache in the host's memory, which the kernel commits when it is first written: a
    reservation costs nothing until then."""

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
        self._commit_ahead = CommitAhead(blocks, min_ahead, max_ahead)

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
    """A cache in the memory of a GPU, where it is committed at once. Its tensors have to be remote
    tensors of the context that the model is compiled in, and blocks are copied there by regions of
    them."""

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
