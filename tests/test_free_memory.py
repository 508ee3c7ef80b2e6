"""Memory that was freed goes back to the system."""

from __future__ import annotations

from fastovms.free_memory import find_trim


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
