"""Keeps blocks of the KV cache that are filled from disk, until the engine wants them back."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable

from fastovms.engine.scheduling.blocks import BlockManager
from fastovms.params import GenerationRequest


class Restoration:
    """A run of blocks for requests that begin with the same text.

    The reader's thread fills one after another; the engine's may end it at any moment, and has all
    its blocks back at once, however long the disk takes. What has been filled until then is kept.

    Attributes:
        keys: those of the blocks to be filled.
        num_matched: how many blocks memory had before them, which are held, too.
        waiting: the requests that wait for it, by their ids.
        is_late: whether it has ended because the disk took too long.
    """

    def __init__(
        self,
        keys: list[bytes],
        *,
        token_ids: array[int],
        salt: bytes,
        block_table: array[int],
        node: int,
        tenant: str = "",
    ) -> None:
        """
        Args:
            token_ids: of the whole text up to the last block.
            block_table: the blocks that memory had, and as many as there are keys.
            node: the prefix cache's node of the last that memory had.
            tenant: whose text it is.
        """
        self.keys = keys
        self.num_matched = len(block_table) - len(keys)
        self.waiting: dict[str, GenerationRequest] = {}
        self.is_late = False
        self._token_ids = token_ids
        self._salt = salt
        self._tenant = tenant
        self._block_table = block_table
        self._node = node
        self._num_filled = 0
        self._has_ended = False
        self._guard = threading.Lock()

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    def fill_next(self, fill: Callable[[int], None]) -> bool:
        """Has the next block filled, in the reader's thread. False: it has ended, and the blocks
        are another's by now."""
        with self._guard:
            if self._has_ended:
                return False
            fill(self._block_table[self.num_matched + self._num_filled])
            self._num_filled += 1
            return True

    def end(self, blocks: BlockManager, *, keep: bool = True) -> int:
        """Gives all blocks back, those that have been filled as cached ones if they are to be kept,
        and returns how many these are."""
        with self._guard:
            self._has_ended = True
        num_kept = self._num_filled if keep else 0
        node, size, salt = self._node, blocks.block_size, self._salt
        try:
            for position in range(self.num_matched, self.num_matched + num_kept):
                tokens = self._token_ids[position * size : (position + 1) * size]
                block_id = self._block_table[position]
                node = blocks.register(block_id, node, tokens, salt, self._tenant)
        finally:
            blocks.free(self._block_table)
        return num_kept
