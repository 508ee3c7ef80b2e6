from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fastovms.prefix_cache import block_directory
from fastovms.prefix_cache.block_directory import BlockDirectory, DirectoryInUse, NoRoom
from fastovms.prefix_cache.block_file import HEAD_SIZE

SIZE = HEAD_SIZE + 100


def key(number: int) -> bytes:
    return bytes([number]) * 32


def write(directory: BlockDirectory, number: int, position: int = 0) -> None:
    directory.write("m", key(number), np.full(100, number, np.uint8), position)


def read(directory: BlockDirectory, number: int) -> int:
    """Returns the first byte of a block, or -1."""
    row = np.zeros(100, np.uint8)
    return int(row[0]) if directory.read(key(number), [row], 0) else -1


def held(directory: BlockDirectory) -> list[int]:
    return [number for number in range(256) if key(number) in directory]


def test_blocks_outlive_the_process(tmp_path: Path) -> None:
    first = BlockDirectory(tmp_path / "c", 10 * SIZE)
    write(first, 1)
    write(first, 2)
    (tmp_path / "c" / "m" / f".unfinished-{key(3).hex()}").touch()
    (tmp_path / "c" / "m" / "notes.txt").touch()
    first.close()
    second = BlockDirectory(tmp_path / "c", 10 * SIZE)
    assert (read(second, 1), read(second, 2), read(second, 3)) == (1, 2, -1)
    assert (second.num_blocks, second.num_bytes) == (2, 2 * SIZE)
    assert second.budget.written.num_bytes == 0  # whoever writes spends
    assert len(os.listdir(tmp_path / "c" / "m")) == 3
    second.close()


def test_what_was_not_used_for_longest_goes_and_of_a_text_its_end(tmp_path: Path) -> None:
    time = 1e9
    directory = BlockDirectory(tmp_path, 3 * SIZE, unix_time=lambda: time)
    write(directory, 1)
    time += 1
    write(directory, 2, position=0)
    write(directory, 3, position=1)
    time += 4000
    assert read(directory, 1) == 1
    write(directory, 4)
    assert held(directory) == [1, 2, 4]
    directory.close()
    again = BlockDirectory(tmp_path, 3 * SIZE)
    write(again, 5)
    assert held(again) == [1, 4, 5]
    again.close()


def test_what_it_holds_is_told_by_folder(tmp_path: Path) -> None:
    directory = BlockDirectory(tmp_path, 10 * SIZE)
    write(directory, 1)
    write(directory, 1)
    write(directory, 2)
    directory.write("other", key(3), np.zeros(100, np.uint8), 0)
    found = [directory.held(folder) for folder in ("m", "other", "none")]
    assert found == [(2, 2 * SIZE), (1, SIZE), (0, 0)]
    assert directory.num_bytes == 3 * SIZE
    directory.close()
    (tmp_path / "m" / key(1).hex()).unlink()
    (tmp_path / "other" / key(3).hex()).write_bytes(b"")
    directory = BlockDirectory(tmp_path, 10 * SIZE)
    assert read(directory, 3) == -1
    assert [directory.held(folder)[0] for folder in ("m", "other")] == [1, 0]
    directory.close()


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    owner = BlockDirectory(tmp_path, 1000)
    with pytest.raises(DirectoryInUse):
        BlockDirectory(tmp_path, 1000)
    owner.close()
    BlockDirectory(tmp_path, 1000).close()


def test_a_damaged_file_goes_with_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = BlockDirectory(tmp_path, 1000)
    write(directory, 1)
    write(directory, 2)
    file = tmp_path / "m" / key(1).hex()
    file.write_bytes(file.read_bytes()[:-1])
    (tmp_path / "m" / key(2).hex()).unlink()
    with caplog.at_level(logging.INFO):
        assert (read(directory, 1), read(directory, 2)) == (-1, -1)
    assert "is damaged" in caplog.text
    assert "is gone" in caplog.text
    assert directory.num_bytes == 0
    assert not file.exists()
    directory.close()


def test_what_was_erased_meanwhile_is_forgotten_when_one_block_is_missed(tmp_path: Path) -> None:
    directory = BlockDirectory(tmp_path, 1000)
    for number in (1, 2, 3):
        write(directory, number)
    for number in (1, 2):
        (tmp_path / "m" / key(number).hex()).unlink()
    assert read(directory, 1) == -1
    assert held(directory) == [3]
    assert directory.num_bytes == SIZE
    directory.close()


def test_what_is_no_file_is_no_block(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    (folder / key(1).hex()).mkdir(parents=True)
    os.mkfifo(folder / key(2).hex())
    (folder / key(3).hex()).symlink_to("/dev/zero")
    directory = BlockDirectory(tmp_path, 1000)
    assert held(directory) == []
    write(directory, 2)
    assert read(directory, 2) == 2
    directory.close()


def test_a_disk_keeps_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = BlockDirectory(tmp_path, 1000)
    monkeypatch.setattr(block_directory, "MIN_FREE_SHARE", 1.0)
    with pytest.raises(NoRoom, match="nearly full"):
        write(directory, 1)
    directory.close()


def test_where_others_fill_the_disk_only_a_little_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = BlockDirectory(tmp_path, 1 << 40)
    for number in range(40):
        write(directory, number)
    full = SimpleNamespace(f_bavail=0, f_frsize=1, f_blocks=0)
    monkeypatch.setattr(block_directory.os, "statvfs", lambda _: full)
    write(directory, 40)
    assert directory.num_blocks == 39
    directory.close()


def test_the_budget_of_the_day_outlives_the_process(tmp_path: Path) -> None:
    for number in (1, 2):
        directory = BlockDirectory(tmp_path, 10 * SIZE, bytes_per_day=2 * SIZE)
        write(directory, number)
        directory.budget.spend(SIZE)
        directory.close()
    directory = BlockDirectory(tmp_path, 10 * SIZE, bytes_per_day=2 * SIZE)
    with pytest.raises(NoRoom, match="today"):
        write(directory, 3)
    directory.close()


@pytest.mark.parametrize(
    "content",
    ["[", "[]", '{"day": Infinity, "num_bytes": 1}', '{"day": 1, "num_bytes": NaN}', "[" * 100_000],
)
def test_a_budget_that_is_damaged_is_a_new_one(tmp_path: Path, content: str) -> None:
    (tmp_path / "written.json").write_text(content)
    directory = BlockDirectory(tmp_path, 10 * SIZE, bytes_per_day=2 * SIZE)
    write(directory, 3)
    directory.close()
