from __future__ import annotations

import os

import pytest

from fastovms.system.file_lock import lock_file


def test_one_at_a_time(tmp_path) -> None:
    path = tmp_path / "lock"
    held = lock_file(path)
    with pytest.raises(BlockingIOError, match="another process uses it"):
        lock_file(path)
    os.close(held)
    os.close(lock_file(path))
    with pytest.raises(FileNotFoundError):
        lock_file(tmp_path / "none" / "lock")
