"""Chooses the directory of the prefix cache, and opens it where the operator lets it and the disk
has room."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from fastovms.config.engine_config import PrefixCacheConfig
from fastovms.prefix_cache.block_directory import BlockDirectory, DirectoryInUse
from fastovms.system.user_dirs import private_directory

logger = logging.getLogger(__name__)

FOLDER: Final = "prefix-cache"
"""The directory's name below that of the state."""

_DEFAULT_BYTES: Final = 2 * 1024**3
_ENOUGH_FREE: Final = 20 * 1024**3


def open_block_directory(
    config: PrefixCacheConfig, state_dir: Path | None
) -> BlockDirectory | None:
    """Opens the directory; None = nothing is kept, which has been logged unless the operator wants
    it so.

    Args:
        state_dir: that of the state; None = there is none.
    """
    directory = config.directory or (None if state_dir is None else state_dir / FOLDER)
    if directory is None or config.max_bytes == 0:
        return None
    try:
        private_directory(directory)
        max_bytes = config.max_bytes or _default_bytes(directory)
        if max_bytes == 0:
            return None
        opened = BlockDirectory(
            directory,
            max_bytes,
            bytes_per_second=config.bytes_per_second,
            bytes_per_day=config.bytes_per_day,
        )
    except (DirectoryInUse, OSError) as error:
        logger.warning("prompts are kept in memory only: %s: %s", directory, error)
        return None
    logger.info(
        "prefix cache: %d blocks, %.3g of %.3g GB, in %s",
        opened.num_blocks,
        opened.num_bytes / 1024**3,
        max_bytes / 1024**3,
        directory,
    )
    return opened


def _default_bytes(directory: Path) -> int:
    disk = os.statvfs(directory)
    if disk.f_bavail * disk.f_frsize >= _ENOUGH_FREE:
        return _DEFAULT_BYTES
    logger.info(
        "prefix cache: nothing is kept in %s, whose disk has less than 20 GB free; "
        "--prefix-cache-disk-size says otherwise",
        directory,
    )
    return 0
