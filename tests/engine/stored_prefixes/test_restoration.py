from __future__ import annotations

from array import array

import pytest

from fastovms.engine.scheduling.blocks import ROOT, BlockManager
from fastovms.engine.stored_prefixes.restoration import Restoration

TOKENS = array("q", range(12))


@pytest.fixture
def blocks() -> BlockManager:
    return BlockManager(8, 4)


@pytest.fixture
def restoration(blocks: BlockManager) -> Restoration:
    """One that reads two blocks behind one that memory has."""
    table = array("i", [blocks.allocate() for _ in range(3)])
    node = blocks.register(table[0], ROOT, TOKENS[:4])
    return Restoration([b"1", b"2"], token_ids=TOKENS, salt=b"", block_table=table, node=node)


@pytest.mark.parametrize("num_filled", range(3))
@pytest.mark.parametrize("keep", [False, True])
def test_what_has_been_filled_is_kept_and_nothing_is_held(
    blocks: BlockManager, restoration: Restoration, num_filled: int, keep: bool
) -> None:
    filled: list[int] = []
    assert restoration.num_matched == 1
    for _ in range(num_filled):
        assert restoration.fill_next(filled.append)
    assert filled == [1, 2][:num_filled]
    assert not restoration.has_ended
    assert restoration.end(blocks, keep=keep) == num_filled * keep
    blocks.check([])
    assert len(blocks.match_prefix(array("q", range(13))).block_ids) == 1 + num_filled * keep
    assert restoration.has_ended
    assert not restoration.fill_next(filled.append), "the blocks are another's"
    assert len(filled) == num_filled
    assert restoration.end(blocks, keep=False) == 0
    blocks.check([])
