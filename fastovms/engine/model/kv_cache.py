"""Holds the keys and values of all blocks, in the memory of the host or of a GPU."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from fastovms.engine.model.commit_ahead import CommitAhead
from fastovms.engine.model.paging import is_cache

_MAX_BLOCKS_AHEAD = 512
_MAX_BYTES_AHEAD = 256 * 1024 * 1024


class BlockCopy(NamedTuple):
    """A block of the cache whose keys and values are to be copied over those of another."""

    source: int
    target: int


@dataclasses.dataclass(frozen=True, slots=True)
class CacheInput:
    """One layer's key or value cache. `block_shape` is (kv heads, rows, columns): its shape and
    type are the plugin's choice, known only after compilation (quantised ones hold their scales
    in extra rows or columns)."""

    name: str
    element_type: ov.Type
    block_shape: tuple[int, ...]

    @classmethod
    def of(cls, port: Any) -> CacheInput:
        shape = tuple(d.get_length() for d in list(port.get_partial_shape())[1:])
        return cls(port.get_any_name(), port.get_element_type(), shape)

    @property
    def bytes_per_block(self) -> int:
        return int(np.prod(self.block_shape)) * int(self.element_type.bitwidth) // 8

    def shape(self, num_blocks: int) -> ov.Shape:
        return ov.Shape([num_blocks, *self.block_shape])


def cache_inputs(compiled: ov.CompiledModel) -> list[CacheInput]:
    return [CacheInput.of(port) for port in compiled.inputs if is_cache(port)]


class KvCache(Protocol):
    """The tensors of one input after another, `num_blocks` blocks each."""

    @property
    def tensors(self) -> dict[str, Any]:
        """Returns the tensors by the names of the inputs that they are for."""

    def copy_block(self, source: int, target: int) -> None: ...

    def commit_ahead(self, num_used_blocks: int) -> bool:
        """Commits some memory before a block first needs it, and returns whether there was any to
        commit. It takes some milliseconds and is for idle time. Blocks are first used in order of
        their numbers; `num_used_blocks` says how many have been."""


class HostCache:
    """A cache in the host's memory, which the kernel commits when it is first written: a
    reservation costs nothing until then."""

    def __init__(self, inputs: list[CacheInput], num_blocks: int) -> None:
        self.tensors: dict[str, Any] = {}
        self._memories: list[NDArray[np.uint8]] = []
        for cache_input in inputs:
            memory = np.empty((num_blocks, cache_input.bytes_per_block), np.uint8)
            shape = cache_input.shape(num_blocks)
            self.tensors[cache_input.name] = ov.Tensor(memory, shape, cache_input.element_type)
            self._memories.append(memory)
        bytes_per_block = sum(cache_input.bytes_per_block for cache_input in inputs)
        num_ahead = min(_MAX_BLOCKS_AHEAD, _MAX_BYTES_AHEAD // max(1, bytes_per_block))
        self._commit_ahead = CommitAhead(self._memories, num_ahead)

    def commit_ahead(self, num_used_blocks: int) -> bool:
        return self._commit_ahead.advance(num_used_blocks)

    def copy_block(self, source: int, target: int) -> None:
        for memory in self._memories:
            memory[target] = memory[source]


class RemoteCache:
    """A cache in the memory of a GPU, where it is committed at once. Its tensors have to be remote
    tensors of the context that the model is compiled in, and blocks are copied there by regions of
    them."""

    def __init__(
        self, inputs: list[CacheInput], num_blocks: int, context: ov.RemoteContext
    ) -> None:
        self.tensors: dict[str, Any] = {
            cache_input.name: context.create_tensor(
                cache_input.element_type, cache_input.shape(num_blocks), {}
            )
            for cache_input in inputs
        }

    def commit_ahead(self, num_used_blocks: int) -> bool:
        return False

    def copy_block(self, source: int, target: int) -> None:
        for tensor in self.tensors.values():
            _block(tensor, target).copy_from(_block(tensor, source))


def _block(tensor: ov.RemoteTensor, block_id: int) -> ov.RemoteTensor:
    end = list(tensor.get_shape())
    begin = [block_id, *(0 for _ in end[1:])]
    end[0] = block_id + 1
    return ov.RemoteTensor(tensor, ov.Coordinate(begin), ov.Coordinate(end))
