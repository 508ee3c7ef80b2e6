from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fastovms.cli.main import main
from fastovms.prefix_cache.block_directory import BlockDirectory


def test_ls_and_clear(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = BlockDirectory(tmp_path, 10_000)
    directory.write("0a-one", bytes(32), np.zeros(100, np.uint8), 0)
    directory.close()
    where = ["--prefix-cache-dir", str(tmp_path)]
    assert main(["cache", "ls", *where]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-1] == "one"
    assert main(["cache", "clear", "nosuch", *where]) == 2
    assert "has no prompts of a model nosuch" in capsys.readouterr().err
    assert main(["cache", "clear", *where]) == 0
    assert capsys.readouterr().out.split() == ["1", "blocks", "erased"]


def test_a_directory_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "ls", "--prefix-cache-dir", "/nonexistent"]) == 2
    assert "there is no directory /nonexistent" in capsys.readouterr().err
