"""Names the blocks of one model by their texts, and moves them between memory and disk."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.model.model import Model
from fastovms.engine.scheduling.blocks import LONG_ROOT, ROOT
from fastovms.prefix_cache.block_directory import BlockDirectory, Held
from fastovms.prefix_cache.prefix_keys import PrefixNamespace, prefix_keys


@dataclass(frozen=True, slots=True)
class PrefixFiles:
    """Where the blocks of one model are kept.

    Attributes:
        folder: its name in the directory, for people.
        fingerprint: stands for the model, and for all else that decides what a block holds.
        keeps_salted: whether prompts with a `cache_salt` are kept, too.
    """

    directory: BlockDirectory
    folder: str
    fingerprint: bytes
    keeps_salted: bool = False


class ModelBlocks:
    """The blocks of a model in the host's memory, and their files.

    Attributes:
        directory: that of the files.
    """

    def __init__(self, model: Model, files: PrefixFiles) -> None:
        self.directory = files.directory
        self.block_size = model.block_size
        self.bytes_per_block = model.bytes_per_block
        self._model = model
        self._files = files
        self._read_rows: list[NDArray[np.uint8]] = []

    @property
    def held(self) -> Held:
        """What the directory holds of this model."""
        return self.directory.held(self._files.folder)

    def root(self, num_tokens: int) -> int:
        """Returns the root of the prefix cache for a text of this length."""
        limit = self._model.rope_switch_len
        return ROOT if limit is None or num_tokens <= limit else LONG_ROOT

    def is_kept(self, salt: bytes) -> bool:
        """Returns whether prompts with this salt are kept."""
        return not salt or self._files.keeps_salted

    def keys(self, token_ids: array[int], namespace: PrefixNamespace) -> Iterator[bytes]:
        """Yields the keys of all full blocks of a text."""
        return prefix_keys(self._files.fingerprint, namespace, token_ids, self.block_size)

    def copy(self, block_id: int) -> NDArray[np.uint8]:
        """Returns what is in a block."""
        return np.concatenate(self._model.block_rows(block_id))

    def read(self, key: bytes, position: int) -> int:
        """Reads a block into memory of its own, which the cache does not wait for; see
        `BlockDirectory.read`. One thread reads."""
        if not self._read_rows:
            self._read_rows = [np.empty_like(row) for row in self._model.block_rows(0)]
        return self.directory.read(key, self._read_rows, position)

    def put_read(self, block_id: int) -> None:
        """Copies the block that was read last to one of the cache."""
        for row, read in zip(self._model.block_rows(block_id), self._read_rows, strict=True):
            row[:] = read

    def write(self, key: bytes, content: NDArray[np.uint8], position: int) -> int:
        """Writes a block; see `BlockDirectory.write`."""
        return self.directory.write(self._files.folder, key, content, position)
