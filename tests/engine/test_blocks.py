from __future__ import annotations

from array import array

import pytest

from fastovms.engine.blocks import ROOT, BlockManager, OutOfBlocks


def ids(*token_ids: int) -> array[int]:
    return array("q", token_ids)


def take(blocks: BlockManager, count: int) -> array[int]:
    return array("i", (blocks.allocate() for _ in range(count)))


def register_all(blocks: BlockManager, table: array[int], token_ids: array[int]) -> int:
    node = ROOT
    for i, block_id in enumerate(table):
        size = blocks.block_size
        node = blocks.register(block_id, node, token_ids[i * size : (i + 1) * size])
    return node


def test_allocates_every_block_once_then_raises() -> None:
    blocks = BlockManager(3, 2)
    table = take(blocks, 3)
    assert sorted(table) == [0, 1, 2]
    with pytest.raises(OutOfBlocks):
        blocks.allocate()
    blocks.check([table])
    blocks.free(table)
    assert not table
    assert blocks.num_free_blocks == 3
    blocks.check([])


def test_untouched_blocks_are_used_before_the_cache_is_evicted() -> None:
    blocks = BlockManager(2, 2)
    table = take(blocks, 1)
    register_all(blocks, table, ids(1, 2))
    blocks.free(table)
    assert blocks.allocate() == 1
    assert blocks.match_prefix(ids(1, 2, 3)).block_ids == [0]
    assert blocks.allocate() == 0
    assert blocks.match_prefix(ids(1, 2, 3)).block_ids == []


@pytest.mark.parametrize(
    ("prompt", "num_matched"),
    [
        (ids(1, 2, 3, 4, 5), 2),
        (ids(1, 2, 3, 4), 1),  # one token must remain to be computed
        (ids(1, 2, 3, 9, 5), 1),
        (ids(9, 2, 3, 4, 5), 0),
        (ids(3, 4, 5), 0),  # the same block after another prefix
        (ids(1), 0),
        (ids(), 0),
    ],
)
def test_match_prefix_finds_full_blocks_of_the_same_prefix(
    prompt: array[int], num_matched: int
) -> None:
    blocks = BlockManager(4, 2)
    table = take(blocks, 2)
    register_all(blocks, table, ids(1, 2, 3, 4))
    assert blocks.match_prefix(prompt).block_ids == list(table[:num_matched])


def test_disabled_prefix_caching_matches_no_block() -> None:
    blocks = BlockManager(4, 2, enable_prefix_caching=False)
    table = take(blocks, 1)
    register_all(blocks, table, ids(1, 2))
    assert blocks.match_prefix(ids(1, 2, 3)).block_ids == []
    blocks.free(table)
    blocks.check([])


def test_equal_blocks_share_one_node() -> None:
    blocks = BlockManager(4, 2)
    first, second = take(blocks, 1), take(blocks, 1)
    assert register_all(blocks, first, ids(1, 2)) == register_all(blocks, second, ids(1, 2))
    assert blocks.match_prefix(ids(1, 2, 3)).block_ids == list(first)
    blocks.check([first, second])


def test_least_recently_used_prefix_goes_first_and_its_end_before_its_beginning() -> None:
    blocks = BlockManager(4, 1)
    old, new = take(blocks, 2), take(blocks, 2)
    register_all(blocks, old, ids(1, 2))
    register_all(blocks, new, ids(3, 4))
    blocks.free(old)
    blocks.free(new)
    blocks.allocate()
    assert len(blocks.match_prefix(ids(1, 2, 9)).block_ids) == 1
    blocks.allocate()
    assert len(blocks.match_prefix(ids(1, 2, 9)).block_ids) == 0
    assert len(blocks.match_prefix(ids(3, 4, 9)).block_ids) == 2


def test_shared_blocks_are_freed_with_their_last_user() -> None:
    blocks = BlockManager(2, 1)
    table = take(blocks, 1)
    other = array("i", table)
    blocks.share(other)
    assert blocks.is_shared(table[0])
    blocks.free(table)
    assert blocks.num_free_blocks == 1
    blocks.check([other])
    blocks.free(other)
    assert blocks.num_free_blocks == 2


def test_a_cached_block_comes_back_into_use() -> None:
    blocks = BlockManager(1, 1)
    table = take(blocks, 1)
    register_all(blocks, table, ids(1))
    blocks.free(table)
    match = blocks.match_prefix(ids(1, 2))
    blocks.share(match.block_ids)
    with pytest.raises(OutOfBlocks):
        blocks.allocate()
    blocks.check([array("i", match.block_ids)])


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (32, 1), (33, 2), (64, 2)])
def test_num_blocks_rounds_up_to_whole_blocks(num_tokens: int, num_blocks: int) -> None:
    assert BlockManager(1, 32).num_blocks_for(num_tokens) == num_blocks


def test_equal_prefixes_with_different_salts_do_not_match() -> None:
    blocks = BlockManager(4, 2)
    table = take(blocks, 2)
    node = blocks.register(table[0], ROOT, ids(1, 2), b"mine")
    blocks.register(table[1], node, ids(3, 4), b"mine")
    prompt = ids(1, 2, 3, 4, 5)
    assert blocks.match_prefix(prompt, b"mine").block_ids == list(table)
    assert blocks.match_prefix(prompt, b"yours").block_ids == []
    assert blocks.match_prefix(prompt).block_ids == []


def test_block_whose_predecessor_was_evicted_is_registered_again() -> None:
    """Two sequences computed the same first block; the registered one has been evicted."""
    blocks = BlockManager(3, 1)
    first, second = take(blocks, 1), take(blocks, 2)
    register_all(blocks, first, ids(1))
    register_all(blocks, second, ids(1, 2))
    blocks.free(first)
    blocks.allocate()
    assert blocks.match_prefix(ids(1, 2, 3)).block_ids == []
    register_all(blocks, second, ids(1, 2))
    assert blocks.match_prefix(ids(1, 2, 3)).block_ids == list(second)
    blocks.check([second, array("i", [0])])
