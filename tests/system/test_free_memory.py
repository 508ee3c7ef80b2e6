"""Memory that was freed, or holds what was read of files, goes back to the system."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from fastovms.system.free_memory import find_trim, forget_mapped


def resident() -> int:
    """Returns this process's resident memory in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_what_lies_free_between_blocks_in_use_is_given_back() -> None:
    """malloc by itself returns only what is free at the end of a heap."""
    blocks = [bytes(60_000) for _ in range(2000)]  # too large for Python's own pools
    kept = blocks[::16]
    del blocks
    before = resident()
    find_trim()()
    assert before - resident() > 60_000_000
    assert len(kept) == 125


@pytest.mark.parametrize("access", [mmap.ACCESS_READ, mmap.ACCESS_COPY])
def test_what_was_read_of_a_mapped_file_is_given_back_unless_it_was_written(
    tmp_path: Path, access: int
) -> None:
    size = 64 * 2**20
    path = tmp_path / "the weights"
    path.write_bytes(b"\1" * size)
    link = tmp_path / "link"
    link.symlink_to(path)
    is_read_only = access == mmap.ACCESS_READ
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=access) as mapped:
        if not is_read_only:
            mapped[5] = 2
        assert mapped[::4096].count(1) == size // 4096
        before = resident()
        assert forget_mapped(link) == (size if is_read_only else 0)
        assert (before - resident() > size * 0.9) is is_read_only
        assert mapped[::4096].count(1) == size // 4096, "it is read anew"
        assert mapped[5] == (1 if is_read_only else 2)
    assert forget_mapped(link) == 0


@pytest.mark.parametrize("is_code", [False, True])
def test_of_a_library_only_the_code_is_given_back(tmp_path: Path, is_code: bool) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(bytes(2**20))
    protection = mmap.PROT_READ | (mmap.PROT_EXEC if is_code else 0)
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 2**20, mmap.MAP_PRIVATE, protection),
    ):
        assert forget_mapped(path, only_code=True) == (2**20 if is_code else 0)
