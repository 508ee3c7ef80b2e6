"""Fills the block tables of sequences: shares the blocks of what is computed already, allocates
those of the rest, and makes full ones findable."""

from __future__ import annotations

from array import array

from fastovms.backend_stats import EngineCounters
from fastovms.engine.model.kv_cache import BlockCopy
from fastovms.engine.scheduling.blocks import LONG_ROOT, ROOT, BlockManager, PrefixMatch
from fastovms.engine.scheduling.plan import Plan
from fastovms.engine.scheduling.sequence import Sequence, SequenceStatus


def num_held_tokens(sequence: Sequence) -> int:
    """Returns how many tokens it holds back: the last one, in a group not yet in step."""
    return int(sequence.group is not None and len(sequence.group.sequences) > 1)


class BlockTables:
    """Gives sequences their blocks, of which `blocks` keeps count.

    Args:
        rope_switch_len: see `Model`.
        has_states: whether the model has states beside attention.
    """

    def __init__(
        self,
        blocks: BlockManager,
        counters: EngineCounters,
        rope_switch_len: int | None = None,
        *,
        has_states: bool = False,
    ) -> None:
        self._blocks = blocks
        self._counters = counters
        self._rope_switch_len = rope_switch_len
        self._has_states = has_states

    def fork_block(self, sequence: Sequence, position: int, plan: Plan) -> None:
        """Has the plan copy a shared block to one of the sequence's own. Raises OutOfBlocks."""
        source = sequence.block_table[position]
        target = self._blocks.allocate()
        plan.block_copies.append(BlockCopy(source, target))
        sequence.block_table[position] = target
        self._blocks.release(source)

    def prefix_root(self, sequence: Sequence) -> int:
        """Returns the root of the prefix cache for a sequence of this length."""
        limit = self._rope_switch_len
        return ROOT if limit is None or sequence.num_tokens <= limit else LONG_ROOT

    def register_full_blocks(self, sequence: Sequence) -> None:
        """Makes the blocks that are computed to their end findable by their tokens."""
        size = self._blocks.block_size
        for i in range(sequence.num_registered_blocks, sequence.num_computed_tokens // size):
            sequence.prefix_node = self._blocks.register(
                sequence.block_table[i],
                sequence.prefix_node,
                sequence.token_ids[i * size : (i + 1) * size],
                sequence.cache_salt,
                sequence.tenant,
            )
            sequence.num_registered_blocks = i + 1

    def give_blocks(self, sequence: Sequence, plan: Plan) -> bool:
        """Reuses what is computed already and allocates the rest of the sequence's blocks.

        False: there are too few, or what they are to be shared with is not computed yet.
        """
        parent = sequence.parent
        root = sequence.prefix_root = sequence.prefix_node = self.prefix_root(sequence)
        if parent is not None and self._is_shared_with(parent, root):
            if parent.num_computed_tokens < sequence.num_prompt_tokens:
                return False
            return self._fork_from(parent, sequence, plan)
        if sequence.scores_prompt:  # a cached token has no logits
            match = PrefixMatch([], root)
        else:
            end = sequence.num_tokens - num_held_tokens(sequence)
            tokens, salt = sequence.token_ids[:end], sequence.cache_salt
            match = self._blocks.match_prefix(tokens, salt, root, sequence.tenant)
        self._blocks.share(match.block_ids)
        num_missing = self._blocks.num_blocks_for(sequence.num_tokens) - len(match.block_ids)
        if num_missing > self._blocks.num_free_blocks:
            self._blocks.free(array("i", match.block_ids))
            return False
        self._blocks.claim(match.block_ids, sequence.tenant)
        sequence.block_table.extend(match.block_ids)
        sequence.block_table.extend(self._blocks.allocate() for _ in range(num_missing))
        sequence.prefix_node = match.node
        sequence.num_registered_blocks = len(match.block_ids)
        size = self._blocks.block_size
        self._count_prefix(sequence, len(match.block_ids) * size, match.num_own * size)
        return True

    def _is_shared_with(self, parent: Sequence, root: int) -> bool:
        is_finished = parent.status is SequenceStatus.FINISHED
        return not is_finished and self.prefix_root(parent) == root

    def _fork_from(self, parent: Sequence, sequence: Sequence, plan: Plan) -> bool:
        """Shares the parent's prompt blocks. Only the prompt's last token is computed again, for
        its logits; writing it forks its block. Of states only those after full blocks are there to
        go on from."""
        num_shared_tokens = sequence.num_prompt_tokens - 1
        if self._has_states:
            num_shared_tokens -= num_shared_tokens % self._blocks.block_size
        num_blocks = self._blocks.num_blocks_for(num_shared_tokens)
        num_forked = int(num_shared_tokens % self._blocks.block_size > 0)
        num_missing = self._blocks.num_blocks_for(sequence.num_tokens) - num_blocks
        if num_missing + num_forked > self._blocks.num_free_blocks:
            return False
        shared = parent.block_table[:num_blocks]
        self._blocks.share(shared)
        sequence.block_table.extend(shared)
        self._count_prefix(sequence, num_shared_tokens, num_shared_tokens)
        sequence.parent = None
        if num_forked:
            self.fork_block(sequence, num_blocks - 1, plan)
        sequence.block_table.extend(self._blocks.allocate() for _ in range(num_missing))
        return True

    def _count_prefix(self, sequence: Sequence, num_cached_tokens: int, num_own: int) -> None:
        """Counts prefix cache hits, once a request: a sample's share of the first one's prompt is
        none, nor is what a sequence finds of its own after a preemption. The client sees only
        `num_own`, those of its own tenant's text: others would tell what other tenants ask."""
        sequence.num_computed_tokens = num_cached_tokens
        if sequence.parent is not None:
            sequence.num_cached_tokens = sequence.parent.num_cached_tokens
            sequence.num_own_cached_tokens = sequence.parent.num_own_cached_tokens
        elif not sequence.is_prefix_counted:
            sequence.is_prefix_counted = True
            sequence.num_cached_tokens = num_cached_tokens
            sequence.num_own_cached_tokens = num_own
            self._counters.num_prefix_cache_queries += sequence.num_prompt_tokens
            self._counters.num_prefix_cache_hits += num_cached_tokens
