"""Manages the KV blocks: reference counts, prefix cache, eviction of the least recently used.

A block is in exactly one of these states:

- in use: `ref_count > 0`, listed in at least one block table;
- cached: `ref_count == 0`, but its content can still be found in the prefix cache. Cached blocks
  are kept in eviction order;
- free: `ref_count == 0`, and its content is not needed.

Free blocks that were used before are allocated first. The kernel commits the memory of a block when
it is first written, so the cache grows only when it must.

The prefix cache is a tree, flattened into one dictionary. A full block is stored under (node of the
previous block, its tokens), and has a node of its own. Nodes are never reused, so equal keys mean
equal token prefixes: no hash is used, so no collision is possible.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

ROOT = 0
"""The root of the prefix tree: the parent node of the first block of every sequence."""

LONG_ROOT = -1
"""The root for sequences with the RoPE of long contexts (see `long_rope`): their blocks hold other
keys for the same tokens."""

_ROOTS = (ROOT, LONG_ROOT)


class OutOfBlocks(Exception):
    """No block is free and none can be evicted."""


class PrefixMatch(NamedTuple):
    """The longest cached prefix of a prompt.

    Attributes:
        node: the node of the last block.
        num_own: the number of its first blocks that the tenant has computed or used before.
    """

    block_ids: list[int]
    node: int
    num_own: int = 0


class _CacheEntry(NamedTuple):
    block_id: int
    node: int


def _key(parent_node: int, token_ids: array[int], salt: bytes) -> tuple[int, bytes]:
    """Returns the key of a block in the prefix cache. Only the key of the first block contains the
    salt; later blocks are distinguished by their parent. Tokens have a fixed width, so a salt
    cannot be mistaken for tokens."""
    tokens = token_ids.tobytes()
    return parent_node, tokens + salt if parent_node in _ROOTS else tokens


class BlockManager:
    """Allocates blocks of `block_size` tokens, numbered from 0."""

    def __init__(
        self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._enable_prefix_caching = enable_prefix_caching
        self._ref_counts = array("i", bytes(4 * num_blocks))
        self._num_touched = 0
        self._free: list[int] = []
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._entries: dict[tuple[int, bytes], _CacheEntry] = {}
        self._keys: dict[int, tuple[int, bytes]] = {}
        self._nodes = count(ROOT + 1)
        self._tenants: dict[int, set[str]] = {}  # the tenants that have used each registered block

    @property
    def num_touched_blocks(self) -> int:
        """The number of blocks that have ever been allocated; these have the lowest numbers."""
        return self._num_touched

    @property
    def num_free_blocks(self) -> int:
        """The number of blocks that `allocate` can return, evictable ones included."""
        return self.num_blocks - self._num_touched + len(self._free) + len(self._cached)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Returns the number of blocks that hold this number of tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self) -> int:
        """Allocates a block with a reference count of 1. Raises OutOfBlocks if no block is free or
        evictable."""
        if self._free:
            block_id = self._free.pop()
        elif self._num_touched < self.num_blocks:
            block_id = self._num_touched
            self._num_touched += 1
        elif self._cached:
            # Its descendants in the tree can no longer be found, because nodes are never reused.
            # They are evicted in turn.
            block_id, _ = self._cached.popitem(last=False)
            del self._entries[self._keys.pop(block_id)]
            self._tenants.pop(block_id, None)
        else:
            raise OutOfBlocks
        self._ref_counts[block_id] = 1
        return block_id

    def share(self, block_ids: Iterable[int]) -> None:
        """Adds a reference to blocks that are in use or cached."""
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                del self._cached[block_id]
            self._ref_counts[block_id] += 1

    def is_shared(self, block_id: int) -> bool:
        """Returns whether several sequences use a block, so that it must be copied before a
        write."""
        return self._ref_counts[block_id] > 1

    def free(self, block_table: array[int]) -> None:
        """Drops one reference to each block and empties the table.

        The last block is freed first, so that a prefix is evicted after the blocks that follow it.
        """
        for block_id in reversed(block_table):
            self.release(block_id)
        del block_table[:]

    def release(self, block_id: int) -> None:
        """Drops one reference to a block."""
        self._ref_counts[block_id] -= 1
        if self._ref_counts[block_id] == 0:
            if block_id in self._keys:
                self._cached[block_id] = None
            else:
                self._free.append(block_id)

    def match_prefix(
        self, token_ids: array[int], salt: bytes = b"", root: int = ROOT, tenant: str = ""
    ) -> PrefixMatch:
        """Finds the longest cached prefix of full blocks that leaves at least one token to compute,
        among those registered with `salt` below `root`. Takes no references: call `share` before
        the next `allocate`, and `claim` if a tenant uses the blocks. Without tenants, all blocks
        count as own."""
        matched: list[int] = []
        num_own = 0
        node = root
        if self._enable_prefix_caching:
            size = self.block_size
            num_full_blocks = (len(token_ids) - 1) // size  # the last token's logits are needed
            for i in range(num_full_blocks):
                tokens = token_ids[i * size : (i + 1) * size]
                entry = self._entries.get(_key(node, tokens, salt))
                if entry is None:
                    break
                if num_own == i and (not tenant or tenant in self._tenants.get(entry.block_id, ())):
                    num_own += 1
                matched.append(entry.block_id)
                node = entry.node
        return PrefixMatch(matched, node, num_own)

    def claim(self, block_ids: Iterable[int], tenant: str) -> None:
        """Records that a tenant uses these registered blocks."""
        if tenant:
            for block_id in block_ids:
                self._tenants.setdefault(block_id, set()).add(tenant)

    def register(
        self,
        block_id: int,
        parent_node: int,
        token_ids: array[int],
        salt: bytes = b"",
        tenant: str = "",
    ) -> int:
        """Adds a full, computed block in use to the prefix cache and returns its node. `token_ids`
        are the tokens of this block; `tenant` has computed it.

        If another block already holds the same prefix, that block stays cached and its node is
        returned. If the block was registered under a key whose parent has been evicted, the new key
        replaces the old one.
        """
        if not self._enable_prefix_caching:
            return ROOT
        key = _key(parent_node, token_ids, salt)
        entry = self._entries.get(key)
        if entry is None:
            entry = _CacheEntry(block_id, next(self._nodes))
            self._entries[key] = entry
            if block_id in self._keys:  # the parent node in its old key was evicted
                del self._entries[self._keys[block_id]]
                self._tenants.pop(block_id, None)
            self._keys[block_id] = key
        self.claim((entry.block_id,), tenant)
        return entry.node

    def text_of(self, block_id: int) -> object:
        """Returns an identifier of all tokens up to the end of a registered block, equal only for
        equal tokens; None = the block is not registered."""
        return self._keys.get(block_id)

    def forget(self, block_table: array[int]) -> None:
        """Removes blocks in use from the prefix cache, because their content may be wrong."""
        for block_id in block_table:
            key = self._keys.pop(block_id, None)
            if key is not None:
                del self._entries[key]
                self._tenants.pop(block_id, None)

    def check(self, block_tables: Iterable[array[int]]) -> None:
        """Asserts that all counts and states are consistent, given all existing block tables."""
        expected = [0] * self.num_blocks
        for block_table in block_tables:
            for block_id in block_table:
                expected[block_id] += 1
        assert expected == list(self._ref_counts), "reference counts differ from the block tables"
        idle = [*self._free, *self._cached]
        assert len(set(idle)) == len(idle), "a block is listed as idle twice"
        in_use = {block_id for block_id, refs in enumerate(expected) if refs}
        assert in_use.isdisjoint(idle), "a block in use is listed as idle"
        assert in_use | set(idle) == set(range(self._num_touched)), "a block leaked"
        assert all(block_id in self._keys for block_id in self._cached)
        assert not any(block_id in self._keys for block_id in self._free)
        assert self._tenants.keys() <= self._keys.keys(), "an unfindable block has users"
        assert {e.block_id: key for key, e in self._entries.items()} == self._keys
