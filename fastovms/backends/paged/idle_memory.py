"""Does with a model's memory what has time until its engine is idle."""

from __future__ import annotations

from typing import Protocol

from fastovms.engine.sampling.row_functions import forget_compiler


class IdleModel(Protocol):
    """What there is to do with a model; see `Model`."""

    def commit_ahead(self, num_used_blocks: int) -> bool: ...

    def forget_files(self) -> None: ...


class IdleMemory:
    """Commits memory of the cache ahead. Then it gives back what was read of files: OpenVINO lays
    weights out anew for steps of other sizes, which come with the first requests, so that is looked
    at again when twice as much of the cache has come into use."""

    def __init__(self, model: IdleModel) -> None:
        self._model = model
        self._next_look = 0

    def tidy(self, num_used_blocks: int) -> bool:
        """Does a piece, which takes some milliseconds, and returns whether there was anything to
        do.

        Args:
            num_used_blocks: how many blocks of the cache have been written to.
        """
        if self._model.commit_ahead(num_used_blocks):
            return True
        if num_used_blocks < self._next_look:
            return False
        self._next_look = max(1, 2 * num_used_blocks)
        self._model.forget_files()
        forget_compiler()
        return True
