"""Tests of `fastovms/parts/prefix_cache/directory.py`."""

from __future__ import annotations

import logging
import os
from array import array
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fastovms.parts.prefix_cache import directory as prefix_cache
from fastovms.parts.prefix_cache.directory import (
    HEAD_SIZE,
    UNFINISHED,
    BlockDirectory,
    CorruptBlock,
    DailyWrites,
    NoRoom,
    PrefixNamespace,
    WriteBudget,
    delete_blocks,
    open_block_directory,
    prefix_keys,
    read_block,
    read_contents_by_model,
    write_block,
)
from fastovms.server_config import PrefixCacheConfig


def test_directory_in_use_is_listed_and_erased_by_model(tmp_path: Path) -> None:
    directory = BlockDirectory(tmp_path, 10_000)
    for number, folder in enumerate(("0a-one", "0a-one", "0b-org_two")):
        directory.write(folder, bytes([number]) * 32, np.zeros(100, np.uint8), 0)
    (tmp_path / "0a-one" / "notes.txt").touch()
    found = {one.model: one for one in read_contents_by_model(tmp_path)}
    assert {model: one.num_blocks for model, one in found.items()} == {"one": 2, "org_two": 1}
    assert sum(one.num_bytes for one in found.values()) == directory.num_bytes
    assert delete_blocks(tmp_path, "one") == 2
    assert delete_blocks(tmp_path, None) == 1
    assert (tmp_path / "0a-one" / "notes.txt").exists()
    directory.close()


TOKENS = array("q", range(10))
SPACE = PrefixNamespace("t", b"s", 0)


def keys(
    fingerprint: bytes = b"f", space: PrefixNamespace = SPACE, tokens: array[int] = TOKENS
) -> list[bytes]:
    return list(prefix_keys(fingerprint, space, tokens, 4))


def test_key_of_a_block_covers_all_blocks_before_it() -> None:
    assert len(keys()) == 2
    other_end = keys(tokens=array("q", [*range(7), 99]))
    assert other_end[0] == keys()[0]
    assert other_end[1] != keys()[1]
    assert not set(keys(tokens=array("q", [9, *range(1, 10)]))) & set(keys())


@pytest.mark.parametrize(
    ("fingerprint", "space"),
    [
        (b"g", SPACE),
        (b"f", PrefixNamespace("u", b"s", 0)),
        (b"f", PrefixNamespace("t", b"", 0)),
        (b"f", PrefixNamespace("", b"ts", 0)),
        (b"f", PrefixNamespace("ts", b"", 0)),
        (b"f", PrefixNamespace("t", b"s", -1)),
    ],
)
def test_whatever_decides_the_content_changes_the_keys(
    fingerprint: bytes, space: PrefixNamespace
) -> None:
    assert not set(keys(fingerprint, space)) & set(keys())


KEY = bytes(range(32))
CONTENT = np.arange(300, dtype=np.uint8)


def rows() -> list[np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    return [np.zeros(100, np.uint8), np.zeros(200, np.uint8)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    assert write_block(tmp_path / "b", KEY, CONTENT) == HEAD_SIZE + 300
    return tmp_path / "b"


def test_written_block_is_read_into_rows(path: Path) -> None:
    read = rows()
    assert read_block(path, KEY, read) == path.stat().st_size
    assert np.concatenate(read).tolist() == CONTENT.tolist()
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == ["b"]


def test_block_of_more_rows_than_one_call_takes_is_read(tmp_path: Path) -> None:
    content = np.arange(3000, dtype=np.uint16).view(np.uint8)
    write_block(tmp_path / "b", KEY, content)
    read = [np.zeros(2, np.uint8) for _ in range(3000)]
    read_block(tmp_path / "b", KEY, read)
    assert np.concatenate(read).tolist() == content.tolist()


def test_a_file_cut_at_any_length_is_damaged(path: Path) -> None:
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptBlock):
            read_block(path, KEY, rows())


def test_block_with_a_flipped_bit_is_damaged(path: Path) -> None:
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(CorruptBlock):
            read_block(path, KEY, rows())


def test_file_of_another_block_is_damaged(path: Path) -> None:
    with pytest.raises(CorruptBlock, match="header of another block"):
        read_block(path, KEY[::-1], rows())


def test_failed_write_of_a_block_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()  # cannot be replaced
    (tmp_path / "b" / "x").touch()
    with pytest.raises(IsADirectoryError):
        write_block(tmp_path / "b", KEY, CONTENT)
    assert os.listdir(tmp_path) == ["b"]


DAY = 24 * 3600


def test_the_rate_holds_over_any_time() -> None:
    now = 100.0
    budget = WriteBudget(10, 1000, clock=lambda: now, unix_time=lambda: 0)
    assert budget.spend(20) == 2
    assert budget.spend(20) == 4
    now += 5
    assert budget.spend(20) == 2  # nothing is saved up
    assert budget.spend(10, share=0.5) == 4


def test_a_day_has_its_budget_whoever_has_written() -> None:
    time = 3.5 * DAY
    budget = WriteBudget(1e9, 100, DailyWrites(3, 80), unix_time=lambda: time)
    assert budget.has_room(20)
    assert not budget.has_room(21)
    budget.spend(20)
    assert budget.written == DailyWrites(3, 100)
    time += DAY
    assert budget.has_room(100)
    budget.spend(1)
    assert budget.written == DailyWrites(4, 1)


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


def test_least_recently_used_blocks_are_evicted_from_the_end(tmp_path: Path) -> None:
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


def test_held_blocks_are_counted_by_folder(tmp_path: Path) -> None:
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
    with pytest.raises(BlockingIOError, match="another process uses it"):
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
    assert "is corrupt" in caplog.text
    assert "no longer exists" in caplog.text
    assert directory.num_bytes == 0
    assert not file.exists()
    directory.close()


def test_missing_block_rescans_its_folder(tmp_path: Path) -> None:
    directory = BlockDirectory(tmp_path, 1000)
    for number in (1, 2, 3):
        write(directory, number)
    for number in (1, 2):
        (tmp_path / "m" / key(number).hex()).unlink()
    assert read(directory, 1) == -1
    assert held(directory) == [3]
    assert directory.num_bytes == SIZE
    directory.close()


def test_entries_that_are_no_files_are_ignored(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    (folder / key(1).hex()).mkdir(parents=True)
    os.mkfifo(folder / key(2).hex())
    (folder / key(3).hex()).symlink_to("/dev/zero")
    directory = BlockDirectory(tmp_path, 1000)
    assert held(directory) == []
    write(directory, 2)
    assert read(directory, 2) == 2
    directory.close()


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe"])
def test_writing_follows_no_links(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target"
    target.write_text("of somebody else")
    for name in ("cache/written.json", f"cache/m/{UNFINISHED}{key(1).hex()}"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        else:
            (path.symlink_to if kind == "link" else path.hardlink_to)(target)
    directory = BlockDirectory(tmp_path / "cache", 1000)
    write(directory, 1)
    directory.close()
    assert target.read_text() == "of somebody else"
    again = BlockDirectory(tmp_path / "cache", 1000)
    assert read(again, 1) == 1
    again.close()
    assert (tmp_path / "cache/written.json").read_bytes().startswith(b'{"day"')
    assert not (tmp_path / "cache/written.json").is_symlink()


def test_a_folder_that_is_a_link_takes_no_blocks(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/m").symlink_to("../elsewhere")
    directory = BlockDirectory(tmp_path / "cache", 1000)
    with pytest.raises(OSError, match="symbolic link"):
        write(directory, 1)
    directory.close()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_write_to_a_nearly_full_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = BlockDirectory(tmp_path, 1000)
    monkeypatch.setattr(prefix_cache, "MIN_FREE_SHARE", 1.0)
    with pytest.raises(NoRoom, match="nearly full"):
        write(directory, 1)
    directory.close()


def test_disk_filled_by_others_evicts_a_few_blocks_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = BlockDirectory(tmp_path, 1 << 40)
    for number in range(40):
        write(directory, number)
    full = SimpleNamespace(f_bavail=0, f_frsize=1, f_blocks=0)
    monkeypatch.setattr(prefix_cache.os, "statvfs", lambda _: full)
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


def test_directory_is_below_the_state_unless_named(tmp_path: Path) -> None:
    config = PrefixCacheConfig(max_bytes=1000)
    opened = open_block_directory(config, tmp_path)
    assert opened is not None
    assert opened.directory == tmp_path / "prefix-cache"
    opened.close()
    assert open_block_directory(config, None) is None
    assert open_block_directory(PrefixCacheConfig(max_bytes=0), tmp_path) is None


@pytest.mark.parametrize(("gigabytes", "is_kept"), [(21, True), (19, False)])
def test_default_directory_is_used_only_on_a_disk_with_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gigabytes: int, is_kept: bool
) -> None:
    disk = SimpleNamespace(f_bavail=gigabytes, f_frsize=1024**3)
    monkeypatch.setattr(prefix_cache.os, "statvfs", lambda _: disk)
    opened = open_block_directory(PrefixCacheConfig(directory=tmp_path), None)
    assert (opened is not None) == is_kept
    if opened is not None:
        opened.close()


def test_locked_or_invalid_directory_disables_the_cache_on_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = PrefixCacheConfig(directory=tmp_path / "c", max_bytes=1000)
    first = open_block_directory(config, None)
    assert first is not None
    with caplog.at_level(logging.WARNING):
        assert open_block_directory(config, None) is None
        (tmp_path / "file").touch()
        wrong = PrefixCacheConfig(directory=tmp_path / "file", max_bytes=1000)
        assert open_block_directory(wrong, None) is None
    prefix = "prefix cache: prompts are kept in memory only"
    assert caplog.messages == [
        f"{prefix}: {tmp_path / 'c'}: another process uses it",
        f"{prefix}: {tmp_path / 'file'}: File exists",
    ]
    first.close()
