from __future__ import annotations

from pathlib import Path

import numpy as np

from fastovms.prefix_cache.block_directory import BlockDirectory
from fastovms.prefix_cache.contents import erase, read_contents_by_model


def test_it_is_listed_and_erased_by_model_while_a_server_uses_it(tmp_path: Path) -> None:
    directory = BlockDirectory(tmp_path, 10_000)
    for number, folder in enumerate(("0a-one", "0a-one", "0b-org_two")):
        directory.write(folder, bytes([number]) * 32, np.zeros(100, np.uint8), 0)
    (tmp_path / "0a-one" / "notes.txt").touch()
    found = {one.model: one for one in read_contents_by_model(tmp_path)}
    assert {model: one.num_blocks for model, one in found.items()} == {"one": 2, "org_two": 1}
    assert sum(one.num_bytes for one in found.values()) == directory.num_bytes
    assert erase(tmp_path, "one") == 2
    assert erase(tmp_path, None) == 1
    assert (tmp_path / "0a-one" / "notes.txt").exists()
    directory.close()
