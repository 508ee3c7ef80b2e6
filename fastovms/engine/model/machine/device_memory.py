"""Says how many KV blocks the machine has room for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastovms.system.cgroup import memory_left

GIB = 1024**3
MIB = 1024**2

FREE_MEMORY_SHARE = 0.5
"""The share of the memory free at start that the KV cache may take. The rest is for activations,
prompts and other programs."""


def available_memory(root: Path = Path("/")) -> int:
    """Returns the bytes that this process can still take: what the kernel can free, within the
    limit of the container if there is one."""
    meminfo = (root / "proc/meminfo").read_text()
    fields = dict(line.split(":", 1) for line in meminfo.splitlines())
    return int(min(int(fields["MemAvailable"].split()[0]) * 1024, memory_left(root)))


def num_cache_blocks(
    cache_size: float,
    *,
    bytes_per_block: int,
    extra_bytes: int = 0,
    max_useful_blocks: int,
    available: int,
) -> int:
    """Returns how many blocks to reserve for `cache_size` GB, or for a share of `available` bytes
    when it is 0, less `extra_bytes`, which the cache takes however many blocks it has. A
    reservation costs nothing until it is used, but more than `max_useful_blocks` never is."""
    size = cache_size * GIB if cache_size else available * FREE_MEMORY_SHARE
    return int(max(0, min((size - extra_bytes) / bytes_per_block, max_useful_blocks)))


def share_memory(cache_sizes: Sequence[float], available: int) -> int:
    """Returns how many bytes of the free memory each cache of automatic size may count as its own,
    once the caches of a fixed size have theirs.

    Args:
        cache_sizes: the size of every cache, in GB; 0 = automatic.
    """
    given = sum(size * GIB for size in cache_sizes)
    num_automatic = max(1, sum(not size for size in cache_sizes))
    return int(max(0.0, available - given) / num_automatic)
