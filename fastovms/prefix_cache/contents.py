"""Says what a directory of blocks holds, and erases it; a server may use it meanwhile."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fastovms.prefix_cache.block_directory import block_files


@dataclass(slots=True)
class ModelContents:
    """The blocks of one model.

    Attributes:
        folder: where they are, below the directory.
        used_at: when one of them was used last, in seconds since 1970.
    """

    folder: str
    num_blocks: int = 0
    num_bytes: int = 0
    used_at: float = 0.0

    @property
    def model(self) -> str:
        """The model's name, as far as files may have it."""
        return self.folder.partition("-")[2]


def read_contents_by_model(directory: Path) -> list[ModelContents]:
    """Returns what there is of each model, the last used first.

    Raises:
        OSError: the directory cannot be read.
    """
    found: dict[str, ModelContents] = {}
    for entry in block_files(directory):
        folder = os.path.basename(os.path.dirname(entry.path))
        with suppress(FileNotFoundError):  # a server has evicted it
            status = entry.stat(follow_symlinks=False)
            contents = found.setdefault(folder, ModelContents(folder))
            contents.num_blocks += 1
            contents.num_bytes += status.st_size
            contents.used_at = max(contents.used_at, status.st_mtime)
    return sorted(found.values(), key=lambda contents: -contents.used_at)


def erase(directory: Path, model: str | None) -> int:
    """Removes the blocks of a model, or all of them, and returns how many these were. A server that
    uses them computes their tokens again.

    Raises:
        OSError: they cannot be removed.
    """
    num_erased = 0
    for entry in list(block_files(directory)):
        folder = os.path.basename(os.path.dirname(entry.path))
        if model is None or ModelContents(folder).model == model:
            with suppress(FileNotFoundError):
                os.unlink(entry.path)
                num_erased += 1
    return num_erased
