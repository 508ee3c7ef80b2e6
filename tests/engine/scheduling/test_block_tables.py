"""The blocks that sequences get: shared ones, new ones, and none where there are too few."""

from __future__ import annotations

import pytest

from fastovms.backend_stats import EngineCounters
from fastovms.engine.model.kv_cache import BlockCopy
from fastovms.engine.scheduling.block_tables import BlockTables
from fastovms.engine.scheduling.blocks import LONG_ROOT, ROOT, BlockManager
from fastovms.engine.scheduling.plan import Plan
from fastovms.engine.scheduling.sequence import Sequence, SequenceStatus
from fastovms.params import GenerationRequest, SamplingParams

BLOCK_SIZE = 4


def sequence(num_tokens: int, *, parent: Sequence | None = None, **params: int) -> Sequence:
    request = GenerationRequest("r", list(range(num_tokens)), SamplingParams(**params))
    return Sequence(0, request, 0, token_limit=99, parent=parent)


def tables(
    num_blocks: int = 8, rope_switch_len: int | None = None, *, has_states: bool = False
) -> tuple[BlockTables, BlockManager, EngineCounters]:
    blocks, counters = BlockManager(num_blocks, BLOCK_SIZE), EngineCounters()
    made = BlockTables(blocks, counters, rope_switch_len, has_states=has_states)
    return made, blocks, counters


def computed(made: BlockTables, num_tokens: int) -> Sequence:
    """A sequence all of whose tokens are computed but the last."""
    first = sequence(num_tokens)
    assert made.give_blocks(first, Plan())
    first.status = SequenceStatus.RUNNING
    first.num_computed_tokens = num_tokens - 1
    made.register_full_blocks(first)
    return first


def test_full_blocks_are_shared_and_the_rest_is_new() -> None:
    made, blocks, counters = tables()
    first, second = computed(made, 10), sequence(10)
    assert made.give_blocks(second, Plan())
    assert second.block_table[:2] == first.block_table[:2]
    assert second.block_table[2] != first.block_table[2]
    assert (second.num_computed_tokens, second.num_registered_blocks) == (8, 2)
    assert (counters.num_prefix_cache_queries, counters.num_prefix_cache_hits) == (20, 8)
    blocks.check([first.block_table, second.block_table])


@pytest.mark.parametrize("num_blocks", [2, 3])
def test_nothing_is_held_where_there_are_too_few(num_blocks: int) -> None:
    made, blocks, _ = tables(num_blocks)
    wanted = sequence(4 * BLOCK_SIZE)
    assert not made.give_blocks(wanted, Plan())
    assert (len(wanted.block_table), blocks.num_free_blocks) == (0, num_blocks)


def test_a_prompt_that_is_scored_is_computed_anew() -> None:
    made, _, counters = tables()
    computed(made, 10)
    second = sequence(10, prompt_logprobs=1)
    assert made.give_blocks(second, Plan())
    assert (second.num_computed_tokens, counters.num_prefix_cache_hits) == (0, 0)


def test_a_sample_waits_for_its_requests_first_and_shares_its_prompt() -> None:
    made, blocks, counters = tables()
    first = sequence(6)
    assert made.give_blocks(first, Plan())
    first.status = SequenceStatus.RUNNING
    sample, plan = sequence(6, parent=first), Plan()
    assert not made.give_blocks(sample, plan), "the prompt is not computed yet"
    first.num_computed_tokens = 6
    assert made.give_blocks(sample, plan)
    assert sample.block_table[0] == first.block_table[0]
    assert plan.block_copies == [BlockCopy(first.block_table[1], sample.block_table[1])]
    assert (sample.num_computed_tokens, counters.num_prefix_cache_queries) == (5, 6)
    blocks.check([first.block_table, sample.block_table])


@pytest.mark.parametrize(("num_tokens", "root"), [(8, ROOT), (9, LONG_ROOT)])
def test_long_texts_have_a_root_of_their_own(num_tokens: int, root: int) -> None:
    made, *_ = tables(rope_switch_len=8)
    assert made.prefix_root(sequence(num_tokens)) == root


@pytest.mark.parametrize(
    ("has_states", "num_tokens", "num_computed", "num_shared"),
    [(False, 10, 9, 2), (False, 9, 8, 2), (True, 10, 8, 2), (True, 9, 8, 2), (True, 8, 4, 1)],
)
def test_a_sample_goes_on_from_its_prompt_or_from_where_there_is_a_state(
    has_states: bool, num_tokens: int, num_computed: int, num_shared: int
) -> None:
    made, blocks, _ = tables(has_states=has_states)
    parent = computed(made, num_tokens + 1)
    parent.num_prompt_tokens = num_tokens
    sample = sequence(num_tokens, parent=parent)
    plan = Plan()
    assert made.give_blocks(sample, plan)
    assert sample.num_computed_tokens == num_computed
    assert sample.block_table[:num_shared] == parent.block_table[:num_shared]
    assert bool(plan.block_copies) is (num_computed % BLOCK_SIZE > 0)
    blocks.check([parent.block_table, sample.block_table])
