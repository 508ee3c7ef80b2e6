"""Packed weights in the cache directory, as a memory-mapped file: processes share its pages, and
the kernel may drop and reread them."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from fastovms.engine.kernels.chunk_products import CHUNK_BITS
from fastovms.engine.kernels.compiler import Kernels, compile_kernels
from fastovms.engine.kernels.matrices import Room
from fastovms.engine.model.devices import available_memory
from fastovms.system.disk import open_file, read_file

_WEIGHTS: Final = "weights.bin"
_INDEX: Final = "index.json"
_PAGE: Final = 4096

Names = tuple[str, ...]
"""The names of the products whose weights are packed into one matrix."""


class WeightFileWriter:
    """Allocates memory for packed weights in a new file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._end = 0
        self._places: list[tuple[Names, int, int]] = []

    def room_for(self, names: Names, size: int) -> Room:
        """Allocates `size` bytes at the end of the file. Raises OSError if the disk is full."""
        place = self._end
        self._end += -(-size // _PAGE) * _PAGE
        os.posix_fallocate(self._descriptor, place, self._end - place)
        self._places.append((names, place, size))
        return Room(np.frombuffer(mmap.mmap(self._descriptor, size, offset=place), np.uint8), False)

    def index(self, facts: Mapping[str, object]) -> bytes:
        """Returns the content of the index file: the facts, and the position of each matrix, as
        JSON."""
        return json.dumps({**facts, "size": self._end, "places": self._places}).encode()


@contextmanager
def written_weights(directory: Path, facts: Mapping[str, object]) -> Iterator[WeightFileWriter]:
    """Yields a writer for the weights file in `directory`, and writes the index with `facts` at the
    end."""
    descriptor = open_file(directory / _WEIGHTS, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        written = WeightFileWriter(descriptor)
        yield written
        os.fsync(descriptor)  # without fsync, pages could be zeros after a power failure
    finally:
        os.close(descriptor)
    (directory / _INDEX).write_bytes(written.index(facts))


class CachedWeights:
    """The packed weights of a cache entry. The constructor raises OSError or ValueError if the
    files are missing or corrupt.

    Attributes:
        facts: the values that were passed to `written_weights`.
    """

    def __init__(self, entry: Path) -> None:
        self._index = entry / _INDEX
        self.facts: dict[str, Any] = json.loads(read_file(self._index))
        descriptor = open_file(entry / _WEIGHTS, os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            if not size or size != self.facts["size"]:  # pages beyond the end cannot be read
                raise ValueError(f"{_WEIGHTS} has {size} bytes, not {self.facts['size']}")
            mapped = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        except KeyError as error:
            raise ValueError(f"{_INDEX} lacks {error}") from None
        finally:
            os.close(descriptor)
        if size <= available_memory():
            mapped.madvise(mmap.MADV_WILLNEED)
        self._data = np.frombuffer(mapped, np.uint8)
        self._places = {tuple(names): (at, size) for names, at, size in self.facts["places"]}

    def kernels(self, num_threads: int) -> Kernels:
        """Returns the kernels that read the weights. Raises KeyError if it is not known which;
        Exception as `compile_kernels` does."""
        kernels = compile_kernels(self.facts["instructions"], num_threads)
        has_chunk_product = self.facts["chunk_bits"] == CHUNK_BITS
        return kernels if has_chunk_product else replace(kernels, chunk_product=0)

    def forbid_chunk_product(self) -> None:
        """Stores that chunks need activations of more bits than `chunk_products` has. Raises
        OSError if the file cannot be written."""
        self.facts["chunk_bits"] = 0
        new = self._index.with_suffix(".new")
        new.write_text(json.dumps(self.facts))
        new.replace(self._index)

    def room_for(self, names: Names, size: int) -> Room:
        """Returns the stored weights of these products. Raises ValueError if the entry does not
        have them in this size."""
        place, kept_size = self._places.get(names, (0, -1))
        if kept_size != size or not 0 <= place <= len(self._data) - size:
            raise ValueError(f"{_WEIGHTS} does not have {size} bytes for {', '.join(names)}")
        return Room(self._data[place : place + size], is_filled=True)
