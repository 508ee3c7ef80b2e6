from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fastovms.prefix_cache.block_file import (
    HEAD_SIZE,
    DamagedBlock,
    read_block,
    write_block,
)

KEY = bytes(range(32))
CONTENT = np.arange(300, dtype=np.uint8)


def rows() -> list[np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    return [np.zeros(100, np.uint8), np.zeros(200, np.uint8)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    assert write_block(tmp_path / "b", KEY, CONTENT) == HEAD_SIZE + 300
    return tmp_path / "b"


def test_what_is_written_is_read_into_rows(path: Path) -> None:
    read = rows()
    assert read_block(path, KEY, read) == path.stat().st_size
    assert np.concatenate(read).tolist() == CONTENT.tolist()
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == ["b"]


def test_more_rows_than_one_call_reads(tmp_path: Path) -> None:
    content = np.arange(3000, dtype=np.uint16).view(np.uint8)
    write_block(tmp_path / "b", KEY, content)
    read = [np.zeros(2, np.uint8) for _ in range(3000)]
    read_block(tmp_path / "b", KEY, read)
    assert np.concatenate(read).tolist() == content.tolist()


def test_a_file_cut_at_any_length_is_damaged(path: Path) -> None:
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedBlock):
            read_block(path, KEY, rows())


def test_any_flipped_bit_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(DamagedBlock):
            read_block(path, KEY, rows())


def test_another_blocks_file_is_noticed(path: Path) -> None:
    with pytest.raises(DamagedBlock, match="not the file of this block"):
        read_block(path, KEY[::-1], rows())


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()  # cannot be replaced
    (tmp_path / "b" / "x").touch()
    with pytest.raises(IsADirectoryError):
        write_block(tmp_path / "b", KEY, CONTENT)
    assert os.listdir(tmp_path) == ["b"]
