from __future__ import annotations

from array import array
from pathlib import Path

from fastovms.engine.scheduling.blocks import LONG_ROOT, ROOT
from fastovms.engine.stored_prefixes.model_blocks import ModelBlocks, PrefixFiles
from fastovms.prefix_cache.block_directory import BlockDirectory
from fastovms.prefix_cache.prefix_keys import PrefixNamespace
from tests.engine.fake_model import FakeModel


def test_a_block_moves_to_disk_and_back(tmp_path: Path) -> None:
    model = FakeModel(4, rope_switch_len=10)
    model.allocate_cache(3)
    directory = BlockDirectory(tmp_path, 10_000)
    stored = ModelBlocks(model, PrefixFiles(directory, "0-m", b"f"))
    [key] = stored.keys(array("q", range(7)), PrefixNamespace("", b"", stored.root(7)))
    model.block_rows(1)[0][:] = range(32)
    assert stored.write(key, stored.copy(1), 0) > 0
    assert stored.read(key, 0) > 0
    assert stored.copy(2).tolist() != list(range(32))
    stored.put_read(2)
    assert stored.copy(2).tolist() == list(range(32))
    assert [stored.root(length) for length in (10, 11)] == [ROOT, LONG_ROOT]
    assert stored.is_kept(b"")
    assert not stored.is_kept(b"salt")
    directory.close()
